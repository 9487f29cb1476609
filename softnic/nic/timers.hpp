#pragma once
// When which queue pair has to be looked at: a heap of times and queue pair numbers. Entries are not removed
// when a deadline moves or its queue pair goes; whoever takes one asks the queue pair again.

#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "softnic/wire/link.hpp"

namespace qpair::softnic::nic {

class Timers {
 public:
  struct Entry {
    wire::TimePoint when;
    std::uint32_t qpn;
    friend bool operator>(const Entry& a, const Entry& b) { return a.when > b.when; }
  };

  void add(wire::TimePoint when, std::uint32_t qpn) { heap_.push({when, qpn}); }
  wire::TimePoint next() const { return heap_.empty() ? wire::TimePoint::max() : heap_.top().when; }
  std::optional<Entry> take_due(wire::TimePoint now) {
    if (next() > now) return std::nullopt;
    const Entry entry = heap_.top();
    heap_.pop();
    return entry;
  }

 private:
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap_;
};

}  // namespace qpair::softnic::nic
