#include "softnic/roce/grh.hpp"

#include <algorithm>

#include "softnic/wire/bytes.hpp"

namespace qpair::softnic::roce {

using wire::load_be;
using wire::store_be;

namespace {

constexpr std::size_t kIpv4Size = 20;
constexpr std::size_t kUdpSize = 8;
constexpr std::byte kUdpProtocol{17};
constexpr std::byte kHops{64};  // nothing routes between here and there

std::span<const std::byte> bytes_of(const wire::Endpoint& endpoint) {
  return std::as_bytes(std::span{endpoint.address});
}

void fill_ipv4(std::byte* ip, const wire::Endpoint& source, const wire::Endpoint& destination,
               std::size_t packet_size) {
  ip[0] = std::byte{0x45};  // version 4, 5 words
  store_be(ip + 2, static_cast<std::uint16_t>(kIpv4Size + kUdpSize + packet_size));
  ip[6] = std::byte{0x40};  // do not fragment
  ip[8] = kHops;
  ip[9] = kUdpProtocol;
  std::ranges::copy(bytes_of(source).last(4), ip + 12);
  std::ranges::copy(bytes_of(destination).last(4), ip + 16);
  // libibverbs tells IPv4 from IPv6 by the checksum (get_grh_header_version() in verbs.c).
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at < kIpv4Size; at += 2) sum += load_be<std::uint16_t>(ip + at);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  store_be(ip + 10, static_cast<std::uint16_t>(~sum));
}

void fill_ipv6(std::byte* ip, const wire::Endpoint& source, const wire::Endpoint& destination,
               std::size_t packet_size) {
  ip[0] = std::byte{0x60};
  store_be(ip + 4, static_cast<std::uint16_t>(kUdpSize + packet_size));
  ip[6] = kUdpProtocol;
  ip[7] = kHops;
  std::ranges::copy(bytes_of(source), ip + 8);
  std::ranges::copy(bytes_of(destination), ip + 24);
}

}  // namespace

Received::Grh grh_kind(const wire::Endpoint& source, const wire::Endpoint& destination) {
  return source.is_ipv4() && destination.is_ipv4() ? Received::Grh::Ipv4 : Received::Grh::Ipv6;
}

Grh make_grh(const wire::Endpoint& source, const wire::Endpoint& destination, std::size_t packet_size) {
  Grh grh{};
  if (grh_kind(source, destination) == Received::Grh::Ipv4) {
    fill_ipv4(grh.data() + kGrhSize - kIpv4Size, source, destination, packet_size);
  } else {
    fill_ipv6(grh.data(), source, destination, packet_size);
  }
  return grh;
}

}  // namespace qpair::softnic::roce
