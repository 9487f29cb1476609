#include "softnic/driver/write_commands.hpp"

#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>

#include <array>
#include <cerrno>

#include "softnic/driver/event_file.hpp"
#include "softnic/driver/modify_qp.hpp"
#include "softnic/driver/refusal.hpp"

// As the handlers of the same names in the kernel's drivers/infiniband/core/uverbs_cmd.c.
namespace qpair::softnic::driver {
namespace {

template <typename T>
int request(const WriteCall& call, T& value) {
  return copy_in(&value, sizeof value, call.in);
}

template <typename T>
int respond(const WriteCall& call, const T& value) {
  return copy_out(call.out, &value, sizeof value);
}

// Write commands that name an object which is not there answer EINVAL; those that destroy it, ENOENT.
template <typename T>
T* object(Context& context, std::uint32_t handle) {
  int failure = 0;
  return context.handles.get<T>(handle, failure);
}

template <typename T>
std::uint32_t response_length(const WriteCall& call) {
  return static_cast<std::uint32_t>(std::min(call.out.size, sizeof(T)));
}

// ---- Context and device
// -------------------------------------------------------------------------------------------

int get_context(Context& context, const WriteCall& call) {
  ib_uverbs_get_context command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  if (context.opened) return -EINVAL;
  int fd = -1;
  const auto queue = open_event_file(EventKind::Async, &context, fd);
  if (!queue) return fd;
  const ib_uverbs_get_context_resp answer{.async_fd = static_cast<std::uint32_t>(fd),
                                          .num_comp_vectors = completion_vectors()};
  int failure = respond(call, answer);
  if (failure == 0) failure = alloc_ucontext(context, call.driver);
  if (failure != 0) {
    close_event_file(fd);
    return failure;
  }
  context.adopt(queue);
  context.default_async = queue;
  return 0;
}

int query_device_command(Context& context, const WriteCall& call) {
  ib_uverbs_query_device command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  return respond(call, query_device(*context.nic));
}

int query_device_extended(Context& context, const WriteCall& call) {
  ib_uverbs_ex_query_device command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  if (command.comp_mask != 0 || command.reserved != 0) return -EINVAL;
  if (const int bad = query_device_driver(call.driver); bad != 0) return bad;
  auto answer = query_device_ex(*context.nic);
  answer.response_length = response_length<decltype(answer)>(call);
  return respond(call, answer);
}

int query_port_command(Context& context, const WriteCall& call) {
  ib_uverbs_query_port command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  ib_uverbs_query_port_resp answer{};
  std::uint16_t flags2 = 0;
  if (const int bad = query_port(*context.nic, command.port_num, answer, flags2); bad != 0) return bad;
  return respond(call, answer);
}

// ---- Protection domains and address handles
// -----------------------------------------------------------------------

int alloc_pd(Context& context, const WriteCall& call) {
  ib_uverbs_alloc_pd command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  const auto handle = create_pd(context, call.driver);
  if (!handle) return handle.error();
  const ib_uverbs_alloc_pd_resp answer{.pd_handle = *handle};
  return undo(context, ObjectType::Pd, *handle, respond(call, answer));
}

int dealloc_pd(Context& context, const WriteCall& call) {
  ib_uverbs_dealloc_pd command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  return destroy(context, ObjectType::Pd, command.pd_handle);
}

int create_ah_command(Context& context, const WriteCall& call) {
  ib_uverbs_create_ah command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  const AhRequest asked{.pd_handle = command.pd_handle, .attributes = address_of(command.attr)};
  const auto handle = create_ah(context, asked, call.driver);
  if (!handle) return handle.error();
  const ib_uverbs_create_ah_resp answer{.ah_handle = *handle};
  return undo(context, ObjectType::Ah, *handle, respond(call, answer));
}

int destroy_ah(Context& context, const WriteCall& call) {
  ib_uverbs_destroy_ah command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  return destroy(context, ObjectType::Ah, command.ah_handle);
}

// ---- Memory regions
// -----------------------------------------------------------------------------------------------

int reg_mr(Context& context, const WriteCall& call) {
  ib_uverbs_reg_mr command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  auto* const pd = object<PdObject>(context, command.pd_handle);
  if (pd == nullptr) return -EINVAL;
  const auto mr = create_mr(context, {.pd = pd,
                                      .start = command.start,
                                      .length = command.length,
                                      .iova = command.hca_va,
                                      .access = command.access_flags});
  if (!mr) return mr.error();
  const ib_uverbs_reg_mr_resp answer{.mr_handle = mr->handle, .lkey = mr->key, .rkey = mr->key};
  return undo(context, ObjectType::Mr, mr->handle, respond(call, answer));
}

int rereg_mr(Context& context, const WriteCall& call) {
  ib_uverbs_rereg_mr command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  auto* const mr = object<MrObject>(context, command.mr_handle);
  if (mr == nullptr) return -EINVAL;
  const MrRequest asked{.pd = object<PdObject>(context, command.pd_handle),
                        .start = command.start,
                        .length = command.length,
                        .iova = command.hca_va,
                        .access = command.access_flags};
  if (const int bad = change_mr(context, *mr, command.flags, asked); bad != 0) return bad;
  const auto key = static_cast<std::uint32_t>(mr->key);
  const ib_uverbs_rereg_mr_resp answer{.lkey = key, .rkey = key};
  return respond(call, answer);
}

int dereg_mr(Context& context, const WriteCall& call) {
  ib_uverbs_dereg_mr command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  return destroy(context, ObjectType::Mr, command.mr_handle);
}

int alloc_mw(Context& context, const WriteCall& call) {
  ib_uverbs_alloc_mw command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  auto* const pd = object<PdObject>(context, command.pd_handle);
  if (pd == nullptr) return -EINVAL;
  const auto mw = create_mw(context, *pd, command.mw_type, call.driver);
  if (!mw) return mw.error();
  const ib_uverbs_alloc_mw_resp answer{.mw_handle = mw->handle, .rkey = mw->rkey};
  return undo(context, ObjectType::Mw, mw->handle, respond(call, answer));
}

int dealloc_mw(Context& context, const WriteCall& call) {
  ib_uverbs_dealloc_mw command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  return destroy(context, ObjectType::Mw, command.mw_handle);
}

// ---- Completion channels and queues
// -------------------------------------------------------------------------------

int create_comp_channel(Context& context, const WriteCall& call) {
  ib_uverbs_create_comp_channel command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  int fd = -1;
  const auto queue = open_event_file(EventKind::Completion, &context, fd);
  if (!queue) return fd;
  const ib_uverbs_create_comp_channel_resp answer{.fd = static_cast<std::uint32_t>(fd)};
  if (const int bad = respond(call, answer); bad != 0) {
    close_event_file(fd);
    return bad;
  }
  context.adopt(queue);
  return 0;
}

int make_cq(Context& context, CqRequest asked, std::int32_t channel, const DriverData& driver,
            CqCreated& made) {
  if (channel >= 0) {
    asked.channel = find_event_queue(EventKind::Completion, &context, channel);
    if (!asked.channel) return -EBADF;
  }
  const auto cq = create_cq(context, asked, driver);
  if (!cq) return cq.error();
  made = *cq;
  return 0;
}

int create_cq_command(Context& context, const WriteCall& call) {
  ib_uverbs_create_cq command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  CqCreated made{};
  const CqRequest asked{.user_handle = command.user_handle,
                        .entries = command.cqe,
                        .vector = command.comp_vector,
                        .flags = 0,
                        .channel = nullptr,
                        .async = nullptr};
  if (const int bad = make_cq(context, asked, command.comp_channel, call.driver, made); bad != 0) return bad;
  ib_uverbs_create_cq_resp answer{};
  answer.cq_handle = made.handle;
  answer.cqe = made.entries;
  return undo(context, ObjectType::Cq, made.handle, respond(call, answer));
}

int create_cq_extended(Context& context, const WriteCall& call) {
  ib_uverbs_ex_create_cq command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  if (command.comp_mask != 0 || command.reserved != 0) return -EINVAL;
  CqCreated made{};
  const CqRequest asked{.user_handle = command.user_handle,
                        .entries = command.cqe,
                        .vector = command.comp_vector,
                        .flags = command.flags,
                        .channel = nullptr,
                        .async = nullptr};
  if (const int bad = make_cq(context, asked, command.comp_channel, call.driver, made); bad != 0) return bad;
  ib_uverbs_ex_create_cq_resp answer{};
  answer.base.cq_handle = made.handle;
  answer.base.cqe = made.entries;
  answer.response_length = response_length<decltype(answer)>(call);
  return undo(context, ObjectType::Cq, made.handle, respond(call, answer));
}

int resize_cq_command(Context& context, const WriteCall& call) {
  ib_uverbs_resize_cq command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  auto* const cq = object<CqObject>(context, command.cq_handle);
  if (cq == nullptr) return -EINVAL;
  const auto entries = resize_cq(context, *cq, command.cqe, call.driver);
  if (!entries) return entries.error();
  ib_uverbs_resize_cq_resp answer{};
  answer.cqe = *entries;
  return respond(call, answer);
}

int modify_cq(Context& context, const WriteCall& call) {
  ib_uverbs_ex_modify_cq command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  constexpr std::uint32_t kModerate = 1U << 0;  // enum ib_cq_attr_mask
  if (command.attr_mask == 0 || command.reserved != 0) return -EINVAL;
  if (command.attr_mask > kModerate) return -EOPNOTSUPP;
  auto* const cq = object<CqObject>(context, command.cq_handle);
  if (cq == nullptr) return -EINVAL;
  return -context.nic->moderate_cq(cq->cqn, command.attr.cq_count, command.attr.cq_period).value;
}

int destroy_cq(Context& context, const WriteCall& call) {
  ib_uverbs_destroy_cq command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  EventRouter::Reported reported;
  if (const int bad = destroy(context, ObjectType::Cq, command.cq_handle, &reported); bad != 0) return bad;
  const ib_uverbs_destroy_cq_resp answer{.comp_events_reported = reported.completions,
                                         .async_events_reported = reported.async};
  return respond(call, answer);
}

// ---- Shared receive queues and XRC domains
// ----------------------------------------------------------------------------------------

int create_srq_command(Context& context, const WriteCall& call) {
  ib_uverbs_create_srq command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  const SrqRequest asked{.user_handle = command.user_handle,
                         .type = IB_UVERBS_SRQT_BASIC,
                         .max_wr = command.max_wr,
                         .max_sge = command.max_sge,
                         .pd = object<PdObject>(context, command.pd_handle),
                         .xrcd = nullptr,
                         .cq = nullptr,
                         .async = nullptr};
  const auto made = create_srq(context, asked, call.driver);
  if (!made) return made.error();
  const ib_uverbs_create_srq_resp answer{
      .srq_handle = made->handle, .max_wr = made->max_wr, .max_sge = made->max_sge, .srqn = 0};
  return undo(context, ObjectType::Srq, made->handle, respond(call, answer));
}

int create_xsrq(Context& context, const WriteCall& call) {
  ib_uverbs_create_xsrq command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  const SrqRequest asked{.user_handle = command.user_handle,
                         .type = command.srq_type,
                         .max_wr = command.max_wr,
                         .max_sge = command.max_sge,
                         .pd = object<PdObject>(context, command.pd_handle),
                         .xrcd = object<XrcdObject>(context, command.xrcd_handle),
                         .cq = object<CqObject>(context, command.cq_handle),
                         .async = nullptr};
  const auto made = create_srq(context, asked, call.driver);
  if (!made) return made.error();
  const ib_uverbs_create_srq_resp answer{.srq_handle = made->handle,
                                         .max_wr = made->max_wr,
                                         .max_sge = made->max_sge,
                                         .srqn = command.srq_type == IB_UVERBS_SRQT_XRC ? made->srqn : 0};
  return undo(context, ObjectType::Srq, made->handle, respond(call, answer));
}

int open_xrcd_command(Context& context, const WriteCall& call) {
  ib_uverbs_open_xrcd command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  const auto handle = open_xrcd(context, static_cast<int>(command.fd), command.oflags);
  if (!handle) return handle.error();
  const ib_uverbs_open_xrcd_resp answer{.xrcd_handle = *handle};
  return undo(context, ObjectType::Xrcd, *handle, respond(call, answer));
}

int close_xrcd(Context& context, const WriteCall& call) {
  ib_uverbs_close_xrcd command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  return destroy(context, ObjectType::Xrcd, command.xrcd_handle);
}

int modify_srq_command(Context& context, const WriteCall& call) {
  ib_uverbs_modify_srq command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  const auto* const srq = object<SrqObject>(context, command.srq_handle);
  if (srq == nullptr) return -EINVAL;
  return modify_srq(context, *srq, command.attr_mask, command.srq_limit);
}

int query_srq_command(Context& context, const WriteCall& call) {
  ib_uverbs_query_srq command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  const auto* const srq = object<SrqObject>(context, command.srq_handle);
  if (srq == nullptr) return -EINVAL;
  ib_uverbs_query_srq_resp answer{};
  answer.max_wr = srq->max_wr;
  answer.max_sge = srq->max_sge;
  if (const int error = context.nic->query_srq(srq->srqn, answer.srq_limit).value; error != 0) return -error;
  return respond(call, answer);
}

int destroy_srq(Context& context, const WriteCall& call) {
  ib_uverbs_destroy_srq command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  EventRouter::Reported reported;
  if (const int bad = destroy(context, ObjectType::Srq, command.srq_handle, &reported); bad != 0) return bad;
  const ib_uverbs_destroy_srq_resp answer{.events_reported = reported.async};
  return respond(call, answer);
}

// ---- Queue pairs
// --------------------------------------------------------------------------------------------------

template <typename Command>
QpRequest qp_request(Context& context, const Command& command) {
  QpRequest asked;
  asked.user_handle = command.user_handle;
  asked.type = command.qp_type;
  asked.signal_all = command.sq_sig_all != 0;
  asked.capabilities = {.max_send_wr = command.max_send_wr,
                        .max_recv_wr = command.max_recv_wr,
                        .max_send_sge = command.max_send_sge,
                        .max_recv_sge = command.max_recv_sge,
                        .max_inline_data = command.max_inline_data};
  if (command.qp_type == IB_UVERBS_QPT_XRC_TGT) {  // the one handle is then the XRC domain's
    asked.xrcd = object<XrcdObject>(context, command.pd_handle);
    return asked;
  }
  asked.pd = object<PdObject>(context, command.pd_handle);
  asked.send_cq = object<CqObject>(context, command.send_cq_handle);
  if (command.qp_type == IB_UVERBS_QPT_XRC_INI) return asked;
  asked.recv_cq = object<CqObject>(context, command.recv_cq_handle);
  if (command.is_srq != 0) asked.srq = object<SrqObject>(context, command.srq_handle);
  return asked;
}

// Without the queue that it names the command is refused (create_qp() in the kernel's uverbs_cmd.c).
template <typename Command>
bool lacks_srq(const Command& command, const QpRequest& asked) {
  const bool takes_one = command.qp_type != IB_UVERBS_QPT_XRC_TGT && command.qp_type != IB_UVERBS_QPT_XRC_INI;
  return takes_one && command.is_srq != 0 && asked.srq == nullptr;
}

ib_uverbs_create_qp_resp qp_response(const QpCreated& made) {
  ib_uverbs_create_qp_resp answer{};
  answer.qp_handle = made.handle;
  answer.qpn = made.qpn;
  answer.max_send_wr = made.capabilities.max_send_wr;
  answer.max_recv_wr = made.capabilities.max_recv_wr;
  answer.max_send_sge = made.capabilities.max_send_sge;
  answer.max_recv_sge = made.capabilities.max_recv_sge;
  answer.max_inline_data = made.capabilities.max_inline_data;
  return answer;
}

int create_qp_command(Context& context, const WriteCall& call) {
  ib_uverbs_create_qp command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  const QpRequest asked = qp_request(context, command);
  if (lacks_srq(command, asked)) return -EINVAL;
  const auto made = create_qp(context, asked, call.driver);
  if (!made) return made.error();
  return undo(context, ObjectType::Qp, made->handle, respond(call, qp_response(*made)));
}

int create_qp_extended(Context& context, const WriteCall& call) {
  ib_uverbs_ex_create_qp command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  if ((command.comp_mask & ~std::uint32_t{IB_UVERBS_CREATE_QP_SUP_COMP_MASK}) != 0) return -EINVAL;
  if (command.reserved != 0) return -EINVAL;
  if (command.comp_mask != 0) return unsupported("Receive indirection tables");
  QpRequest asked = qp_request(context, command);
  if (lacks_srq(command, asked)) return -EINVAL;
  asked.create_flags = command.create_flags;
  const auto made = create_qp(context, asked, call.driver);
  if (!made) return made.error();
  ib_uverbs_ex_create_qp_resp answer{};
  answer.base = qp_response(*made);
  answer.response_length = response_length<decltype(answer)>(call);
  return undo(context, ObjectType::Qp, made->handle, respond(call, answer));
}

int open_qp_command(Context& context, const WriteCall& call) {
  ib_uverbs_open_qp command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  const QpOpenRequest asked{.user_handle = command.user_handle,
                            .xrcd = object<XrcdObject>(context, command.pd_handle),
                            .qpn = command.qpn,
                            .type = command.qp_type};
  const auto made = open_qp(context, asked);
  if (!made) return made.error();
  return undo(context, ObjectType::Qp, made->handle, respond(call, qp_response(*made)));
}

int query_qp_command(Context& context, const WriteCall& call) {
  ib_uverbs_query_qp command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  const auto* const qp = object<QpObject>(context, command.qp_handle);
  if (qp == nullptr) return -EINVAL;
  ib_uverbs_query_qp_resp answer{};
  if (const int bad = query_qp(context, *qp, answer); bad != 0) return bad;
  return respond(call, answer);
}

int modify_qp_command(Context& context, const WriteCall& call) {
  ib_uverbs_ex_modify_qp command{};
  if (const int bad = copy_in(&command.base, sizeof command.base, call.in); bad != 0) return bad;
  if ((command.base.attr_mask & ~kStandardAttributes) != 0)
    return unsupported("Attributes of ibv_modify_qp beyond IBTA's");
  auto* const qp = object<QpObject>(context, command.base.qp_handle);
  return qp == nullptr ? -EINVAL : modify_qp(context, *qp, command);
}

int modify_qp_extended(Context& context, const WriteCall& call) {
  ib_uverbs_ex_modify_qp command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  if ((command.base.attr_mask & ~(kStandardAttributes | kRateLimitAttribute)) != 0) return -EOPNOTSUPP;
  auto* const qp = object<QpObject>(context, command.base.qp_handle);
  if (qp == nullptr) return -EINVAL;
  if (const int bad = modify_qp_driver(*qp, call.driver); bad != 0) return bad;
  if (const int bad = modify_qp(context, *qp, command); bad != 0) return bad;
  const ib_uverbs_ex_modify_qp_resp answer{
      .comp_mask = 0, .response_length = response_length<ib_uverbs_ex_modify_qp_resp>(call)};
  return respond(call, answer);
}

template <typename Command>
McastAttachment attachment_of(const Command& command) {
  return {.gid = std::to_array(command.gid), .lid = command.mlid};
}

int attach_mcast(Context& context, const WriteCall& call) {
  ib_uverbs_attach_mcast command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  auto* const qp = object<QpObject>(context, command.qp_handle);
  return qp == nullptr ? -EINVAL : attach_multicast(context, *qp, attachment_of(command));
}

int detach_mcast(Context& context, const WriteCall& call) {
  ib_uverbs_detach_mcast command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  auto* const qp = object<QpObject>(context, command.qp_handle);
  return qp == nullptr ? -EINVAL : detach_multicast(context, *qp, attachment_of(command));
}

int destroy_qp(Context& context, const WriteCall& call) {
  ib_uverbs_destroy_qp command{};
  if (const int bad = request(call, command); bad != 0) return bad;
  EventRouter::Reported reported;
  if (const int bad = destroy(context, ObjectType::Qp, command.qp_handle, &reported); bad != 0) return bad;
  const ib_uverbs_destroy_qp_resp answer{.events_reported = reported.async};
  return respond(call, answer);
}

// ---- The tables
// --------------------------------------------------------------------------------------------------- Sizes
// and shapes as the DECLARE_UVERBS_WRITE lists at the end of uverbs_cmd.c have them.

using Handler = int (*)(Context&, const WriteCall&);

template <typename Request>
constexpr WriteMethod in(Handler handler) {
  return {.request_size = sizeof(Request), .handler = handler};
}

template <typename Request, typename Response>
constexpr WriteMethod in_out(Handler handler) {
  return {.request_size = sizeof(Request),
          .response_size = sizeof(Response),
          .has_response = true,
          .handler = handler};
}

template <typename Request, typename Response>
constexpr WriteMethod in_out_driver(Handler handler) {
  WriteMethod method = in_out<Request, Response>(handler);
  method.has_driver_data = true;
  return method;
}

constexpr WriteMethod extended(std::size_t request_size, std::size_t response_size, Handler handler) {
  return {.request_size = request_size,
          .response_size = response_size,
          .has_driver_data = true,
          .has_response = response_size != 0,
          .extended = true,
          .handler = handler};
}

// The last member that the first version of an extended structure had.
#define QPAIR_SIZE_THROUGH(type, member) (offsetof(type, member) + sizeof(type::member))

// A real mlx5 answers EOPNOTSUPP to what a kernel driver without user-mode queues needs: POLL_CQ,
// REQ_NOTIFY_CQ, POST_*.
constexpr auto kWriteMethods = [] {
  std::array<WriteMethod, IB_USER_VERBS_CMD_OPEN_QP + 1> table{};
  table[IB_USER_VERBS_CMD_GET_CONTEXT] =
      in_out_driver<ib_uverbs_get_context, ib_uverbs_get_context_resp>(get_context);
  table[IB_USER_VERBS_CMD_QUERY_DEVICE] =
      in_out<ib_uverbs_query_device, ib_uverbs_query_device_resp>(query_device_command);
  table[IB_USER_VERBS_CMD_QUERY_PORT] =
      in_out<ib_uverbs_query_port, ib_uverbs_query_port_resp>(query_port_command);
  table[IB_USER_VERBS_CMD_ALLOC_PD] = in_out_driver<ib_uverbs_alloc_pd, ib_uverbs_alloc_pd_resp>(alloc_pd);
  table[IB_USER_VERBS_CMD_DEALLOC_PD] = in<ib_uverbs_dealloc_pd>(dealloc_pd);
  table[IB_USER_VERBS_CMD_CREATE_AH] =
      in_out_driver<ib_uverbs_create_ah, ib_uverbs_create_ah_resp>(create_ah_command);
  table[IB_USER_VERBS_CMD_DESTROY_AH] = in<ib_uverbs_destroy_ah>(destroy_ah);
  table[IB_USER_VERBS_CMD_REG_MR] = in_out_driver<ib_uverbs_reg_mr, ib_uverbs_reg_mr_resp>(reg_mr);
  table[IB_USER_VERBS_CMD_REREG_MR] = in_out_driver<ib_uverbs_rereg_mr, ib_uverbs_rereg_mr_resp>(rereg_mr);
  table[IB_USER_VERBS_CMD_DEREG_MR] = in<ib_uverbs_dereg_mr>(dereg_mr);
  table[IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL] =
      in_out<ib_uverbs_create_comp_channel, ib_uverbs_create_comp_channel_resp>(create_comp_channel);
  table[IB_USER_VERBS_CMD_CREATE_CQ] =
      in_out_driver<ib_uverbs_create_cq, ib_uverbs_create_cq_resp>(create_cq_command);
  table[IB_USER_VERBS_CMD_RESIZE_CQ] =
      in_out_driver<ib_uverbs_resize_cq, ib_uverbs_resize_cq_resp>(resize_cq_command);
  table[IB_USER_VERBS_CMD_DESTROY_CQ] = in_out<ib_uverbs_destroy_cq, ib_uverbs_destroy_cq_resp>(destroy_cq);
  table[IB_USER_VERBS_CMD_CREATE_QP] =
      in_out_driver<ib_uverbs_create_qp, ib_uverbs_create_qp_resp>(create_qp_command);
  table[IB_USER_VERBS_CMD_QUERY_QP] = in_out<ib_uverbs_query_qp, ib_uverbs_query_qp_resp>(query_qp_command);
  table[IB_USER_VERBS_CMD_MODIFY_QP] = in<ib_uverbs_modify_qp>(modify_qp_command);
  table[IB_USER_VERBS_CMD_DESTROY_QP] = in_out<ib_uverbs_destroy_qp, ib_uverbs_destroy_qp_resp>(destroy_qp);
  table[IB_USER_VERBS_CMD_ALLOC_MW] = in_out_driver<ib_uverbs_alloc_mw, ib_uverbs_alloc_mw_resp>(alloc_mw);
  table[IB_USER_VERBS_CMD_DEALLOC_MW] = in<ib_uverbs_dealloc_mw>(dealloc_mw);
  table[IB_USER_VERBS_CMD_ATTACH_MCAST] = in<ib_uverbs_attach_mcast>(attach_mcast);
  table[IB_USER_VERBS_CMD_DETACH_MCAST] = in<ib_uverbs_detach_mcast>(detach_mcast);
  table[IB_USER_VERBS_CMD_CREATE_SRQ] =
      in_out_driver<ib_uverbs_create_srq, ib_uverbs_create_srq_resp>(create_srq_command);
  table[IB_USER_VERBS_CMD_MODIFY_SRQ] = in<ib_uverbs_modify_srq>(modify_srq_command);
  table[IB_USER_VERBS_CMD_QUERY_SRQ] =
      in_out<ib_uverbs_query_srq, ib_uverbs_query_srq_resp>(query_srq_command);
  table[IB_USER_VERBS_CMD_DESTROY_SRQ] =
      in_out<ib_uverbs_destroy_srq, ib_uverbs_destroy_srq_resp>(destroy_srq);
  table[IB_USER_VERBS_CMD_CREATE_XSRQ] =
      in_out_driver<ib_uverbs_create_xsrq, ib_uverbs_create_srq_resp>(create_xsrq);
  table[IB_USER_VERBS_CMD_OPEN_XRCD] =
      in_out_driver<ib_uverbs_open_xrcd, ib_uverbs_open_xrcd_resp>(open_xrcd_command);
  table[IB_USER_VERBS_CMD_CLOSE_XRCD] = in<ib_uverbs_close_xrcd>(close_xrcd);
  table[IB_USER_VERBS_CMD_OPEN_QP] =
      in_out_driver<ib_uverbs_open_qp, ib_uverbs_create_qp_resp>(open_qp_command);
  return table;
}();

constexpr auto kExtendedMethods = [] {
  std::array<WriteMethod, IB_USER_VERBS_EX_CMD_MODIFY_CQ + 1> table{};
  for (auto& method : table) method.extended = true;
  table[IB_USER_VERBS_EX_CMD_QUERY_DEVICE] =
      extended(QPAIR_SIZE_THROUGH(ib_uverbs_ex_query_device, reserved),
               QPAIR_SIZE_THROUGH(ib_uverbs_ex_query_device_resp, response_length), query_device_extended);
  table[IB_USER_VERBS_EX_CMD_CREATE_CQ] =
      extended(QPAIR_SIZE_THROUGH(ib_uverbs_ex_create_cq, reserved),
               QPAIR_SIZE_THROUGH(ib_uverbs_ex_create_cq_resp, response_length), create_cq_extended);
  table[IB_USER_VERBS_EX_CMD_CREATE_QP] =
      extended(QPAIR_SIZE_THROUGH(ib_uverbs_ex_create_qp, comp_mask),
               QPAIR_SIZE_THROUGH(ib_uverbs_ex_create_qp_resp, response_length), create_qp_extended);
  table[IB_USER_VERBS_EX_CMD_MODIFY_QP] =
      extended(QPAIR_SIZE_THROUGH(ib_uverbs_ex_modify_qp, base),
               QPAIR_SIZE_THROUGH(ib_uverbs_ex_modify_qp_resp, response_length), modify_qp_extended);
  table[IB_USER_VERBS_EX_CMD_MODIFY_CQ] =
      extended(QPAIR_SIZE_THROUGH(ib_uverbs_ex_modify_cq, reserved), 0, modify_cq);
  for (const int flow : {IB_USER_VERBS_EX_CMD_CREATE_FLOW, IB_USER_VERBS_EX_CMD_DESTROY_FLOW}) {
    table[static_cast<std::size_t>(flow)].name = "Flow steering";
  }
  for (const int wq :
       {IB_USER_VERBS_EX_CMD_CREATE_WQ, IB_USER_VERBS_EX_CMD_MODIFY_WQ, IB_USER_VERBS_EX_CMD_DESTROY_WQ,
        IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL, IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL}) {
    table[static_cast<std::size_t>(wq)].name = "Work queues apart from queue pairs";
  }
  return table;
}();

#undef QPAIR_SIZE_THROUGH

}  // namespace

const WriteMethod* find_write_method(std::uint32_t command, int& failure) {
  const std::uint32_t index = command & IB_USER_VERBS_CMD_COMMAND_MASK;
  failure = -EINVAL;
  if ((command & ~(IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_CMD_COMMAND_MASK)) != 0) return nullptr;
  failure = -EOPNOTSUPP;
  if ((command & IB_USER_VERBS_CMD_FLAG_EXTENDED) != 0) {
    return index < kExtendedMethods.size() ? &kExtendedMethods[index] : nullptr;
  }
  return index < kWriteMethods.size() ? &kWriteMethods[index] : nullptr;
}

int run(const WriteMethod& method, Context& context, const WriteCall& call) {
  if (method.handler == nullptr) {
    return method.name != nullptr ? unsupported(method.name) : -EOPNOTSUPP;
  }
  if (!context.opened && method.handler != get_context) return -EINVAL;
  return method.handler(context, call);
}

}  // namespace qpair::softnic::driver
