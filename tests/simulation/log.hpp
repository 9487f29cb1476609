#pragma once
// What happened in one run: a digest that is equal for equal runs, and on demand a line for every event.

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "softnic/wire/link.hpp"

namespace qpair::simulation {

using softnic::wire::TimePoint;
using Duration = std::chrono::nanoseconds;

// Something happened that no schedule allows.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The virtual clock. It begins at some time after the epoch of the steady clock, so that a time point of zero
// is the past.
inline constexpr TimePoint kStart{std::chrono::hours(1)};

class Log {
 public:
  explicit Log(bool readable) : readable_(readable) {}

  TimePoint now = kStart;

  template <typename... T>
  void say(fmt::format_string<T...> format, T&&... arguments) {
    if (!readable_) return;
    const double since = std::chrono::duration<double, std::micro>(now - kStart).count();
    fmt::print(stderr, "{:>13.3f} us  {}\n", since, fmt::format(format, std::forward<T>(arguments)...));
  }
  bool readable() const { return readable_; }

  void digest(std::uint64_t value) {
    digest_ = (digest_ ^ value) * 0x0000'0100'0000'01b3U;  // FNV-1a, by words
    digest_ ^= digest_ >> 29;
  }
  std::uint64_t digest() const { return digest_; }

 private:
  bool readable_;
  std::uint64_t digest_ = 0xcbf2'9ce4'8422'2325U;
};

}  // namespace qpair::simulation
