// What it costs to post from several threads on one queue pair: one made for that (Threads::Many), and an
// ordinary one behind a mutex. Each thread puts and rings one by one, or enqueues 16 puts and rings once. The
// rings are plain memory without a NIC, so that nothing but the posting threads is there to be measured.
//
//   build/bin/bench-threads
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "bench/ratios.hpp"
#include "tests/unit/core/fake_nic.hpp"

namespace qpair::bench {
namespace {

constexpr std::size_t kOperations = 1 << 14;  // of all threads together
constexpr std::size_t kMostAtOnce = 16;
using Clock = std::chrono::steady_clock;

struct NoLock {
  void lock() {}
  void unlock() {}
};

template <typename Lock>
void post(detail::DataPath& path, Lock& mutex, std::size_t batch, std::size_t count) {
  const RdmaBuffer local = *test::kLocal.slice(0, 8);
  const std::vector<Put> puts(kMostAtOnce, Put{local, test::kRemote});
  for (std::size_t done = 0; done != count; done += batch) {
    const std::lock_guard guard(mutex);
    const bool good = batch == 1
                          ? path.post_put(local, test::kRemote, Signal::Yes).has_value()
                          : path.enqueue_puts(puts, Signal::Yes).has_value() && path.ring().has_value();
    if (!good) std::abort();
  }
}

// Seconds from the first thread's start to the last one's end.
template <typename Lock>
double together(detail::DataPath& path, std::size_t threads, std::size_t batch) {
  Lock mutex;
  std::barrier<> start(static_cast<std::ptrdiff_t>(threads));
  std::vector<Clock::time_point> begins(threads);
  std::vector<Clock::time_point> ends(threads);
  std::vector<std::thread> workers;
  for (std::size_t i = 0; i != threads; ++i) {
    workers.emplace_back([&, i] {
      start.arrive_and_wait();
      begins[i] = Clock::now();
      post(path, mutex, batch, kOperations / threads);
      ends[i] = Clock::now();
    });
  }
  for (std::thread& worker : workers) worker.join();
  const std::chrono::duration<double> taken =
      *std::max_element(ends.begin(), ends.end()) - *std::min_element(begins.begin(), begins.end());
  return taken.count();
}

template <typename Nic, typename Lock>
void run(benchmark::State& state, std::size_t threads, std::size_t batch) {
  static Nic nic({.blocks = 2 * kOperations, .cq_entries = 2 * kOperations});
  std::vector<double> times;
  for (auto unused : state) {
    static_cast<void>(unused);
    times.push_back(together<Lock>(nic.path, threads, batch));
    state.SetIterationTime(times.back());
    // The last one's completion is everybody's.
    nic.complete(static_cast<std::uint16_t>(nic.path.send_counters().wqe - 1), mlx5::Opcode::RdmaWrite);
    IbvWc wc;
    if (nic.path.poll_send(wc) != 1 || !wc.is_valid()) std::abort();
  }
  report(state, times, kOperations);
}

const std::size_t kBatches[] = {1, kMostAtOnce};
const std::size_t kThreads[] = {1, 2, 4};

std::string suffix(std::size_t threads, std::size_t batch) {
  return fmt::format("/threads:{}/batch:{}", threads, batch);
}

class Ratios final : public RatioReporter {
  void print_ratios() override {
    for (const std::size_t threads : kThreads) {
      for (const std::size_t batch : kBatches) {
        compare("many" + suffix(threads, batch), "mutex" + suffix(threads, batch));
      }
    }
  }
};

}  // namespace
}  // namespace qpair::bench

int main(int argc, char** argv) {
  using namespace qpair::bench;
  using Many = qpair::test::ManyFakeNic;
  using One = qpair::test::FakeNic;
  return run_benchmarks<Ratios>(argc, argv, [] {
    for (const std::size_t threads : kThreads) {
      for (const std::size_t batch : kBatches) {
        for (auto* benchmark : {benchmark::RegisterBenchmark(("many" + suffix(threads, batch)).c_str(),
                                                             [=](benchmark::State& state) {
                                                               run<Many, NoLock>(state, threads, batch);
                                                             }),
                                benchmark::RegisterBenchmark(("mutex" + suffix(threads, batch)).c_str(),
                                                             [=](benchmark::State& state) {
                                                               run<One, std::mutex>(state, threads, batch);
                                                             })}) {
          benchmark->UseManualTime()->Iterations(30)->Repetitions(9);
        }
      }
    }
  });
}
