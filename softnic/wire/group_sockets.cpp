#include "softnic/wire/group_sockets.hpp"

#include <net/if.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "softnic/wire/socket_option.hpp"

namespace qpair::softnic::wire {
namespace {

bool add_membership(int fd, const Endpoint& group, int interface) {
  if (group.is_ipv4()) {
    ip_mreqn request{};
    std::memcpy(&request.imr_multiaddr, group.address.data() + 12, 4);
    request.imr_ifindex = interface;
    // Only what this socket has joined, not what any socket of the machine has.
    return set_option(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0) &&
           set_option(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, request);
  }
  ipv6_mreq request{};
  std::memcpy(&request.ipv6mr_multiaddr, group.address.data(), 16);
  request.ipv6mr_interface = static_cast<unsigned>(interface);
  return set_option(fd, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, request);
}

}  // namespace

GroupSockets::GroupSockets(const LocalAddress& local, int waker)
    : local_(local), interface_(static_cast<int>(::if_nametoindex(local.interface.c_str()))) {
  epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (epoll_ && !watch(waker)) epoll_ = Descriptor();
}

bool GroupSockets::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

int GroupSockets::join(const Endpoint& group) {
  if (group.is_ipv4() != local_.endpoint.is_ipv4()) return EAFNOSUPPORT;
  // Linux has no multicast route on the IPv6 loopback interface: nothing could be sent.
  if (!group.is_ipv4() && is_loopback(local_.endpoint)) return ENETUNREACH;
  if (!epoll_) return EMFILE;
  const auto known =
      std::ranges::find(groups_, group.address, [](const Group& g) { return g.address.address; });
  if (known != groups_.end()) {
    ++known->joined;
    return 0;
  }
  if (buffer_.size() == 0) buffer_ = Pages(kLongestDatagram);
  if (buffer_.size() == 0) return ENOMEM;
  sockaddr_storage address{};
  const socklen_t length = to_sockaddr(group, static_cast<std::uint32_t>(interface_), address);
  Descriptor fd(::socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || !set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1) ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      !add_membership(fd.get(), group, interface_) || !watch(fd.get())) {
    return errno;
  }
  const auto bytes = static_cast<int>(kSocketBuffer);
  if (!set_option(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, bytes)) {
    set_option(fd.get(), SOL_SOCKET, SO_RCVBUF, bytes);
  }
  groups_.push_back({group, std::move(fd), 1});
  return 0;
}

void GroupSockets::leave(const Endpoint& group) {
  const auto known =
      std::ranges::find(groups_, group.address, [](const Group& g) { return g.address.address; });
  if (known == groups_.end() || --known->joined != 0) return;
  groups_.erase(known);
}

std::size_t GroupSockets::poll(const Link::Receiver& receiver, std::size_t limit) {
  std::array<epoll_event, 16> ready;
  const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  std::size_t delivered = 0;
  for (int i = 0; i < count; ++i) {
    const int fd = ready[static_cast<std::size_t>(i)].data.fd;
    const auto group = std::ranges::find(groups_, fd, [](const Group& g) { return g.socket.get(); });
    if (group == groups_.end()) continue;  // the waker
    while (delivered < limit && receive(*group, receiver)) ++delivered;
  }
  return delivered;
}

bool GroupSockets::receive(const Group& group, const Link::Receiver& receiver) {
  sockaddr_storage source{};
  iovec vector{buffer_.data(), kLongestDatagram};
  msghdr message{};
  message.msg_name = &source;
  message.msg_namelen = sizeof(source);
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  const ssize_t size = ::recvmsg(group.socket.get(), &message, MSG_DONTWAIT);
  if (size < 0) return false;
  receiver({from_sockaddr(source), group.address, buffer_.bytes().first(static_cast<std::size_t>(size))});
  return true;
}

void GroupSockets::abandon() {
  epoll_.abandon();
  for (Group& group : groups_) group.socket.abandon();
}

}  // namespace qpair::softnic::wire
