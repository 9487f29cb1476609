#include "softnic/driver/port_registry.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "softnic/driver/scratch_directory.hpp"
#include "softnic/wire/address.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr const char* kPorts = "ports";
// Ephemeral ports, as /proc/sys/net/ipv4/ip_local_port_range has them by default.
constexpr std::uint32_t kFirstEphemeral = 32768;
constexpr std::uint32_t kEphemerals = 28232;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Held by one process at a time. A holder that was stopped must not stop everybody: after a second the lock
// is taken for granted, and two may get one port.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory) : directory_(open(directory.c_str(), kDirectory)) {
    constexpr int kAttempts = 1000;
    for (int attempt = 0; attempt < kAttempts && directory_.get() >= 0; ++attempt) {
      held_ = flock(directory_.get(), LOCK_EX | LOCK_NB) == 0;
      if (held_ || errno != EWOULDBLOCK) return;
      constexpr timespec kMillisecond{.tv_sec = 0, .tv_nsec = 1'000'000};
      nanosleep(&kMillisecond, nullptr);
    }
  }
  // Said, since closing is not enough: a child of fork() may have a copy of the descriptor.
  ~DirectoryLock() {
    if (held_) flock(directory_.get(), LOCK_UN);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  Descriptor directory_;
  bool held_ = false;
};

struct SpaceName {
  cm::PortSpace space;
  std::string_view name;
};
constexpr std::array<SpaceName, 4> kSpaces{{{cm::PortSpace::Tcp, "tcp"},
                                            {cm::PortSpace::Udp, "udp"},
                                            {cm::PortSpace::Ipoib, "ipoib"},
                                            {cm::PortSpace::Ib, "ib"}}};

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

std::string parent_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}
std::string name_in_parent(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

template <typename Visit>
void each_name(int directory, const Visit& visit) {
  const int again = openat(directory, ".", kDirectory);
  DIR* const listing = again >= 0 ? fdopendir(again) : nullptr;
  if (listing == nullptr) {
    if (again >= 0) close(again);
    return;
  }
  while (const dirent* const entry = readdir(listing)) {
    if (entry->d_name[0] != '.') visit(static_cast<const char*>(entry->d_name));
  }
  closedir(listing);
}

std::string read_link(int directory, const char* name) {
  std::array<char, 256> target{};
  const ssize_t length = readlinkat(directory, name, target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : std::string();
}

// "4026531840": of "net:[4026531840]".
std::string network_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/net", &status) == 0 ? fmt::format("{}", status.st_ino) : "0";
}

}  // namespace

// ---- Entries ------------------------------------------------------------------------------------

std::string PortRegistry::name_of(const Entry& entry, unsigned number) {
  std::string_view space = "ib";
  for (const SpaceName& known : kSpaces) {
    if (known.space == entry.space) space = known.name;
  }
  return fmt::format("{},{},{},{}", space, entry.address.port, wire::to_string(entry.address.endpoint()),
                     number);
}

std::string PortRegistry::target_of(const Entry& entry) {
  return fmt::format("{},{},{}{}{}", wire::to_string(entry.nic), entry.network, entry.listening ? "l" : "b",
                     entry.reuse ? "r" : "", entry.family_only ? "f" : "");
}

std::optional<PortRegistry::Entry> PortRegistry::parse(std::string_view name, std::string_view target) {
  const auto what = split(name);
  const auto where = split(target);
  if (what.size() != 4 || where.size() != 3) return std::nullopt;
  Entry entry;
  const auto space = std::ranges::find(kSpaces, what[0], &SpaceName::name);
  const auto address = wire::parse_address(std::string(what[2]));
  const auto nic = wire::parse_address(std::string(where[0]));
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(what[1].data(), what[1].data() + what[1].size(), port);
  if (space == kSpaces.end() || !address || !nic || error != std::errc() ||
      end != what[1].data() + what[1].size() || port == 0) {
    return std::nullopt;
  }
  entry.space = space->space;
  entry.address = cm::Address::of(*address, port);
  entry.nic = *nic;
  entry.network = where[1];
  entry.listening = where[2].starts_with('l');
  entry.reuse = where[2].find('r') != std::string_view::npos;
  entry.family_only = where[2].find('f') != std::string_view::npos;
  return entry;
}

