#include "softnic/nic/xrc_domains.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "softnic/explain/explain.hpp"
#include "softnic/nic/id_table.hpp"

namespace qpair::softnic::nic {
namespace {

constexpr std::size_t kMostDomains = kIdMask - 1;

Errno refuse(int error, const std::string& sentence) {
  explain::say(explain::Kind::Refusal, sentence);
  return Errno{error};
}

}  // namespace

Expected<Xrcdn> XrcDomains::open(const std::optional<FileIdentity>& file, int flags) {
  const auto found =
      !file ? domains_.end()
            : std::ranges::find_if(domains_, [&](const auto& entry) { return entry.second.file == file; });
  if (found != domains_.end()) {
    if ((flags & O_EXCL) != 0) {
      return tl::unexpected(refuse(EINVAL, "open_xrcd refused: O_EXCL, but the file has an XRC domain"));
    }
    ++found->second.opens;
    return Xrcdn{found->first};
  }
  if (file && (flags & O_CREAT) == 0) {
    return tl::unexpected(
        refuse(EAGAIN, "open_xrcd refused: the file has no XRC domain yet, and O_CREAT is missing"));
  }
  if (domains_.size() >= kMostDomains) return tl::unexpected(refuse(ENOMEM, "all XRC domains are in use"));
  while (next_ == 0 || domains_.contains(next_)) next_ = (next_ + 1) & kIdMask;
  domains_.emplace(next_, Domain{.file = file});
  return Xrcdn{next_++};
}

Errno XrcDomains::close(Xrcdn domain) {
  const auto at = domains_.find(static_cast<std::uint32_t>(domain));
  if (at == domains_.end()) return Errno{EINVAL};
  if (at->second.opens > 1) {
    --at->second.opens;
    return Errno{0};
  }
  if (at->second.users != 0) {
    return refuse(EBUSY, fmt::format("XRC domain {} is in use by {} shared receive queues and queue pairs",
                                     at->first, at->second.users));
  }
  domains_.erase(at);
  return Errno{0};
}

bool XrcDomains::use(Xrcdn domain) {
  const auto at = domains_.find(static_cast<std::uint32_t>(domain));
  if (at == domains_.end()) return false;
  ++at->second.users;
  return true;
}

void XrcDomains::unuse(Xrcdn domain) {
  const auto at = domains_.find(static_cast<std::uint32_t>(domain));
  if (at != domains_.end() && at->second.users != 0) --at->second.users;
}

}  // namespace qpair::softnic::nic
