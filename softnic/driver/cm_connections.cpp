// Commands of rdma_cm, checked and refused as by the functions of the kernel that they are named after
// (drivers/infiniband/core/ucma.c): connections.

#include <cerrno>
#include <memory>
#include <span>

#include "softnic/driver/cm_address.hpp"
#include "softnic/driver/cm_call.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint8_t kVendorOptionNotSupported = 35;  // IBTA vol. 1 12.6.7.2

}  // namespace

// Who listens may have come after the address was resolved: asked again.
int cm_commands::connect(const CmCall& call) {
  rdma_ucm_connect command{};
  if (const int bad = call.get(command, offsetof(rdma_ucm_connect, ece)); bad != 0) return bad;
  if (command.conn_param.valid == 0) return -EINVAL;
  cm::Address destination;
  cm::PortSpace space{};
  const int unfit = with_device(call.file, command.id, [&](CmContext& context, wire::TimePoint) {
    destination = context.id->destination();
    space = context.id->space();
    return context.id->state() == cm::Id::State::RouteResolved ? 0 : -EINVAL;
  });
  if (unfit != 0) return unfit;
  const Reach found = reach(call.file.ports(), call.file.own_address(), space, destination);
  if (found.failure != 0) return -found.failure;
  return with_device(call.file, command.id, [&](CmContext& context, wire::TimePoint now) {
    const cm::Ece ece{.vendor = command.ece.vendor_id, .options = command.ece.attr_mod};
    return -context.id->connect(command.conn_param, ece, found.peer, now);
  });
}

// rdma_listen() binds what is not bound. The port is made a listener's without the NIC's lock.
int cm_commands::listen(const CmCall& call) {
  rdma_ucm_listen command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  std::shared_ptr<cm::PortClaim> port;
  bool bound = false;
  const auto look = [&](CmContext& context, wire::TimePoint) {
    port = context.id->port();
    bound = context.id->state() != cm::Id::State::Idle;
    return !bound || context.id->state() == cm::Id::State::AddrBound ? 0 : -EINVAL;
  };
  if (const int unfit = call.file.with_id(command.id, look); unfit != 0) return unfit;
  if (!bound) {
    const int error = bind_to(call.file, command.id, cm::Address::any(AF_INET), true);
    if (error != 0) return error;
    if (const int unfit = call.file.with_id(command.id, look); unfit != 0) return unfit;
  }
  if (const int error = call.file.ports().listen(port); error != 0) return -error;
  return call.file.with_id(command.id, [&](CmContext& context, wire::TimePoint) {
    const auto asked = static_cast<int>(command.backlog);
    context.backlog = asked > 0 && asked < cm::kMaxBacklog ? asked : cm::kMaxBacklog;
    return -context.id->listen();
  });
}

int cm_commands::accept(const CmCall& call) {
  rdma_ucm_accept command{};
  if (const int bad = call.get(command, offsetof(rdma_ucm_accept, ece)); bad != 0) return bad;
  return with_device(call.file, command.id, [&](CmContext& context, wire::TimePoint now) {
    if (command.conn_param.valid == 0) return -context.id->establish(now);
    const cm::Ece ece{.vendor = command.ece.vendor_id, .options = command.ece.attr_mod};
    const int error = context.id->accept(command.conn_param, ece, now);
    if (error == 0) context.uid = command.uid;
    return -error;
  });
}

int cm_commands::reject(const CmCall& call) {
  rdma_ucm_reject command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  constexpr auto kConsumer = static_cast<std::uint8_t>(cm::Reason::ConsumerDefined);
  if (command.reason == 0) command.reason = kConsumer;
  if (command.reason != kConsumer && command.reason != kVendorOptionNotSupported) return -EINVAL;
  return with_device(call.file, command.id, [&](CmContext& context, wire::TimePoint now) {
    const std::span<const std::uint8_t> said(command.private_data, command.private_data_len);
    return -context.id->reject(command.reason, said, now);
  });
}

int cm_commands::disconnect(const CmCall& call) {
  rdma_ucm_disconnect command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  return with_device(call.file, command.id,
                     [](CmContext& context, wire::TimePoint now) { return -context.id->disconnect(now); });
}

int cm_commands::init_qp_attr(const CmCall& call) {
  rdma_ucm_init_qp_attr command{};
  ib_uverbs_qp_attr answer{};
  if (call.room < sizeof answer) return -ENOSPC;
  if (const int bad = call.get(command); bad != 0) return bad;
  if (command.qp_state > IBV_QPS_ERR) return -EINVAL;
  answer.qp_state = command.qp_state;
  const int error = with_device(call.file, command.id, [&](CmContext& context, wire::TimePoint) {
    return -context.id->init_qp_attr(answer);
  });
  return error != 0 ? error : call.put(command.response, answer);
}

int cm_commands::notify(const CmCall& call) {
  rdma_ucm_notify command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  return with_device(call.file, command.id, [&](CmContext& context, wire::TimePoint now) {
    return -context.id->notify(command.event, now);
  });
}

}  // namespace qpair::softnic::driver
