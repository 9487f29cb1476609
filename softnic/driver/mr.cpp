// Memory regions, of the program's memory and of dma-bufs.

#include <fmt/format.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <sys/mman.h>

#include <cerrno>
#include <string_view>

#include "softnic/driver/context.hpp"
#include "softnic/driver/refusal.hpp"
#include "softnic/driver/system.hpp"
#include "softnic/explain/caller.hpp"

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
  if ((access & kFlushAccess) != 0)
    return unsupported("Remote flush (IBV_ACCESS_FLUSH_GLOBAL and _PERSISTENT)");
  if ((access & ~kKnownAccess) != 0) {
    return refuse(EINVAL, fmt::format("ibv_reg_mr: access flags {:#x} are not known to the device.",
                                      access & ~kKnownAccess));
  }
  if ((access & kNeedsLocalWrite) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return refuse(EINVAL, fmt::format("ibv_reg_mr: access {:#x} lets peers write or do atomics, which needs "
                                      "IBV_ACCESS_LOCAL_WRITE too.",
                                      access));
  }
  return 0;
}

// All of the program's memory (implicit on-demand paging): mlx5_ib_reg_user_mr().
bool is_implicit(const MrRequest& request) {
  return (request.access & IBV_ACCESS_ON_DEMAND) != 0 && request.start == 0 &&
         request.length == ~std::uint64_t{0};
}

// On-demand paging pins nothing: pages may come and go, and an access to one that is not there fails then.
// mlx5_ib_reg_user_mr() and ib_umem_odp_get().
int check_on_demand(const MrRequest& request) {
  if (request.length == 0 || request.start + request.length < request.start ||
      request.iova + request.length < request.iova) {
    return refuse(EINVAL, fmt::format("ibv_reg_mr: {} bytes at {:#x} cannot be registered on demand.",
                                      request.length, request.start));
  }
  return 0;
}

int check_place_in_page(const MrRequest& request) {
  if ((request.start & kInPage) == (request.iova & kInPage)) return 0;
  return refuse(
      EINVAL, fmt::format("ibv_reg_mr: address {:#x} and iova {:#x} lie at different places of their pages.",
                          request.start, request.iova));
}

// Pinning refuses what is mapped from a device (VM_PFNMAP): check_vma_flags() in the kernel's mm/gup.c.
int check_no_doorbells(const Context& context, const MrRequest& request) {
  if (!context.nic->has_doorbells_in(request.start, request.length)) return 0;
  return refuse(EFAULT,
                fmt::format("ibv_reg_mr: one of the device's doorbell pages lies in [{:#x}, +{}); only "
                            "memory can be registered.",
                            request.start, request.length));
}

int check_memory(const Context& context, const MrRequest& request) {
  if (is_implicit(request)) return request.iova == 0 ? 0 : -EINVAL;
  if (const int bad = check_no_doorbells(context, request); bad != 0) return bad;
  if ((request.access & IBV_ACCESS_ON_DEMAND) != 0) return check_on_demand(request);
  // ib_umem_get() finds no pages to pin
  if (request.length == 0) return refuse(EINVAL, "ibv_reg_mr: a memory region of 0 bytes.");
  if (request.iova + request.length < request.iova) {
    return refuse(EINVAL, fmt::format("ibv_reg_mr: {} bytes from iova {:#x} on pass the end of 64 bits.",
                                      request.length, request.iova));
  }
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
          .access = static_cast<int>(request.access),
          .registered_by = explain::caller()};
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

