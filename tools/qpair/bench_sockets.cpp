#include "bench_sockets.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "failure.hpp"

namespace qpair::tool {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const char* host, std::uint16_t port, int flags, const std::string& what) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw Failure(fmt::format("{}: {}", what, ::gai_strerror(error)));
  return {found, &::freeaddrinfo};
}

// A peer that vanished without a word (a cable, a power cut) is noticed within two minutes, in which nothing
// has to be said.
void notice_a_dead_peer(int fd) {
  const int on = 1;
  const int idle = 60;
  const int interval = 10;
  const int count = 6;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string name_of(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), port.data(),
                    port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "somebody";
  }
  std::string_view text = host.data();
  if (text.starts_with("::ffff:")) text.remove_prefix(7);  // IPv4 that came to an IPv6 socket
  return fmt::format("{} port {}", text, port.data());
}

}  // namespace

HostAndPort parse_host(std::string_view text) {
  std::string_view host = text;
  std::string_view port;
  if (text.starts_with("[")) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos || (end + 1 < text.size() && text[end + 1] != ':')) {
      throw Failure(fmt::format("'{}' is no host; write HOST, HOST:PORT or [ADDRESS]:PORT", text), kUsage);
    }
    host = text.substr(1, end - 1);
    port = end + 1 < text.size() ? text.substr(end + 2) : "";
    if (end + 2 == text.size()) port = ":";  // an empty port is none
  } else if (const std::size_t colon = text.find(':');
             colon != std::string_view::npos && text.find(':', colon + 1) == std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) port = ":";
  }
  HostAndPort result{std::string(host), kBenchPort};
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), result.port);
    if (error != std::errc{} || end != port.data() + port.size() || result.port == 0) {
      throw Failure(fmt::format("'{}': the port is a number from 1 to 65535", text), kUsage);
    }
  }
  if (result.host.empty()) throw Failure(fmt::format("'{}' names no host", text), kUsage);
  return result;
}

std::pair<int, int> connected_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Failure(fmt::format("cannot make a socket pair: {}", std::strerror(errno)));
  }
  return {ends[0], ends[1]};
}

int connect_to(const HostAndPort& where) {
  const std::string what = fmt::format("cannot connect to {} port {}", where.host, where.port);
  const Addresses addresses = resolve(where.host.c_str(), where.port, AI_ADDRCONFIG, what);
  int error = EHOSTUNREACH;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const int fd = ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && ::connect(fd, address->ai_addr, address->ai_addrlen) == 0) {
      notice_a_dead_peer(fd);
      return fd;
    }
    error = errno;
    if (fd >= 0) ::close(fd);
  }
  throw Failure(fmt::format("{}: {}{}", what, std::strerror(error),
                            error == ECONNREFUSED ? "; `qpair bench --listen` runs there?" : ""));
}

int listen_on(std::uint16_t port) {
  // One socket for both, or for IPv4 where the machine has no IPv6.
  for (const int family : {AF_INET6, AF_INET}) {
    const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 && family == AF_INET6) continue;
    const int on = 1;
    const int off = 0;
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    socklen_t size = sizeof(sockaddr_in);
    if (family == AF_INET6) {
      size = sizeof(sockaddr_in6);
      ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      reinterpret_cast<sockaddr_in6*>(&address)->sin6_port = htons(port);
    } else {
      reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(port);
    }
    if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
        ::listen(fd, SOMAXCONN) == 0) {
      return fd;
    }
    const int error = errno;
    if (fd >= 0) ::close(fd);
    if (family == AF_INET6 && error == EADDRNOTAVAIL) continue;
    throw Failure(fmt::format("cannot listen on port {}: {}", port, std::strerror(error)));
  }
  throw Failure(fmt::format("cannot listen on port {}: no IPv4 and no IPv6", port));
}

std::uint16_t port_of(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::pair<int, std::string> accept_from(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const int fd = ::accept4(listener, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC);
  if (fd < 0) throw Failure(fmt::format("cannot accept a connection: {}", std::strerror(errno)));
  notice_a_dead_peer(fd);
  return {fd, name_of(address, size)};
}

}  // namespace qpair::tool
