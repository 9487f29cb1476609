#include "softnic/nic/multicast.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "softnic/explain/explain.hpp"
#include "softnic/nic/address_vector.hpp"
#include "softnic/nic/device.hpp"
#include "softnic/nic/queue_pair.hpp"
#include "softnic/wire/address.hpp"

namespace qpair::softnic::nic {
namespace {

Errno refuse(int error, const QueuePair& qp, const std::string& why) {
  explain::say(explain::Kind::Refusal, fmt::format("queue pair {:#x} cannot be attached: {}",
                                                   static_cast<std::uint32_t>(qp.number()), why));
  return Errno{error};
}

wire::Endpoint at(const std::array<std::uint8_t, 16>& address) {
  return {address, wire::kRoceUdpPort};
}

}  // namespace

// ib_attach_mcast() in the kernel's drivers/infiniband/core/verbs.c.
Errno MulticastGroups::attach(QueuePair& qp, const ibv_gid& gid) {
  if (qp.parameters().type != IBV_QPT_UD) return refuse(EINVAL, qp, "multicast is for datagrams (UD)");
  if (!is_multicast(gid))
    return refuse(EINVAL, qp, "that is no multicast GID (ff00::/8, ::ffff:224.0.0.0/100)");
  const wire::Endpoint group = group_of(gid, link_.local());
  const auto known = groups_.find(group.address);
  if (known != groups_.end()) {
    if (std::ranges::find(known->second, &qp) != known->second.end()) return Errno{0};
    if (known->second.size() >= static_cast<std::size_t>(make_limits().attributes.max_mcast_qp_attach)) {
      return refuse(ENOMEM, qp, fmt::format("the group has {} members already", known->second.size()));
    }
    known->second.push_back(&qp);
    return Errno{0};
  }
  if (const int error = link_.join(group); error != 0) {
    return refuse(error, qp,
                  fmt::format("{} cannot join {}: {}", wire::to_string(link_.local()), wire::to_string(group),
                              std::strerror(error)));
  }
  groups_[group.address].push_back(&qp);
  return Errno{0};
}

Errno MulticastGroups::detach(QueuePair& qp, const ibv_gid& gid) {
  const wire::Endpoint group = group_of(gid, link_.local());
  const auto known = groups_.find(group.address);
  if (known == groups_.end() || !remove(known->second, qp, group)) return Errno{EINVAL};
  if (known->second.empty()) groups_.erase(known);
  return Errno{0};
}

void MulticastGroups::forget(QueuePair& qp) {
  for (auto group = groups_.begin(); group != groups_.end();) {
    remove(group->second, qp, at(group->first));
    group = group->second.empty() ? groups_.erase(group) : std::next(group);
  }
}

bool MulticastGroups::remove(Members& members, QueuePair& qp, const wire::Endpoint& group) {
  if (std::erase(members, &qp) == 0) return false;
  if (members.empty()) link_.leave(group);
  return true;
}

std::span<QueuePair* const> MulticastGroups::members(const wire::Endpoint& group) const {
  const auto known = groups_.find(group.address);
  if (known == groups_.end()) return {};
  return known->second;
}

}  // namespace qpair::softnic::nic
