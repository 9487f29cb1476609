// Doorbell pages that the program asks for and maps.

#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

#include "softnic/driver/context.hpp"
#include "softnic/driver/system.hpp"

namespace qpair::softnic::driver {
namespace {

std::uint64_t nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

int map_clock_info(MmapOffset where, std::size_t length, int protection, int flags) {
  if (length != system::kPageSize || (flags & MAP_TYPE) == MAP_PRIVATE) return -EINVAL;
  if (where.index != MLX5_IB_CLOCK_INFO_V1) return -EOPNOTSUPP;
  return (protection & PROT_WRITE) != 0 ? -EPERM : 0;
}

}  // namespace

// Filled when the device is opened: a program's mmap() may not come by here. The device's clock counts
// nanoseconds of CLOCK_MONOTONIC, so one pair of readings holds for good: mlx5dv_ts_to_ns().
int fill_clock_info(const Context& context) {
  const MmapOffset offset{.command = MLX5_IB_MMAP_CLOCK_INFO, .index = MLX5_IB_CLOCK_INFO_V1};
  mlx5_ib_clock_info info{};
  info.cycles = nanoseconds(CLOCK_MONOTONIC);
  info.nsec = nanoseconds(CLOCK_REALTIME);
  info.mult = 1;
  info.shift = 0;
  info.mask = ~std::uint64_t{0} >> 1;
  info.overflow_period = ~std::uint64_t{0} >> 1;
  return context.pages->fill(offset, &info, sizeof info);
}

Outcome<UarCreated> create_uar(Context& context, std::uint64_t type) {
  if (type != MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF && type != MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC) {
    return tl::unexpected(-EOPNOTSUPP);
  }
  auto& table = context.uar_objects;
  const auto free = std::find(table.begin(), table.end(), nullptr);
  const auto index = static_cast<std::uint32_t>(free - table.begin());
  auto object = std::make_unique<UarObject>();
  object->offset = {.command = kFirstObjectCommand, .index = index};
  object->page = context.pages->add(context.nic, object->offset);
  if (!object->page) return tl::unexpected(-ENOMEM);
  UarObject* const uar = object.get();
  const std::int64_t handle = context.handles.insert(std::move(object));
  if (handle < 0) return tl::unexpected(static_cast<int>(handle));
  if (index == table.size()) table.push_back(nullptr);
  table[index] = uar;
  return UarCreated{.handle = static_cast<std::uint32_t>(handle),
                    .mmap_offset = static_cast<std::uint64_t>(uar->offset.bytes()),
                    .mmap_length = system::kPageSize,
                    .page_id = index + static_cast<std::uint32_t>(context.static_pages.size())};
}

// As mlx5_ib_mmap() in the kernel's drivers/infiniband/hw/mlx5/main.c.
int before_mmap(Context& context, std::size_t length, int protection, int flags, off_t offset) {
  if (!context.opened || offset < 0) return -EINVAL;
  const MmapOffset where = MmapOffset::from_bytes(offset);
  const bool one_shared_page = length > 0 && length <= system::kPageSize && (flags & MAP_TYPE) != MAP_PRIVATE;
  switch (where.command) {
    case MLX5_IB_MMAP_REGULAR_PAGE:
      if (!one_shared_page || where.index >= context.static_pages.size()) return -EINVAL;
      return context.static_page(where.index) ? 0 : -ENOMEM;
    case MLX5_IB_MMAP_ALLOC_WC:
      if (!one_shared_page || where.index >= context.dynamic_pages.size()) return -EINVAL;
      if (context.dynamic_pages[where.index]) return -EINVAL;  // each is handed out once
      return context.dynamic_page(where.index) ? 0 : -ENOMEM;
    case MLX5_IB_MMAP_CLOCK_INFO:
      return map_clock_info(where, length, protection, flags);
    case MLX5_IB_MMAP_DEVICE_MEM:
      return before_mmap_dm(context, where, length, flags);
    case MLX5_IB_MMAP_GET_CONTIGUOUS_PAGES:
      return -ENOSYS;
    case MLX5_IB_MMAP_WC_PAGE:  // other cachings of the regular page, which lies at another offset of the
                                // file;
    case MLX5_IB_MMAP_NC_PAGE:  // libmlx5 then takes the regular one (mlx5_mmap())
      return -EINVAL;
    case MLX5_IB_MMAP_CORE_CLOCK:  // a page of memory does not tick; GET_CONTEXT does not offer it either
      return -EOPNOTSUPP;
    default:
      return one_shared_page && context.page_at(offset) ? 0 : -EINVAL;
  }
}

}  // namespace qpair::softnic::driver
