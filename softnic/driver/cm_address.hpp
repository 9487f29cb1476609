#pragma once
// Socket addresses of rdma_cm commands, and which NIC serves an address.

#include <linux/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "softnic/cm/address.hpp"
#include "softnic/driver/port_registry.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::driver {

inline constexpr std::uint16_t kDefaultPartition = 0xffff;

// rdma_addr_size(): 0 for a family that is none of rdma_cm's.
std::uint16_t address_size(int family);
inline std::uint16_t address_size(const cm::Address& address) {
  return address_size(address.family);
}
// Nothing: a family that is none of rdma_cm's. Of AF_IB the service's lower half is the port.
std::optional<cm::Address> from_socket_address(const __kernel_sockaddr_storage& from);
__kernel_sockaddr_storage to_socket_address(const cm::Address& from);
// A GID as the AF_IB address of `service`.
__kernel_sockaddr_storage to_ib_address(const cm::Gid& gid, std::uint64_t service);

// Whether the NIC at `own` serves programs that bind to `address`: 0, ENODEV (no RDMA device has it),
// EADDRNOTAVAIL (this machine has it not). It serves what the machine has, for lack of addresses of its own.
int may_bind(const wire::Endpoint& own, const cm::Address& address);

std::string bind_refusal(const wire::Endpoint& own, const cm::Address& address);

struct Reach {
  int failure = 0;  // ENODEV: no RDMA device leads there
  wire::Endpoint peer;
};
// The NIC that serves `destination`: the one with that address, or else the one whose process has the port.
Reach reach(PortRegistry& registry, const wire::Endpoint& own, cm::PortSpace space,
            const cm::Address& destination);

}  // namespace qpair::softnic::driver
