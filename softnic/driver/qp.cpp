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
                                      MLX5_QP_FLAG_UAR_PAGE_INDEX | MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE |
                                      MLX5_QP_FLAG_TYPE_DCT | MLX5_QP_FLAG_TYPE_DCI;
constexpr std::uint32_t kBasicBlockShift = 6;
constexpr std::uint32_t kSmallestReceiveShift = 4;  // one data segment
constexpr std::uint32_t kLargestReceiveShift = 9;   // max_rq_desc_sz, 512 bytes

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
    case IB_UVERBS_QPT_XRC_INI:
    case IB_UVERBS_QPT_XRC_TGT:
    case IB_UVERBS_QPT_DRIVER:
      return 0;  // which of these the silicon has, it says itself
    case IB_UVERBS_QPT_RAW_PACKET:
      return unsupported("Raw packet queue pairs");
    default:
      return -EINVAL;
  }
}

// check_creation_flags() in the kernel's uverbs_std_types_qp.c
std::uint32_t known_create_flags(std::uint32_t type) {
  constexpr std::uint32_t kPadding = IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING;
  return type == IB_UVERBS_QPT_UD ? kPadding | IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK : kPadding;
}

// check_qp_type() in the kernel's hw/mlx5/qp.c: what a driver's queue pair is, its flags say.
bool flags_fit_type(std::uint32_t type, std::uint32_t flags) {
  const bool initiator = (flags & MLX5_QP_FLAG_TYPE_DCI) != 0;
  const bool target = (flags & MLX5_QP_FLAG_TYPE_DCT) != 0;
  return type == IB_UVERBS_QPT_DRIVER ? initiator != target : !initiator && !target;
}

ibv_qp_type nic_type(std::uint32_t type, std::uint32_t flags) {
  if (type != IB_UVERBS_QPT_DRIVER) return static_cast<ibv_qp_type>(type);
  return (flags & MLX5_QP_FLAG_TYPE_DCT) != 0 ? nic::kDcTarget : nic::kDcInitiator;
}

bool has_rings(ibv_qp_type type) {
  return type != IBV_QPT_XRC_RECV && type != nic::kDcTarget;
}
bool receives(ibv_qp_type type) {
  return type != IBV_QPT_XRC_SEND && type != nic::kDcInitiator;
}

// What a queue pair of this type is made from is there, and nothing else (UVERBS_METHOD_QP_CREATE in the
// kernel's uverbs_std_types_qp.c).
bool names_what_it_needs(const QpRequest& request, ibv_qp_type type) {
  if (request.type == IB_UVERBS_QPT_XRC_TGT) return request.xrcd != nullptr;
  if (type == nic::kDcTarget) {  // create_dct()
    return request.pd != nullptr && request.srq != nullptr && request.recv_cq != nullptr;
  }
  if (request.pd == nullptr || request.send_cq == nullptr) return false;
  return request.type == IB_UVERBS_QPT_XRC_INI ? request.srq == nullptr : request.recv_cq != nullptr;
}

// An XRC target has no queues, so nothing of what libmlx5 made for it is used (create_xrc_tgt_qp()).
nic::QpParameters target_parameters(const QpRequest& request) {
  nic::QpParameters parameters{};
  parameters.type = IBV_QPT_XRC_RECV;
  parameters.xrc_domain = request.xrcd->xrcdn;
  return parameters;
}

nic::QpParameters dc_target_parameters(const QpRequest& request, const mlx5_ib_create_qp& mlx5) {
  nic::QpParameters parameters{};
  parameters.type = nic::kDcTarget;
  parameters.pd = request.pd->pdn;
  parameters.recv_cq = request.recv_cq->cqn;
  parameters.srq = request.srq->srqn;
  parameters.user_index = mlx5.uidx;
  parameters.dc_access_key = mlx5.access_key;
  return parameters;
}

