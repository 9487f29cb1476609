#include "softnic/nic/doorbell_pages.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "qpair/mlx5/doorbell.hpp"
#include "qpair/mlx5/endian.hpp"
#include "softnic/nic/own_mappings.hpp"

namespace qpair::softnic::nic {
namespace {
// A thread that was woken may have to wait for a processor before its store happens. Protecting the page
// again in the meantime would only send it back to sleep.
constexpr std::chrono::milliseconds kLeftOpen{3};
// Between two searches for mappings: the list of all may be long. And how many times as long as one took.
constexpr std::chrono::milliseconds kShortestSearchPause{1};
constexpr std::chrono::milliseconds kLongestSearchPause{100};
constexpr int kSearchShare = 20;
}  // namespace

UarId DoorbellPages::add(std::byte* page) {
  const UarId id{next_id_++};
  pages_.push_back({.id = id, .registers = page, .mappings = {}});
  search_pause_ = {};
  return id;
}

void DoorbellPages::mapped(UarId uar, void* address) {
  const auto page = std::ranges::find(pages_, uar, &Page::id);
  if (page == pages_.end()) return;
  const auto at = reinterpret_cast<std::uint64_t>(address);
  // A mapping that lay there before is gone, and no longer its page's to open or to give up. Or it is this
  // one, which search() found first and protect() may have closed.
  forget(at);
  addresses_.insert(at);
  page->mappings.push_back({at, faults_.add(at, mlx5::kUarPageSize), false});
}

bool DoorbellPages::remove(UarId uar) {
  const auto page = std::ranges::find(pages_, uar, &Page::id);
  if (page == pages_.end()) return false;
  for (const Mapping& mapping : page->mappings) {
    if (mapping.is_protected) {
      --closed_;
      faults_.unprotect(mapping.address, mlx5::kUarPageSize);
    }
    if (mapping.protectable) faults_.remove(mapping.address, mlx5::kUarPageSize);
    addresses_.erase(mapping.address);
  }
  pages_.erase(page);
  return true;
}

bool DoorbellPages::lie_in(std::uint64_t address, std::uint64_t length) {
  if (addresses_.empty() || length == 0) return false;
  constexpr std::uint64_t kBefore = mlx5::kUarPageSize - 1;  // one that begins there reaches into the range
  auto at = addresses_.lower_bound(address - std::min(address, kBefore));
  while (at != addresses_.end() && (*at < address || *at - address < length)) {
    if (is_there(*at)) return true;
    const std::uint64_t stale = *at++;
    forget(stale);
  }
  return false;
}

bool DoorbellPages::is_there(std::uint64_t address) const {
  for (const Page& page : pages_) {
    if (std::ranges::find(page.mappings, address, &Mapping::address) == page.mappings.end()) continue;
    const OwnMappings all;
    if (all.is_empty()) return true;  // as far as is known
    const auto where = all.others_of(page.registers);
    return std::ranges::find(where, address) != where.end();
  }
  return false;
}

void DoorbellPages::forget(std::uint64_t address) {
  addresses_.erase(address);
  for (Page& page : pages_) {
    std::erase_if(page.mappings, [&](const Mapping& mapping) {
      if (mapping.address != address) return false;
      if (mapping.is_protected) {
        --closed_;
        faults_.unprotect(address, mlx5::kUarPageSize);
      }
      return true;
    });
  }
}

void DoorbellPages::search(wire::TimePoint now) {
  const auto is_mapped = [](const Page& page) { return !page.mappings.empty(); };
  if (search_from_ > now || std::ranges::all_of(pages_, is_mapped)) return;
  const auto before = std::chrono::steady_clock::now();
  const OwnMappings all;
  for (const Page& page : pages_) {
    if (is_mapped(page)) continue;
    for (const std::uint64_t address : all.others_of(page.registers)) {
      mapped(page.id, reinterpret_cast<void*>(address));
    }
  }
  // A page that is not mapped yet will be soon, or never.
  const auto took = std::chrono::steady_clock::now() - before;
  search_pause_ =
      std::clamp<wire::TimePoint::duration>(search_pause_ * 2, kShortestSearchPause, kLongestSearchPause);
  search_from_ = now + std::max<wire::TimePoint::duration>(search_pause_, took * kSearchShare);
}

bool DoorbellPages::protect(wire::TimePoint now) {
  search(now);
  bool all = true;
  for (Page& page : pages_) {
    if (page.open_until > now || page.mappings.empty()) {
      all = false;
      continue;
    }
    for (auto mapping = page.mappings.begin(); mapping != page.mappings.end();) {
      if (mapping->is_protected) {
        ++mapping;
        continue;
      }
      if (!mapping->protectable) {
        all = false;
        ++mapping;
        continue;
      }
      switch (faults_.protect(mapping->address, mlx5::kUarPageSize)) {
        case UserFaults::Protection::Done:
          mapping->is_protected = true;
          ++closed_;
          ++mapping;
          break;
        case UserFaults::Protection::NotThere:
          addresses_.erase(mapping->address);
          mapping = page.mappings.erase(mapping);
          break;  // the program unmapped it
        case UserFaults::Protection::Refused:
          mapping->protectable = false;
          all = false;
          ++mapping;
          break;
      }
    }
  }
  return all;
}

void DoorbellPages::open_all() {
  for (Page& page : pages_) {
    for (Mapping& mapping : page.mappings) {
      if (std::exchange(mapping.is_protected, false)) faults_.unprotect(mapping.address, mlx5::kUarPageSize);
    }
  }
  closed_ = 0;
}

std::size_t DoorbellPages::open() const {
  std::size_t count = 0;
  for (const Page& page : pages_) count += page.mappings.size();
  return count - closed_;
}

bool DoorbellPages::are_closed() const {
  return std::ranges::all_of(pages_, [](const Page& page) {
    return !page.mappings.empty() && std::ranges::all_of(page.mappings, &Mapping::is_protected);
  });
}

std::optional<UarId> DoorbellPages::faulted(std::uint64_t address, wire::TimePoint now) {
  const std::uint64_t at = address & ~std::uint64_t{mlx5::kUarPageSize - 1};
  std::optional<UarId> uar;
  for (Page& page : pages_) {
    for (Mapping& mapping : page.mappings) {
      if (mapping.address != at) continue;
      if (mapping.is_protected) --closed_;
      mapping.is_protected = false;
      page.open_until = now + kLeftOpen;
      uar = page.id;
    }
  }
  faults_.unprotect(at, mlx5::kUarPageSize);
  return uar;
}

SendDoorbell DoorbellPages::decode(std::uint64_t value) {
  // The control segment's first 8 bytes as they lie in memory: opmod_idx_opcode, then qpn_ds, both
  // big-endian.
  const std::uint64_t words = mlx5::byte_swap(value);
  return {static_cast<std::uint32_t>(words) >> 8, static_cast<std::uint32_t>(words >> 32)};
}

}  // namespace qpair::softnic::nic
