// Completion queues. As mlx5_ib_create_cq(), create_cq_user() and mlx5_ib_resize_cq() in the kernel's
// drivers/infiniband/hw/mlx5/cq.c.

#include <fmt/format.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>

#include "softnic/driver/context.hpp"
#include "softnic/driver/refusal.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint16_t kKnownFlags = MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD |
                                      MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX |
                                      MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS;

bool is_cqe_size(std::uint32_t size) {
  return size == 64 || size == 128;
}

// The ring has room for one more than was asked for, rounded up to a power of two.
Outcome<std::uint32_t> ring_entries(const Context& context, std::uint32_t asked) {
  const auto limit = static_cast<std::uint32_t>(context.nic->limits().attributes.max_cqe);
  if (asked == 0 || asked > limit) {
    return tl::unexpected(
        refuse(EINVAL, fmt::format("ibv_create_cq: {} entries; the device allows 1 to {}.", asked, limit)));
  }
  return std::bit_ceil(asked + 1);
}

int read_driver_request(const UserBuffer& in, mlx5_ib_create_cq& request) {
  if (in.size < offsetof(mlx5_ib_create_cq, flags)) return -EINVAL;
  if (!copy_from_user(&request, in.address, std::min(in.size, sizeof request))) return -EFAULT;
  if ((request.flags & ~kKnownFlags) != 0) return -EINVAL;
  if (!is_cqe_size(request.cqe_size) || request.reserved0 != 0 || request.reserved1 != 0) return -EINVAL;
  if (request.cqe_comp_en != 0) return unsupported("CQE compression");
  if ((request.flags & MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD) != 0)
    return unsupported("CQEs padded to 128 bytes");
  if ((request.flags & MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS) != 0)
    return unsupported("CQE timestamps of real time");
  return 0;
}

std::shared_ptr<UarPage> page_for(Context& context, const mlx5_ib_create_cq& request) {
  if ((request.flags & MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX) != 0) {
    return context.page_by_id(request.uar_page_index);
  }
  return context.static_page(0);  // null where the library asks for its pages itself
}

}  // namespace

Outcome<CqCreated> create_cq(Context& context, const CqRequest& request, const DriverData& driver) {
  constexpr std::uint32_t kKnownCreateFlags =
      IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION | IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN;
  if ((request.flags & ~kKnownCreateFlags) != 0) {
    return tl::unexpected(
        refuse(EOPNOTSUPP, fmt::format("ibv_create_cq: flags {:#x} are not known to the device.",
                                       request.flags & ~kKnownCreateFlags)));
  }
  if (request.vector >= completion_vectors()) {
    return tl::unexpected(
        refuse(EINVAL, fmt::format("ibv_create_cq: completion vector {}; the device has 0 to {}.",
                                   request.vector, completion_vectors() - 1)));
  }
  const auto entries = ring_entries(context, request.entries);
  if (!entries) return tl::unexpected(entries.error());
  mlx5_ib_create_cq mlx5{};
  if (const int bad = read_driver_request(driver.in, mlx5); bad != 0) return tl::unexpected(bad);
  const std::uint64_t ring_size = std::uint64_t{*entries} * mlx5.cqe_size;
  if (const int bad = check_range(mlx5.buf_addr, ring_size, Use::Write); bad != 0) return tl::unexpected(bad);
  if (const int bad = check_range(mlx5.db_addr, kDoorbellRecordSize, Use::Write); bad != 0)
    return tl::unexpected(bad);

  auto cq = std::make_unique<CqObject>();
  cq->uar = page_for(context, mlx5);
  if (!cq->uar) return tl::unexpected(-EINVAL);
  const auto cqn =
      context.nic->create_cq({.buffer = mlx5.buf_addr,
                              .doorbell_record = mlx5.db_addr,
                              .entries = *entries,
                              .cqe_size = mlx5.cqe_size,
                              .uar = cq->uar->id(),
                              .sink = &context.router,
                              .ignore_overrun = (request.flags & IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN) != 0});
  if (!cqn) return tl::unexpected(-cqn.error().value);
  context.router.add(*cqn, {.user_handle = request.user_handle,
                            .completions = request.channel,
                            .async = request.async ? request.async : context.default_async});
  cq->cqn = *cqn;
  cq->entries = *entries;
  cq->cqe_size = mlx5.cqe_size;
  const std::int64_t handle = context.handles.insert(std::move(cq));
  if (handle < 0) {
    context.nic->destroy_cq(*cqn);
    context.router.remove(*cqn);
    return tl::unexpected(static_cast<int>(handle));
  }
  const auto number = static_cast<std::uint32_t>(handle);
  const mlx5_ib_create_cq_resp answer{.cqn = static_cast<std::uint32_t>(*cqn), .reserved = 0};
  if (!copy_to_user(driver.out.address, &answer, std::min(driver.out.size, sizeof answer))) {
    return tl::unexpected(undo(context, ObjectType::Cq, number, -EFAULT));
  }
  return CqCreated{.handle = number, .entries = *entries - 1};
}

Outcome<std::uint32_t> resize_cq(Context& context, CqObject& cq, std::uint32_t asked,
                                 const DriverData& driver) {
  const auto entries = ring_entries(context, asked);
  if (!entries) return tl::unexpected(entries.error());
  if (*entries == cq.entries) return *entries - 1;
  mlx5_ib_resize_cq mlx5{};
  if (driver.in.size < sizeof mlx5) return tl::unexpected(-EINVAL);
  if (!copy_from_user(&mlx5, driver.in.address, sizeof mlx5)) return tl::unexpected(-EFAULT);
  if (!is_cqe_size(mlx5.cqe_size) || mlx5.reserved0 != 0 || mlx5.reserved1 != 0)
    return tl::unexpected(-EINVAL);
  const std::uint64_t ring_size = std::uint64_t{*entries} * mlx5.cqe_size;
  if (const int bad = check_range(mlx5.buf_addr, ring_size, Use::Write); bad != 0) return tl::unexpected(bad);
  if (const int error = context.nic->resize_cq(cq.cqn, mlx5.buf_addr, *entries, mlx5.cqe_size).value;
      error != 0) {
    return tl::unexpected(-error);
  }
  cq.entries = *entries;
  cq.cqe_size = mlx5.cqe_size;
  return *entries - 1;
}

}  // namespace qpair::softnic::driver
