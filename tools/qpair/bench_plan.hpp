#pragma once
// What a benchmark does, as both of its processes know it: the initiator sends it to the target. The layout
// of the registered memory follows from it, so that neither has to say where things are.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace qpair::tool {

enum class Operation : std::uint8_t { Put, Get, PutWithRecv, Send, FetchAdd, CompareSwap };
enum class Measure : std::uint8_t { Latency, PingPong, Bandwidth };
enum class MemoryKind : std::uint8_t { Allocated, Ordinary };

std::string_view name_of(Operation operation);  // as the command line and the JSON have it: "put_with_recv"
std::string_view name_of(Measure measure);
std::string_view name_of(MemoryKind kind);
// A Failure that lists what there is.
Operation parse_operation(std::string_view text);
Measure parse_measure(std::string_view text);
MemoryKind parse_memory_kind(std::string_view text);

constexpr bool is_atomic(Operation operation) {
  return operation == Operation::FetchAdd || operation == Operation::CompareSwap;
}
// Takes a receive of the target.
constexpr bool needs_receives(Operation operation) {
  return operation == Operation::Send || operation == Operation::PutWithRecv;
}

// "2..64M": every power of two from the first to the last. "8,4K,1M": these. A Failure for anything else.
std::vector<std::uint64_t> parse_sizes(std::string_view text);

struct BenchPlan {
  Operation operation = Operation::Put;
  std::vector<Measure> measures{Measure::Latency, Measure::Bandwidth};
  std::vector<std::uint64_t> sizes;  // bytes of one operation
  std::uint32_t batch = 1;           // operations to a doorbell
  std::uint32_t window = 0;  // operations under way on a queue pair at most; 0: by size, see window_of()
  std::uint32_t qps = 1;
  std::uint64_t iterations = 0;  // of each measurement, on all queue pairs together; 0: for `duration`
  std::chrono::nanoseconds duration{500'000'000};  // of each measurement
  MemoryKind memory = MemoryKind::Allocated;
  bool check = false;
  std::chrono::milliseconds timeout{30'000};  // that one operation may take

  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;
  static constexpr std::uint32_t kMostQueuePairs = 100'000;
  static constexpr std::uint32_t kMostUnderWay = 16'384;
  static constexpr std::uint64_t kMostIterations = 100'000'000;
  static constexpr std::uint64_t kMostSamples =
      4'000'000;  // of one latency each: memory for them is had beforehand

  // A Failure that names the option, what was given and what is allowed.
  void validate() const;

  bool has(Measure measure) const;
  // What is under way in a bandwidth measurement: `window`, or as many as hide a round trip (64) without more
  // than 4 MiB on the wire, but two, and a batch.
  std::uint32_t window_of(std::uint64_t size) const;
  std::uint32_t largest_window() const;
  std::uint32_t receives() const {
    return 2 * largest_window();
  }  // that the target has posted on a queue pair

  // --- The memory of a queue pair: one area for what goes out, one for what comes in. They are the same
  // where only one is used. An area holds slots, used in turn: as many as fit into 64 KiB, so that large
  // operations use the same memory again, as those of perftest do.
  std::uint64_t stride(std::uint64_t size) const;
  std::uint64_t slots(std::uint64_t size) const;
  std::uint64_t area_bytes() const;
  std::uint64_t outgoing_offset(std::uint32_t qp) const { return qp * areas() * area_bytes(); }
  std::uint64_t incoming_offset(std::uint32_t qp) const {
    return outgoing_offset(qp) + (areas() - 1) * area_bytes();
  }
  std::uint64_t memory_bytes() const { return qps * areas() * area_bytes(); }

 private:
  std::uint64_t areas() const { return has(Measure::PingPong) ? 2 : 1; }
};

// Strict: a field that is missing, of another type or not known is a Failure, and so is a plan that
// validate() refuses.
void to_json(nlohmann::json& json, const BenchPlan& plan);
BenchPlan plan_of(const nlohmann::json& json);

}  // namespace qpair::tool
