// The process of `qpair bench` that posts and measures.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "bench_endpoint.hpp"
#include "bench_measurement.hpp"
#include "bench_pattern.hpp"
#include "command.hpp"
#include "latencies.hpp"
#include "role.hpp"

namespace qpair::tool {
namespace {

constexpr std::uint64_t kWarmUpOperations = 200;

Percentiles percentiles_of(std::vector<std::uint64_t>& samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&samples](double fraction) -> std::uint64_t {  // nearest rank
    const auto rank = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(samples.size())));
    return samples[std::clamp<std::size_t>(rank, 1, samples.size()) - 1];
  };
  const std::uint64_t sum = std::accumulate(samples.begin(), samples.end(), std::uint64_t{0});
  return {samples.front(), at(0.5), sum / samples.size(), at(0.99), at(0.999), samples.back()};
}

// When a measurement is over: after so many operations, or after a time.
class Limit {
 public:
  explicit Limit(const BenchPlan& plan)
      : operations_(plan.iterations), end_(monotonic_now() + plan.duration.count()) {}
  // At least a handful, however long they take, so that a median is one.
  bool reached(std::uint64_t operations, std::int64_t now) const {
    constexpr std::uint64_t kHandful = 5;
    return operations_ != 0 ? operations >= operations_ : now >= end_ && operations >= kHandful;
  }
  // How many more may be posted.
  std::uint64_t left(std::uint64_t operations, std::int64_t now) const {
    if (reached(operations, now)) return 0;
    return operations_ != 0 ? operations_ - operations : UINT64_MAX;
  }

 private:
  std::uint64_t operations_;
  std::int64_t end_;
};

class Initiator {
 public:
  Initiator(const BenchPlan& plan, const std::string& device, Channel& coordinator, Channel& peer)
      : plan_(plan), coordinator_(coordinator), peer_(peer), patience_(plan.timeout, kEagerSpins) {
    peer_.send({{"event", "plan"}, {"protocol", kBenchProtocol}, {"plan", plan}});
    endpoint_ = std::make_unique<Endpoint>(plan_, device);
    const nlohmann::json theirs = expect(peer_, "endpoint", answer_time());
    peer_.send(endpoint_->describe());
    endpoint_->connect(theirs);
    (void)expect(peer_, "connected", answer_time());
    posted_.resize(plan_.qps);
    completed_.resize(plan_.qps);
    samples_.reserve(std::min<std::size_t>(plan_.iterations == 0 ? BenchPlan::kMostSamples : plan_.iterations,
                                           BenchPlan::kMostSamples));
    coordinator_.send({{"event", "connected"},
                       {"device", endpoint_->domain().device_name()},
                       {"peer_device", endpoint_->peer_device()},
                       {"data_path", endpoint_->queue_pair(0).dv_qp() != nullptr ? "mlx5" : "verbs"}});
  }

  void run() {
    for (const Measure measure : plan_.measures) {
      for (const std::uint64_t size : plan_.sizes) {
        coordinator_.send({{"event", "result"}, {"result", measure_one(measure, size)}});
      }
    }
    peer_.send({{"event", "bye"}});
  }

 private:
  std::chrono::milliseconds answer_time() const { return plan_.timeout + kAnswerTime; }

  BenchResult measure_one(Measure measure, std::uint64_t size) {
    size_ = size;
    slots_ = plan_.slots(size);
    stride_ = plan_.stride(size);
    ++seed_;
    std::fill(posted_.begin(), posted_.end(), 0);
    std::fill(completed_.begin(), completed_.end(), 0);
    samples_.clear();
    peer_.send({{"event", "begin"}, {"measure", name_of(measure)}, {"size", size}, {"seed", seed_}});
    for (std::uint32_t qp = 0; qp < plan_.qps; ++qp) prepare(qp);
    (void)expect(peer_, "ready", answer_time());
    BenchResult result = measure == Measure::Latency    ? latency()
                         : measure == Measure::PingPong ? ping_pong()
                                                        : bandwidth();
    result.measure = name_of(measure);
    result.size = size;
    if (!samples_.empty()) result.ns = percentiles_of(samples_);
    peer_.send({{"event", "end"}, {"operations", posted_}});
    (void)expect(peer_, "done", answer_time());
    if (plan_.check && plan_.operation == Operation::Get) check_fetched();
    return result;
  }

  void prepare(std::uint32_t qp) {
    const std::span<std::byte> outgoing = endpoint_->bytes(plan_.outgoing_offset(qp), stride_ * slots_);
    if (is_atomic(plan_.operation) || plan_.operation == Operation::Get) {
      std::fill(outgoing.begin(), outgoing.end(), std::byte{0xee});
      return;
    }
    for (std::uint64_t slot = 0; slot < slots_; ++slot)
      fill_pattern(outgoing.subspan(slot * stride_, size_), seed_);
    if (plan_.has(Measure::PingPong)) endpoint_->bytes(plan_.incoming_offset(qp), size_).back() = {};
  }

