#include "softnic/wire/address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace qpair::softnic::wire {
namespace {

constexpr std::array<std::uint8_t, 12> kMappedPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

Endpoint from_ipv4(const in_addr& address, std::uint16_t port) {
  Endpoint endpoint;
  std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), endpoint.address.begin());
  std::memcpy(endpoint.address.data() + 12, &address, sizeof(address));
  endpoint.port = port;
  return endpoint;
}

Endpoint from_ipv6(const in6_addr& address, std::uint16_t port) {
  Endpoint endpoint;
  std::memcpy(endpoint.address.data(), &address, sizeof(address));
  endpoint.port = port;
  return endpoint;
}

std::uint32_t mtu_of(const char* interface) {
  ifreq request{};
  std::strncpy(request.ifr_name, interface, sizeof(request.ifr_name) - 1);
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return 0;
  }
  const int status = ::ioctl(fd, SIOCGIFMTU, &request);
  ::close(fd);
  return status == 0 && request.ifr_mtu > 0 ? static_cast<std::uint32_t>(request.ifr_mtu) : 0;
}

// Smaller is better.
int preference(const LocalAddress& address) {
  return address.endpoint.is_ipv4() ? 0 : is_link_local(address.endpoint) ? 2 : 1;
}

}  // namespace

bool Endpoint::is_ipv4() const {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), address.begin());
}

std::optional<Endpoint> parse_address(const std::string& text) {
  in_addr four{};
  if (::inet_pton(AF_INET, text.c_str(), &four) == 1) {
    return from_ipv4(four, kRoceUdpPort);
  }
  in6_addr six{};
  if (::inet_pton(AF_INET6, text.c_str(), &six) == 1) {
    return from_ipv6(six, kRoceUdpPort);
  }
  return std::nullopt;
}

std::string to_string(const Endpoint& endpoint) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (endpoint.is_ipv4()) {
    ::inet_ntop(AF_INET, endpoint.address.data() + 12, text.data(), text.size());
  } else {
    ::inet_ntop(AF_INET6, endpoint.address.data(), text.data(), text.size());
  }
  return text.data();
}

bool is_loopback(const Endpoint& endpoint) {
  if (endpoint.is_ipv4()) {
    return endpoint.address[12] == 127;
  }
  return std::all_of(endpoint.address.begin(), endpoint.address.end() - 1,
                     [](auto byte) { return byte == 0; }) &&
         endpoint.address[15] == 1;
}

bool is_link_local(const Endpoint& endpoint) {
  return endpoint.address[0] == 0xfe && (endpoint.address[1] & 0xc0) == 0x80;
}

bool is_one_machine(const Endpoint& endpoint) {
  if (endpoint.is_ipv4()) {
    return endpoint.address[12] != 0 && endpoint.address[12] < 224;
  }
  const bool unspecified =
      std::all_of(endpoint.address.begin(), endpoint.address.end(), [](auto byte) { return byte == 0; });
  return !unspecified && endpoint.address[0] != 0xff;
}

std::vector<LocalAddress> local_addresses() {
  std::vector<LocalAddress> found;
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) {
    return found;
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw, &::freeifaddrs);
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr ||
        (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6)) {
      continue;
    }
    sockaddr_storage storage{};
    const bool four = entry->ifa_addr->sa_family == AF_INET;
    std::memcpy(&storage, entry->ifa_addr, four ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    LocalAddress address;
    address.endpoint = from_sockaddr(storage);
    address.endpoint.port = kRoceUdpPort;
    address.interface = entry->ifa_name;
    address.mtu = mtu_of(entry->ifa_name);
    if (is_link_local(address.endpoint)) {
      address.scope_id = ::if_nametoindex(entry->ifa_name);
    }
    found.push_back(std::move(address));
  }
  return found;
}

std::optional<LocalAddress> find_local(const Endpoint& endpoint) {
  for (LocalAddress& candidate : local_addresses()) {
    if (candidate.endpoint.address == endpoint.address) {
      return std::move(candidate);
    }
  }
  if (is_loopback(endpoint)) {
    return LocalAddress{.endpoint = endpoint, .interface = "lo", .scope_id = 0, .mtu = mtu_of("lo")};
  }
  return std::nullopt;
}

tl::expected<LocalAddress, std::string> address_of_interface(const std::string& name) {
  if (::if_nametoindex(name.c_str()) == 0) {
    return tl::unexpected(fmt::format("this machine has no network interface named '{}'", name));
  }
  std::optional<LocalAddress> best;
  for (LocalAddress& candidate : local_addresses()) {
    if (candidate.interface == name && (!best || preference(candidate) < preference(*best))) {
      best = std::move(candidate);
    }
  }
  if (!best) {
    return tl::unexpected(fmt::format("network interface '{}' has no IPv4 or IPv6 address", name));
  }
  return *best;
}

std::uint32_t roce_mtu_for(std::uint32_t interface_mtu) {
  // Room for GRH, UDP, BTH, XRCETH, AtomicETH and ICRC (kernel include/rdma/ib_addr.h, iboe_get_mtu).
  constexpr std::uint32_t kHeaders = 40 + 8 + 12 + 4 + 28 + 4;
  for (const std::uint32_t mtu : {4096U, 2048U, 1024U, 512U}) {
    if (interface_mtu >= mtu + kHeaders) {
      return mtu;
    }
  }
  return 256;
}

socklen_t to_sockaddr(const Endpoint& endpoint, std::uint32_t scope_id, sockaddr_storage& out) {
  if (endpoint.is_ipv4()) {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(endpoint.port);
    std::memcpy(&four.sin_addr, endpoint.address.data() + 12, sizeof(four.sin_addr));
    std::memcpy(&out, &four, sizeof(four));
    return sizeof(four);
  }
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(endpoint.port);
  std::memcpy(&six.sin6_addr, endpoint.address.data(), sizeof(six.sin6_addr));
  six.sin6_scope_id = is_link_local(endpoint) ? scope_id : 0;
  std::memcpy(&out, &six, sizeof(six));
  return sizeof(six);
}

Endpoint from_sockaddr(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, &address, sizeof(four));
    return from_ipv4(four.sin_addr, ntohs(four.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 six{};
    std::memcpy(&six, &address, sizeof(six));
    return from_ipv6(six.sin6_addr, ntohs(six.sin6_port));
  }
  return {};
}

}  // namespace qpair::softnic::wire
