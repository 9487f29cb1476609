// The process of `qpair bench` that things are done to. It blocks while the other measures, unless the
// operation takes receives or it has to answer.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "bench_endpoint.hpp"
#include "bench_pattern.hpp"
#include "command.hpp"
#include "role.hpp"

namespace qpair::tool {
namespace {

class Target {
 public:
  Target(const BenchPlan& plan, const std::string& device, Channel& peer)
      : plan_(plan), peer_(peer), endpoint_(plan_, device), received_(plan_.qps) {
    peer_.send(endpoint_.describe());
    endpoint_.connect(expect(peer_, "endpoint", plan_.timeout + kAnswerTime));
    if (needs_receives(plan_.operation)) post_receives();
    peer_.send({{"event", "connected"}});
  }

  void serve() {
    for (;;) {
      const nlohmann::json message = peer_.wait(kMeasurementTime, "the next measurement");
      const std::string event = message.value("event", "");
      if (event == "bye") return;
      if (event == "failed") throw Failure("the other process: " + message.value("message", ""));
      if (event != "begin")
        throw Failure(fmt::format("the other process said '{}' in place of 'begin'", event));
      begin(message);
      peer_.send({{"event", "ready"}});
      const nlohmann::json end = needs_receives(plan_.operation) ? receive()
                                 : measure_ == Measure::PingPong ? answer()
                                                                 : expect(peer_, "end", kMeasurementTime);
      if (plan_.check) check(end);
      peer_.send({{"event", "done"}});
    }
  }

 private:
  void begin(const nlohmann::json& message) {
    measure_ = parse_measure(message.at("measure").get<std::string>());
    message.at("size").get_to(size_);
    message.at("seed").get_to(seed_);
    if (std::find(plan_.sizes.begin(), plan_.sizes.end(), size_) == plan_.sizes.end() ||
        !plan_.has(measure_)) {
      throw Failure(fmt::format("the other process measures {} of {} bytes, which was not planned",
                                name_of(measure_), size_));
    }
    slots_ = plan_.slots(size_);
    stride_ = plan_.stride(size_);
    for (std::uint32_t qp = 0; qp < plan_.qps; ++qp) {
      const std::span<std::byte> incoming = endpoint_.bytes(plan_.incoming_offset(qp), stride_ * slots_);
      std::fill(incoming.begin(), incoming.end(), std::byte{});
      for (std::uint64_t slot = 0; plan_.operation == Operation::Get && slot < slots_; ++slot) {
        fill_pattern(incoming.subspan(slot * stride_, size_), seed_);
      }
      received_[qp] = 0;
    }
    if (measure_ == Measure::PingPong) fill_pattern(endpoint_.bytes(plan_.outgoing_offset(0), size_), seed_);
  }

  // Messages of a queue pair all go to the start of its area; what put_with_recv writes goes where it says,
  // and its receive is for the immediate value.
  void post_receive(std::uint32_t qp) {
    const bool send = plan_.operation == Operation::Send;
    const RdmaBuffer where =
        send ? endpoint_.local(plan_.incoming_offset(qp), plan_.area_bytes()) : RdmaBuffer{};
    (void)need(endpoint_.queue_pair(qp).recv(where), "posting a receive");
  }

  // As many as the queue holds; every one that is used is posted again, so later measurements find them.
  void post_receives() {
    for (std::uint32_t qp = 0; qp < plan_.qps; ++qp) {
      for (std::uint32_t count = 0; count < plan_.receives(); ++count) post_receive(qp);
    }
  }

  // Takes what came on a queue pair; how many.
  std::size_t take(std::uint32_t qp) {
    const auto count = endpoint_.queue_pair(qp).poll_completions(PollTarget::Recv, completions_);
    if (!count) throw Failure("polling: " + count.error().message());
    for (std::size_t index = 0; index < *count; ++index) {
      const IbvWc& completion = completions_[index];
      if (!completion.is_valid()) fail_operation(plan_, size_, completion);
      const std::uint64_t number = received_[qp]++;
      if (completion.byte_len != size_) {
        throw Failure(fmt::format("message {} has {} bytes, not {}", number, completion.byte_len, size_));
      }
      if (plan_.operation == Operation::PutWithRecv &&
          completion.imm_data != static_cast<std::uint32_t>(number)) {
        throw Failure(fmt::format("message {} has the immediate value {}", number, completion.imm_data));
      }
      post_receive(qp);
    }
    return *count;
  }

  // Receives until the initiator has said how many it sent and all of them are here. Returns what it said.
  nlohmann::json receive() {
    nlohmann::json end;
    std::vector<std::uint64_t> expected;
    Patience patience(plan_.timeout);
    while (end.is_null() || received_ != expected) {
      std::size_t count = 0;
      for (std::uint32_t qp = 0; qp < plan_.qps; ++qp) count += take(qp);
      if (count != 0) {
        patience.reset();
      } else if (end.is_null()) {
        end = look_for_end();
        if (!end.is_null()) end.at("operations").get_to(expected);
        (void)patience.wait();
      } else if (!patience.wait()) {
        throw Failure(fmt::format("{} messages did not arrive within {} ms", name_of(plan_.operation),
                                  plan_.timeout.count()));
      }
    }
    return end;
  }

