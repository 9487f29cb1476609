// Commands of rdma_cm, checked and refused as by the functions of the kernel that they are named after
// (drivers/infiniband/core/ucma.c): addresses and routes.

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "softnic/driver/cm_address.hpp"
#include "softnic/driver/cm_call.hpp"
#include "softnic/driver/refusal.hpp"

namespace qpair::softnic::driver {

// The port is claimed first, without the NIC's lock, and given back when the identifier
// will not have it.
int bind_to(CmFile& file, std::uint32_t number, const cm::Address& address, bool shown) {
  PortRegistry::Wish wish{.address = address, .shown = shown && address.family != AF_IB};
  const int unfit = file.with_id(number, [&](CmContext& context, wire::TimePoint) {
    wish.space = context.id->space();
    wish.reuse = context.id->reuse();
    wish.family_only = context.id->family_only();
    return context.id->state() == cm::Id::State::Idle ? 0 : -EINVAL;
  });
  if (unfit != 0) return unfit;
  if (const int error = may_bind(file.own_address(), address); error != 0) {
    return refuse(error, bind_refusal(file.own_address(), address));
  }
  std::shared_ptr<cm::PortClaim> claim;
  if (const int error = file.ports().claim(wish, claim); error != 0) return -error;
  return file.with_id(number, [&](CmContext& context, wire::TimePoint) {
    return -context.id->bind(wish.address, claim);  // a copy: the last is let go outside the lock
  });
}

namespace {

__kernel_sockaddr_storage widened(const sockaddr_in6& address) {
  __kernel_sockaddr_storage storage{};
  std::memcpy(&storage, &address, sizeof address);
  return storage;
}

}  // namespace

int cm_commands::bind_ip(const CmCall& call) {
  rdma_ucm_bind_ip command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  const auto address = from_socket_address(widened(command.addr));
  if (!address || address->family == AF_IB) return -EINVAL;
  return bind_to(call.file, command.id, *address, true);
}

int cm_commands::bind(const CmCall& call) {
  rdma_ucm_bind command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  const auto address = from_socket_address(command.addr);
  if (command.reserved != 0 || !address || command.addr_size != address_size(*address)) return -EINVAL;
  return bind_to(call.file, command.id, *address, true);
}

namespace {

// rdma_resolve_addr(): binds what is not bound; "any" is this machine (cma_resolve_loopback()).
int resolve(CmFile& file, std::uint32_t number, const std::optional<cm::Address>& source,
            const cm::Address& destination) {
  bool bound = false;
  cm::PortSpace space{};
  const int unknown = file.with_id(number, [&](CmContext& context, wire::TimePoint) {
    bound = context.id->state() != cm::Id::State::Idle;
    space = context.id->space();
    return 0;
  });
  if (unknown != 0) return unknown;
  if (!bound) {
    const cm::Address from = source ? *source : cm::Address::any(destination.family);
    if (const int error = bind_to(file, number, from, from.port != 0); error != 0) return error;
  }
  cm::Address to = destination;
  if (to.is_any()) to.bytes = cm::Address::loopback(to.family).bytes;
  const Reach found = reach(file.ports(), file.own_address(), space, to);
  return file.with_id(number, [&](CmContext& context, wire::TimePoint) {
    return -context.id->resolve_address(to, found.peer, found.failure);
  });
}

}  // namespace

int cm_commands::resolve_ip(const CmCall& call) {
  rdma_ucm_resolve_ip command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  const auto source = from_socket_address(widened(command.src_addr));
  const auto destination = from_socket_address(widened(command.dst_addr));
  if ((command.src_addr.sin6_family != 0 && !source) || !destination) return -EINVAL;
  return resolve(call.file, command.id, source, *destination);
}

int cm_commands::resolve_addr(const CmCall& call) {
  rdma_ucm_resolve_addr command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  std::optional<cm::Address> source;
  if (command.src_size != 0) {
    source = from_socket_address(command.src_addr);
    if (!source || command.src_size != address_size(*source)) return -EINVAL;
  }
  const auto destination = from_socket_address(command.dst_addr);
  if (command.reserved != 0 || !destination || command.dst_size != address_size(*destination)) return -EINVAL;
  return resolve(call.file, command.id, source, *destination);
}

int cm_commands::resolve_route(const CmCall& call) {
  rdma_ucm_resolve_route command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  return with_device(call.file, command.id,
                     [](CmContext& context, wire::TimePoint) { return -context.id->resolve_route(); });
}

}  // namespace qpair::softnic::driver
