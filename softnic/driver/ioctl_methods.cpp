// Every method of the ioctl interface that the device has, and what each declares. As uverbs_std_types_*.c in
// the kernel's drivers/infiniband/core, and the mlx5 ones in drivers/infiniband/hw/mlx5/main.c and
// std_types.c.
//
// What is not here is EPROTONOSUPPORT, as on a kernel without it, and libibverbs falls back or reports
// EOPNOTSUPP: SRQ, MW, XRCD, WQ, FLOW, COUNTERS, DM; mlx5's DEVX, VAR, PP, flow matchers and steering
// anchors.

#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "softnic/driver/event_file.hpp"
#include "softnic/driver/ioctl.hpp"
#include "softnic/driver/refusal.hpp"
#include "softnic/driver/write_commands.hpp"

namespace qpair::softnic::driver {
namespace {

// ---- How attributes are declared
// ----------------------------------------------------------------------------------

constexpr std::uint16_t kAnySize = 0xffff;

template <typename T>
constexpr AttributeSpec in(std::uint16_t id, Need need = Need::Mandatory) {
  return {.id = id, .type = AttributeType::In, .need = need, .min_size = sizeof(T), .max_size = sizeof(T)};
}

template <typename T>
constexpr AttributeSpec out(std::uint16_t id, Need need = Need::Mandatory) {
  return {.id = id, .type = AttributeType::Out, .need = need, .min_size = sizeof(T), .max_size = sizeof(T)};
}

template <typename T>
constexpr AttributeSpec in_struct(std::uint16_t id, std::size_t min_size) {
  return {.id = id,
          .type = AttributeType::In,
          .need = Need::Mandatory,
          .min_size = static_cast<std::uint16_t>(min_size),
          .max_size = sizeof(T),
          .zero_trailing = true};
}

template <typename T>
constexpr AttributeSpec out_struct(std::uint16_t id, std::size_t min_size) {
  AttributeSpec spec = in_struct<T>(id, min_size);
  spec.type = AttributeType::Out;
  return spec;
}

constexpr AttributeSpec in_bytes(std::uint16_t id, std::uint16_t min_size, Need need) {
  return {.id = id, .type = AttributeType::In, .need = need, .min_size = min_size, .max_size = kAnySize};
}

constexpr AttributeSpec out_bytes(std::uint16_t id, std::uint16_t min_size, Need need) {
  return {.id = id, .type = AttributeType::Out, .need = need, .min_size = min_size, .max_size = kAnySize};
}

constexpr AttributeSpec constant(std::uint16_t id) {
  return in<std::uint64_t>(id);
}

constexpr AttributeSpec flags(std::uint16_t id, Need need = Need::Optional) {
  return {.id = id, .type = AttributeType::In, .need = need, .min_size = 4, .max_size = 8};
}

constexpr AttributeSpec handle(std::uint16_t id, std::uint16_t object, Access access,
                               Need need = Need::Mandatory) {
  return {.id = id, .type = AttributeType::Handle, .need = need, .object = object, .access = access};
}

constexpr AttributeSpec descriptor(std::uint16_t id, std::uint16_t object, Access access,
                                   Need need = Need::Optional) {
  return {.id = id, .type = AttributeType::Descriptor, .need = need, .object = object, .access = access};
}

constexpr AttributeSpec kDriverIn = in_bytes(UVERBS_ATTR_UHW_IN, 0, Need::Optional);
constexpr AttributeSpec kDriverOut = out_bytes(UVERBS_ATTR_UHW_OUT, 0, Need::Optional);

// The first failure of several.
template <typename... Failures>
int first_of(Failures... failures) {
  int first = 0;
  static_cast<void>(((first = failures, first != 0) || ...));
  return first;
}

bool opened(const IoctlCall& call) {
  return call.context.opened;
}

// ---- Device
// -------------------------------------------------------------------------------------------------------

constexpr AttributeSpec kInvokeWrite[] = {
    constant(UVERBS_ATTR_WRITE_CMD),
    in_bytes(UVERBS_ATTR_CORE_IN, sizeof(std::uint32_t), Need::Optional),
    out_bytes(UVERBS_ATTR_CORE_OUT, 0, Need::Optional),
    kDriverIn,
    kDriverOut,
};

int invoke_write(IoctlCall& call) {
  const std::uint64_t command = call.constant(UVERBS_ATTR_WRITE_CMD);
  if (command > 0xffffffff) return -EINVAL;
  int failure = 0;
  const WriteMethod* const method = find_write_method(static_cast<std::uint32_t>(command), failure);
  if (method == nullptr) return failure;
  const WriteCall inner{.in = call.buffer(UVERBS_ATTR_CORE_IN),
                        .out = call.buffer(UVERBS_ATTR_CORE_OUT),
                        .driver = call.driver_data()};
  if (inner.in.size < method->request_size || inner.out.size < method->response_size) return -ENOSPC;
  failure = run(*method, call.context, inner);
  return failure != 0 ? failure : call.mark_written(UVERBS_ATTR_CORE_OUT);
}

constexpr AttributeSpec kInfoHandles[] = {
    constant(UVERBS_ATTR_INFO_OBJECT_ID),
    out<std::uint32_t>(UVERBS_ATTR_INFO_TOTAL_HANDLES, Need::Optional),
    out_bytes(UVERBS_ATTR_INFO_HANDLES_LIST, sizeof(std::uint32_t), Need::Optional),
};

int info_handles(IoctlCall& call) {
  const std::size_t room = call.size_of(UVERBS_ATTR_INFO_HANDLES_LIST);
  if (room == 0 || room % sizeof(std::uint32_t) != 0) return -EINVAL;
  const std::uint64_t object = call.constant(UVERBS_ATTR_INFO_OBJECT_ID);
  if (object > UVERBS_OBJECT_ASYNC_EVENT && object != MLX5_IB_OBJECT_UAR) return -EINVAL;
  std::vector<std::uint32_t> handles = call.context.handles.handles_of(static_cast<ObjectType>(object));
  handles.resize(std::min(handles.size(), room / sizeof(std::uint32_t)));
  const auto total = static_cast<std::uint32_t>(handles.size());
  return first_of(
      call.put_bytes(UVERBS_ATTR_INFO_HANDLES_LIST, handles.data(), total * sizeof(std::uint32_t)),
      call.put(UVERBS_ATTR_INFO_TOTAL_HANDLES, total));
}

constexpr AttributeSpec kGetContext[] = {
    out<std::uint32_t>(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, Need::Optional),
    out<std::uint64_t>(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, Need::Optional),
    kDriverIn,
    kDriverOut,
};

constexpr std::uint64_t kCoreSupport = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;

int get_context(IoctlCall& call) {
  if (const int bad = first_of(call.put(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, completion_vectors()),
                               call.put(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, kCoreSupport));
      bad != 0) {
    return bad;
  }
  return alloc_ucontext(call.context, call.driver_data());
}

constexpr AttributeSpec kQueryContext[] = {
    out<std::uint32_t>(UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, Need::Optional),
    out<std::uint64_t>(UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, Need::Optional),
    out_struct<mlx5_ib_alloc_ucontext_resp>(
        MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX,
        offsetof(mlx5_ib_alloc_ucontext_resp, dump_fill_mkey) + sizeof(std::uint32_t)),
};

int query_context(IoctlCall& call) {
  if (!opened(call)) return -EINVAL;
  return first_of(call.put(UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, completion_vectors()),
                  call.put(UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, kCoreSupport),
                  query_ucontext(call.context, call.buffer(MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX)),
                  call.mark_written(MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX));
}

constexpr AttributeSpec kQueryPort[] = {
    constant(UVERBS_ATTR_QUERY_PORT_PORT_NUM),
    out_struct<ib_uverbs_query_port_resp_ex>(UVERBS_ATTR_QUERY_PORT_RESP,
                                             sizeof(ib_uverbs_query_port_resp_ex)),
};

int query_port_method(IoctlCall& call) {
  if (!opened(call)) return -EINVAL;
  ib_uverbs_query_port_resp_ex answer{};
  const std::uint64_t port = call.constant(UVERBS_ATTR_QUERY_PORT_PORT_NUM);
  std::uint16_t flags2 = 0;
  if (const int bad = query_port(*call.context.nic, port, answer.legacy_resp, flags2); bad != 0) return bad;
  answer.port_cap_flags2 = flags2;
  return call.put_struct(UVERBS_ATTR_QUERY_PORT_RESP, &answer, sizeof answer);
}

constexpr AttributeSpec kQueryMlx5Port[] = {
    in<std::uint32_t>(MLX5_IB_ATTR_QUERY_PORT_PORT_NUM),
    out_struct<mlx5_ib_uapi_query_port>(MLX5_IB_ATTR_QUERY_PORT, sizeof(mlx5_ib_uapi_query_port)),
};

// No e-switch: no flag is set.
int query_mlx5_port(IoctlCall& call) {
  if (!opened(call)) return -EINVAL;
  std::uint32_t port = 0;
  if (const int bad = call.get(MLX5_IB_ATTR_QUERY_PORT_PORT_NUM, port); bad != 0) return bad;
  if (port != 1) return -EINVAL;
  const mlx5_ib_uapi_query_port answer{};
  return call.put_struct(MLX5_IB_ATTR_QUERY_PORT, &answer, sizeof answer);
}

ib_uverbs_gid_entry gid_entry(const nic::GidEntry& from) {
  ib_uverbs_gid_entry entry{};
  std::memcpy(entry.gid, from.gid.raw, sizeof entry.gid);
  entry.gid_index = from.index;
  entry.port_num = 1;
  entry.gid_type = from.roce_v2 ? IB_UVERBS_GID_TYPE_ROCE_V2 : IB_UVERBS_GID_TYPE_ROCE_V1;
  entry.netdev_ifindex = from.net_device_index;
  return entry;
}

constexpr AttributeSpec kQueryGidTable[] = {
    constant(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE),
    flags(UVERBS_ATTR_QUERY_GID_TABLE_FLAGS),
    out_bytes(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, 0, Need::Mandatory),
    out<std::uint64_t>(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES),
};

int query_gid_table(IoctlCall& call) {
  std::uint32_t none = 0;
  if (const int bad = call.get_flags(UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, 0, none); bad != 0) return bad;
  const std::uint64_t entry_size = call.constant(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE);
  const UserBuffer room = call.buffer(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES);
  if (entry_size == 0 || room.size == 0 || room.size % entry_size != 0) return -EINVAL;
  if (!opened(call)) return -EINVAL;
  const auto& gids = call.context.nic->gids();
  if (gids.size() > room.size / entry_size) return -EINVAL;
  for (std::size_t i = 0; i < gids.size(); ++i) {
    const ib_uverbs_gid_entry entry = gid_entry(gids[i]);
    const UserBuffer at{.address = room.address + i * entry_size,
                        .size = static_cast<std::size_t>(entry_size)};
    if (const int bad = copy_out(at, &entry, sizeof entry); bad != 0) return bad;
  }
  return first_of(call.mark_written(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES),
                  call.put(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, std::uint64_t{gids.size()}));
}

constexpr AttributeSpec kQueryGidEntry[] = {
    constant(UVERBS_ATTR_QUERY_GID_ENTRY_PORT),
    constant(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX),
    flags(UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, Need::Mandatory),
    out_struct<ib_uverbs_gid_entry>(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, sizeof(ib_uverbs_gid_entry)),
};

int query_gid_entry(IoctlCall& call) {
  std::uint32_t none = 0;
  if (const int bad = call.get_flags(UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 0, none); bad != 0) return bad;
  if (!opened(call) || call.constant(UVERBS_ATTR_QUERY_GID_ENTRY_PORT) != 1) return -EINVAL;
  const std::uint64_t index = call.constant(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX);
  const nic::Nic& nic = *call.context.nic;
  if (index >= static_cast<std::uint64_t>(nic.port().gid_tbl_len)) return -EINVAL;
  const auto& gids = nic.gids();
  const auto found =
      std::find_if(gids.begin(), gids.end(), [&](const auto& gid) { return gid.index == index; });
  if (found == gids.end()) return -ENODATA;
  const ib_uverbs_gid_entry entry = gid_entry(*found);
  return call.put_struct(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &entry, sizeof entry);
}

// ---- Event descriptors
// --------------------------------------------------------------------------------------------

constexpr AttributeSpec kAllocAsyncEvents[] = {
    descriptor(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, UVERBS_OBJECT_ASYNC_EVENT, Access::New,
               Need::Mandatory),
};

int alloc_async_events(IoctlCall& call) {
  Context& context = call.context;
  if (!opened(call)) return -EINVAL;
  int fd = -1;
  const auto queue = open_event_file(EventKind::Async, &context, fd);
  if (!queue) return fd;
  if (const int bad = call.put_handle(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, fd); bad != 0) {
    close_event_file(fd);
    return bad;
  }
  context.adopt(queue);
  if (!context.default_async) context.default_async = queue;
  return 0;
}

std::shared_ptr<EventQueue> event_queue(const IoctlCall& call, EventKind kind, std::uint16_t id) {
  return call.has(id) ? find_event_queue(kind, &call.context, call.descriptor(id)) : nullptr;
}

// ---- Protection domains
// -------------------------------------------------------------------------------------------

// The object was destroyed before the handler ran, and there is nothing to say about it.
int destroyed(IoctlCall& /*call*/) {
  return 0;
}

constexpr AttributeSpec kDestroyPd[] = {
    handle(UVERBS_ATTR_DESTROY_PD_HANDLE, UVERBS_OBJECT_PD, Access::Destroy),
};

constexpr AttributeSpec kQueryPd[] = {
    handle(MLX5_IB_ATTR_QUERY_PD_HANDLE, UVERBS_OBJECT_PD, Access::Read),
    out<std::uint32_t>(MLX5_IB_ATTR_QUERY_PD_RESP_PDN),
};

int query_pd(IoctlCall& call) {
  const auto* const pd = call.object<PdObject>(MLX5_IB_ATTR_QUERY_PD_HANDLE);
  return call.put(MLX5_IB_ATTR_QUERY_PD_RESP_PDN, static_cast<std::uint32_t>(pd->pdn));
}

constexpr AttributeSpec kDestroyAh[] = {
    handle(UVERBS_ATTR_DESTROY_AH_HANDLE, UVERBS_OBJECT_AH, Access::Destroy),
};

// ---- Completion queues
// --------------------------------------------------------------------------------------------

constexpr AttributeSpec kCreateCq[] = {
    handle(UVERBS_ATTR_CREATE_CQ_HANDLE, UVERBS_OBJECT_CQ, Access::New),
    in<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_CQE),
    in<std::uint64_t>(UVERBS_ATTR_CREATE_CQ_USER_HANDLE),
    descriptor(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, UVERBS_OBJECT_COMP_CHANNEL, Access::Read),
    in<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR),
    flags(UVERBS_ATTR_CREATE_CQ_FLAGS),
    out<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_RESP_CQE),
    descriptor(UVERBS_ATTR_CREATE_CQ_EVENT_FD, UVERBS_OBJECT_ASYNC_EVENT, Access::Read),
    kDriverIn,
    kDriverOut,
};

