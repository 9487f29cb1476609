#include "bench_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "failure.hpp"
#include "units.hpp"

namespace qpair::tool {
namespace {

template <typename Enum, std::size_t N>
using Names = std::array<std::pair<Enum, std::string_view>, N>;

constexpr Names<Operation, 6> kOperations{{
    {Operation::Put, "put"},
    {Operation::Get, "get"},
    {Operation::PutWithRecv, "put_with_recv"},
    {Operation::Send, "send"},
    {Operation::FetchAdd, "fetch_add"},
    {Operation::CompareSwap, "compare_swap"},
}};
constexpr Names<Measure, 3> kMeasures{{
    {Measure::Latency, "latency"},
    {Measure::PingPong, "pingpong"},
    {Measure::Bandwidth, "bandwidth"},
}};
constexpr Names<MemoryKind, 2> kMemoryKinds{{
    {MemoryKind::Allocated, "allocated"},
    {MemoryKind::Ordinary, "ordinary"},
}};

template <typename Enum, std::size_t N>
std::string_view find_name(const Names<Enum, N>& names, Enum value) {
  const auto* found =
      std::find_if(names.begin(), names.end(), [value](auto& entry) { return entry.first == value; });
  return found == names.end() ? "" : found->second;
}

template <typename Enum, std::size_t N>
Enum find_value(const Names<Enum, N>& names, std::string_view text, std::string_view what) {
  std::vector<std::string_view> known;
  for (const auto& [value, name] : names) {
    if (name == text) return value;
    known.push_back(name);
  }
  throw Failure(fmt::format("'{}' is no {}; there are {}", text, what, fmt::join(known, ", ")), kUsage);
}

std::uint64_t one_size(std::string_view text, std::string_view whole) {
  const auto size = parse_size(text);
  if (size && *size <= BenchPlan::kMostBytes) return *size;
  throw Failure(
      fmt::format("--size '{}': write a number of bytes, as in 8, 4K or 1M, several as in 8,4K,1M, or all "
                  "powers of two of a range as in 2..64M; at most 1024G",
                  whole),
      kUsage);
}

constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kArea = 64 << 10;

}  // namespace

std::string_view name_of(Operation operation) {
  return find_name(kOperations, operation);
}
std::string_view name_of(Measure measure) {
  return find_name(kMeasures, measure);
}
std::string_view name_of(MemoryKind kind) {
  return find_name(kMemoryKinds, kind);
}
Operation parse_operation(std::string_view text) {
  return find_value(kOperations, text, "operation");
}
Measure parse_measure(std::string_view text) {
  return find_value(kMeasures, text, "measure");
}
MemoryKind parse_memory_kind(std::string_view text) {
  return find_value(kMemoryKinds, text, "kind of memory");
}

std::vector<std::uint64_t> parse_sizes(std::string_view text) {
  std::vector<std::uint64_t> sizes;
  if (const std::size_t dots = text.find(".."); dots != std::string_view::npos) {
    const std::uint64_t first = one_size(text.substr(0, dots), text);
    const std::uint64_t last = one_size(text.substr(dots + 2), text);
    if (first == 0 || first > last) {
      throw Failure(fmt::format("--size '{}': a range goes from a size above 0 to a larger one", text),
                    kUsage);
    }
    for (std::uint64_t size = first; size <= last; size *= 2) sizes.push_back(size);
    return sizes;
  }
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    sizes.push_back(one_size(text.substr(start, end - start), text));
    start = end + 1;
  }
  return sizes;
}

bool BenchPlan::has(Measure measure) const {
  return std::find(measures.begin(), measures.end(), measure) != measures.end();
}

