#pragma once
// What the processes of a demo agree on without saying it: sizes, the layout of the memory that the server
// has for each worker, and the notices that a worker puts there.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace qpair::tool {

// In this order, each begun by all workers together.
enum class Phase : std::uint32_t { Get, Put, Notify, Batch };
inline constexpr std::array kPhases{Phase::Get, Phase::Put, Phase::Notify, Phase::Batch};

constexpr std::string_view phase_operation(Phase phase) {
  switch (phase) {
    case Phase::Get:
      return "get";
    case Phase::Put:
      return "put";
    case Phase::Notify:
      return "put_with_recv";
    case Phase::Batch:
      return "enqueue_put";
  }
  return "";
}

// What a worker puts with put_with_recv; the immediate value is the sequence number.
struct Notice {
  std::uint32_t sequence;
  std::uint32_t is_last;  // of `phase`: the server now checks what the phase wrote
  Phase phase;
  std::uint32_t checksum;  // of the text
  std::array<char, 48> text;
};
static_assert(sizeof(Notice) == 64);

inline constexpr std::uint32_t kNotices = 1000;
inline constexpr std::uint32_t kPostedReceives = 128;
// Twice as many slots as receives: the notice that waits for a receive does not lie over one that is not yet
// read.
inline constexpr std::uint32_t kNoticeSlots = 2 * kPostedReceives;
inline constexpr std::uint32_t kBatchRounds = 100;

// Follows from the number of bytes alone.
class DemoPlan {
 public:
  explicit constexpr DemoPlan(std::uint64_t size) : size_(size) {}

  constexpr std::uint64_t size() const { return size_; }
  constexpr std::uint64_t chunk() const { return std::min<std::uint64_t>(size_, std::uint64_t{1} << 20); }

  constexpr std::uint64_t batch_slice() const { return std::clamp<std::uint64_t>(size_ / kBatch, 1, 4096); }
  constexpr std::uint64_t batch_count() const { return std::min<std::uint64_t>(size_, kBatch); }
  constexpr std::uint64_t batch_bytes() const { return batch_slice() * batch_count(); }

  // A worker's memory at the server: the file put back, then the batch's bytes, then the notices.
  constexpr std::uint64_t batch_offset() const { return aligned(size_); }
  constexpr std::uint64_t notice_offset(std::uint64_t slot) const {
    return batch_offset() + aligned(batch_bytes()) + slot * sizeof(Notice);
  }
  constexpr std::uint64_t desk_bytes() const { return notice_offset(kNoticeSlots); }

 private:
  static constexpr std::uint64_t kBatch = 64;
  static constexpr std::uint64_t aligned(std::uint64_t offset) { return (offset + 63) / 64 * 64; }
  std::uint64_t size_;
};

}  // namespace qpair::tool
