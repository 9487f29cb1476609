#include "softnic/driver/runtime.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "softnic/explain/explain.hpp"

namespace qpair::softnic::driver {
namespace {

struct Runtime {
  std::mutex mutex;
  std::shared_ptr<nic::Nic> nic;              // guarded by mutex
  std::vector<std::weak_ptr<Closable>> open;  // guarded by mutex
  NicConfig config;                           // written once for each NIC, before the NIC is published
  bool tried = false;
  bool ended = false;
  std::atomic<nic::Nic*> published{nullptr};
  std::atomic<unsigned> generation{0};
};

// Never destroyed: programs call into the device from static destructors that run after ours.
Runtime& runtime() {
  static Runtime& instance = *std::make_unique<Runtime>().release();
  return instance;
}

void before_fork() {
  Runtime& state = runtime();
  state.mutex.lock();
  if (state.nic) state.nic->before_fork();
}

void after_fork_in_parent() {
  Runtime& state = runtime();
  if (state.nic) state.nic->after_fork_in_parent();
  state.mutex.unlock();
}

void after_fork_in_child() {
  Runtime& state = runtime();
  if (state.nic) state.nic->after_fork_in_child();
  state.nic.reset();
  state.open.clear();  // the parent's; the FileTable keeps them
  state.published.store(nullptr, std::memory_order_release);
  state.generation.fetch_add(1, std::memory_order_acq_rel);
  state.tried = state.ended;
  state.mutex.unlock();
}

void make_nic(Runtime& state) {
  state.tried = true;
  auto config = NicConfig::from_environment();
  if (!config) {
    explain::say(explain::Kind::Refusal, config.error());
    return;
  }
  state.config = *config;
  explain::configure({.quiet = config->quiet, .strict = config->strict});
  auto made = nic::Nic::create(state.config);
  if (!made) {
    explain::say(explain::Kind::Refusal, fmt::format("No emulated RDMA device: {}", made.error()));
    return;
  }
  state.nic = std::move(*made);
  state.published.store(state.nic.get(), std::memory_order_release);
}

// Before there is a NIC: one thread may make it while another is in the middle of fork().
__attribute__((constructor)) void register_fork_handlers() {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace

std::shared_ptr<nic::Nic> share_nic() {
  Runtime& state = runtime();
  const std::scoped_lock lock(state.mutex);
  if (!state.tried) {
    try {
      make_nic(state);
    } catch (const std::exception& failure) {
      explain::say(explain::Kind::Refusal, failure.what());
    }
  }
  return state.nic;
}

nic::Nic* current_nic() {
  if (nic::Nic* nic = runtime().published.load(std::memory_order_acquire)) return nic;
  return share_nic().get();  // the runtime keeps its share until shut_down
}

const NicConfig& current_config() {
  return runtime().config;
}

unsigned fork_generation() {
  return runtime().generation.load(std::memory_order_acquire);
}

void close_at_shut_down(std::weak_ptr<Closable> open) {
  Runtime& state = runtime();
  const std::scoped_lock lock(state.mutex);
  std::erase_if(state.open, [](const auto& weak) { return weak.expired(); });
  state.open.push_back(std::move(open));
}

void shut_down() {
  Runtime& state = runtime();
  std::shared_ptr<nic::Nic> last;  // ends outside the lock
  std::vector<std::weak_ptr<Closable>> open;
  {
    const std::scoped_lock lock(state.mutex);
    last = state.nic;
    open.swap(state.open);
  }
  if (last) last->end();  // before the queue pairs that are left go with their files
  for (const auto& weak : open) {
    if (const auto file = weak.lock()) file->shut_down();
  }
  const std::scoped_lock lock(state.mutex);
  state.published.store(nullptr, std::memory_order_release);
  state.tried = true;
  state.ended = true;
  state.nic.reset();
}

}  // namespace qpair::softnic::driver
