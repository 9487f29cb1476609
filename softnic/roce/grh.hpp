#pragma once
// The 40 bytes in front of a received datagram: the network header that it came with, where InfiniBand has
// its global routing header (IBTA annex A17.4.5.2: an IPv6 header as it is; an IPv4 header in the last 20
// bytes). Links carry no network headers, so it is made anew from the addresses.

#include <array>
#include <cstddef>

#include "softnic/roce/host.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::roce {

inline constexpr std::size_t kGrhSize = 40;
using Grh = std::array<std::byte, kGrhSize>;

// `packet_size`: base transport header to invariant CRC.
Grh make_grh(const wire::Endpoint& source, const wire::Endpoint& destination, std::size_t packet_size);
Received::Grh grh_kind(const wire::Endpoint& source, const wire::Endpoint& destination);

}  // namespace qpair::softnic::roce
