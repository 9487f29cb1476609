#pragma once
// What the two processes of a benchmark have alike: registered memory, connected queue pairs, and what they
// tell each other. Over a Channel, one question and one answer at a time:
//
//   initiator                                  target
//   plan {protocol, plan}                   →
//                                           ←  endpoint {device, memory, queue_pairs}
//   endpoint {device, memory, queue_pairs}  →
//                                           ←  connected
//   for each measurement
//     begin {measure, size, seed}           →
//                                           ←  ready
//     … measured; the target blocks unless it has to receive or to answer …
//     end {operations}                      →
//                                           ←  done
//   bye                                     →
//
// Either side: failed {message} instead.

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <qpair/qpair.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench_plan.hpp"
#include "channel.hpp"

namespace qpair::tool {

inline constexpr int kBenchProtocol = 1;  // changes with the messages above

// The initiator waits for the target's answers, which may have to fill gigabytes first, this much longer than
// for an operation.
inline constexpr std::chrono::milliseconds kAnswerTime{10'000};
// What the initiator does between two messages takes as long as the user wants.
inline constexpr std::chrono::hours kMeasurementTime{24 * 20};

// On a machine that has other work to do, a core that was given away comes back a whole time slice later. So
// who measures, or answers a ping, spins as programs that poll do: for some hundreds of microseconds.
inline constexpr unsigned kEagerSpins = 20'000;

class Endpoint {
 public:
  // Opens the device, makes memory and queue pairs.
  Endpoint(const BenchPlan& plan, const std::string& device);

  nlohmann::json describe() const;           // the "endpoint" message
  void connect(const nlohmann::json& peer);  // the peer's; a Failure when it does not fit the plan
  const std::string& peer_device() const { return peer_device_; }
  const RdmaDomain& domain() const { return domain_; }

  std::uint32_t count() const { return static_cast<std::uint32_t>(queue_pairs_.size()); }
  RdmaQueuePair& queue_pair(std::uint32_t index) { return queue_pairs_[index]; }

  // `length` bytes at `offset` of the memory, which are known to be there.
  RdmaBuffer local(std::uint64_t offset, std::uint64_t length) const { return part(local_, offset, length); }
  RdmaBuffer remote(std::uint64_t offset, std::uint64_t length) const {
    return part(remote_, offset, length);
  }
  std::span<std::byte> bytes(std::uint64_t offset, std::uint64_t length) const {
    return region().bytes().subspan(offset, length);
  }

 private:
  static RdmaBuffer part(RdmaBuffer whole, std::uint64_t offset, std::uint64_t length) {
    whole.addr += offset;
    whole.size = length;
    return whole;
  }
  const MemoryRegion& region() const { return regions_.front(); }

  RdmaDomain domain_;
  std::vector<std::byte> ordinary_;    // MemoryKind::Ordinary: what malloc() gives
  std::vector<MemoryRegion> regions_;  // one
  std::vector<RdmaQueuePair> queue_pairs_;
  RdmaBuffer local_;
  RdmaBuffer remote_;
  std::string peer_device_;
};

// Waits for the message `event`. A Failure when the peer reports one or sends something else.
nlohmann::json expect(Channel& peer, const std::string& event, std::chrono::milliseconds timeout);

// Tells the peer why this side gives up. It may be gone already.
void tell_failure(Channel& peer, const std::string& message);

// "put of 8 B: transport retries exceeded…"
[[noreturn]] void fail_operation(const BenchPlan& plan, std::uint64_t size, const IbvWc& completion);

}  // namespace qpair::tool
