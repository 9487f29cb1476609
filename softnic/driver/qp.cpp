// Queue pairs. As create_qp(), process_vendor_flags(), set_user_buf_size(), set_rq_size() and
// _create_user_qp() in the kernel's drivers/infiniband/hw/mlx5/qp.c.

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

constexpr std::uint32_t kKnownFlags = MLX5_QP_FLAG_SIGNATURE | MLX5_QP_FLAG_SCATTER_CQE |
                                      MLX5_QP_FLAG_ALLOW_SCATTER_CQE | MLX5_QP_FLAG_BFREG_INDEX |
                                      MLX5_QP_FLAG_UAR_PAGE_INDEX | MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE;
constexpr std::uint32_t kDefaultUserIndex = 0xffffff;  // "none": MLX5_IB_DEFAULT_UIDX
constexpr std::uint32_t kBasicBlockShift = 6;
constexpr std::uint32_t kSmallestReceiveShift = 4;  // one data segment
constexpr std::uint32_t kLargestReceiveShift = 9;   // max_rq_desc_sz, 512 bytes
constexpr std::uint64_t kDoorbellRecordSize = 8;

int read_driver_request(const Context& context, const UserBuffer& in, mlx5_ib_create_qp& request) {
  if (in.size < offsetof(mlx5_ib_create_qp, uidx)) return -EINVAL;
  if (const int bad = copy_in(&request, sizeof request, in); bad != 0)
    return bad == -EOPNOTSUPP ? -EINVAL : bad;
  if ((request.flags & ~kKnownFlags) != 0) {
    return refuse(EINVAL, fmt::format("ibv_create_qp: mlx5 creation flags {:#x} are not known to the device.",
                                      request.flags & ~kKnownFlags));
  }
  // get_qp_user_index(): a CQE of version 1 names the queue pair by the user index, so there must be one.
  const bool has_index = in.size >= offsetof(mlx5_ib_create_qp, bfreg_index);
  if (context.cqe_version == 0) {
    if (has_index && request.uidx != kDefaultUserIndex) return -EINVAL;
    request.uidx = kDefaultUserIndex;
    return 0;
  }
  return has_index && request.uidx < kDefaultUserIndex ? 0 : -EINVAL;
}

int check_capabilities(const Context& context, const ibv_qp_cap& asked) {
  const nic::DeviceLimits& limits = context.nic->limits();
  const auto max_wr = static_cast<std::uint32_t>(limits.attributes.max_qp_wr);
  const struct {
    const char* name;
    std::uint32_t value;
    std::uint32_t limit;
  } checks[] = {
      {"max_send_wr", asked.max_send_wr, max_wr},
      {"max_recv_wr", asked.max_recv_wr, max_wr},
  };
  for (const auto& check : checks) {
    if (check.value > check.limit) {
      return refuse(EINVAL, fmt::format("ibv_create_qp: {} is {}; the device's limit is {}.", check.name,
                                        check.value, check.limit));
    }
  }
  return 0;
}

int check_rings(const Context& context, const mlx5_ib_create_qp& mlx5, bool has_receive_queue) {
  const auto limit = static_cast<std::uint32_t>(context.nic->limits().attributes.max_qp_wr);
  if (mlx5.sq_wqe_count > limit || (mlx5.sq_wqe_count != 0 && !std::has_single_bit(mlx5.sq_wqe_count))) {
    return refuse(EINVAL,
                  fmt::format("ibv_create_qp: a send ring of {} blocks; a power of two up to {} is needed.",
                              mlx5.sq_wqe_count, limit));
  }
  if (!has_receive_queue) return 0;
  if (mlx5.rq_wqe_count > limit || !std::has_single_bit(mlx5.rq_wqe_count)) {
    return refuse(EINVAL,
                  fmt::format("ibv_create_qp: a receive ring of {} WQEs; a power of two up to {} is needed.",
                              mlx5.rq_wqe_count, limit));
  }
  if (mlx5.rq_wqe_shift < kSmallestReceiveShift || mlx5.rq_wqe_shift > kLargestReceiveShift) {
    return refuse(EINVAL, fmt::format("ibv_create_qp: receive WQEs of 2^{} bytes; 2^{} to 2^{} are allowed.",
                                      mlx5.rq_wqe_shift, kSmallestReceiveShift, kLargestReceiveShift));
  }
  return 0;
}

struct Doorbell {
  std::shared_ptr<UarPage> page;
  int taken_register = -1;
};

Doorbell doorbell_for(Context& context, const mlx5_ib_create_qp& mlx5) {
  if ((mlx5.flags & MLX5_QP_FLAG_UAR_PAGE_INDEX) != 0) return {.page = context.page_by_id(mlx5.bfreg_index)};
  if ((mlx5.flags & MLX5_QP_FLAG_BFREG_INDEX) != 0) {
    const std::uint32_t index = mlx5.bfreg_index / kRegistersPerPage;
    const bool handed_out = index < context.dynamic_pages.size() && context.dynamic_pages[index] != nullptr;
    return {.page = handed_out ? context.dynamic_pages[index] : nullptr};
  }
  const int taken = context.registers.take();
  if (taken < 0) return {};
  return {.page = context.static_page(static_cast<std::uint32_t>(taken) / kRegistersPerPage),
          .taken_register = taken};
}

int check_type(std::uint32_t type) {
  switch (type) {
    case IB_UVERBS_QPT_RC:
    case IB_UVERBS_QPT_UC:
    case IB_UVERBS_QPT_UD:
      return 0;  // which of these the silicon has, it says itself
    case IB_UVERBS_QPT_RAW_PACKET:
      return unsupported("Raw packet queue pairs");
    case IB_UVERBS_QPT_XRC_INI:
    case IB_UVERBS_QPT_XRC_TGT:
      return unsupported("XRC queue pairs");
    case IB_UVERBS_QPT_DRIVER:
      return unsupported("DCT and DCI queue pairs");
    default:
      return -EINVAL;
  }
}

