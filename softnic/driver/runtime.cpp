#include "softnic/driver/runtime.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "softnic/explain/explain.hpp"

namespace qpair::softnic::driver {
namespace {

struct Runtime {
  std::mutex mutex;
  std::shared_ptr<nic::Nic> nic;  // guarded by mutex
  NicConfig config;               // written once for each NIC, before the NIC is published
  bool tried = false;
  bool ended = false;
  bool handlers_registered = false;
  std::atomic<nic::Nic*> published{nullptr};
  std::atomic<unsigned> generation{0};
  std::atomic<void (*)()> close_all{nullptr};
};

// Never destroyed: programs call into the device from static destructors that run after ours.
Runtime& runtime() {
  static Runtime& instance = *std::make_unique<Runtime>().release();
  return instance;
}

void before_fork() {
  runtime().mutex.lock();
}

void after_fork_in_parent() {
  runtime().mutex.unlock();
}

void after_fork_in_child() {
  Runtime& state = runtime();
  if (state.nic) {
    state.nic->abandon();
    // Its destructor would join a thread that does not exist here: it stays, unused.
    static_cast<void>(std::make_unique<std::shared_ptr<nic::Nic>>(std::move(state.nic)).release());
    state.nic.reset();
  }
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
  if (!state.handlers_registered) {
    state.handlers_registered = true;
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    std::atexit(shut_down);
  }
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

void at_shut_down(void (*close_all)()) {
  runtime().close_all.store(close_all, std::memory_order_release);
}

void shut_down() {
  Runtime& state = runtime();
  if (auto* close_all = state.close_all.load(std::memory_order_acquire)) close_all();
  std::shared_ptr<nic::Nic> last;  // ends outside the lock
  const std::scoped_lock lock(state.mutex);
  state.published.store(nullptr, std::memory_order_release);
  state.tried = true;
  state.ended = true;
  last.swap(state.nic);
}

}  // namespace qpair::softnic::driver
