#include "bench_endpoint.hpp"

#include <fmt/format.h>

#include <utility>

#include "available_memory.hpp"
#include "failure.hpp"
#include "role.hpp"
#include "units.hpp"

namespace qpair::tool {
namespace {

MemoryRegion make_memory(const RdmaDomain& domain, MemoryKind kind, std::vector<std::byte>& ordinary,
                         std::uint64_t size) {
  const std::string context = fmt::format("{} of memory", format_size(size));
  const std::uint64_t available = available_memory();
  if (available != 0 && size > available) {
    throw Failure(fmt::format("{} are needed and {} are available: take a smaller --size, --window or --qps",
                              context, format_size(available)));
  }
  if (kind == MemoryKind::Allocated) return need(domain.allocate(size), context);
  ordinary.resize(size);
  return need(domain.register_buffer(ordinary), context);
}

IbverbsConfig config_of(const BenchPlan& plan) {
  IbverbsConfig config;
  const std::uint32_t window = plan.largest_window();
  config.max_send_wr = window;
  config.max_recv_wr = needs_receives(plan.operation) ? plan.receives() : 1;
  return config;
}

}  // namespace

Endpoint::Endpoint(const BenchPlan& plan, const std::string& device)
    : domain_(need(RdmaDomain::create(device), "opening the device")) {
  regions_.push_back(make_memory(domain_, plan.memory, ordinary_, plan.memory_bytes()));
  local_ = region().buffer();
  const IbverbsConfig config = config_of(plan);
  queue_pairs_.reserve(plan.qps);
  for (std::uint32_t index = 0; index < plan.qps; ++index) {
    queue_pairs_.push_back(need(RdmaQueuePair::create(domain_, config),
                                fmt::format("making queue pair {} of {}", index + 1, plan.qps)));
  }
}

nlohmann::json Endpoint::describe() const {
  nlohmann::json infos = nlohmann::json::array();
  for (const RdmaQueuePair& queue_pair : queue_pairs_) {
    infos.push_back(
        nlohmann::json::parse(serialize(need(queue_pair.get_qp_info(), "asking for a queue pair"))));
  }
  return {{"event", "endpoint"},
          {"device", domain_.device_name()},
          {"memory", nlohmann::json::parse(serialize(local_))},
          {"queue_pairs", std::move(infos)}};
}

void Endpoint::connect(const nlohmann::json& peer) {
  const std::string context = "the other process";
  const auto& infos = peer.at("queue_pairs");
  peer.at("device").get_to(peer_device_);
  remote_ = need(deserialize<RdmaBuffer>(peer.at("memory").dump()), context);
  if (!infos.is_array() || infos.size() != queue_pairs_.size() || remote_.size != local_.size) {
    throw Failure(fmt::format("{} has {} queue pairs and {} bytes; expected are {} and {}", context,
                              infos.size(), remote_.size, queue_pairs_.size(), local_.size));
  }
  for (std::size_t index = 0; index < queue_pairs_.size(); ++index) {
    need(queue_pairs_[index].connect(need(deserialize<RdmaQpInfo>(infos[index].dump()), context)), context);
  }
}

nlohmann::json expect(Channel& peer, const std::string& event, std::chrono::milliseconds timeout) {
  nlohmann::json message = peer.wait(timeout, "word from the other process");
  const std::string got = message.value("event", "");
  if (got == "failed") throw Failure("the other process: " + message.value("message", "it does not say why"));
  if (got != event) throw Failure(fmt::format("the other process said '{}' in place of '{}'", got, event));
  return message;
}

void tell_failure(Channel& peer, const std::string& message) {
  try {
    peer.send({{"event", "failed"}, {"message", message}});
  } catch (const Failure&) {  // nobody is there to hear it
    return;
  }
}

void fail_operation(const BenchPlan& plan, std::uint64_t size, const IbvWc& completion) {
  const auto error = completion.error();
  throw Failure(fmt::format("{} of {}: {}", name_of(plan.operation), format_size(size),
                            error ? error->message() : "no error"));
}

}  // namespace qpair::tool