class PortRegistry::Claim final : public cm::PortClaim {
 public:
  Claim(std::shared_ptr<PortRegistry> registry, Entry entry, unsigned number)
      : entry_(std::move(entry)), number_(number), registry_(std::move(registry)) {}
  ~Claim() override { registry_->let_go(*this); }

  Entry entry_;
  unsigned number_;
  std::string shown_;  // path of the link; empty: there is none

 private:
  std::shared_ptr<PortRegistry> registry_;
};

std::vector<std::string> PortRegistry::usual_places() {
  std::vector<std::string> found;
  const std::string of_user = fmt::format("/run/user/{}", geteuid());
  for (const char* base : {static_cast<const char*>(std::getenv("XDG_RUNTIME_DIR")), of_user.c_str(),
                           "/dev/shm", static_cast<const char*>(std::getenv("TMPDIR")), "/tmp"}) {
    std::array<char, PATH_MAX> resolved{};
    if (base == nullptr || base[0] != '/' || realpath(base, resolved.data()) == nullptr) continue;
    std::string parent = fmt::format("{}/qpair-{}", resolved.data(), geteuid());
    if (std::ranges::find(found, parent) == found.end()) found.push_back(std::move(parent));
  }
  return found;
}

PortRegistry::PortRegistry(const std::string& scratch, const wire::Endpoint& nic,
                           std::vector<std::string> places)
    : directory_(scratch + "/" + kPorts),
      parent_(parent_of(scratch)),
      own_(name_in_parent(scratch)),
      places_(std::move(places)),
      nic_(nic),
      network_(network_namespace()),
      next_port_(static_cast<std::uint32_t>(getpid()) * 7919U) {}

// ---- Other processes ----------------------------------------------------------------------------

namespace {

// The scratch directory of a process that lives: its maker holds a lock on it.
bool is_alive(int scratch) {
  if (flock(scratch, LOCK_SH | LOCK_NB) != 0) return errno == EWOULDBLOCK;
  flock(scratch, LOCK_UN);
  return false;
}

template <typename Take>
void each_entry_of(int parent, const char* process, const Take& take) {
  const Descriptor scratch(openat(parent, process, kDirectory));
  if (scratch.get() < 0 || !owned_by_us(scratch.get())) return;
  const Descriptor ports(openat(scratch.get(), kPorts, kDirectory));
  if (ports.get() < 0 || !is_alive(scratch.get())) return;
  each_name(ports.get(), [&](const char* name) { take(name, read_link(ports.get(), name)); });
}

}  // namespace

std::vector<PortRegistry::Entry> PortRegistry::others() const {
  std::vector<Entry> found;
  const auto look_into = [&](const std::string& place) {
    const Descriptor parent(open(place.c_str(), kDirectory));
    if (parent.get() < 0 || !owned_by_us(parent.get())) return;
    each_name(parent.get(), [&](const char* process) {
      if (process == own_) return;
      each_entry_of(parent.get(), process, [&](const char* name, const std::string& target) {
        const auto entry = parse(name, target);
        if (entry && entry->network == network_) found.push_back(*entry);
      });
    });
  };
  look_into(parent_);
  for (const std::string& place : places_) {
    if (place != parent_) look_into(place);
  }
  return found;
}

// ---- Ports --------------------------------------------------------------------------------------

namespace {

// cma_check_port(), cma_bind_listen(). Ports are shared where both want to, but nobody shares one that he is
// about to listen to.
int check(const PortRegistry::Entry& wanted, const PortRegistry::Entry& there) {
  if (there.space != wanted.space || there.address.port != wanted.address.port) return 0;
  if (!wanted.listening && wanted.reuse && there.reuse) return 0;
  if (wanted.family_only && there.family_only && wanted.address.family != there.address.family) return 0;
  if (wanted.address.is_any() || there.address.is_any()) return EADDRNOTAVAIL;
  return wanted.address.same_host(there.address) ? EADDRINUSE : 0;
}

}  // namespace