  // The next operation of a queue pair, not yet rung.
  void enqueue(std::uint32_t qp) {
    const std::uint64_t number = posted_[qp]++;
    const std::uint64_t offset = number % slots_ * stride_;
    RdmaQueuePair& queue_pair = endpoint_->queue_pair(qp);
    const RdmaBuffer local = endpoint_->local(plan_.outgoing_offset(qp) + offset, size_);
    const RdmaBuffer remote = endpoint_->remote(plan_.incoming_offset(qp) + offset, size_);
    Result<WrId> result = [&]() -> Result<WrId> {
      switch (plan_.operation) {
        case Operation::Get:
          return queue_pair.enqueue_get(local, remote);
        case Operation::PutWithRecv:
          return queue_pair.enqueue_put_with_recv(local, remote, static_cast<std::uint32_t>(number));
        case Operation::Send:
          return queue_pair.enqueue_send(local);
        case Operation::FetchAdd:
          return queue_pair.enqueue_fetch_add(local, word_of(qp), 1);
        case Operation::CompareSwap:
          return queue_pair.enqueue_compare_swap(local, word_of(qp), number, number + 1);
        case Operation::Put:
          break;
      }
      return queue_pair.enqueue_put(local, remote);
    }();
    if (!result) throw Failure(fmt::format("{}: {}", name_of(plan_.operation), result.error().message()));
  }

  // The atomics of a queue pair work on the first 8 bytes of its area.
  RdmaBuffer word_of(std::uint32_t qp) const {
    return endpoint_->remote(plan_.incoming_offset(qp), sizeof(std::uint64_t));
  }

  void ring(std::uint32_t qp) { need(endpoint_->queue_pair(qp).ring_doorbell(), "ringing the doorbell"); }

  // What completed on a queue pair; every completion is one operation's.
  std::size_t poll(std::uint32_t qp) {
    const auto count = endpoint_->queue_pair(qp).poll_completions(PollTarget::Send, completions_);
    if (!count) throw Failure("polling: " + count.error().message());
    for (std::size_t index = 0; index < *count; ++index) {
      if (!completions_[index].is_valid()) fail_operation(plan_, size_, completions_[index]);
      if (plan_.check && is_atomic(plan_.operation)) check_atomic(qp, completed_[qp] + index);
    }
    completed_[qp] += *count;
    return *count;
  }

  void wait_a_moment() {
    if (patience_.wait()) return;
    throw Failure(
        fmt::format("{}: no completion within {} ms", name_of(plan_.operation), plan_.timeout.count()));
  }

  // Tells the coordinator once a second that there is somebody. Between operations, not within.
  void sign_of_life(std::int64_t now) {
    constexpr std::int64_t kInterval = 1'000'000'000;
    if (now - last_sign_ < kInterval) return;
    last_sign_ = now;
    coordinator_.send({{"event", "alive"}});
  }

  void one_after_another(std::uint64_t operations) {
    enqueue(0);
    ring(0);
    while (completed_[0] <= operations) {
      if (poll(0) == 0) wait_a_moment();
    }
    patience_.reset();
  }

  // One operation at a time on the first queue pair, from before it is posted until its completion was
  // polled.
  BenchResult latency() {
    const std::int64_t warm_until = monotonic_now() + plan_.duration.count() / 10;
    const std::uint64_t most =
        plan_.iterations == 0 ? kWarmUpOperations : std::min(kWarmUpOperations, plan_.iterations);
    do {
      one_after_another(posted_[0]);
    } while (posted_[0] < most && monotonic_now() < warm_until);
    const Limit limit(plan_);
    const std::int64_t begin = monotonic_now();
    std::int64_t now = begin;
    while (!limit.reached(samples_.size(), now) && samples_.size() < BenchPlan::kMostSamples) {
      sign_of_life(now);
      const std::int64_t start = monotonic_now();
      one_after_another(posted_[0]);
      now = monotonic_now();
      samples_.push_back(static_cast<std::uint64_t>(now - start));
    }
    return {.operations = samples_.size(), .elapsed_ns = static_cast<std::uint64_t>(now - begin)};
  }

  // A put that the target answers with a put, seen in memory on both sides, as perftest's write_lat does:
  // half of a round is the time until the other side sees the last byte.
  BenchResult ping_pong() {
    const std::span<std::byte> outgoing = endpoint_->bytes(plan_.outgoing_offset(0), size_);
    std::byte& incoming = endpoint_->bytes(plan_.incoming_offset(0), size_).back();
    const Limit limit(plan_);
    const std::int64_t begin = monotonic_now();
    std::int64_t now = begin;
    std::uint64_t rounds = 0;
    while (!limit.reached(samples_.size(), now) && samples_.size() < BenchPlan::kMostSamples) {
      sign_of_life(now);
      const auto mark = static_cast<std::byte>(1 + rounds++ % 255);  // never what was there before
      outgoing.back() = mark;
      const std::int64_t start = monotonic_now();
      post_ping();
      while (std::atomic_ref(incoming).load(std::memory_order_acquire) != mark) wait_a_moment();
      now = monotonic_now();
      patience_.reset();
      samples_.push_back(static_cast<std::uint64_t>(now - start) / 2);
      while (completed_[0] < posted_[0]) {
        if (poll(0) == 0) wait_a_moment();
      }
      patience_.reset();
    }
    return {.operations = samples_.size(), .elapsed_ns = static_cast<std::uint64_t>(now - begin)};
  }

