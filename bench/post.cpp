// What posting and polling cost the thread that does it: RDMA writes of 8 bytes through qpair, through
// ibv_wr_* and through ibv_post_send(), on queue pairs of the same size on the same device, in one run.
//
//   qpair run -- build/bin/bench-post        (or on a machine with an mlx5 device: build/bin/bench-post)
//
// Each measurement is of 256 operations, after one untimed operation that wakes the NIC: a real one is always
// awake, while an emulated one stops the program at the first doorbell after a rest, for microseconds. The
// process keeps to one processor, so that an emulated NIC runs when the program waits for it, and not at the
// same time on the same cache lines. The counter "ns_per_op" is the median of all measurements of one
// repetition; the repetitions of all benchmarks are shuffled; the ratios at the end are of the medians of all
// repetitions.
//
//   bench-post --operations NAME BATCH       runs one of them a few times, for a profiler
//   (bench/instructions.py)
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>

#include "bench/post_fixture.hpp"
#include "bench/ratios.hpp"

namespace qpair::bench {
namespace {

constexpr std::size_t kOperations = 256;  // in one measurement
constexpr std::size_t kMostAtOnce = 64;
constexpr std::size_t kWarmUp = 64;  // before it, so that code and data are where they are in a busy program

[[noreturn]] void fail(const char* what) {
  fmt::print(stderr, "bench-post: {} failed\n", what);
  std::exit(1);
}

void check(bool good, const char* what) {
  if (!good) [[unlikely]]
    fail(what);
}

// --- What is measured: `operations` operations, `batch` to a doorbell or to a poll. Not inlined, so that a
// profiler can tell them by name. ---

[[gnu::noinline]] void measured_enqueue_put(Fixture& f, std::size_t batch, std::size_t operations) {
  for (std::size_t done = 0; done != operations; done += batch) {
    for (std::size_t i = 0; i != batch; ++i) {
      check(f.qp.enqueue_put(f.puts[i].l, f.puts[i].r).has_value(), "enqueue_put");
    }
    check(f.qp.ring_doorbell().has_value(), "ring_doorbell");
  }
}

[[gnu::noinline]] void measured_enqueue_puts(Fixture& f, std::size_t batch, std::size_t operations) {
  const std::span<const Put> puts(f.puts.data(), batch);
  for (std::size_t done = 0; done != operations; done += batch) {
    check(f.qp.enqueue_puts(puts).has_value(), "enqueue_puts");
    check(f.qp.ring_doorbell().has_value(), "ring_doorbell");
  }
}

[[gnu::noinline]] void measured_put(Fixture& f, std::size_t, std::size_t operations) {
  for (std::size_t done = 0; done != operations; ++done) {
    const Put& put = f.puts[done % Fixture::kPuts];
    check(f.qp.put(put.l, put.r).has_value(), "put");
  }
}

// All but the last of each batch, so that there is something to wait for.
[[gnu::noinline]] void measured_unsignaled(Fixture& f, std::size_t batch, std::size_t operations) {
  for (std::size_t done = 0; done != operations; done += batch) {
    for (std::size_t i = 0; i + 1 != batch; ++i) {
      check(f.qp.enqueue_put(f.puts[i].l, f.puts[i].r, Signal::No).has_value(), "enqueue_put");
    }
    check(f.qp.put(f.puts[batch - 1].l, f.puts[batch - 1].r).has_value(), "put");
  }
}

[[gnu::noinline]] void measured_inline(Fixture& f, std::size_t batch, std::size_t operations) {
  for (std::size_t done = 0; done != operations; done += batch) {
    for (std::size_t i = 0; i != batch; ++i) {
      check(f.qp.enqueue_put_inline({f.memory.data() + i * Fixture::kBytes, Fixture::kBytes}, f.puts[i].r)
                .has_value(),
            "enqueue_put_inline");
    }
    check(f.qp.ring_doorbell().has_value(), "ring_doorbell");
  }
}

enum class Kind { Plain, Unsignaled, Inline };

template <Kind kKind>
void post_through_ibv_wr(Fixture& f, std::size_t batch, std::size_t operations) {
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(f.verbs.qp);
  for (std::size_t done = 0; done != operations; done += batch) {
    ibv_wr_start(qp);
    for (std::size_t i = 0; i != batch; ++i) {
      const Put& put = f.puts[i];
      qp->wr_id = i;
      qp->wr_flags = kKind == Kind::Unsignaled && i + 1 != batch ? 0 : IBV_SEND_SIGNALED;
      ibv_wr_rdma_write(qp, put.r.rkey, put.r.addr);
      if constexpr (kKind == Kind::Inline) {
        ibv_wr_set_inline_data(qp, f.memory.data() + i * Fixture::kBytes, Fixture::kBytes);
      } else {
        ibv_wr_set_sge(qp, put.l.lkey, put.l.addr, static_cast<std::uint32_t>(put.l.size));
      }
    }
    check(ibv_wr_complete(qp) == 0, "ibv_wr_complete");
  }
}
[[gnu::noinline]] void measured_ibv_wr(Fixture& f, std::size_t batch, std::size_t operations) {
  post_through_ibv_wr<Kind::Plain>(f, batch, operations);
}
[[gnu::noinline]] void measured_ibv_wr_unsignaled(Fixture& f, std::size_t batch, std::size_t operations) {
  post_through_ibv_wr<Kind::Unsignaled>(f, batch, operations);
}
[[gnu::noinline]] void measured_ibv_wr_inline(Fixture& f, std::size_t batch, std::size_t operations) {
  post_through_ibv_wr<Kind::Inline>(f, batch, operations);
}

ibv_send_wr request_of(const Put& put, ibv_sge& piece) {
  piece = {put.l.addr, static_cast<std::uint32_t>(put.l.size), put.l.lkey};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = put.r.addr;
  request.wr.rdma.rkey = put.r.rkey;
  return request;
}

// One by one, each with its own doorbell, as most programs call it.
[[gnu::noinline]] void measured_ibv_post_send(Fixture& f, std::size_t, std::size_t operations) {
  ibv_send_wr* bad = nullptr;
  for (std::size_t done = 0; done != operations; ++done) {
    ibv_sge piece;
    ibv_send_wr request = request_of(f.puts[done % Fixture::kPuts], piece);
    check(ibv_post_send(f.verbs.qp, &request, &bad) == 0, "ibv_post_send");
  }
}

[[gnu::noinline]] void measured_ibv_post_send_list(Fixture& f, std::size_t batch, std::size_t operations) {
  ibv_send_wr requests[kMostAtOnce];
  ibv_sge pieces[kMostAtOnce];
  ibv_send_wr* bad = nullptr;
  for (std::size_t done = 0; done != operations; done += batch) {
    for (std::size_t i = 0; i != batch; ++i) {
      requests[i] = request_of(f.puts[i], pieces[i]);
      requests[i].next = i + 1 == batch ? nullptr : &requests[i + 1];
    }
    check(ibv_post_send(f.verbs.qp, requests, &bad) == 0, "ibv_post_send");
  }
}

[[gnu::noinline]] void measured_poll_send_completion(Fixture& f, std::size_t, std::size_t operations) {
  for (std::size_t done = 0; done != operations; ++done) {
    const auto wc = f.qp.poll_send_completion();
    check(wc && *wc && (*wc)->is_valid(), "poll_send_completion");
  }
}

[[gnu::noinline]] void measured_poll_completions(Fixture& f, std::size_t batch, std::size_t operations) {
  static IbvWc wcs[kMostAtOnce];
  for (std::size_t done = 0; done != operations; done += batch) {
    const auto count = f.qp.poll_completions(PollTarget::Send, {wcs, batch});
    check(count && *count == batch && wcs[batch - 1].is_valid(), "poll_completions");
  }
}

[[gnu::noinline]] void measured_ibv_poll_cq(Fixture& f, std::size_t batch, std::size_t operations) {
  static ibv_wc wcs[kMostAtOnce];
  for (std::size_t done = 0; done != operations; done += batch) {
    check(ibv_poll_cq(f.verbs.cq, static_cast<int>(batch), wcs) == static_cast<int>(batch) &&
              wcs[batch - 1].status == IBV_WC_SUCCESS,
          "ibv_poll_cq");
  }
}

// --- Around it ---

void take_qpair(Fixture& f, std::size_t count) {
  wait_for_cqes(*f.qp.dv_send_cq(), count);
  IbvWc wcs[kMostAtOnce];
  for (std::size_t left = count; left != 0;) {
    const std::size_t taken =
        must(f.qp.poll_completions(PollTarget::Send, {wcs, std::min(left, kMostAtOnce)}));
    for (std::size_t i = 0; i != taken; ++i) check(wcs[i].is_valid(), "an operation");
    left -= taken;
  }
}

void take_verbs(Fixture& f, std::size_t count) {
  wait_for_cqes(f.verbs_cq, count);
  ibv_wc wcs[kMostAtOnce];
  for (std::size_t left = count; left != 0;) {
    const int taken = ibv_poll_cq(f.verbs.cq, static_cast<int>(std::min(left, kMostAtOnce)), wcs);
    check(taken >= 0, "ibv_poll_cq");
    for (int i = 0; i != taken; ++i) check(wcs[i].status == IBV_WC_SUCCESS, "an operation");
    left -= static_cast<std::size_t>(taken);
  }
}

enum class Side { Qpair, Verbs };
enum class What { Post, PostUnsignaled, Poll };

struct Contender {
  const char* name;
  Side side;
  What what;
  void (*measured)(Fixture&, std::size_t batch, std::size_t operations);
  std::vector<std::size_t> batches;
};

const std::vector<Contender>& contenders() {
  static const std::vector<Contender> all = {
      {"enqueue_put", Side::Qpair, What::Post, measured_enqueue_put, {1, 16, 64}},
      {"enqueue_puts", Side::Qpair, What::Post, measured_enqueue_puts, {1, 16, 64}},
      {"ibv_wr", Side::Verbs, What::Post, measured_ibv_wr, {1, 16, 64}},
      {"ibv_post_send_list", Side::Verbs, What::Post, measured_ibv_post_send_list, {16, 64}},
      {"put", Side::Qpair, What::Post, measured_put, {1}},
      {"ibv_post_send", Side::Verbs, What::Post, measured_ibv_post_send, {1}},
      {"unsignaled", Side::Qpair, What::PostUnsignaled, measured_unsignaled, {64}},
      {"ibv_wr_unsignaled", Side::Verbs, What::PostUnsignaled, measured_ibv_wr_unsignaled, {64}},
      {"inline", Side::Qpair, What::Post, measured_inline, {64}},
      {"ibv_wr_inline", Side::Verbs, What::Post, measured_ibv_wr_inline, {64}},
      {"poll_send_completion", Side::Qpair, What::Poll, measured_poll_send_completion, {1}},
      {"poll_completions", Side::Qpair, What::Poll, measured_poll_completions, {1, 16, 64}},
      {"ibv_poll_cq", Side::Verbs, What::Poll, measured_ibv_poll_cq, {1, 16, 64}},
  };
  return all;
}

Fixture& fixture() {
  static Fixture instance;
  return instance;
}

// One measurement, in seconds.
double measure(Fixture& f, const Contender& contender, std::size_t batch) {
  using Clock = std::chrono::steady_clock;
  const bool qpair = contender.side == Side::Qpair;
  const auto complete = [&](std::size_t count) { qpair ? take_qpair(f, count) : take_verbs(f, count); };
  // Wakes the NIC; each side has a doorbell page of its own.
  (qpair ? measured_put : measured_ibv_wr)(f, 1, 1);
  complete(1);
  constexpr std::size_t kAll = kWarmUp + kOperations;
  if (contender.what == What::Poll) {
    (qpair ? measured_enqueue_put : measured_ibv_wr)(f, kMostAtOnce, kAll);
    wait_for_cqes(qpair ? *f.qp.dv_send_cq() : f.verbs_cq, kAll);
  }
  contender.measured(f, batch, kWarmUp);
  const auto begin = Clock::now();
  contender.measured(f, batch, kOperations);
  const std::chrono::duration<double> taken = Clock::now() - begin;
  if (contender.what == What::Post) complete(kAll);
  if (contender.what == What::PostUnsignaled) complete(kAll / batch);
  return taken.count();
}

void run(benchmark::State& state, const Contender& contender, std::size_t batch) {
  std::vector<double> times;
  for (auto unused : state) {
    static_cast<void>(unused);
    times.push_back(measure(fixture(), contender, batch));
    state.SetIterationTime(times.back());
  }
  report(state, times, kOperations);
}

// Those that the project promises something about.
class Ratios final : public RatioReporter {
  void print_ratios() override {
    for (const std::string batch : {"/1", "/16", "/64"}) {
      for (const std::string mine : {"enqueue_put", "enqueue_puts"}) {
        compare(mine + batch, "ibv_wr" + batch);
        compare(mine + batch, "ibv_post_send_list" + batch);
        compare(mine + batch, "ibv_post_send/1");
      }
      compare("poll_completions" + batch, "ibv_poll_cq" + batch);
    }
    compare("put/1", "ibv_post_send/1");
    compare("unsignaled/64", "ibv_wr_unsignaled/64");
    compare("inline/64", "ibv_wr_inline/64");
    compare("poll_send_completion/1", "ibv_poll_cq/1");
  }
};

void keep_to_one_processor() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(sched_getcpu()), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity");
}

int run_for_profiler(std::string_view name, std::size_t batch) {
  constexpr std::size_t kRounds = 20;
  for (const Contender& contender : contenders()) {
    if (name != contender.name) continue;
    for (std::size_t i = 0; i != kRounds; ++i) measure(fixture(), contender, batch);
    fmt::print("{} operations\n", kRounds * (kWarmUp + kOperations));
    return 0;
  }
  fail("finding that benchmark");
}

}  // namespace
}  // namespace qpair::bench

int main(int argc, char** argv) {
  using namespace qpair::bench;
  keep_to_one_processor();
  if (argc == 4 && std::string_view(argv[1]) == "--operations") {
    return run_for_profiler(argv[2], static_cast<std::size_t>(std::atoi(argv[3])));
  }
  return run_benchmarks<Ratios>(argc, argv, [] {
    for (const Contender& contender : contenders()) {
      for (const std::size_t batch : contender.batches) {
        const std::string name = fmt::format("{}/{}", contender.name, batch);
        benchmark::RegisterBenchmark(
            name.c_str(), [&contender, batch](benchmark::State& state) { run(state, contender, batch); })
            ->UseManualTime()
            ->Iterations(60)
            ->Repetitions(15);
      }
    }
  });
}
