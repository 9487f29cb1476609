#pragma once
// Which queue pairs are attached to which multicast groups. The link is a member of a group as long as a
// queue pair is. Engine lock held.

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "softnic/nic/nic.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::nic {

class QueuePair;

class MulticastGroups {
 public:
  explicit MulticastGroups(wire::Link& link) : link_(link) {}

  // 0, or the errno, the reason said.
  Errno attach(QueuePair& qp, const ibv_gid& gid);
  Errno detach(QueuePair& qp, const ibv_gid& gid);
  // The queue pair goes.
  void forget(QueuePair& qp);

  std::span<QueuePair* const> members(const wire::Endpoint& group) const;

 private:
  using Address = std::array<std::uint8_t, 16>;
  using Members = std::vector<QueuePair*>;

  bool remove(Members& members, QueuePair& qp, const wire::Endpoint& group);

  wire::Link& link_;
  std::map<Address, Members> groups_;
};

}  // namespace qpair::softnic::nic