int create_cq_method(IoctlCall& call) {
  if (!opened(call)) return -EINVAL;
  constexpr std::uint32_t kFlags =
      IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION | IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN;
  CqRequest asked;
  if (const int bad = first_of(call.get(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, asked.vector),
                               call.get(UVERBS_ATTR_CREATE_CQ_CQE, asked.entries),
                               call.get(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, asked.user_handle),
                               call.get_flags(UVERBS_ATTR_CREATE_CQ_FLAGS, kFlags, asked.flags));
      bad != 0) {
    return bad;
  }
  asked.channel = event_queue(call, EventKind::Completion, UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL);
  asked.async = event_queue(call, EventKind::Async, UVERBS_ATTR_CREATE_CQ_EVENT_FD);
  const auto made = create_cq(call.context, asked, call.driver_data());
  if (!made) return made.error();
  const int failure = first_of(call.put(UVERBS_ATTR_CREATE_CQ_RESP_CQE, made->entries),
                               call.put_handle(UVERBS_ATTR_CREATE_CQ_HANDLE, made->handle));
  return undo(call.context, ObjectType::Cq, made->handle, failure);
}

constexpr AttributeSpec kDestroyCq[] = {
    handle(UVERBS_ATTR_DESTROY_CQ_HANDLE, UVERBS_OBJECT_CQ, Access::Destroy),
    out<ib_uverbs_destroy_cq_resp>(UVERBS_ATTR_DESTROY_CQ_RESP),
};

