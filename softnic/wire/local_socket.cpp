#include "softnic/wire/local_socket.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

// Raw system calls: these descriptors are none of the program's, and whatever watches libc (the hooks,
// sanitizers) would miss that they are closed by one.

namespace qpair::softnic::wire {
namespace {

constexpr int kBacklog = 512;

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;
};

Name name_of(const Endpoint& endpoint) {
  Name name;
  name.address.sun_family = AF_UNIX;
  // The first byte stays zero: an abstract name (unix(7)).
  const auto end = fmt::format_to_n(&name.address.sun_path[1], sizeof name.address.sun_path - 1,
                                    "qpair-nic-{}-{:02x}", ::geteuid(), fmt::join(endpoint.address, ""));
  name.length = static_cast<socklen_t>(end.out - reinterpret_cast<char*>(&name.address));
  return name;
}

Descriptor new_socket() {
  return Descriptor(
      static_cast<int>(::syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
}

}  // namespace

LocalSocket LocalSocket::listen(const Endpoint& own) {
  LocalSocket socket;
  const Name name = name_of(own);
  socket.fd_ = new_socket();
  if (!socket.fd_ || ::syscall(SYS_bind, socket.get(), &name.address, name.length) != 0 ||
      ::syscall(SYS_listen, socket.get(), kBacklog) != 0) {
    return {};
  }
  return socket;
}

LocalSocket LocalSocket::connect(const Endpoint& peer) {
  LocalSocket socket;
  const Name name = name_of(peer);
  socket.fd_ = new_socket();
  if (!socket.fd_ || ::syscall(SYS_connect, socket.get(), &name.address, name.length) != 0 ||
      !socket.take_peer()) {
    return {};
  }
  return socket;
}

LocalSocket LocalSocket::accept(bool& table_full) const {
  for (;;) {
    LocalSocket socket;
    const auto fd =
        static_cast<int>(::syscall(SYS_accept4, get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    table_full = fd < 0 && (errno == EMFILE || errno == ENFILE);
    if (fd < 0) return {};
    socket.fd_ = Descriptor(fd);
    if (socket.take_peer()) return socket;
  }
}

bool LocalSocket::take_peer() {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::syscall(SYS_getsockopt, get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid())
    return false;
  peer_ = peer.pid;
  return true;
}

LocalSocket::Outcome LocalSocket::send(const LocalMessage& message, std::span<const int> descriptors) const {
  constexpr std::size_t kMost = 2;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMost * sizeof(int))> control{};
  LocalMessage copy = message;
  iovec vector{&copy, sizeof copy};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  if (::syscall(SYS_sendmsg, get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<long>(sizeof copy)) {
    return Outcome::Done;
  }
  return errno == EAGAIN || errno == ENOBUFS ? Outcome::Nothing : Outcome::Closed;
}

LocalSocket::Outcome LocalSocket::receive(ReceivedMessage& received) const {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(2 * sizeof(int))> control{};
  iovec vector{&received.message, sizeof received.message};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  long size = ::syscall(SYS_recvmsg, get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  // The other side closed it without reading all. What it said before is still there, and told only once that
  // it is not.
  if (size < 0 && errno == ECONNRESET)
    size = ::syscall(SYS_recvmsg, get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return Outcome::Nothing;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < std::min(count, received.descriptors.size()); ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof fd, sizeof fd);
      received.descriptors.at(i) = Descriptor(fd);
    }
  }
  const bool whole =
      size == static_cast<long>(sizeof received.message) && received.message.magic == LocalMessage::kMagic;
  return whole ? Outcome::Done : Outcome::Closed;
}

bool LocalSocket::is_connected() const {
  pollfd one{get(), POLLIN | POLLRDHUP, 0};
  timespec at_once{};
  return ::syscall(SYS_ppoll, &one, 1UL, &at_once, nullptr, 0UL) == 0 ||
         (one.revents & (POLLHUP | POLLRDHUP | POLLERR)) == 0;
}

}  // namespace qpair::softnic::wire
