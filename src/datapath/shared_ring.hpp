#pragma once
// The places of a ring that many threads fill at the same time, and who of them tells the NIC. No thread
// waits for another. docs/data-path.md says why it is right.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace qpair::detail {

// A thread reserves places, fills them, and publishes them: either only written(), or also wanted() by the
// NIC. Where one of these returns true, the caller must call ring(): it, and nobody else, rings for everybody
// until nothing is left to ring for.
class SharedRing {
 public:
  // Positions count from `start`; the ring has `places`, a power of two up to 32,768.
  SharedRing(std::uint64_t places, std::uint64_t start) : ready_(places) { restart(start); }

  // For one thread alone, while no other uses the ring. Nothing is outstanding, and there is no room.
  void restart(std::uint64_t start) {
    // What is there belongs to the round before.
    for (std::uint64_t i = 0; i != ready_.size(); ++i) {
      place(start + i).store(Stamp{start + i - ready_.size(), 0, 0}.packed(), std::memory_order_relaxed);
    }
    reserved_.store(start, std::memory_order_relaxed);
    rung_.store(start, std::memory_order_relaxed);
    state_.store(start << kFlagBits, std::memory_order_relaxed);
    limit_.store(start, std::memory_order_relaxed);
  }

  // Places up to `limit` may be used: what was there is done with.
  void allow(std::uint64_t limit) { limit_.store(limit, std::memory_order_release); }

  // `count` places in a row, or none when there is no room. (An addition that cannot fail would be simpler,
  // but one that went too far could not be taken back: another thread may already have what follows.)
  std::optional<std::uint64_t> reserve(std::uint64_t count) {
    std::uint64_t at = reserved_.load(std::memory_order_relaxed);
    do {
      if (at + count > limit_.load(std::memory_order_acquire)) return {};
    } while (!reserved_.compare_exchange_weak(at, at + count, std::memory_order_relaxed));
    return at;
  }

  // The reserved places from `at` are filled. `last`: how many of them belong to the last entry.
  [[nodiscard]] bool written(std::uint64_t at, std::uint64_t count, std::uint32_t last) {
    stamp(at, count, last);
    const std::uint64_t before = state_.fetch_or(kAgain, std::memory_order_acq_rel);
    if ((before & kRinging) != 0) return false;   // whoever rings looks again
    if (before >> kFlagBits <= at) return false;  // nobody waits for these
    return want(0);
  }
  // …and the NIC is to see them, with everything before.
  [[nodiscard]] bool wanted(std::uint64_t at, std::uint64_t count, std::uint32_t last) {
    stamp(at, count, last);
    return want(at + count);
  }
  // The NIC is to see everything reserved so far, as soon as it is filled.
  [[nodiscard]] bool want_all() {
    const std::uint64_t end = reserved_.load(std::memory_order_relaxed);
    return rung_.load(std::memory_order_relaxed) < end && want(end);
  }

  // Calls `bell(from, begin, end)` for what is filled from `from` to `end`, where `begin` is the place of its
  // last entry.
  template <typename Bell>
  void ring(Bell&& bell) {
    std::uint64_t wanted = state_.load(std::memory_order_relaxed) >> kFlagBits;
    for (;;) {
      const std::uint64_t from = rung_.load(std::memory_order_relaxed);
      std::uint64_t end = from;
      std::uint64_t begin = from;
      while (end < wanted) {
        const Stamp next = Stamp::unpacked(place(end).load(std::memory_order_acquire));
        if (next.position != (end & Stamp::kPositionMask))
          break;  // not filled yet: its thread will see to it
        end += next.count;
        begin = end - next.last;
      }
      if (end != from) {
        // Before the bell: the completion may be polled before it returns.
        rung_.store(end, std::memory_order_release);
        bell(from, begin, end);
      }
      std::uint64_t expected = wanted << kFlagBits | kRinging;
      if (state_.compare_exchange_strong(expected, wanted << kFlagBits, std::memory_order_acq_rel)) return;
      // Something was filled or asked for meanwhile.
      wanted = state_.fetch_and(~kAgain, std::memory_order_acq_rel) >> kFlagBits;
    }
  }

  [[nodiscard]] std::uint64_t reserved() const { return reserved_.load(std::memory_order_acquire); }
  // Up to where the NIC was told. Whoever reads it sees everything that was written up to there.
  [[nodiscard]] std::uint64_t rung() const { return rung_.load(std::memory_order_acquire); }

 private:
  static constexpr std::uint64_t kRinging = 1;  // a thread is in ring()
  static constexpr std::uint64_t kAgain = 2;    // …and has to look once more
  static constexpr int kFlagBits = 2;           // above them: up to where the NIC is to be told

  // At the first of places that were filled together.
  struct Stamp {
    static constexpr std::uint64_t kPositionMask = (std::uint64_t{1} << 40) - 1;
    std::uint64_t position = 0;
    std::uint64_t count = 0;
    std::uint32_t last = 0;

    [[nodiscard]] std::uint64_t packed() const { return position << 24 | count << 8 | last; }
    static Stamp unpacked(std::uint64_t bits) {
      return {bits >> 24, (bits >> 8) & 0xffff, static_cast<std::uint32_t>(bits & 0xff)};
    }
  };

  std::atomic<std::uint64_t>& place(std::uint64_t at) {
    return ready_[static_cast<std::size_t>(at & (ready_.size() - 1))];
  }
  void stamp(std::uint64_t at, std::uint64_t count, std::uint32_t last) {
    place(at).store(Stamp{at, count, last}.packed(), std::memory_order_release);
  }
  // True: the caller is the one who rings.
  bool want(std::uint64_t end) {
    std::uint64_t before = state_.load(std::memory_order_relaxed);
    for (;;) {
      const std::uint64_t wanted = std::max(before >> kFlagBits, end) << kFlagBits;
      const std::uint64_t after = wanted | kRinging | ((before & kRinging) != 0 ? kAgain : 0);
      if (state_.compare_exchange_weak(before, after, std::memory_order_acq_rel, std::memory_order_relaxed)) {
        return (before & kRinging) == 0;
      }
    }
  }

  std::vector<std::atomic<std::uint64_t>> ready_;
  alignas(64) std::atomic<std::uint64_t> reserved_{0};
  std::atomic<std::uint64_t> limit_{0};
  alignas(64) std::atomic<std::uint64_t> state_{0};
  std::atomic<std::uint64_t> rung_{0};
};

// One thread at a time, and the others do something else instead of waiting.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& taken)
      : taken_(taken),
        mine_(!taken.load(std::memory_order_relaxed) && !taken.exchange(true, std::memory_order_acquire)) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (mine_) taken_.store(false, std::memory_order_release);
  }
  [[nodiscard]] bool is_mine() const { return mine_; }

 private:
  std::atomic<bool>& taken_;
  bool mine_;
};

}  // namespace qpair::detail