int cq_destroyed(IoctlCall& call) {
  const ib_uverbs_destroy_cq_resp answer{.comp_events_reported = call.reported.completions,
                                         .async_events_reported = call.reported.async};
  return call.put(UVERBS_ATTR_DESTROY_CQ_RESP, answer);
}

// ---- Queue pairs
// --------------------------------------------------------------------------------------------------

constexpr AttributeSpec kCreateQp[] = {
    handle(UVERBS_ATTR_CREATE_QP_HANDLE, UVERBS_OBJECT_QP, Access::New),
    handle(UVERBS_ATTR_CREATE_QP_XRCD_HANDLE, UVERBS_OBJECT_XRCD, Access::Read, Need::Optional),
    handle(UVERBS_ATTR_CREATE_QP_PD_HANDLE, UVERBS_OBJECT_PD, Access::Read, Need::Optional),
    handle(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, UVERBS_OBJECT_SRQ, Access::Read, Need::Optional),
    handle(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, UVERBS_OBJECT_CQ, Access::Read, Need::Optional),
    handle(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, UVERBS_OBJECT_CQ, Access::Read, Need::Optional),
    handle(UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE, UVERBS_OBJECT_RWQ_IND_TBL, Access::Read, Need::Optional),
    in<std::uint64_t>(UVERBS_ATTR_CREATE_QP_USER_HANDLE),
    in_struct<ib_uverbs_qp_cap>(UVERBS_ATTR_CREATE_QP_CAP, sizeof(ib_uverbs_qp_cap)),
    constant(UVERBS_ATTR_CREATE_QP_TYPE),
    flags(UVERBS_ATTR_CREATE_QP_FLAGS),
    in<std::uint32_t>(UVERBS_ATTR_CREATE_QP_SOURCE_QPN, Need::Optional),
    descriptor(UVERBS_ATTR_CREATE_QP_EVENT_FD, UVERBS_OBJECT_ASYNC_EVENT, Access::Read),
    out_struct<ib_uverbs_qp_cap>(UVERBS_ATTR_CREATE_QP_RESP_CAP, sizeof(ib_uverbs_qp_cap)),
    out<std::uint32_t>(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM),
    kDriverIn,
    kDriverOut,
};

