#include "softnic/nic/doorbell_pages.hpp"

#include <algorithm>
#include <chrono>

#include "qpair/mlx5/doorbell.hpp"
#include "qpair/mlx5/endian.hpp"

namespace qpair::softnic::nic {
namespace {
// A thread that was woken may have to wait for a processor before its store happens. Protecting the page
// again in the meantime would only send it back to sleep.
constexpr std::chrono::milliseconds kLeftOpen{3};
}  // namespace

UarId DoorbellPages::add(std::byte* page) {
  const UarId id{next_id_++};
  pages_.push_back({id, page, {}, wire::TimePoint::min()});
  return id;
}

void DoorbellPages::mapped(UarId uar, void* address) {
  const auto page = std::ranges::find(pages_, uar, &Page::id);
  if (page == pages_.end()) return;
  const auto at = reinterpret_cast<std::uint64_t>(address);
  // A mapping that lay there before is gone.
  std::erase_if(page->mappings, [this, at](const Mapping& mapping) {
    if (mapping.address == at && mapping.is_protected) --closed_;
    return mapping.address == at;
  });
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
  }
  pages_.erase(page);
  return true;
}

bool DoorbellPages::protect(wire::TimePoint now) {
  bool all = true;
  for (Page& page : pages_) {
    if (page.open_until > now) {
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

bool DoorbellPages::are_closed() const {
  return std::ranges::all_of(
      pages_, [](const Page& page) { return std::ranges::all_of(page.mappings, &Mapping::is_protected); });
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
