#pragma once
// The sockets between the two processes of a benchmark. Descriptors are close-on-exec and the caller's to
// close.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace qpair::tool {

inline constexpr std::uint16_t kBenchPort = 18515 + 71;  // next to perftest's

struct HostAndPort {
  std::string host;
  std::uint16_t port;
};

// "host", "host:port", "[::1]:port", "::1". A Failure when the port is none.
HostAndPort parse_host(std::string_view text);

std::pair<int, int> connected_pair();                   // two ends of a Unix stream
int connect_to(const HostAndPort& where);               // every address of the name in turn
int listen_on(std::uint16_t port);                      // all addresses of this machine, IPv6 and IPv4
std::uint16_t port_of(int listener);                    // where port 0 was asked for, the one that was got
std::pair<int, std::string> accept_from(int listener);  // and who it is

}  // namespace qpair::tool