Outcome<MrCreated> insert_mr(Context& context, PdObject& pd, std::unique_ptr<MrObject> mr) {
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

// ib_uverbs_reg_mr() in the kernel's drivers/infiniband/core/uverbs_cmd.c.
Outcome<MrCreated> create_mr(Context& context, const MrRequest& request) {
  if (const int bad = check_place_in_page(request); bad != 0) return tl::unexpected(bad);
  if (const int bad = check_access(request.access); bad != 0) return tl::unexpected(bad);
  if (const int bad = check_memory(context, request); bad != 0) return tl::unexpected(bad);
  auto mr = std::make_unique<MrObject>();
  mr->parameters = parameters_of(request);
  return insert_mr(context, *request.pd, std::move(mr));
}

// UVERBS_METHOD_REG_DMABUF_MR in the kernel's drivers/infiniband/core/uverbs_std_types_mr.c. The device
// reaches the bytes through a mapping of its own, as the exporter gives it to anybody.
Outcome<MrCreated> create_dmabuf_mr(Context& context, const MrRequest& request, int fd) {
  if (const int bad = check_place_in_page(request); bad != 0) return tl::unexpected(bad);
  if (const int bad = check_access(request.access); bad != 0) return tl::unexpected(bad);
  if (request.length == 0 || request.start + request.length < request.start) {
    return tl::unexpected(refuse(EINVAL, fmt::format("ibv_reg_dmabuf_mr: {} bytes at offset {} of a dma-buf.",
                                                     request.length, request.start)));
  }
  if (!is_dmabuf(fd)) {
    char name[1];
    const int error = system::descriptor_name(fd, name, sizeof name) == 0 ? EBADF : EINVAL;
    return tl::unexpected(
        refuse(error, fmt::format("ibv_reg_dmabuf_mr: descriptor {} is not a dma-buf.", fd)));
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
  return insert_mr(context, *request.pd, std::move(mr));
}

// ib_uverbs_rereg_mr() in the kernel's drivers/infiniband/core/uverbs_cmd.c. The keys stay.
int change_mr(Context& context, MrObject& mr, std::uint32_t flags, const MrRequest& request) {
  constexpr std::uint32_t kKnownFlags =
      IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
  if (flags == 0) return -EINVAL;
  if ((flags & ~kKnownFlags) != 0) return -EOPNOTSUPP;
  if (mr.mapping != nullptr) return unsupported("ibv_rereg_mr of a dma-buf");  // umem->is_dmabuf
  const bool other_memory = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  if (other_memory && mr.dm != nullptr) return unsupported("ibv_rereg_mr of device memory elsewhere");
  if (other_memory) {
    if (const int bad = check_place_in_page(request); bad != 0) return bad;
  }
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
    changed.registered_by = explain::caller();
  }
  const MrRequest whole{.pd = pd,
                        .start = changed.address,
                        .length = changed.length,
                        .iova = changed.iova,
                        .access = static_cast<std::uint32_t>(changed.access)};
  if (mr.dm == nullptr) {
    if (const int bad = check_memory(context, whole); bad != 0) return bad;
  }
  if (const int error = context.nic->change_mr(mr.key, changed, static_cast<int>(flags)).value; error != 0) {
    return -error;
  }
  mr.parameters = changed;
  --mr.pd->users;
  mr.pd = pd;
  ++mr.pd->users;
  return 0;
}

namespace {

// get_prefetchable_mr() and pagefault_mr() in the kernel's hw/mlx5/odp.c.
int check_advice(Context& context, const AdviseRequest& request, const ib_uverbs_sge& piece,
                 nic::MrParameters& mr) {
  const auto found = context.nic->query_mr(nic::Mkey{piece.lkey});
  if (!found || (found->access & IBV_ACCESS_ON_DEMAND) == 0) {
    return refuse(ENOENT, fmt::format("ibv_advise_mr: {:#x} is not the lkey of a region with "
                                      "IBV_ACCESS_ON_DEMAND.",
                                      piece.lkey));
  }
  mr = *found;
  if (mr.pd != request.pd->pdn) {
    return refuse(EPERM,
                  fmt::format("ibv_advise_mr: region {:#x} is of another protection domain.", piece.lkey));
  }
  if (request.advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE &&
      (mr.access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return refuse(EPERM, fmt::format("ibv_advise_mr: region {:#x} has no local write, and the advice is to "
                                     "prefetch for writing.",
                                     piece.lkey));
  }
  return 0;
}

int prefetch(const AdviseRequest& request, const ib_uverbs_sge& piece, const nic::MrParameters& mr) {
  if (piece.addr < mr.iova || piece.length > mr.length || piece.addr - mr.iova > mr.length - piece.length) {
    return refuse(EFAULT, fmt::format("ibv_advise_mr: [{:#x}, +{}) is not within region {:#x}, [{:#x}, +{}).",
                                      piece.addr, piece.length, piece.lkey, mr.iova, mr.length));
  }
  if (request.advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) return 0;  // what is there is there
  const Use use = request.advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE ? Use::Write : Use::Read;
  const std::uint64_t address = mr.address + (piece.addr - mr.iova);
  if (check_range(address, piece.length, use) == 0) return 0;
  return refuse(EFAULT, fmt::format("ibv_advise_mr: not all of [{:#x}, +{}) is mapped{}.", address,
                                    piece.length, use == Use::Write ? " and writable" : ""));
}

}  // namespace

// mlx5_ib_advise_mr_prefetch() in the kernel's hw/mlx5/odp.c. The processor finds its pages by itself when an
// access comes, so what is left of the advice is its checks. Without the flush flag the pages come later, and
// nobody hears of those that do not.
int advise_mr(Context& context, const AdviseRequest& request) {
  if (request.advice > IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) {
    return unsupported("ibv_advise_mr with other advice than to prefetch");
  }
  for (const ib_uverbs_sge& piece : request.pieces) {
    nic::MrParameters mr{};
    if (const int bad = check_advice(context, request, piece, mr); bad != 0) return bad;
    if (!request.flush) continue;
    if (const int bad = prefetch(request, piece, mr); bad != 0) return bad;
  }
  return 0;
}

}  // namespace qpair::softnic::driver
