#include "softnic/driver/cm_address.hpp"

#include <fmt/format.h>
#include <infiniband/ib.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "qpair/mlx5/endian.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/wire/address.hpp"

namespace qpair::softnic::driver {
namespace {

// 127.71.0.0/16, where every address is that of an emulated NIC (wire::UdpLink::open_anywhere()).
bool is_of_emulated_nic(const wire::Endpoint& endpoint) {
  return endpoint.is_ipv4() && endpoint.address[12] == 127 && endpoint.address[13] == 71;
}

bool is_multicast(const wire::Endpoint& endpoint) {
  return endpoint.is_ipv4() ? (endpoint.address[12] & 0xf0) == 0xe0 : endpoint.address[0] == 0xff;
}

template <typename SocketAddress>
SocketAddress read_as(const __kernel_sockaddr_storage& from) {
  SocketAddress address{};
  std::memcpy(&address, &from, sizeof address);
  return address;
}

}  // namespace

std::uint16_t address_size(int family) {
  switch (family) {
    case AF_INET:
      return sizeof(sockaddr_in);
    case AF_INET6:
      return sizeof(sockaddr_in6);
    case AF_IB:
      return sizeof(sockaddr_ib);
    default:
      return 0;
  }
}

std::optional<cm::Address> from_socket_address(const __kernel_sockaddr_storage& from) {
  sa_family_t family = 0;
  std::memcpy(&family, &from, sizeof family);
  cm::Address address = cm::Address::any(family);
  switch (family) {
    case AF_INET: {
      const auto four = read_as<sockaddr_in>(from);
      std::memcpy(address.bytes.data() + 12, &four.sin_addr, sizeof four.sin_addr);
      address.port = ntohs(four.sin_port);
      return address;
    }
    case AF_INET6: {
      const auto six = read_as<sockaddr_in6>(from);
      std::memcpy(address.bytes.data(), &six.sin6_addr, sizeof six.sin6_addr);
      address.port = ntohs(six.sin6_port);
      return address;
    }
    case AF_IB: {
      const auto ib = read_as<sockaddr_ib>(from);
      std::memcpy(address.bytes.data(), &ib.sib_addr, sizeof ib.sib_addr);
      address.port = static_cast<std::uint16_t>(mlx5::byte_swap(std::uint64_t{ib.sib_sid}));
      return address;
    }
    default:
      return std::nullopt;
  }
}

__kernel_sockaddr_storage to_socket_address(const cm::Address& from) {
  __kernel_sockaddr_storage to{};
  if (from.family == AF_INET) {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(from.port);
    std::memcpy(&four.sin_addr, from.bytes.data() + 12, sizeof four.sin_addr);
    std::memcpy(&to, &four, sizeof four);
  } else if (from.family == AF_INET6) {
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(from.port);
    std::memcpy(&six.sin6_addr, from.bytes.data(), sizeof six.sin6_addr);
    std::memcpy(&to, &six, sizeof six);
  } else if (from.family == AF_IB) {
    to = to_ib_address(from.bytes, from.port);
  }
  return to;
}

__kernel_sockaddr_storage to_ib_address(const cm::Gid& gid, std::uint64_t service) {
  sockaddr_ib ib{};
  ib.sib_family = AF_IB;
  ib.sib_pkey = htons(kDefaultPartition);
  std::memcpy(&ib.sib_addr, gid.data(), gid.size());
  ib.sib_sid = mlx5::byte_swap(service);
  ib.sib_sid_mask = ~std::uint64_t{0};
  __kernel_sockaddr_storage to{};
  std::memcpy(&to, &ib, sizeof ib);
  return to;
}

int may_bind(const wire::Endpoint& own, const cm::Address& address) {
  if (address.is_any() || address.bytes == own.address) return 0;
  if (address.family == AF_IB) return ENODEV;  // rdma_cap_af_ib(): InfiniBand ports only
  if (is_of_emulated_nic(address.endpoint())) return ENODEV;
  return wire::find_local(address.endpoint()) ? 0 : EADDRNOTAVAIL;
}

std::string bind_refusal(const wire::Endpoint& own, const cm::Address& address) {
  return fmt::format("rdma_bind_addr: {} is not served by the emulated NIC at {}", cm::to_string(address),
                     wire::to_string(own));
}

Reach reach(PortRegistry& registry, const wire::Endpoint& own, cm::PortSpace space,
            const cm::Address& destination) {
  const wire::Endpoint asked = destination.endpoint();
  if (destination.family == AF_IB) return {.failure = ENODEV, .peer = {}};
  if (is_multicast(asked)) return {.failure = 0, .peer = asked};
  if (asked.address == own.address || is_of_emulated_nic(asked)) return {.failure = 0, .peer = asked};
  if (wire::find_local(asked)) {
    // Nobody there: the request goes to this NIC, which refuses it as a machine without a listener does.
    return {.failure = 0, .peer = registry.find(space, destination).value_or(own)};
  }
  if (!wire::is_loopback(own)) return {.failure = 0, .peer = asked};
  explain::say(explain::Kind::Refusal,
               fmt::format("rdma_resolve_addr: {} is another machine's, and the emulated NIC at {} reaches "
                           "this machine only; give it an address of the network (qpair run --interface or "
                           "--address)",
                           wire::to_string(asked), wire::to_string(own)));
  return {.failure = ENODEV, .peer = {}};
}

}  // namespace qpair::softnic::driver
