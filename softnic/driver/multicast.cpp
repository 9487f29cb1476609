// Attaching queue pairs to multicast groups: ib_uverbs_attach_mcast() and ib_uverbs_detach_mcast() in the
// kernel's drivers/infiniband/core/uverbs_cmd.c, which keeps for each queue pair what it is attached to.

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "softnic/driver/context.hpp"

namespace qpair::softnic::driver {

int attach_multicast(Context& context, QpObject& qp, const McastAttachment& to) {
  if (std::ranges::find(qp.attached, to) != qp.attached.end()) return 0;
  ibv_gid gid{};
  std::ranges::copy(to.gid, gid.raw);
  if (const int error = context.nic->attach_multicast(qp.qpn, gid).value; error != 0) return -error;
  qp.attached.push_back(to);
  return 0;
}

int detach_multicast(Context& context, QpObject& qp, const McastAttachment& from) {
  const auto known = std::ranges::find(qp.attached, from);
  if (known == qp.attached.end()) return -EINVAL;
  qp.attached.erase(known);
  // Attached under another LID, which RoCE ignores, it stays a member.
  if (std::ranges::find(qp.attached, from.gid, &McastAttachment::gid) != qp.attached.end()) return 0;
  ibv_gid gid{};
  std::ranges::copy(from.gid, gid.raw);
  return -context.nic->detach_multicast(qp.qpn, gid).value;
}

}  // namespace qpair::softnic::driver
