#pragma once
// What a series of operations took: the samples of one or several processes, and what is said about them.

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace qpair::tool {

// Times of steady_clock, which is CLOCK_MONOTONIC: the same for all processes of a machine.
struct Measurement {
  std::uint64_t operation_size = 0;  // bytes of one operation; 0: they differ
  std::uint64_t bytes = 0;
  std::uint64_t operations = 0;        // a sample may be a batch of several
  std::vector<std::uint64_t> samples;  // nanoseconds
  std::int64_t begin = 0;              // nanoseconds
  std::int64_t end = 0;

  void merge(const Measurement& other);  // the spans' union: what went on at the same time counts once
  std::chrono::nanoseconds elapsed() const { return std::chrono::nanoseconds(end - begin); }
  // The smallest sample that at least `fraction` of all are not above (nearest rank). Sorts.
  std::chrono::nanoseconds percentile(double fraction);
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Measurement, operation_size, bytes, operations, samples, begin, end)

std::int64_t monotonic_now();

}  // namespace qpair::tool
