#pragma once
// Packet sequence numbers: 24 bits that wrap. Which of two is later is decided by the shorter way around the
// circle (IBTA vol. 1 9.7.1), so no two numbers that are compared may be more than 2^23 - 1 apart.

#include <compare>
#include <cstdint>

namespace qpair::softnic::roce {

class Psn {
 public:
  static constexpr std::uint32_t kMask = 0xffffff;
  // The most packets that may be outstanding at once.
  static constexpr std::int32_t kMaxSpan = (1 << 23) - 1;

  constexpr Psn() = default;
  constexpr explicit Psn(std::uint32_t value) : value_(value & kMask) {}
  constexpr std::uint32_t value() const { return value_; }

  friend constexpr bool operator==(Psn, Psn) = default;
  friend constexpr Psn operator+(Psn psn, std::uint32_t packets) { return Psn(psn.value_ + packets); }
  friend constexpr Psn operator-(Psn psn, std::uint32_t packets) { return Psn(psn.value_ - packets); }
  constexpr Psn& operator+=(std::uint32_t packets) { return *this = *this + packets; }
  constexpr Psn& operator++() { return *this += 1; }

  // How many packets `to` comes after `from`: negative when it comes before.
  static constexpr std::int32_t distance(Psn from, Psn to) {
    const std::uint32_t ahead = (to.value_ - from.value_) & kMask;
    return ahead < (1U << 23) ? static_cast<std::int32_t>(ahead)
                              : static_cast<std::int32_t>(ahead) - (1 << 24);
  }
  constexpr bool is_before(Psn other) const { return distance(*this, other) > 0; }
  // Whether it lies in [begin, end).
  constexpr bool is_within(Psn begin, Psn end) const {
    return ((value_ - begin.value_) & kMask) < ((end.value_ - begin.value_) & kMask);
  }

 private:
  std::uint32_t value_ = 0;
};

}  // namespace qpair::softnic::roce
