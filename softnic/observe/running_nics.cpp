#include "softnic/observe/running_nics.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>

namespace qpair::softnic::observe {
namespace {

constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};
struct Unmap {
  void operator()(const CounterPageLayout* page) const {
    ::munmap(const_cast<CounterPageLayout*>(page), sizeof *page);
  }
};
using Mapped = std::unique_ptr<const CounterPageLayout, Unmap>;

template <typename Visit>
void each_number_in(const std::string& path, const Visit& visit) {
  const std::unique_ptr<DIR, CloseDirectory> directory(::opendir(path.c_str()));
  if (!directory) return;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    int number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc{} && end == name.data() + name.size()) visit(number);
  }
}

bool is_counter_page(const std::string& link) {
  std::array<char, 64> target{};
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
  if (length <= 0) return false;
  const std::string_view text(target.data(), static_cast<std::size_t>(length));
  return text == fmt::format("/memfd:{} (deleted)", kCounterPageName);
}

// Only what this user made, whole and not to shrink.
Mapped map_page(const std::string& path, std::uint64_t& inode) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return nullptr;
  struct stat status {};
  void* memory = MAP_FAILED;
  if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
      status.st_size == static_cast<off_t>(sizeof(CounterPageLayout)) &&
      (::fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0) {
    memory = ::mmap(nullptr, sizeof(CounterPageLayout), PROT_READ, MAP_SHARED, fd, 0);
    inode = status.st_ino;
  }
  ::close(fd);
  if (memory == MAP_FAILED) return nullptr;
  Mapped page(static_cast<const CounterPageLayout*>(memory));
  const bool known = page->magic.load(std::memory_order_acquire) == kCounterPageMagic &&
                     page->size == sizeof(CounterPageLayout) && page->counters == kCounters;
  return known ? std::move(page) : nullptr;
}

// What the process calls itself: the last number, when it lives in a namespace of its own (proc(5), NSpid).
pid_t own_number(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("NSpid:")) continue;
    const std::size_t at = line.find_last_of("\t ");
    pid_t number = 0;
    std::from_chars(line.data() + at + 1, line.data() + line.size(), number);
    return number;
  }
  return pid;
}

Counters load(const SharedCounters& shared) {
  CounterValues values{};
  // Acquire, so that what is read afterwards is not read before; ThreadSanitizer knows no fences.
  for (std::size_t i = 0; i < kCounters; ++i) values[i] = shared[i].load(std::memory_order_acquire);
  return counters_of(values);
}

std::optional<QueuePairReading> read_slot(const CounterPageLayout::Slot& slot) {
  const std::uint64_t before = slot.identity.load(std::memory_order_acquire);
  if (before == 0) return std::nullopt;
  QueuePairReading reading{QueuePairIdentity::unpacked(before), load(slot.values)};
  // Another queue pair may have come into its place meanwhile.
  const auto after = QueuePairIdentity::unpacked(slot.identity.load(kRelaxed));
  if (after.qpn != reading.who.qpn) return std::nullopt;
  return reading;
}

std::optional<NicReading> read_nic(pid_t pid, const std::string& path) {
  NicReading nic;
  const Mapped page = map_page(path, nic.inode);
  // A child that was just forked still has its parent's.
  if (!page || page->pid != own_number(pid)) return std::nullopt;
  nic.pid = pid;
  std::ifstream comm(fmt::format("/proc/{}/comm", pid));
  std::getline(comm, nic.process);
  nic.started = page->started;
  nic.address = {page->address, wire::kRoceUdpPort};
  nic.queue_pairs = page->queue_pairs.load(kRelaxed);
  nic.unlisted_queue_pairs = page->unlisted.load(kRelaxed);
  nic.totals = load(page->totals);
  nic.unlisted = load(page->unlisted_values);
  for (const auto& slot : page->slots) {
    if (auto reading = read_slot(slot)) nic.listed.push_back(*reading);
  }
  return nic;
}

}  // namespace

std::vector<NicReading> running_nics(pid_t wanted) {
  std::vector<NicReading> nics;
  const auto look_at = [&nics](pid_t pid) {
    const std::string folder = fmt::format("/proc/{}/fd", pid);
    each_number_in(folder, [&](int fd) {
      const std::string link = fmt::format("{}/{}", folder, fd);
      if (!is_counter_page(link)) return;
      if (auto nic = read_nic(pid, link)) nics.push_back(*std::move(nic));
    });
  };
  if (wanted != 0) {
    look_at(wanted);
  } else {
    each_number_in("/proc", look_at);
  }
  std::ranges::sort(nics, [](const NicReading& left, const NicReading& right) {
    return std::pair(left.pid, left.inode) < std::pair(right.pid, right.inode);
  });
  return nics;
}

}  // namespace qpair::softnic::observe
