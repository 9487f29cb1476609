// What having many queue pairs and memory regions takes: time to make one, and memory of the process for each
// (its resident set, without shared pages that were there before). Made in one process, on one device.
//
//   qpair run -- build/bin/bench-objects        (or on a machine with a device: build/bin/bench-objects)
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <vector>

#include "qpair/qpair.hpp"

namespace {

using qpair::IbverbsConfig;
using qpair::MemoryRegion;
using qpair::RdmaDomain;
using qpair::RdmaQueuePair;
using qpair::Result;

template <typename T>
T must(Result<T> result) {
  if (!result) {
    fmt::print(stderr, "bench-objects: {}\n", result.error());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0;
  double resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

// `make` the objects in a vector, destroyed outside of the time.
template <typename T, typename Make>
void make_many(benchmark::State& state, Make make) {
  const auto count = static_cast<std::size_t>(state.range(0));
  double bytes = 0;
  for (auto unused : state) {
    static_cast<void>(unused);
    std::vector<T> objects;
    objects.reserve(count);
    const double before = resident_bytes();
    for (std::size_t index = 0; index < count; ++index) objects.push_back(make(index));
    bytes = resident_bytes() - before;
    state.PauseTiming();
    objects.clear();
    state.ResumeTiming();
  }
  state.counters["bytes_each"] = bytes / static_cast<double>(count);
  state.counters["objects"] = static_cast<double>(count);
}

// As the library makes them: connected (to itself, which costs what any peer does), two completion queues and
// a doorbell register for each, which is why a device has not that many. Queues for 16 operations: their own
// size would hide what the objects take.
void connected_queue_pairs(benchmark::State& state) {
  const RdmaDomain domain = must(RdmaDomain::create());
  IbverbsConfig config;
  config.max_send_wr = config.max_recv_wr = 16;
  make_many<RdmaQueuePair>(state, [&](std::size_t) {
    RdmaQueuePair queue_pair = must(RdmaQueuePair::create(domain, config));
    must(queue_pair.connect(must(queue_pair.get_qp_info())));
    return queue_pair;
  });
}

// As programs that have very many do through libibverbs: one completion queue and no doorbell registers of
// their own.
void verbs_queue_pairs(benchmark::State& state) {
  struct Destroy {
    void operator()(ibv_cq* cq) const { ibv_destroy_cq(cq); }
    void operator()(ibv_qp* qp) const { ibv_destroy_qp(qp); }
  };
  const RdmaDomain domain = must(RdmaDomain::create());
  const std::unique_ptr<ibv_cq, Destroy> cq(ibv_create_cq(domain.context(), 4096, nullptr, nullptr, 0));
  make_many<std::unique_ptr<ibv_qp, Destroy>>(state, [&](std::size_t index) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = cq.get();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {16, 16, 1, 1, 0};
    std::unique_ptr<ibv_qp, Destroy> queue_pair(ibv_create_qp(domain.pd(), &attributes));
    if (!queue_pair) {
      fmt::print(stderr, "bench-objects: cannot make queue pair {}\n", index);
      std::exit(1);
    }
    return queue_pair;
  });
}

void memory_regions(benchmark::State& state) {
  const RdmaDomain domain = must(RdmaDomain::create());
  constexpr std::size_t kPage = 4096;
  const auto count = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> memory(count * kPage);
  make_many<MemoryRegion>(state, [&](std::size_t index) {
    return must(domain.register_buffer(memory.data() + index * kPage, kPage));
  });
}

BENCHMARK(verbs_queue_pairs)->Arg(10'000)->Iterations(1)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(memory_regions)->Arg(10'000)->Iterations(1)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(connected_queue_pairs)->Arg(1'000)->Iterations(1)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
