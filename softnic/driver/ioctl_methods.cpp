// The methods of the ioctl interface that the device has, and what each declares; those about memory are in
// ioctl_memory.cpp, the device's own commands in ioctl_devx.cpp. As uverbs_std_types_*.c in
// the kernel's drivers/infiniband/core, and the mlx5 ones in drivers/infiniband/hw/mlx5/main.c and
// std_types.c.
//
// What is not here is EPROTONOSUPPORT, as on a kernel without it, and libibverbs falls back or reports
// EOPNOTSUPP: WQ, FLOW, COUNTERS; mlx5's VAR, PP, flow matchers and steering
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
#include "softnic/driver/ioctl_attributes.hpp"
#include "softnic/driver/refusal.hpp"
#include "softnic/driver/write_commands.hpp"

namespace qpair::softnic::driver {
namespace {

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
  entry.gid_type = from.infiniband ? IB_UVERBS_GID_TYPE_IB
                   : from.roce_v2  ? IB_UVERBS_GID_TYPE_ROCE_V2
                                   : IB_UVERBS_GID_TYPE_ROCE_V1;
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

// ---- Shared receive queues
// ----------------------------------------------------------------------------------------

constexpr AttributeSpec kCreateSrq[] = {
    handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, UVERBS_OBJECT_SRQ, Access::New),
    handle(UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, UVERBS_OBJECT_PD, Access::Read),
    constant(UVERBS_ATTR_CREATE_SRQ_TYPE),
    in<std::uint64_t>(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE),
    in<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_MAX_WR),
    in<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_MAX_SGE),
    in<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_LIMIT),
    handle(UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE, UVERBS_OBJECT_XRCD, Access::Read, Need::Optional),
    handle(UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, UVERBS_OBJECT_CQ, Access::Read, Need::Optional),
    in<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS, Need::Optional),
    descriptor(UVERBS_ATTR_CREATE_SRQ_EVENT_FD, UVERBS_OBJECT_ASYNC_EVENT, Access::Read),
    out<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR),
    out<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE),
    out<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, Need::Optional),
    kDriverIn,
    kDriverOut,
};

int create_srq_method(IoctlCall& call) {
  if (!opened(call)) return -EINVAL;
  SrqRequest asked;
  if (const int bad = first_of(call.get(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, asked.user_handle),
                               call.get(UVERBS_ATTR_CREATE_SRQ_MAX_WR, asked.max_wr),
                               call.get(UVERBS_ATTR_CREATE_SRQ_MAX_SGE, asked.max_sge));
      bad != 0) {
    return bad;
  }
  asked.type = call.constant(UVERBS_ATTR_CREATE_SRQ_TYPE);
  asked.pd = call.object<PdObject>(UVERBS_ATTR_CREATE_SRQ_PD_HANDLE);
  asked.xrcd = call.object<XrcdObject>(UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE);
  asked.cq = call.object<CqObject>(UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE);
  asked.async = event_queue(call, EventKind::Async, UVERBS_ATTR_CREATE_SRQ_EVENT_FD);
  const auto made = create_srq(call.context, asked, call.driver_data());
  if (!made) return made.error();
  const int failure = first_of(call.put(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, made->max_wr),
                               call.put(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, made->max_sge),
                               call.put(UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, made->srqn),
                               call.put_handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, made->handle));
  return undo(call.context, ObjectType::Srq, made->handle, failure);
}

constexpr AttributeSpec kDestroySrq[] = {
    handle(UVERBS_ATTR_DESTROY_SRQ_HANDLE, UVERBS_OBJECT_SRQ, Access::Destroy),
    out<ib_uverbs_destroy_srq_resp>(UVERBS_ATTR_DESTROY_SRQ_RESP),
};

int srq_destroyed(IoctlCall& call) {
  const ib_uverbs_destroy_srq_resp answer{.events_reported = call.reported.async};
  return call.put(UVERBS_ATTR_DESTROY_SRQ_RESP, answer);
}

constexpr AttributeSpec kDestroyXrcd[] = {
    handle(UVERBS_ATTR_DESTROY_XRCD_HANDLE, UVERBS_OBJECT_XRCD, Access::Destroy),
};

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
  if ((type == IB_UVERBS_QPT_XRC_TGT) != call.has(UVERBS_ATTR_CREATE_QP_XRCD_HANDLE)) return -EINVAL;
  asked.xrcd = call.object<XrcdObject>(UVERBS_ATTR_CREATE_QP_XRCD_HANDLE);
  asked.pd = call.object<PdObject>(UVERBS_ATTR_CREATE_QP_PD_HANDLE);
  asked.send_cq = call.object<CqObject>(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE);
  asked.recv_cq = call.object<CqObject>(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE);
  asked.srq = call.object<SrqObject>(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE);
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
    {UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, kCreateSrq, create_srq_method},
    {UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY, kDestroySrq, srq_destroyed},
    {UVERBS_OBJECT_XRCD, UVERBS_METHOD_XRCD_DESTROY, kDestroyXrcd, destroyed},
    {UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, kCreateQp, create_qp_method},
    {UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY, kDestroyQp, qp_destroyed},
    {MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC, kAllocUar, alloc_uar},
    {MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY, kDestroyUar, destroyed},
};

}  // namespace

std::span<const MethodSpec> ioctl_methods() {
  return kMethods;
}

}  // namespace qpair::softnic::driver
