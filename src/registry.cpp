#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <unordered_map>

#include "src/queue_pair_state.hpp"

namespace qpair::detail {

namespace {

std::uint64_t random_number() {
  std::uint64_t value = 0;
  if (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) {
    value = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  return value;
}

struct Registry {
  std::mutex mutex;
  pid_t owner = 0;
  std::string identity;
  std::uint64_t next = 1;
  std::unordered_map<std::uint64_t, std::weak_ptr<QueuePairState>> queue_pairs;

  // Never destroyed: queue pairs of static storage may outlive anything else.
  static Registry& instance() {
    static auto* registry = new Registry;  // NOLINT(cppcoreguidelines-owning-memory)
    return *registry;
  }

  // A child of fork() is another process: the parent's queue pairs are not its own. With the mutex held.
  void know_process() {
    if (owner == getpid()) return;
    owner = getpid();
    identity = fmt::format("{:016x}{:016x}", random_number(), random_number());
    queue_pairs.clear();
  }
};

}  // namespace

std::string process_identity() {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  registry.know_process();
  return registry.identity;
}

std::uint64_t register_queue_pair(const std::shared_ptr<QueuePairState>& state) {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  registry.know_process();
  const std::uint64_t token = registry.next++;
  registry.queue_pairs.emplace(token, state);
  return token;
}

void unregister_queue_pair(std::uint64_t token) {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  registry.queue_pairs.erase(token);
}

std::shared_ptr<QueuePairState> find_queue_pair(std::uint64_t token) {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  registry.know_process();
  const auto found = registry.queue_pairs.find(token);
  return found == registry.queue_pairs.end() ? nullptr : found->second.lock();
}

std::uint32_t random_psn() {
  return static_cast<std::uint32_t>(random_number()) & 0xffffff;
}

}  // namespace qpair::detail