nic::QpParameters parameters_of(const QpRequest& request, const mlx5_ib_create_qp& mlx5) {
  if (request.type == IB_UVERBS_QPT_XRC_TGT) return target_parameters(request);
  const ibv_qp_type type = nic_type(request.type, mlx5.flags);
  if (type == nic::kDcTarget) return dc_target_parameters(request, mlx5);
  const bool scatter = (mlx5.flags & MLX5_QP_FLAG_SCATTER_CQE) != 0;
  const bool scatter_any = (mlx5.flags & MLX5_QP_FLAG_ALLOW_SCATTER_CQE) != 0;
  nic::QpParameters parameters{};
  parameters.type = type;
  parameters.pd = request.pd->pdn;
  parameters.send_cq = request.send_cq->cqn;
  if (request.recv_cq != nullptr) parameters.recv_cq = request.recv_cq->cqn;
  parameters.buffer = mlx5.buf_addr;
  parameters.doorbell_record = mlx5.db_addr;
  parameters.sq_basic_blocks = mlx5.sq_wqe_count;
  if (request.srq != nullptr) {
    parameters.srq = request.srq->srqn;
  } else if (receives(type) && request.capabilities.max_recv_wr != 0) {
    parameters.rq_wqe_count = mlx5.rq_wqe_count;
    parameters.rq_wqe_shift = mlx5.rq_wqe_shift;
  }
  parameters.user_index = mlx5.uidx;
  parameters.signal_all = request.signal_all;
  parameters.block_multicast_loopback =
      (request.create_flags & IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK) != 0;
  // create_user_qp(): connected services only.
  parameters.scatter_to_cqe_recv =
      scatter && (request.type == IB_UVERBS_QPT_RC || request.type == IB_UVERBS_QPT_UC);
  // The program must get a CQE for every read whose data lies in it (configure_requester_scat_cqe()).
  parameters.scatter_to_cqe_send =
      scatter && request.type == IB_UVERBS_QPT_RC && (request.signal_all || scatter_any);
  parameters.wq_signature = (mlx5.flags & MLX5_QP_FLAG_SIGNATURE) != 0;
  parameters.capabilities = request.capabilities;
  if (request.srq != nullptr || !receives(type)) {
    parameters.capabilities.max_recv_wr = parameters.capabilities.max_recv_sge = 0;
  }
  return parameters;
}

int check_buffers(const nic::QpParameters& parameters) {
  const std::uint64_t receive = std::uint64_t{parameters.rq_wqe_count} << parameters.rq_wqe_shift;
  const std::uint64_t send = std::uint64_t{parameters.sq_basic_blocks} << kBasicBlockShift;
  if (const int bad = check_range(parameters.buffer, receive + send, Use::Write); bad != 0) return bad;
  return check_range(parameters.doorbell_record, kDoorbellRecordSize, Use::Write);
}

// Gives the queue pair a handle and its events a way.
Outcome<QpCreated> enrol(Context& context, std::unique_ptr<QpObject> qp, std::shared_ptr<EventQueue> async) {
  const QpObject* const is = qp.get();
  const nic::Qpn qpn = qp->qpn;
  const std::uint64_t user_handle = qp->user_handle;
  const int doorbell_register = qp->doorbell_register;
  context.router.add(qpn, {.user_handle = user_handle,
                           .completions = nullptr,
                           .async = async ? std::move(async) : context.default_async});
  const std::int64_t handle = context.handles.insert(std::move(qp));
  if (handle < 0) {
    context.nic->destroy_qp(qpn, &context.router);
    context.router.remove(qpn, user_handle);
    context.registers.give_back(doorbell_register);
    return tl::unexpected(static_cast<int>(handle));
  }
  count_users(*is, 1);
  return QpCreated{.handle = static_cast<std::uint32_t>(handle),
                   .qpn = static_cast<std::uint32_t>(qpn),
                   .capabilities = {}};
}

}  // namespace

