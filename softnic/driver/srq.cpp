// Shared receive queues. As mlx5_ib_create_srq(), create_srq_user() and mlx5_ib_modify_srq() in the kernel's
// drivers/infiniband/hw/mlx5/srq.c.

#include <fmt/format.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>

#include "softnic/driver/context.hpp"
#include "softnic/driver/refusal.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint32_t kSegment = 16;      // the link that a WQE begins with, and a data segment
constexpr std::uint32_t kSmallestWqe = 32;  // bytes
constexpr std::size_t kSmallestRequest = offsetof(mlx5_ib_create_srq, uidx);

int read_driver_request(const UserBuffer& in, mlx5_ib_create_srq& request) {
  if (in.size < kSmallestRequest) return -EINVAL;
  if (const int bad = copy_in(&request, sizeof request, in); bad != 0)
    return bad == -EOPNOTSUPP ? -EINVAL : bad;
  if (request.reserved0 != 0 || request.reserved1 != 0) return -EINVAL;
  return 0;
}

int check(const Context& context, const SrqRequest& request) {
  switch (request.type) {
    case IB_UVERBS_SRQT_BASIC:
      break;
    case IB_UVERBS_SRQT_XRC:
      if (request.xrcd == nullptr || request.cq == nullptr) return -EINVAL;
      break;
    case IB_UVERBS_SRQT_TM:
      return unsupported("Shared receive queues with tag matching");
    default:
      return -EINVAL;
  }
  if (request.pd == nullptr) return -EINVAL;
  const ibv_device_attr& limits = context.nic->limits().attributes;
  if (request.max_wr > static_cast<std::uint32_t>(limits.max_srq_wr) ||
      request.max_sge > static_cast<std::uint32_t>(limits.max_srq_sge)) {
    return refuse(EINVAL,
                  fmt::format("ibv_create_srq: max_wr {} and max_sge {}; the device's limits are {} "
                              "and {}.",
                              request.max_wr, request.max_sge, limits.max_srq_wr, limits.max_srq_sge));
  }
  return 0;
}

// The ring that libmlx5 has made for what it asks, worked out as it does (mlx5_alloc_srq_buf()).
nic::SrqParameters parameters_of(const Context& context, const SrqRequest& request,
                                 const mlx5_ib_create_srq& mlx5) {
  nic::SrqParameters parameters{};
  parameters.pd = request.pd->pdn;
  parameters.buffer = mlx5.buf_addr;
  parameters.doorbell_record = mlx5.db_addr;
  parameters.wqe_count = std::bit_ceil(request.max_wr + 1);
  const std::uint32_t wqe = std::max(kSmallestWqe, std::bit_ceil((request.max_sge + 1) * kSegment));
  parameters.wqe_shift = static_cast<std::uint32_t>(std::countr_zero(wqe));
  if (request.type == IB_UVERBS_SRQT_XRC) {
    parameters.xrc = {.domain = request.xrcd->xrcdn, .cq = request.cq->cqn, .user_index = std::nullopt};
    if (context.cqe_version != 0) parameters.xrc->user_index = mlx5.uidx;
  }
  return parameters;
}

// get_srq_user_index() in the kernel's hw/mlx5/srq.h
int check_user_index(const Context& context, const SrqRequest& request, const DriverData& driver,
                     const mlx5_ib_create_srq& mlx5) {
  if (request.type == IB_UVERBS_SRQT_BASIC || context.cqe_version == 0) return 0;
  const bool has_index = driver.in.size >= offsetof(mlx5_ib_create_srq, uidx) + sizeof mlx5.uidx;
  return has_index && mlx5.uidx < kDefaultUserIndex ? 0 : -EINVAL;
}

int check_buffers(const nic::SrqParameters& parameters) {
  const std::uint64_t ring = std::uint64_t{parameters.wqe_count} << parameters.wqe_shift;
  if (const int bad = check_range(parameters.buffer, ring, Use::Write); bad != 0) return bad;
  return check_range(parameters.doorbell_record, kDoorbellRecordSize, Use::Write);
}

}  // namespace

Outcome<SrqCreated> create_srq(Context& context, const SrqRequest& request, const DriverData& driver) {
  if (const int bad = check(context, request); bad != 0) return tl::unexpected(bad);
  mlx5_ib_create_srq mlx5{};
  if (const int bad = read_driver_request(driver.in, mlx5); bad != 0) return tl::unexpected(bad);
  if (const int bad = check_user_index(context, request, driver, mlx5); bad != 0) return tl::unexpected(bad);
  nic::SrqParameters parameters = parameters_of(context, request, mlx5);
  if (const int bad = check_buffers(parameters); bad != 0) return tl::unexpected(bad);
  parameters.sink = &context.router;
  const auto srqn = context.nic->create_srq(parameters);
  if (!srqn) return tl::unexpected(-srqn.error().value);
  context.router.add(*srqn, {.user_handle = request.user_handle,
                             .completions = nullptr,
                             .async = request.async ? request.async : context.default_async});
  auto srq = std::make_unique<SrqObject>();
  srq->srqn = *srqn;
  srq->pd = request.pd;
  if (request.type == IB_UVERBS_SRQT_XRC) {
    srq->xrcd = request.xrcd;
    srq->cq = request.cq;
  }
  srq->max_wr = parameters.wqe_count - 1;
  srq->max_sge = (1U << parameters.wqe_shift) / kSegment - 1;
  SrqCreated made{.handle = 0,
                  .srqn = static_cast<std::uint32_t>(*srqn),
                  .max_wr = srq->max_wr,
                  .max_sge = request.max_sge};
  const std::int64_t handle = context.handles.insert(std::move(srq));
  if (handle < 0) {
    context.nic->destroy_srq(*srqn);
    context.router.remove(*srqn);
    return tl::unexpected(static_cast<int>(handle));
  }
  ++request.pd->users;
  if (request.type == IB_UVERBS_SRQT_XRC) {
    ++request.xrcd->users;
    ++request.cq->users;
  }
  made.handle = static_cast<std::uint32_t>(handle);
  const mlx5_ib_create_srq_resp answer{.srqn = made.srqn, .reserved = 0};
  if (!copy_to_user(driver.out.address, &answer, std::min(driver.out.size, sizeof answer))) {
    return tl::unexpected(undo(context, ObjectType::Srq, made.handle, -EFAULT));
  }
  return made;
}

int modify_srq(Context& context, const SrqObject& srq, std::uint32_t mask, std::uint32_t limit) {
  if ((mask & IBV_SRQ_MAX_WR) != 0) {
    return refuse(EINVAL, "ibv_modify_srq: mlx5 devices do not resize shared receive queues.");
  }
  if ((mask & IBV_SRQ_LIMIT) == 0) return 0;
  if (limit > srq.max_wr) {
    return refuse(EINVAL, fmt::format("ibv_modify_srq: srq_limit is {}, the queue holds {} work requests.",
                                      limit, srq.max_wr));
  }
  return -context.nic->arm_srq(srq.srqn, limit).value;
}

}  // namespace qpair::softnic::driver
