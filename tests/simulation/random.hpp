#pragma once
// Random numbers that are the same on every machine and with every standard library, from one seed.

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace qpair::simulation {

// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t value = state_ += 0x9e37'79b9'7f4a'7c15U;
    value = (value ^ (value >> 30)) * 0xbf58'476d'1ce4'e5b9U;
    value = (value ^ (value >> 27)) * 0x94d0'49bb'1331'11ebU;
    return value ^ (value >> 31);
  }
  std::uint64_t below(std::uint64_t end) { return next() % end; }
  // Both ends included.
  template <typename T>
  T between(T first, T last) {
    return static_cast<T>(first + static_cast<T>(below(static_cast<std::uint64_t>(last - first) + 1)));
  }
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }
  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return *(choices.begin() + below(choices.size()));
  }
  // A generator of its own, so that what one part draws does not change what another draws.
  Random split() { return Random(next()); }

 private:
  std::uint64_t state_;
};

}  // namespace qpair::simulation
