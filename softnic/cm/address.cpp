#include "softnic/cm/address.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "softnic/wire/address.hpp"

namespace qpair::softnic::cm {
namespace {

constexpr AddressBytes kAnyIpv4{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0};
constexpr AddressBytes kLoopbackIpv4{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
constexpr AddressBytes kLoopbackIpv6{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

constexpr std::uint8_t kHeaderVersion = 0;
constexpr std::size_t kPortAt = 2;
constexpr std::size_t kSourceAt = 4;
constexpr std::size_t kDestinationAt = 20;

// An IPv4 address stands in the last four bytes of its field, behind zeros.
void put(std::uint8_t* to, const AddressBytes& bytes, int family) {
  std::memset(to, 0, bytes.size());
  const std::size_t from = family == AF_INET ? 12 : 0;
  std::copy(bytes.begin() + from, bytes.end(), to + from);
}

AddressBytes get(const std::uint8_t* from, int family) {
  AddressBytes bytes = family == AF_INET ? kAnyIpv4 : AddressBytes{};
  const std::size_t first = family == AF_INET ? 12 : 0;
  std::copy(from + first, from + bytes.size(), bytes.begin() + first);
  return bytes;
}

}  // namespace

bool Address::is_any() const {
  return bytes == AddressBytes{} || bytes == kAnyIpv4;
}

Address Address::any(int family) {
  return {.family = family, .bytes = family == AF_INET ? kAnyIpv4 : AddressBytes{}, .port = 0};
}

Address Address::loopback(int family) {
  return {.family = family, .bytes = family == AF_INET ? kLoopbackIpv4 : kLoopbackIpv6, .port = 0};
}

Address Address::of(const wire::Endpoint& endpoint, std::uint16_t port) {
  return {.family = endpoint.is_ipv4() ? AF_INET : AF_INET6, .bytes = endpoint.address, .port = port};
}

std::string to_string(const Address& address) {
  const std::string host = wire::to_string(address.endpoint());
  return address.family == AF_INET ? fmt::format("{}:{}", host, address.port)
                                   : fmt::format("[{}]:{}", host, address.port);
}

std::optional<IpHeader> IpHeader::parse(std::span<const std::uint8_t, kSize> bytes) {
  const unsigned version = bytes[1] >> 4;
  if (bytes[0] != kHeaderVersion || (version != 4 && version != 6)) return std::nullopt;
  IpHeader header;
  header.family = version == 4 ? AF_INET : AF_INET6;
  header.source_port = static_cast<std::uint16_t>((bytes[kPortAt] << 8) | bytes[kPortAt + 1]);
  header.source = get(bytes.data() + kSourceAt, header.family);
  header.destination = get(bytes.data() + kDestinationAt, header.family);
  return header;
}

void IpHeader::emit(std::span<std::uint8_t, kSize> bytes) const {
  bytes[0] = kHeaderVersion;
  bytes[1] = family == AF_INET ? 4 << 4 : 6 << 4;
  bytes[kPortAt] = static_cast<std::uint8_t>(source_port >> 8);
  bytes[kPortAt + 1] = static_cast<std::uint8_t>(source_port);
  put(bytes.data() + kSourceAt, source, family);
  put(bytes.data() + kDestinationAt, destination, family);
}

}  // namespace qpair::softnic::cm