int create_qp_method(IoctlCall& call) {
  if (!opened(call)) return -EINVAL;
  constexpr std::uint32_t kFlags = IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK |
                                   IB_UVERBS_QP_CREATE_SCATTER_FCS | IB_UVERBS_QP_CREATE_CVLAN_STRIPPING |
                                   IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING | IB_UVERBS_QP_CREATE_SQ_SIG_ALL;
  ib_uverbs_qp_cap cap{};
  QpRequest asked;
  std::uint32_t create_flags = 0;
  if (const int bad = first_of(call.get_or_zero(UVERBS_ATTR_CREATE_QP_CAP, &cap, sizeof cap),
                               call.get(UVERBS_ATTR_CREATE_QP_USER_HANDLE, asked.user_handle),
                               call.get_flags(UVERBS_ATTR_CREATE_QP_FLAGS, kFlags, create_flags));
      bad != 0) {
    return bad;
  }
  const std::uint64_t type = call.constant(UVERBS_ATTR_CREATE_QP_TYPE);
  if (type > 0xff || call.has(UVERBS_ATTR_CREATE_QP_SOURCE_QPN)) return -EINVAL;
  asked.type = static_cast<std::uint32_t>(type);
  asked.signal_all = (create_flags & IB_UVERBS_QP_CREATE_SQ_SIG_ALL) != 0;
  asked.create_flags = create_flags & ~std::uint32_t{IB_UVERBS_QP_CREATE_SQ_SIG_ALL};
  asked.capabilities = {.max_send_wr = cap.max_send_wr,
                        .max_recv_wr = cap.max_recv_wr,
                        .max_send_sge = cap.max_send_sge,
                        .max_recv_sge = cap.max_recv_sge,
                        .max_inline_data = cap.max_inline_data};
  asked.pd = call.object<PdObject>(UVERBS_ATTR_CREATE_QP_PD_HANDLE);
  asked.send_cq = call.object<CqObject>(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE);
  asked.recv_cq = call.object<CqObject>(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE);
  asked.async = event_queue(call, EventKind::Async, UVERBS_ATTR_CREATE_QP_EVENT_FD);
  const auto made = create_qp(call.context, asked, call.driver_data());
  if (!made) return made.error();
  cap = {.max_send_wr = made->capabilities.max_send_wr,
         .max_recv_wr = made->capabilities.max_recv_wr,
         .max_send_sge = made->capabilities.max_send_sge,
         .max_recv_sge = made->capabilities.max_recv_sge,
         .max_inline_data = made->capabilities.max_inline_data};
  const int failure = first_of(call.put_struct(UVERBS_ATTR_CREATE_QP_RESP_CAP, &cap, sizeof cap),
                               call.put(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, made->qpn),
                               call.put_handle(UVERBS_ATTR_CREATE_QP_HANDLE, made->handle));
  return undo(call.context, ObjectType::Qp, made->handle, failure);
}