void BenchPlan::validate() const {
  const auto refuse = [](const std::string& sentence) { throw Failure(sentence, kUsage); };
  const auto check_range = [&refuse](const char* option, std::uint64_t value, std::uint64_t most) {
    if (value < 1 || value > most) refuse(fmt::format("{} {}: from 1 to {}", option, value, most));
  };
  if (measures.empty()) refuse("--measure: nothing to measure");
  if (sizes.empty()) refuse("--size: no size");
  for (const std::uint64_t size : sizes) {
    if (size > kMostBytes) refuse(fmt::format("--size {}: at most {}", size, kMostBytes));
    if (is_atomic(operation) && size != 8) {
      refuse(fmt::format("--size {}: {} works on 8 bytes", size, name_of(operation)));
    }
    if (size == 0 && has(Measure::PingPong)) refuse("--size 0: a ping-pong needs a byte to wait for");
  }
  if (has(Measure::PingPong) && operation != Operation::Put) {
    refuse(fmt::format("--measure pingpong: for put, not for {}", name_of(operation)));
  }
  check_range("--batch", batch, kMostUnderWay);
  if (window != 0) check_range("--window", window, kMostUnderWay);
  if (window != 0 && window < batch) {
    refuse(fmt::format("--window {}: a batch of {} has to fit", window, batch));
  }
  check_range("--qps", qps, kMostQueuePairs);
  if (iterations != 0) check_range("--iterations", iterations, kMostIterations);
  if (iterations > kMostSamples && (has(Measure::Latency) || has(Measure::PingPong))) {
    refuse(fmt::format("--iterations {}: latency and pingpong keep each, at most {}; or --measure bandwidth",
                       iterations, kMostSamples));
  }
  if (iterations == 0 && duration.count() <= 0) refuse("--duration 0: nothing would be measured");
  if (timeout.count() <= 0) refuse("--timeout 0: every operation would be too late");
}

std::uint32_t BenchPlan::window_of(std::uint64_t size) const {
  if (window != 0) return window;
  constexpr std::uint64_t kBytesUnderWay = 4 << 20;
  const std::uint64_t fitting = kBytesUnderWay / std::max<std::uint64_t>(size, 1);
  return std::max(batch, static_cast<std::uint32_t>(std::clamp<std::uint64_t>(fitting, 2, 64)));
}

std::uint32_t BenchPlan::largest_window() const {
  std::uint32_t largest = 1;
  for (const std::uint64_t size : sizes) largest = std::max(largest, window_of(size));
  return largest;
}

std::uint64_t BenchPlan::stride(std::uint64_t size) const {
  return (std::max<std::uint64_t>(size, 1) + kLine - 1) / kLine * kLine;
}

std::uint64_t BenchPlan::slots(std::uint64_t size) const {
  if (is_atomic(operation)) return window_of(size);  // each result is looked at before its slot is used again
  return std::clamp<std::uint64_t>(kArea / stride(size), 1, window_of(size));
}

std::uint64_t BenchPlan::area_bytes() const {
  std::uint64_t bytes = 0;
  for (const std::uint64_t size : sizes) bytes = std::max(bytes, stride(size) * slots(size));
  return bytes;
}

void to_json(nlohmann::json& json, const BenchPlan& plan) {
  std::vector<std::string_view> measures;
  for (const Measure measure : plan.measures) measures.push_back(name_of(measure));
  json = {{"operation", name_of(plan.operation)},
          {"measures", measures},
          {"sizes", plan.sizes},
          {"batch", plan.batch},
          {"window", plan.window},
          {"qps", plan.qps},
          {"iterations", plan.iterations},
          {"duration_ns", plan.duration.count()},
          {"memory", name_of(plan.memory)},
          {"check", plan.check},
          {"timeout_ms", plan.timeout.count()}};
}

BenchPlan plan_of(const nlohmann::json& json) {
  BenchPlan plan;
  try {
    plan.operation = parse_operation(json.at("operation").get<std::string>());
    plan.measures.clear();
    for (const auto& measure : json.at("measures"))
      plan.measures.push_back(parse_measure(measure.get<std::string>()));
    json.at("sizes").get_to(plan.sizes);
    json.at("batch").get_to(plan.batch);
    json.at("window").get_to(plan.window);
    json.at("qps").get_to(plan.qps);
    json.at("iterations").get_to(plan.iterations);
    plan.duration = std::chrono::nanoseconds(json.at("duration_ns").get<std::int64_t>());
    plan.memory = parse_memory_kind(json.at("memory").get<std::string>());
    json.at("check").get_to(plan.check);
    plan.timeout = std::chrono::milliseconds(json.at("timeout_ms").get<std::int64_t>());
  } catch (const nlohmann::json::exception& error) {
    throw Failure(fmt::format("the other process sent no plan of a benchmark: {}", error.what()));
  }
  plan.validate();
  return plan;
}

}  // namespace qpair::tool
