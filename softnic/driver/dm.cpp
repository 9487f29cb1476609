// Device memory: a few pages of the device's own, which the program maps and queue pairs reach like any other
// memory. As dm.c in the kernel's drivers/infiniband/hw/mlx5 (MEMIC), a page at a time.

#include <fmt/format.h>
#include <rdma/mlx5-abi.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "softnic/driver/context.hpp"
#include "softnic/driver/refusal.hpp"
#include "softnic/driver/system.hpp"
#include "softnic/explain/caller.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint32_t kPageShift = 12;
constexpr std::uint32_t kMaxLogAlignment = kPageShift + 5;  // all of the device memory
constexpr std::uint32_t kAllowedAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                         IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                         IBV_ACCESS_ZERO_BASED;

MmapOffset offset_of(std::uint16_t page) {
  return {.command = MLX5_IB_MMAP_DEVICE_MEM, .index = page};
}

// Which pages are taken, a bit for each. It lies in the device's file behind the memory itself, so that
// processes that share an open device after fork() see the same.
class TakenPages {
 public:
  explicit TakenPages(const Context& context) : page_(context.pages->view(offset_of(kDevicePages), 1)) {}
  ~TakenPages() {
    if (page_ != nullptr) system::unmap(page_, system::kPageSize);
  }
  TakenPages(const TakenPages&) = delete;
  TakenPages& operator=(const TakenPages&) = delete;

  // The first of `count` pages, aligned to `step` of them; kDevicePages when no such are free together.
  std::size_t take(std::size_t count, std::size_t step) {
    if (page_ == nullptr) return kDevicePages;
    std::uint32_t taken = bits().load();
    for (std::size_t first = 0; first + count <= kDevicePages;) {
      const std::uint32_t wanted = mask(first, count);
      if ((taken & wanted) != 0) {
        first += step;
      } else if (bits().compare_exchange_weak(taken, taken | wanted)) {
        return first;
      }
    }
    return kDevicePages;
  }
  void give_back(std::size_t first, std::size_t count) {
    if (page_ != nullptr) bits().fetch_and(~mask(first, count));
  }

 private:
  static std::uint32_t mask(std::size_t first, std::size_t count) {
    return static_cast<std::uint32_t>(((std::uint64_t{1} << count) - 1) << first);
  }
  std::atomic_ref<std::uint32_t> bits() {
    return std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(page_));
  }

  std::byte* page_;
};
static_assert(kDevicePages == 32, "one bit for each");

}  // namespace

DmObject::~DmObject() {
  if (view != nullptr) system::unmap(view, pages * system::kPageSize);
}

// mlx5_ib_alloc_dm() and mlx5_cmd_alloc_memic().
Outcome<DmCreated> create_dm(Context& context, std::uint64_t length, std::uint32_t log_alignment) {
  if (length == 0 || length > kDeviceMemory || log_alignment > kMaxLogAlignment) {
    return tl::unexpected(refuse(
        EINVAL,
        fmt::format(
            "ibv_alloc_dm: {} bytes aligned to 2^{}; the device has {} bytes, aligned to at most 2^{}.",
            length, log_alignment, kDeviceMemory, kMaxLogAlignment)));
  }
  const std::size_t count = (length + system::kPageSize - 1) >> kPageShift;
  const std::size_t step = std::size_t{1} << (std::max(log_alignment, kPageShift) - kPageShift);
  TakenPages taken(context);
  const std::size_t first = taken.take(count, step);
  if (first == kDevicePages) {
    return tl::unexpected(
        refuse(ENOMEM,
               fmt::format("ibv_alloc_dm: no {} bytes of device memory are free together; the device has {}.",
                           count * system::kPageSize, kDeviceMemory)));
  }
  auto object = std::make_unique<DmObject>();
  object->length = length;
  object->first_page = static_cast<std::uint16_t>(first);
  object->pages = static_cast<std::uint16_t>(count);
  object->view = context.pages->view(offset_of(object->first_page), count);
  if (object->view == nullptr) {
    taken.give_back(first, count);
    return tl::unexpected(-ENOMEM);
  }
  std::memset(object->view, 0, count * system::kPageSize);  // an earlier owner's data
  DmObject* const dm = object.get();
  const std::int64_t handle = context.handles.insert(std::move(object));
  if (handle < 0) {
    taken.give_back(first, count);
    return tl::unexpected(static_cast<int>(handle));
  }
  std::fill_n(context.device_pages.begin() + static_cast<std::ptrdiff_t>(first), count, dm);
  return DmCreated{.handle = static_cast<std::uint32_t>(handle),
                   .page_index = static_cast<std::uint16_t>(first)};
}

void give_back_pages(Context& context, const DmObject& dm) {
  std::fill_n(context.device_pages.begin() + dm.first_page, dm.pages, nullptr);
  TakenPages(context).give_back(dm.first_page, dm.pages);
}

// mlx5_ib_mmap_offset(): all of one allocation, and nothing else.
int before_mmap_dm(const Context& context, MmapOffset where, std::size_t length, int flags) {
  if ((flags & MAP_TYPE) == MAP_PRIVATE || where.index >= kDevicePages) return -EINVAL;
  const DmObject* const dm = context.device_pages.at(where.index);
  if (dm == nullptr || dm->first_page != where.index) return -EINVAL;
  return (length + system::kPageSize - 1) >> kPageShift == dm->pages ? 0 : -EINVAL;
}

// UVERBS_METHOD_DM_MR_REG in uverbs_std_types_mr.c, mlx5_ib_reg_dm_mr() in hw/mlx5/mr.c.
Outcome<MrCreated> create_dm_mr(Context& context, const MrRequest& request, DmObject& dm) {
  if ((request.access & IBV_ACCESS_ZERO_BASED) == 0 || (request.access & ~kAllowedAccess) != 0) {
    return tl::unexpected(refuse(
        EINVAL, fmt::format("ibv_reg_dm_mr: access {:#x}; it needs IBV_ACCESS_ZERO_BASED, and local write, "
                            "remote write, remote read and remote atomic are allowed.",
                            request.access)));
  }
  if (request.start > dm.length || request.length > dm.length - request.start) {
    return tl::unexpected(
        refuse(EINVAL, fmt::format("ibv_reg_dm_mr: {} bytes from offset {} of a device memory of {} bytes.",
                                   request.length, request.start, dm.length)));
  }
  auto mr = std::make_unique<MrObject>();
  mr->parameters = {.pd = request.pd->pdn,
                    .address = reinterpret_cast<std::uint64_t>(dm.view) + request.start,
                    .length = request.length,
                    .iova = 0,
                    .access = static_cast<int>(request.access),
                    .registered_by = explain::caller()};
  mr->dm = &dm;
  auto made = insert_mr(context, *request.pd, std::move(mr));
  if (made) ++dm.users;
  return made;
}

}  // namespace qpair::softnic::driver