constexpr AttributeSpec kDestroyQp[] = {
    handle(UVERBS_ATTR_DESTROY_QP_HANDLE, UVERBS_OBJECT_QP, Access::Destroy),
    out<ib_uverbs_destroy_qp_resp>(UVERBS_ATTR_DESTROY_QP_RESP),
};

int qp_destroyed(IoctlCall& call) {
  const ib_uverbs_destroy_qp_resp answer{.events_reported = call.reported.async};
  return call.put(UVERBS_ATTR_DESTROY_QP_RESP, answer);
}

// ---- Memory regions
// -----------------------------------------------------------------------------------------------

constexpr AttributeSpec kDestroyMr[] = {
    handle(UVERBS_ATTR_DESTROY_MR_HANDLE, UVERBS_OBJECT_MR, Access::Destroy),
};

constexpr AttributeSpec kQueryMr[] = {
    handle(UVERBS_ATTR_QUERY_MR_HANDLE, UVERBS_OBJECT_MR, Access::Read),
    out<std::uint32_t>(UVERBS_ATTR_QUERY_MR_RESP_LKEY),
    out<std::uint32_t>(UVERBS_ATTR_QUERY_MR_RESP_RKEY),
    out<std::uint64_t>(UVERBS_ATTR_QUERY_MR_RESP_LENGTH),
    out<std::uint64_t>(UVERBS_ATTR_QUERY_MR_RESP_IOVA, Need::Optional),
};

