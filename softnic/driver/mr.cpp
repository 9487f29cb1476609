// Memory regions, of the program's memory and of dma-bufs.

#include <fmt/format.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <sys/mman.h>

#include <cerrno>
#include <string_view>

#include "softnic/driver/context.hpp"
#include "softnic/driver/refusal.hpp"
#include "softnic/driver/system.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint64_t kInPage = system::kPageSize - 1;
constexpr std::uint32_t kNeedsLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr std::uint32_t kFlushAccess = 3U << 8;  // IB_ACCESS_FLUSH_GLOBAL and _PERSISTENT of newer kernels
constexpr std::uint32_t kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                       IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |
                                       IBV_ACCESS_HUGETLB | IB_UVERBS_ACCESS_OPTIONAL_RANGE;

// ib_check_mr_access() in the kernel's include/rdma/ib_verbs.h.
int check_access(std::uint32_t access) {
  if ((access & kFlushAccess) != 0) return -EOPNOTSUPP;
  if ((access & ~kKnownAccess) != 0) return -EINVAL;
  if ((access & kNeedsLocalWrite) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return refuse(EINVAL, fmt::format("ibv_reg_mr: access {:#x} lets peers write or do atomics, which needs "
                                      "IBV_ACCESS_LOCAL_WRITE too.",
                                      access));
  }
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return unsupported("On-demand paging (IBV_ACCESS_ON_DEMAND)");
  return 0;
}

int check_memory(const MrRequest& request) {
  // ib_umem_get() finds no pages to pin
  if (request.length == 0) return refuse(EINVAL, "ibv_reg_mr: a memory region of 0 bytes.");
  if (request.iova + request.length < request.iova) return -EINVAL;
  const Use use = (request.access & IBV_ACCESS_LOCAL_WRITE) != 0 ? Use::Write : Use::Read;
  const int failure = check_range(request.start, request.length, use);
  if (failure == -EFAULT) {
    return refuse(EFAULT, fmt::format("ibv_reg_mr: not all of [{:#x}, +{}) is mapped{}.", request.start,
                                      request.length, use == Use::Write ? " and writable" : ""));
  }
  return failure;
}

nic::MrParameters parameters_of(const MrRequest& request) {
  return {.pd = request.pd->pdn,
          .address = request.start,
          .length = request.length,
          .iova = request.iova,
          .access = static_cast<int>(request.access)};
}

Outcome<MrCreated> insert(Context& context, PdObject& pd, std::unique_ptr<MrObject> mr) {
  const auto key = context.nic->create_mr(mr->parameters);
  if (!key) return tl::unexpected(-key.error().value);
  mr->key = *key;
  mr->pd = &pd;
  const std::int64_t handle = context.handles.insert(std::move(mr));
  if (handle < 0) {
    context.nic->destroy_mr(*key);
    return tl::unexpected(static_cast<int>(handle));
  }
  ++pd.users;
  return MrCreated{.handle = static_cast<std::uint32_t>(handle), .key = static_cast<std::uint32_t>(*key)};
}

bool is_dmabuf(int fd) {
  char name[64];
  const std::size_t length = system::descriptor_name(fd, name, sizeof name);
  return std::string_view(name, length).starts_with("/dmabuf:");
}

}  // namespace

MrObject::~MrObject() {
  if (mapping != nullptr) system::unmap(mapping, mapping_size);
}

// ib_uverbs_reg_mr() in the kernel's drivers/infiniband/core/uverbs_cmd.c.
Outcome<MrCreated> create_mr(Context& context, const MrRequest& request) {
  if ((request.start & kInPage) != (request.iova & kInPage)) return tl::unexpected(-EINVAL);
  if (const int bad = check_access(request.access); bad != 0) return tl::unexpected(bad);
  if (const int bad = check_memory(request); bad != 0) return tl::unexpected(bad);
  auto mr = std::make_unique<MrObject>();
  mr->parameters = parameters_of(request);
  return insert(context, *request.pd, std::move(mr));
}

// UVERBS_METHOD_REG_DMABUF_MR in the kernel's drivers/infiniband/core/uverbs_std_types_mr.c. The device
// reaches the bytes through a mapping of its own, as the exporter gives it to anybody.
Outcome<MrCreated> create_dmabuf_mr(Context& context, const MrRequest& request, int fd) {
  if ((request.start & kInPage) != (request.iova & kInPage)) return tl::unexpected(-EINVAL);
  if (const int bad = check_access(request.access); bad != 0) return tl::unexpected(bad);
  if (request.length == 0 || request.start + request.length < request.start) return tl::unexpected(-EINVAL);
  if (!is_dmabuf(fd)) {
    char name[1];
    return tl::unexpected(system::descriptor_name(fd, name, sizeof name) == 0 ? -EBADF : -EINVAL);
  }
  const std::uint64_t first = request.start & ~kInPage;
  const auto size = static_cast<std::size_t>(request.start - first + request.length);
  const bool writable = (request.access & IBV_ACCESS_LOCAL_WRITE) != 0;
  const long mapped = system::map(size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
                                  static_cast<off_t>(first));
  if (mapped < 0) {
    return tl::unexpected(
        refuse(EINVAL, fmt::format("ibv_reg_dmabuf_mr: the dma-buf does not let itself be mapped "
                                   "(errno {}) at offset {} for {} bytes.",
                                   -mapped, first, size)));
  }
  auto mr = std::make_unique<MrObject>();
  mr->mapping = reinterpret_cast<void*>(mapped);
  mr->mapping_size = size;
  mr->parameters = parameters_of(request);
  mr->parameters.address = static_cast<std::uint64_t>(mapped) + (request.start - first);
  return insert(context, *request.pd, std::move(mr));
}

// ib_uverbs_rereg_mr() in the kernel's drivers/infiniband/core/uverbs_cmd.c. The keys stay.
int change_mr(Context& context, MrObject& mr, std::uint32_t flags, const MrRequest& request) {
  constexpr std::uint32_t kKnownFlags =
      IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
  if (flags == 0) return -EINVAL;
  if ((flags & ~kKnownFlags) != 0) return -EOPNOTSUPP;
  if (mr.mapping != nullptr) return -EOPNOTSUPP;  // umem->is_dmabuf
  const bool other_memory = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  if (other_memory && (request.start & kInPage) != (request.iova & kInPage)) return -EINVAL;
  const bool other_access = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0;
  if (other_access) {
    if (const int bad = check_access(request.access); bad != 0) return bad;
  }
  PdObject* const pd = (flags & IBV_REREG_MR_CHANGE_PD) != 0 ? request.pd : mr.pd;
  if (pd == nullptr) return -EINVAL;

  nic::MrParameters changed = mr.parameters;
  changed.pd = pd->pdn;
  if (other_access) changed.access = static_cast<int>(request.access);
  if (other_memory) {
    changed.address = request.start;
    changed.length = request.length;
    changed.iova = request.iova;
  }
  const MrRequest whole{.pd = pd,
                        .start = changed.address,
                        .length = changed.length,
                        .iova = changed.iova,
                        .access = static_cast<std::uint32_t>(changed.access)};
  if (const int bad = check_memory(whole); bad != 0) return bad;
  if (const int error = context.nic->change_mr(mr.key, changed, static_cast<int>(flags)).value; error != 0) {
    return -error;
  }
  mr.parameters = changed;
  --mr.pd->users;
  mr.pd = pd;
  ++mr.pd->users;
  return 0;
}

}  // namespace qpair::softnic::driver
