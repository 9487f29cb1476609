#pragma once
// Addresses of rdma_cm identifiers, and how they travel: the service identifier names port space and port,
// and a header before the consumer's private data carries both IP addresses (IBTA vol. 1 annex A11; kernel,
// drivers/infiniband/core/cma.c, struct cma_hdr).

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "softnic/wire/link.hpp"

namespace qpair::softnic::cm {

using AddressBytes = std::array<std::uint8_t, 16>;

struct Address {
  int family = AF_UNSPEC;  // AF_INET, AF_INET6 or AF_IB
  AddressBytes bytes{};    // IPv4 as ::ffff:a.b.c.d; AF_IB: a GID
  std::uint16_t port = 0;

  bool is_any() const;
  bool same_host(const Address& other) const { return bytes == other.bytes; }
  wire::Endpoint endpoint() const { return {.address = bytes, .port = wire::kRoceUdpPort}; }

  static Address any(int family);
  static Address loopback(int family);
  static Address of(const wire::Endpoint& endpoint, std::uint16_t port);
};

std::string to_string(const Address& address);  // "127.0.0.1:7471"

enum class PortSpace : std::uint16_t { Ipoib = 0x0002, Tcp = 0x0106, Udp = 0x0111, Ib = 0x013f };

constexpr std::uint64_t service_id(PortSpace space, std::uint16_t port) {
  return (std::uint64_t{static_cast<std::uint16_t>(space)} << 16) | port;
}

struct IpHeader {
  static constexpr std::size_t kSize = 36;

  int family = AF_INET;
  std::uint16_t source_port = 0;
  AddressBytes source{};
  AddressBytes destination{};

  // Nothing: it is none, or of a version that is not known.
  static std::optional<IpHeader> parse(std::span<const std::uint8_t, kSize> bytes);
  void emit(std::span<std::uint8_t, kSize> bytes) const;
};

}  // namespace qpair::softnic::cm