int query_mr(IoctlCall& call) {
  const auto* const mr = call.object<MrObject>(UVERBS_ATTR_QUERY_MR_HANDLE);
  const auto key = static_cast<std::uint32_t>(mr->key);
  return first_of(call.put(UVERBS_ATTR_QUERY_MR_RESP_LKEY, key),
                  call.put(UVERBS_ATTR_QUERY_MR_RESP_RKEY, key),
                  call.put(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, mr->parameters.length),
                  call.put(UVERBS_ATTR_QUERY_MR_RESP_IOVA, mr->parameters.iova));
}

constexpr AttributeSpec kAdviseMr[] = {
    handle(UVERBS_ATTR_ADVISE_MR_PD_HANDLE, UVERBS_OBJECT_PD, Access::Read),
    constant(UVERBS_ATTR_ADVISE_MR_ADVICE),
    flags(UVERBS_ATTR_ADVISE_MR_FLAGS, Need::Mandatory),
    in_bytes(UVERBS_ATTR_ADVISE_MR_SGE_LIST, sizeof(ib_uverbs_sge), Need::Mandatory),
};

// Advice is about on-demand paging, which the device does not have.
int advise_mr(IoctlCall& call) {
  std::uint32_t flush = 0;
  if (const int bad = call.get_flags(UVERBS_ATTR_ADVISE_MR_FLAGS, IB_UVERBS_ADVISE_MR_FLAG_FLUSH, flush);
      bad != 0) {
    return bad;
  }
  return -EOPNOTSUPP;
}