// check_creation_flags() in the kernel's uverbs_std_types_qp.c
std::uint32_t known_create_flags(std::uint32_t type) {
  constexpr std::uint32_t kPadding = IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING;
  return type == IB_UVERBS_QPT_UD ? kPadding | IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK : kPadding;
}

nic::QpParameters parameters_of(const QpRequest& request, const mlx5_ib_create_qp& mlx5) {
  const bool scatter = (mlx5.flags & MLX5_QP_FLAG_SCATTER_CQE) != 0;
  const bool scatter_any = (mlx5.flags & MLX5_QP_FLAG_ALLOW_SCATTER_CQE) != 0;
  nic::QpParameters parameters{};
  parameters.type = static_cast<ibv_qp_type>(request.type);
  parameters.pd = request.pd->pdn;
  parameters.send_cq = request.send_cq->cqn;
  parameters.recv_cq = request.recv_cq->cqn;
  parameters.buffer = mlx5.buf_addr;
  parameters.doorbell_record = mlx5.db_addr;
  parameters.sq_basic_blocks = mlx5.sq_wqe_count;
  if (request.capabilities.max_recv_wr != 0) {
    parameters.rq_wqe_count = mlx5.rq_wqe_count;
    parameters.rq_wqe_shift = mlx5.rq_wqe_shift;
  }
  parameters.user_index = mlx5.uidx;
  parameters.signal_all = request.signal_all;
  parameters.scatter_to_cqe_recv = scatter && request.type == IB_UVERBS_QPT_RC;
  // The program must get a CQE for every read whose data lies in it (configure_requester_scat_cqe()).
  parameters.scatter_to_cqe_send =
      scatter && request.type == IB_UVERBS_QPT_RC && (request.signal_all || scatter_any);
  parameters.wq_signature = (mlx5.flags & MLX5_QP_FLAG_SIGNATURE) != 0;
  parameters.capabilities = request.capabilities;
  return parameters;
}

int check_buffers(const nic::QpParameters& parameters) {
  const std::uint64_t receive = std::uint64_t{parameters.rq_wqe_count} << parameters.rq_wqe_shift;
  const std::uint64_t send = std::uint64_t{parameters.sq_basic_blocks} << kBasicBlockShift;
  if (const int bad = check_range(parameters.buffer, receive + send, Use::Write); bad != 0) return bad;
  return check_range(parameters.doorbell_record, kDoorbellRecordSize, Use::Write);
}

}  // namespace

Outcome<QpCreated> create_qp(Context& context, const QpRequest& request, const DriverData& driver) {
  if (const int bad = check_type(request.type); bad != 0) return tl::unexpected(bad);
  if ((request.create_flags & ~known_create_flags(request.type)) != 0) return tl::unexpected(-EINVAL);
  if (request.pd == nullptr || request.send_cq == nullptr || request.recv_cq == nullptr) {
    return tl::unexpected(-EINVAL);
  }
  mlx5_ib_create_qp mlx5{};
  if (const int bad = read_driver_request(context, driver.in, mlx5); bad != 0) return tl::unexpected(bad);
  if (const int bad = check_capabilities(context, request.capabilities); bad != 0) return tl::unexpected(bad);
  const bool has_receive_queue = request.capabilities.max_recv_wr != 0;
  if (const int bad = check_rings(context, mlx5, has_receive_queue); bad != 0) return tl::unexpected(bad);
  nic::QpParameters parameters = parameters_of(request, mlx5);
  if (const int bad = check_buffers(parameters); bad != 0) return tl::unexpected(bad);

  const Doorbell doorbell = doorbell_for(context, mlx5);
  if (!doorbell.page) {
    context.registers.give_back(doorbell.taken_register);
    return tl::unexpected(-EINVAL);
  }
  parameters.uar = doorbell.page->id();
  parameters.sink = &context.router;
  const auto qpn = context.nic->create_qp(parameters);
  if (!qpn) {
    context.registers.give_back(doorbell.taken_register);
    return tl::unexpected(-qpn.error().value);
  }
  context.router.add(*qpn, {.user_handle = request.user_handle,
                            .completions = nullptr,
                            .async = request.async ? request.async : context.default_async});
  auto qp = std::make_unique<QpObject>();
  qp->qpn = *qpn;
  qp->pd = request.pd;
  qp->send_cq = request.send_cq;
  qp->recv_cq = request.recv_cq;
  qp->uar = doorbell.page;
  qp->doorbell_register = doorbell.taken_register;
  const std::int64_t handle = context.handles.insert(std::move(qp));
  if (handle < 0) {
    context.nic->destroy_qp(*qpn);
    context.router.remove(*qpn);
    context.registers.give_back(doorbell.taken_register);
    return tl::unexpected(static_cast<int>(handle));
  }
  ++request.pd->users;
  ++request.send_cq->users;
  ++request.recv_cq->users;
  const auto number = static_cast<std::uint32_t>(handle);
  mlx5_ib_create_qp_resp answer{};
  if (doorbell.taken_register >= 0)
    answer.bfreg_index = DoorbellRegisters::as_libmlx5(doorbell.taken_register);
  if (!copy_to_user(driver.out.address, &answer, std::min(driver.out.size, sizeof answer))) {
    return tl::unexpected(undo(context, ObjectType::Qp, number, -EFAULT));
  }
  return QpCreated{
      .handle = number, .qpn = static_cast<std::uint32_t>(*qpn), .capabilities = request.capabilities};
}

}  // namespace qpair::softnic::driver