  // Always into the same place, which the target watches.
  void post_ping() {
    ++posted_[0];
    (void)need(endpoint_->queue_pair(0).put(endpoint_->local(plan_.outgoing_offset(0), size_),
                                            endpoint_->remote(plan_.incoming_offset(0), size_)),
               "put");
  }

  // As many under way as the window allows, on all queue pairs in turn; from the first post to the last
  // completion.
  BenchResult bandwidth() {
    const std::uint64_t window = plan_.window_of(size_);
    const Limit limit(plan_);
    const std::int64_t begin = monotonic_now();
    std::int64_t now = begin;
    std::uint64_t posted = 0;
    std::uint64_t completed = 0;
    bool posting = true;
    while (posting || completed < posted) {
      bool idle = true;
      for (std::uint32_t qp = 0; qp < plan_.qps; ++qp) {
        const std::size_t count = poll(qp);
        completed += count;
        idle = idle && count == 0;
        const std::uint64_t left = posting ? limit.left(posted, now) : 0;
        posting = left != 0;
        const std::uint64_t room = window - (posted_[qp] - completed_[qp]);
        const std::uint64_t batch = std::min<std::uint64_t>(plan_.batch, left);
        if (batch == 0 || room < batch) continue;
        for (std::uint64_t index = 0; index < batch; ++index) enqueue(qp);
        ring(qp);
        posted += batch;
        idle = false;
      }
      now = monotonic_now();
      if (idle) {
        wait_a_moment();
      } else {
        patience_.reset();
        sign_of_life(now);
      }
    }
    return {.operations = completed,
            .elapsed_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(now - begin, 1)),
            .under_way = window};
  }

  void check_fetched() {
    for (std::uint32_t qp = 0; qp < plan_.qps; ++qp) {
      for (std::uint64_t slot = 0; slot < std::min(slots_, posted_[qp]); ++slot) {
        const auto where =
            find_difference(endpoint_->bytes(plan_.outgoing_offset(qp) + slot * stride_, size_), seed_);
        if (where)
          throw Failure(
              fmt::format("get of {} bytes: byte {} is not what the other side has", size_, *where));
      }
    }
  }

  // A queue pair's atomics happen in order, so what number `number` found is known.
  void check_atomic(std::uint32_t qp, std::uint64_t number) {
    const std::uint64_t offset = plan_.outgoing_offset(qp) + number % slots_ * stride_;
    std::uint64_t found = 0;
    std::memcpy(&found, endpoint_->bytes(offset, sizeof found).data(), sizeof found);
    if (found == number) return;
    throw Failure(
        fmt::format("{} number {} found {} at the other side", name_of(plan_.operation), number, found));
  }

  const BenchPlan& plan_;
  Channel& coordinator_;
  Channel& peer_;
  Patience patience_;
  std::unique_ptr<Endpoint> endpoint_;
  std::vector<std::uint64_t> posted_;  // of this measurement, for each queue pair
  std::vector<std::uint64_t> completed_;
  std::vector<std::uint64_t> samples_;  // nanoseconds
  std::vector<IbvWc> completions_ = std::vector<IbvWc>(64);
  std::uint64_t size_ = 0;
  std::uint64_t slots_ = 1;
  std::uint64_t stride_ = 0;
  std::uint64_t seed_ = 0;
  std::int64_t last_sign_ = monotonic_now();
};

struct InitiatorOptions {
  std::string device;
  std::string plan;
  int channel = -1;
  int peer = -1;
};

void initiate(const InitiatorOptions& options, Channel& coordinator) {
  const BenchPlan plan = plan_of(nlohmann::json::parse(options.plan));
  Channel peer(options.peer);
  try {
    Initiator(plan, options.device, coordinator, peer).run();
  } catch (const std::exception& error) {
    // Whoever fails says so to the other as well; where the other failed first, its words are the reason.
    while (const auto message = peer.receive()) {
      if (message->value("event", "") == "failed") {
        throw Failure("the other process: " + message->value("message", "it does not say why"));
      }
    }
    if (peer.ended()) throw Failure(fmt::format("the other process ended: {}", error.what()));
    tell_failure(peer, error.what());
    throw;
  }
}

}  // namespace

Command bench_initiator_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("bench-initiator", "The side of a benchmark that measures");
  auto options = std::make_shared<InitiatorOptions>();
  app->group("");  // not in the help: for the coordinator
  app->add_option("--device", options->device);
  app->add_option("--plan", options->plan)->required();
  app->add_option("--channel", options->channel)->required();
  app->add_option("--peer", options->peer)->required();
  return {app, [options] {
            return run_role(options->channel, [&options](Channel& channel) { initiate(*options, channel); });
          }};
}

}  // namespace qpair::tool
