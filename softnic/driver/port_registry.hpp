#pragma once
// The ports of rdma_cm on this host, without privileges and without a server: a machine has one address and
// many NICs, one for each process, so that 127.0.0.1:7471 does not say whose port 7471 is meant.
//
//   …/qpair-<uid>/<pid>-XXXXXX/ports/      in the process's scratch directory (scratch_directory.hpp)
//       tcp,7471,0.0.0.0,0 -> 127.71.3.4,4026531840,lr
//       space port address n    NIC      netns      l: listening, r: shares its port (SO_REUSEADDR)
//
// Entries are symbolic links, since those appear and are read whole. A process that has died is told by its
// directory's lock, as ScratchDirectory does. Only directories of the user's own are believed. Taking a port
// is atomic by a lock on the directory above; those who cannot be seen (another user, another network
// namespace) are other hosts. Thread-safe; makes system calls, so never under the NIC's lock, except that
// letting go of a port is one unlink().

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "softnic/cm/address.hpp"
#include "softnic/cm/id.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::driver {

class PortRegistry : public std::enable_shared_from_this<PortRegistry> {
 public:
  // `scratch`: the process's scratch directory. `nic`: the address that it serves. `places`: where processes
  // of the user may have theirs besides.
  PortRegistry(const std::string& scratch, const wire::Endpoint& nic,
               std::vector<std::string> places = usual_places());
  // Processes of one user may have been given different places for their files.
  static std::vector<std::string> usual_places();

  struct Wish {
    cm::PortSpace space{};
    cm::Address address;  // port 0: any free one
    bool reuse = false;
    bool family_only = false;
    bool shown = true;  // to other processes; a port that only connects is nobody's business
  };
  // 0, and the claim and the port in `wish`; or EADDRINUSE, EADDRNOTAVAIL as cma_check_port() has them.
  int claim(Wish& wish, std::shared_ptr<cm::PortClaim>& claim);
  // From now on the port is listened to: alone, even if it was shared (cma_bind_listen()).
  int listen(const std::shared_ptr<cm::PortClaim>& claim);
  // The NIC whose process has that port.
  std::optional<wire::Endpoint> find(cm::PortSpace space, const cm::Address& address);

  struct Entry {
    cm::PortSpace space{};
    cm::Address address;
    bool reuse = false;
    bool family_only = false;
    bool listening = false;
    wire::Endpoint nic;
    std::string network;  // namespace
  };
  // The two halves of a link; nothing: it is none of ours.
  static std::string name_of(const Entry& entry, unsigned number);
  static std::string target_of(const Entry& entry);
  static std::optional<Entry> parse(std::string_view name, std::string_view target);

 private:
  class Claim;

  std::vector<Entry> others() const;
  int conflict(const Entry& wanted, const Claim* self, const std::vector<Entry>& others) const;
  void show(Claim& claim);
  void let_go(const Claim& claim);

  const std::string directory_;  // …/ports
  const std::string parent_;     // of all processes' scratch directories
  const std::string own_;        // name of ours in it
  const std::vector<std::string> places_;
  const wire::Endpoint nic_;
  const std::string network_;
  std::mutex mutex_;
  std::vector<const Claim*> claims_;  // guarded by mutex_
  unsigned next_number_ = 0;
  std::uint32_t next_port_;
};

}  // namespace qpair::softnic::driver
