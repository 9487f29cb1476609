#pragma once
// Link-local GIDs of emulated NICs. Like a real card's they are made from the port's MAC address (EUI-64),
// and the MAC address of an emulated port is made from its IPv4 address, so that a peer which was given the
// link-local GID can still be reached over UDP.

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>

namespace qpair::softnic::nic {

// 02:71:a:b:c:d for the port with the IPv4 address a.b.c.d; for IPv6 the last four bytes stand in.
std::array<std::uint8_t, 6> port_mac(const std::array<std::uint8_t, 16>& address);

// fe80::/64 and the modified EUI-64 of the MAC address (RFC 4291 appendix A).
ibv_gid link_local(const std::array<std::uint8_t, 6>& mac);

// The address to send to for `gid`: the IPv4-mapped one for an emulated NIC's link-local GID, any other
// unchanged.
ibv_gid routable(const ibv_gid& gid);

// With InfiniBand's link layer: the LID of the port with this address, its last two bytes, and the address of
// the port with `lid` in the same subnet.
inline constexpr std::uint16_t kFirstMulticastLid = 0xc000;  // IBTA vol. 1 4.1.3
std::uint16_t lid_of(const std::array<std::uint8_t, 16>& address);
ibv_gid address_of_lid(std::uint16_t lid, const std::array<std::uint8_t, 16>& own_address);

}  // namespace qpair::softnic::nic