constexpr AttributeSpec kRegDmabuf[] = {
    handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, UVERBS_OBJECT_MR, Access::New),
    handle(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, UVERBS_OBJECT_PD, Access::Read),
    in<std::uint64_t>(UVERBS_ATTR_REG_DMABUF_MR_OFFSET),
    in<std::uint64_t>(UVERBS_ATTR_REG_DMABUF_MR_LENGTH),
    in<std::uint64_t>(UVERBS_ATTR_REG_DMABUF_MR_IOVA),
    in<std::int32_t>(UVERBS_ATTR_REG_DMABUF_MR_FD),
    flags(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS),
    out<std::uint32_t>(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY),
    out<std::uint32_t>(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY),
};

int reg_dmabuf_mr(IoctlCall& call) {
  constexpr std::uint32_t kAccess = IB_UVERBS_ACCESS_LOCAL_WRITE | IB_UVERBS_ACCESS_REMOTE_WRITE |
                                    IB_UVERBS_ACCESS_REMOTE_READ | IB_UVERBS_ACCESS_REMOTE_ATOMIC |
                                    IB_UVERBS_ACCESS_RELAXED_ORDERING;
  MrRequest asked{};
  std::int32_t fd = -1;
  if (const int bad = first_of(call.get(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, asked.start),
                               call.get(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, asked.length),
                               call.get(UVERBS_ATTR_REG_DMABUF_MR_IOVA, asked.iova),
                               call.get(UVERBS_ATTR_REG_DMABUF_MR_FD, fd),
                               call.get_flags(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, kAccess, asked.access));
      bad != 0) {
    return bad;
  }
  asked.pd = call.object<PdObject>(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE);
  const auto made = create_dmabuf_mr(call.context, asked, fd);
  if (!made) return made.error();
  const int failure = first_of(call.put(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, made->key),
                               call.put(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, made->key),
                               call.put_handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, made->handle));
  return undo(call.context, ObjectType::Mr, made->handle, failure);
}

// ---- Doorbell pages
// -----------------------------------------------------------------------------------------------

constexpr AttributeSpec kAllocUar[] = {
    handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, MLX5_IB_OBJECT_UAR, Access::New),
    constant(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE),
    out<std::uint64_t>(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET),
    out<std::uint32_t>(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH),
    out<std::uint32_t>(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID),
};

int alloc_uar(IoctlCall& call) {
  if (!opened(call)) return -EINVAL;
  const auto made = create_uar(call.context, call.constant(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE));
  if (!made) return made.error();
  const int failure = first_of(call.put(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, made->mmap_offset),
                               call.put(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, made->mmap_length),
                               call.put(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, made->page_id),
                               call.put_handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, made->handle));
  return undo(call.context, ObjectType::Uar, made->handle, failure);
}

constexpr AttributeSpec kDestroyUar[] = {
    handle(MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, MLX5_IB_OBJECT_UAR, Access::Destroy),
};

constexpr MethodSpec kMethods[] = {
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, kInvokeWrite, invoke_write},
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INFO_HANDLES, kInfoHandles, info_handles},
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT, kQueryPort, query_port_method},
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, kGetContext, get_context},
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT, kQueryContext, query_context},
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE, kQueryGidTable, query_gid_table},
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY, kQueryGidEntry, query_gid_entry},
    {UVERBS_OBJECT_DEVICE, MLX5_IB_METHOD_QUERY_PORT, kQueryMlx5Port, query_mlx5_port},
    {UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC, kAllocAsyncEvents, alloc_async_events},
    {UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, kDestroyPd, destroyed},
    {UVERBS_OBJECT_PD, MLX5_IB_METHOD_PD_QUERY, kQueryPd, query_pd},
    {UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY, kDestroyAh, destroyed},
    {UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, kCreateCq, create_cq_method},
    {UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY, kDestroyCq, cq_destroyed},
    {UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, kCreateQp, create_qp_method},
    {UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY, kDestroyQp, qp_destroyed},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY, kDestroyMr, destroyed},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR, kQueryMr, query_mr},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, kAdviseMr, advise_mr},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, kRegDmabuf, reg_dmabuf_mr},
    {MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC, kAllocUar, alloc_uar},
    {MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY, kDestroyUar, destroyed},
};

}  // namespace

std::span<const MethodSpec> ioctl_methods() {
  return kMethods;
}

}  // namespace qpair::softnic::driver