Outcome<QpCreated> create_qp(Context& context, const QpRequest& request, const DriverData& driver) {
  if (const int bad = check_type(request.type); bad != 0) return tl::unexpected(bad);
  if (const auto unknown = request.create_flags & ~known_create_flags(request.type); unknown != 0) {
    return tl::unexpected(refuse(
        EINVAL, fmt::format("ibv_create_qp: creation flags {:#x} are not known to the device.", unknown)));
  }
  mlx5_ib_create_qp mlx5{};
  if (const int bad = read_driver_request(context, driver.in, mlx5); bad != 0) return tl::unexpected(bad);
  const ibv_qp_type type = nic_type(request.type, mlx5.flags);
  if (!flags_fit_type(request.type, mlx5.flags) || !names_what_it_needs(request, type)) {
    return tl::unexpected(-EINVAL);
  }
  if (const int bad = check_capabilities(context, request.capabilities); bad != 0) return tl::unexpected(bad);
  const bool is_xrc_target = request.type == IB_UVERBS_QPT_XRC_TGT;
  const bool has_receive_queue =
      request.srq == nullptr && receives(type) && request.capabilities.max_recv_wr != 0;
  if (has_rings(type)) {
    if (const int bad = check_rings(context, mlx5, has_receive_queue); bad != 0) return tl::unexpected(bad);
  }
  nic::QpParameters parameters = parameters_of(request, mlx5);
  // What a CQE of version 0 has in this place: the shared receive queue it is from.
  if (context.cqe_version == 0) {
    parameters.receive_index = request.srq != nullptr ? static_cast<std::uint32_t>(request.srq->srqn) : 0;
  }
  if (has_rings(type)) {
    if (const int bad = check_buffers(parameters); bad != 0) return tl::unexpected(bad);
  }
  const Doorbell doorbell = has_rings(type) ? doorbell_for(context, mlx5) : Doorbell{};
  if (!doorbell.page && has_rings(type)) {
    context.registers.give_back(doorbell.taken_register);
    return tl::unexpected(
        refuse(EINVAL, "ibv_create_qp: the doorbell register that it names was not handed out."));
  }
  if (doorbell.page) parameters.uar = doorbell.page->id();
  parameters.sink = &context.router;
  const auto qpn = context.nic->create_qp(parameters);
  if (!qpn) {
    context.registers.give_back(doorbell.taken_register);
    return tl::unexpected(-qpn.error().value);
  }
  auto qp = std::make_unique<QpObject>();
  qp->qpn = *qpn;
  qp->type = parameters.type;
  qp->user_handle = request.user_handle;
  qp->pd = is_xrc_target ? nullptr : request.pd;
  qp->xrcd = is_xrc_target ? request.xrcd : nullptr;
  qp->send_cq = is_xrc_target ? nullptr : request.send_cq;
  qp->recv_cq = is_xrc_target ? nullptr : request.recv_cq;
  qp->srq = request.srq;
  qp->uar = doorbell.page;
  qp->doorbell_register = doorbell.taken_register;
  auto made = enrol(context, std::move(qp), request.async);
  if (!made) return made;
  made->capabilities = parameters.capabilities;
  mlx5_ib_create_qp_resp answer{};
  if (doorbell.taken_register >= 0)
    answer.bfreg_index = DoorbellRegisters::as_libmlx5(doorbell.taken_register);
  if (!copy_to_user(driver.out.address, &answer, std::min(driver.out.size, sizeof answer))) {
    return tl::unexpected(undo(context, ObjectType::Qp, made->handle, -EFAULT));
  }
  return made;
}

// ib_open_qp() in the kernel's drivers/infiniband/core/verbs.c
Outcome<QpCreated> open_qp(Context& context, const QpOpenRequest& request) {
  if (request.type != IB_UVERBS_QPT_XRC_TGT || request.xrcd == nullptr) return tl::unexpected(-EINVAL);
  const nic::Qpn qpn{request.qpn};
  if (const int error = context.nic->share_qp(qpn, request.xrcd->xrcdn, &context.router).value; error != 0) {
    return tl::unexpected(-error);
  }
  auto qp = std::make_unique<QpObject>();
  qp->qpn = qpn;
  qp->type = IBV_QPT_XRC_RECV;
  qp->user_handle = request.user_handle;
  qp->xrcd = request.xrcd;
  return enrol(context, std::move(qp), nullptr);
}

void count_users(const QpObject& qp, int difference) {
  const auto count = [difference](Object* object) {
    if (object != nullptr) object->users += static_cast<unsigned>(difference);
  };
  count(qp.pd);
  count(qp.xrcd);
  count(qp.send_cq);
  count(qp.recv_cq);
  count(qp.srq);
}

}  // namespace qpair::softnic::driver
