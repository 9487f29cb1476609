#pragma once
// Reception of multicast over UDP: one socket for each group that the NIC has joined, bound to the group's
// own address, which the sockets of other processes share. The kernel copies what is sent to a group to each
// of them, the sender's own included. Memberships end with the sockets, and those with the process.
//
// On the loopback interface this reaches every process of this machine, without privileges and without a
// route.

#include <cstddef>
#include <vector>

#include "softnic/wire/address.hpp"
#include "softnic/wire/descriptor.hpp"
#include "softnic/wire/link.hpp"
#include "softnic/wire/pages.hpp"

namespace qpair::softnic::wire {

class GroupSockets {
 public:
  // `local`: whose interface the groups are joined on. `waker`: a descriptor that descriptor() stands for as
  // well.
  GroupSockets(const LocalAddress& local, int waker);

  // 0 or an errno. Joined twice, it has to be left twice.
  int join(const Endpoint& group);
  void leave(const Endpoint& group);
  bool empty() const { return groups_.empty(); }

  // Readable when there is a packet here or at the waker; -1 when that could not be had.
  int descriptor() const { return epoll_.get(); }
  std::size_t poll(const Link::Receiver& receiver, std::size_t limit);
  void abandon();

 private:
  static constexpr std::size_t kLongestDatagram = 65536;
  static constexpr std::size_t kSocketBuffer = 8U << 20;  // as much of it as the kernel grants
  struct Group {
    Endpoint address;
    Descriptor socket;
    unsigned joined = 1;
  };

  bool watch(int fd);
  bool receive(const Group& group, const Link::Receiver& receiver);

  LocalAddress local_;
  int interface_ = 0;
  Descriptor epoll_;
  std::vector<Group> groups_;
  Pages buffer_;  // with the first group
};

}  // namespace qpair::softnic::wire