int PortRegistry::conflict(const Entry& wanted, const Claim* self, const std::vector<Entry>& others) const {
  for (const Claim* const claim : claims_) {
    if (claim == self) continue;
    if (const int error = check(wanted, claim->entry_); error != 0) return error;
  }
  for (const Entry& other : others) {
    if (const int error = check(wanted, other); error != 0) return error;
  }
  return 0;
}

int PortRegistry::claim(Wish& wish, std::shared_ptr<cm::PortClaim>& claim) {
  const std::scoped_lock lock(mutex_);
  std::optional<DirectoryLock> among_processes;
  std::vector<Entry> there;
  if (wish.shown) {
    among_processes.emplace(parent_);
    there = others();
  }
  Entry entry{.space = wish.space,
              .address = wish.address,
              .reuse = wish.reuse,
              .family_only = wish.family_only,
              .listening = false,
              .nic = nic_,
              .network = network_};
  int error = 0;
  if (wish.address.port != 0) {
    error = conflict(entry, nullptr, there);
  } else {
    error = EADDRNOTAVAIL;  // cma_alloc_any_port(): all are taken
    for (std::uint32_t attempt = 0; attempt < kEphemerals && error != 0; ++attempt) {
      entry.address.port = static_cast<std::uint16_t>(kFirstEphemeral + next_port_++ % kEphemerals);
      error = conflict(entry, nullptr, there);
    }
  }
  if (error != 0) return error;
  wish.address.port = entry.address.port;
  auto made = std::make_shared<Claim>(shared_from_this(), entry, next_number_++);
  claims_.push_back(made.get());
  if (wish.shown) show(*made);
  claim = std::move(made);
  return 0;
}

int PortRegistry::listen(const std::shared_ptr<cm::PortClaim>& claim) {
  auto* const own = dynamic_cast<Claim*>(claim.get());
  if (own == nullptr) return EINVAL;
  const std::scoped_lock lock(mutex_);
  const DirectoryLock among_processes(parent_);
  Entry wanted = own->entry_;
  wanted.listening = true;
  if (const int error = conflict(wanted, own, others()); error != 0) return error;
  own->entry_ = wanted;
  show(*own);
  return 0;
}

// In place of what was shown before: there is never none. A directory that does not take it (a full disk)
// leaves the port to this process.
void PortRegistry::show(Claim& claim) {
  mkdir(directory_.c_str(), 0700);
  const std::string path = fmt::format("{}/{}", directory_, name_of(claim.entry_, claim.number_));
  const std::string made = fmt::format("{}/.{}", directory_, claim.number_);
  unlink(made.c_str());
  if (symlink(target_of(claim.entry_).c_str(), made.c_str()) != 0) return;
  if (rename(made.c_str(), path.c_str()) == 0) claim.shown_ = path;
}

void PortRegistry::let_go(const Claim& claim) {
  if (!claim.shown_.empty()) unlink(claim.shown_.c_str());
  const std::scoped_lock lock(mutex_);
  std::erase(claims_, &claim);
}

std::optional<wire::Endpoint> PortRegistry::find(cm::PortSpace space, const cm::Address& address) {
  const Entry* best = nullptr;
  const auto consider = [&](const Entry& entry) {
    const bool exact = entry.address.same_host(address);
    if (entry.space != space || entry.address.port != address.port || !(exact || entry.address.is_any()))
      return;
    const auto rank = [&](const Entry& of) {
      return (of.listening ? 2 : 0) + (of.address.same_host(address) ? 1 : 0);
    };
    if (best == nullptr || rank(entry) > rank(*best)) best = &entry;
  };
  const std::vector<Entry> there = others();
  const std::scoped_lock lock(mutex_);
  for (const Claim* const claim : claims_) consider(claim->entry_);
  for (const Entry& entry : there) consider(entry);
  return best != nullptr ? std::optional(best->nic) : std::nullopt;
}

}  // namespace qpair::softnic::driver
