#pragma once
// The scatter lists of work requests in progress, so that a long message does not decode its WQE once for
// each packet. Shared by all queue pairs of the device: a queue pair costs nothing here, and a miss costs one
// decode.

#include <array>
#include <cstddef>
#include <cstdint>

#include "softnic/nic/wqe_decode.hpp"

namespace qpair::softnic::nic {

class DecodeCache {
 public:
  enum class Queue : std::uint8_t { Send, Receive, SharedReceive };

  // The entry for this work request of this queue pair, or shared receive queue. `hit` says whether it holds
  // it; if not, it is the caller's to fill.
  ScatterList& at(std::uint32_t number, Queue queue, std::uint16_t index, bool& hit) {
    const std::uint64_t key = key_of(number, queue, index);
    Entry& entry = entries_.at(slot_of(key));
    hit = entry.key == key;
    entry.key = key;
    return entry.list;
  }

  // The caller could not fill the entry.
  void forget(std::uint32_t number, Queue queue, std::uint16_t index) {
    const std::uint64_t key = key_of(number, queue, index);
    Entry& entry = entries_.at(slot_of(key));
    if (entry.key == key) entry.key = kNone;
  }

 private:
  static constexpr unsigned kBits = 5;
  static constexpr std::uint64_t kNone = 0;  // key_of never gives 0

  static std::uint64_t key_of(std::uint32_t number, Queue queue, std::uint16_t index) {
    return (std::uint64_t{number} << 24) | (std::uint64_t{index} << 8) |
           (static_cast<std::uint64_t>(queue) + 1);
  }
  static std::size_t slot_of(std::uint64_t key) { return (key * 0x9e37'79b9'7f4a'7c15U) >> (64 - kBits); }

  struct Entry {
    std::uint64_t key = kNone;
    ScatterList list;
  };
  std::array<Entry, std::size_t{1} << kBits> entries_{};
};

}  // namespace qpair::softnic::nic
