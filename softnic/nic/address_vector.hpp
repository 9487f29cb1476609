#pragma once
// Address vectors as datagram WQEs hold them, turned into places that the transport can send to.

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <optional>

#include "qpair/mlx5/wqe.hpp"
#include "softnic/roce/address_vector.hpp"

namespace qpair::softnic::nic {

// `local`: the NIC that sends.
roce::AddressVector decode_address(const mlx5::DatagramSegment& segment, const wire::Endpoint& local);

// With InfiniBand's link layer: the LID in place of a GID, when the segment has none.
std::optional<std::uint16_t> lid_in(const mlx5::DatagramSegment& segment);

// The NIC that has this GID.
wire::Endpoint endpoint_of(const ibv_gid& gid);
// The IP group that a multicast GID is on the network of `local`. On IPv6 it is the GID itself, or
// ff0e::ffff:a.b.c.d for an IPv4 group. On IPv4 it is the IPv4 group that the GID names; for any other GID
// 239.x.y.z with its last three bytes, as Ethernet makes 33:33:… of its last four: GIDs that end alike share
// a group.
wire::Endpoint group_of(const ibv_gid& gid, const wire::Endpoint& local);
// ff00::/8, or an IPv4 group (rdma_is_multicast_addr() in the kernel's include/rdma/ib_addr.h).
bool is_multicast(const ibv_gid& gid);
// The Ethernet address that belongs to it: what a kernel finds by ARP for an emulated NIC, and computes for a
// group (rdma_get_mcast_mac()). Nothing here looks at it, since packets go by IP.
std::array<std::uint8_t, 6> ethernet_address(const ibv_gid& gid);

}  // namespace qpair::softnic::nic
