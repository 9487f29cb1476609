#pragma once
// XRC domains: which XRC shared receive queues a target queue pair may be used for (IBTA vol. 1 annex A14). A
// domain that was opened with a file is found again by whoever opens the same file, as the kernel's
// ib_uverbs_open_xrcd() does.

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "softnic/nic/nic.hpp"

namespace qpair::softnic::nic {

class XrcDomains {
 public:
  // `flags`: O_CREAT, O_EXCL. EAGAIN: the file has no domain yet and O_CREAT is not set; EINVAL: it has one
  // and O_EXCL is set.
  Expected<Xrcdn> open(const std::optional<FileIdentity>& file, int flags);
  // EBUSY while queues use it and nobody else has it open.
  Errno close(Xrcdn domain);

  bool use(Xrcdn domain);  // false: no such domain
  void unuse(Xrcdn domain);

 private:
  struct Domain {
    std::optional<FileIdentity> file;
    unsigned opens = 1;
    unsigned users = 0;  // shared receive queues and queue pairs
  };
  std::unordered_map<std::uint32_t, Domain> domains_;
  std::uint32_t next_ = 1;
};

}  // namespace qpair::softnic::nic
