#pragma once
// Addresses of NICs and of this machine: text both ways, socket addresses both ways, and which of them are
// local.

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "softnic/wire/link.hpp"

namespace qpair::softnic::wire {

// One address that an interface of this machine has.
struct LocalAddress {
  Endpoint endpoint;           // port kRoceUdpPort
  std::string interface;       // "lo", "eth0"
  std::uint32_t scope_id = 0;  // interface index, for link-local IPv6 addresses
  std::uint32_t mtu = 0;       // of the interface, in bytes; 0: unknown
};

// "192.0.2.1", "fd00::1", "::ffff:192.0.2.1". A port or a scope ("%eth0") is no part of it.
std::optional<Endpoint> parse_address(const std::string& text);
// The address alone, IPv4 in dotted form.
std::string to_string(const Endpoint& endpoint);

bool is_loopback(const Endpoint& endpoint);     // 127.0.0.0/8, ::1
bool is_link_local(const Endpoint& endpoint);   // fe80::/10
bool is_one_machine(const Endpoint& endpoint);  // neither unspecified nor multicast nor broadcast

// What the interfaces have now. Empty when the kernel will not tell.
std::vector<LocalAddress> local_addresses();
// The one that `endpoint` is, loopback included: all of 127.0.0.0/8 belongs to lo.
std::optional<LocalAddress> find_local(const Endpoint& endpoint);
// The address to use on that interface: IPv4 first, then routable IPv6, then link-local. The error is a
// sentence.
tl::expected<LocalAddress, std::string> address_of_interface(const std::string& name);

// The largest RoCE path MTU (256 … 4096) whose packets fit in the interface's, as the kernel's iboe_get_mtu()
// has it.
std::uint32_t roce_mtu_for(std::uint32_t interface_mtu);

// A socket address of the endpoint's own family. Returns its length.
socklen_t to_sockaddr(const Endpoint& endpoint, std::uint32_t scope_id, sockaddr_storage& out);
Endpoint from_sockaddr(const sockaddr_storage& address);

}  // namespace qpair::softnic::wire