  // Answers every ping, until the initiator has said that it had enough. Returns what it said.
  nlohmann::json answer() {
    const RdmaBuffer local = endpoint_.local(plan_.outgoing_offset(0), size_);
    const RdmaBuffer remote = endpoint_.remote(plan_.incoming_offset(0), size_);
    std::byte& incoming = endpoint_.bytes(plan_.incoming_offset(0), size_).back();
    std::byte& outgoing = endpoint_.bytes(plan_.outgoing_offset(0), size_).back();
    std::byte last{};
    Patience patience(plan_.timeout, kEagerSpins);
    for (;;) {
      const std::byte mark = std::atomic_ref(incoming).load(std::memory_order_acquire);
      if (mark != last) {
        outgoing = last = mark;
        (void)need(endpoint_.queue_pair(0).put(local, remote), "put");
        take_put_completion();
        patience.reset();
        continue;
      }
      if (nlohmann::json end = look_for_end(); !end.is_null()) return end;
      (void)patience.wait();
    }
  }

  void take_put_completion() {
    Patience patience(plan_.timeout);
    while (!need(endpoint_.queue_pair(0).poll_send_completion(), "put")) {
      if (!patience.wait())
        throw Failure(fmt::format("put: no completion within {} ms", plan_.timeout.count()));
    }
  }

  // The initiator's "end", if it is there. Asking is a system call, so not every time.
  nlohmann::json look_for_end() {
    constexpr unsigned kInterval = 1024;
    if (++looks_ % kInterval != 0) return nullptr;
    const auto message = peer_.receive();
    if (!message && peer_.ended()) throw Failure("the other process ended");
    if (!message) return nullptr;
    if (message->value("event", "") == "end") return *message;
    throw Failure("the other process: " + message->value("message", "it sent no end"));
  }

  // What should be in a queue pair's area after that many operations.
  void check(const nlohmann::json& end) const {
    const auto operations = end.at("operations").get<std::vector<std::uint64_t>>();
    if (operations.size() != plan_.qps) throw Failure("the other process has not as many queue pairs");
    for (std::uint32_t qp = 0; qp < plan_.qps && plan_.operation != Operation::Get; ++qp) {
      const std::uint64_t offset = plan_.incoming_offset(qp);
      if (is_atomic(plan_.operation)) {
        std::uint64_t word = 0;
        std::memcpy(&word, endpoint_.bytes(offset, sizeof word).data(), sizeof word);
        if (word == operations[qp]) continue;
        throw Failure(
            fmt::format("after {} of {} the word is {}", operations[qp], name_of(plan_.operation), word));
      }
      const bool one_place = plan_.operation == Operation::Send || measure_ == Measure::PingPong;
      const std::uint64_t used = std::min(one_place ? 1 : slots_, operations[qp]);
      const std::uint64_t length = measure_ == Measure::PingPong ? size_ - 1 : size_;  // without the mark
      for (std::uint64_t slot = 0; slot < used; ++slot) {
        const auto where = find_difference(endpoint_.bytes(offset + slot * stride_, length), seed_);
        if (!where) continue;
        throw Failure(fmt::format("{} of {} bytes: byte {} is not what was sent", name_of(plan_.operation),
                                  size_, *where));
      }
    }
  }

  BenchPlan plan_;
  Channel& peer_;
  Endpoint endpoint_;
  Measure measure_ = Measure::Latency;
  std::uint64_t size_ = 0;
  std::uint64_t slots_ = 1;
  std::uint64_t stride_ = 0;
  std::uint64_t seed_ = 0;
  std::vector<std::uint64_t> received_;
  std::vector<IbvWc> completions_ = std::vector<IbvWc>(64);
  unsigned looks_ = 0;
};

struct TargetOptions {
  std::string device;
  unsigned timeout_seconds = kDefaultTimeoutSeconds;
  int channel = -1;
  int peer = -1;
};

BenchPlan hear_plan(Channel& peer, std::chrono::milliseconds timeout) {
  const nlohmann::json message = expect(peer, "plan", timeout);
  if (message.value("protocol", 0) != kBenchProtocol) {
    throw Failure(
        fmt::format("the other process speaks version {} of the benchmark's protocol, this one {}: use the "
                    "same qpair on both sides",
                    message.value("protocol", 0), kBenchProtocol));
  }
  return plan_of(message.at("plan"));
}

void be_target(const TargetOptions& options, Channel& coordinator) {
  Channel peer(options.peer);
  try {
    const BenchPlan plan = hear_plan(peer, std::chrono::seconds(options.timeout_seconds));
    coordinator.send({{"event", "plan"}, {"plan", plan}});
    Target(plan, options.device, peer).serve();
  } catch (const std::exception& error) {
    tell_failure(peer, error.what());
    throw;
  }
}

}  // namespace

Command bench_target_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("bench-target", "The side of a benchmark that things are done to");
  auto options = std::make_shared<TargetOptions>();
  app->group("");  // not in the help: for the coordinator
  app->add_option("--device", options->device);
  app->add_option("--timeout", options->timeout_seconds);
  app->add_option("--channel", options->channel)->required();
  app->add_option("--peer", options->peer)->required();
  return {app, [options] {
            return run_role(options->channel, [&options](Channel& channel) { be_target(*options, channel); });
          }};
}

}  // namespace qpair::tool
