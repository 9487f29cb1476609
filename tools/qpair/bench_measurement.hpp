#pragma once
// What one measurement says, as it travels from the initiator to the coordinator and into the report.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace qpair::tool {

struct Percentiles {  // nanoseconds
  std::uint64_t min = 0;
  std::uint64_t median = 0;
  std::uint64_t mean = 0;
  std::uint64_t p99 = 0;
  std::uint64_t p999 = 0;
  std::uint64_t max = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Percentiles, min, median, mean, p99, p999, max)

struct BenchResult {
  std::string measure = {};
  std::uint64_t size = 0;  // bytes of one operation
  std::uint64_t operations = 0;
  std::uint64_t elapsed_ns = 0;
  std::uint64_t under_way = 1;  // operations on each queue pair at most
  Percentiles ns = {};          // latency, pingpong
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BenchResult, measure, size, operations, elapsed_ns, under_way, ns)

}  // namespace qpair::tool
