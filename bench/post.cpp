// What posting costs: batches of 64 RDMA writes of 8 bytes, each with one doorbell, through qpair, through
// ibv_wr_* and through ibv_post_send(), on queue pairs of the same size on the same device, in one run. Only
// the posting is timed; between batches the completions are taken. The counter "ns_per_op" is the time of one
// operation; at the end the ratios are printed, from the medians of all repetitions.
//
//   qpair run -- build/bin/bench-post        (or on a machine with an mlx5 device: build/bin/bench-post)
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "qpair/qpair.hpp"

namespace {

using qpair::IbverbsConfig;
using qpair::MemoryRegion;
using qpair::RdmaBuffer;
using qpair::RdmaDomain;
using qpair::RdmaQpInfo;
using qpair::RdmaQueuePair;
using qpair::Result;

constexpr std::size_t kBatch = 64;   // operations to a doorbell
constexpr std::size_t kBatches = 4;  // timed together, so that reading the clock weighs nothing
constexpr std::uint32_t kBytes = 8;

template <typename T>
T must(Result<T> result) {
  if (!result) {
    fmt::print(stderr, "bench-post: {}\n", result.error());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// An ordinary queue pair of libibverbs, of the size that qpair's has.
struct VerbsQueuePair {
  explicit VerbsQueuePair(const RdmaDomain& domain, const IbverbsConfig& config) {
    cq = ibv_create_cq(domain.context(), 1024, nullptr, nullptr, 0);
    ibv_qp_init_attr_ex attributes{};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {config.max_send_wr, config.max_recv_wr, 1, 1, 0};
    attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attributes.pd = domain.pd();
    attributes.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
    qp = ibv_create_qp_ex(domain.context(), &attributes);
    if (cq == nullptr || qp == nullptr) {
      fmt::print(stderr, "bench-post: cannot create a queue pair through libibverbs\n");
      std::exit(1);
    }
  }
  VerbsQueuePair(const VerbsQueuePair&) = delete;
  VerbsQueuePair& operator=(const VerbsQueuePair&) = delete;
  ~VerbsQueuePair() {
    ibv_destroy_qp(qp);
    ibv_destroy_cq(cq);
  }

  void connect(const RdmaQpInfo& peer, std::uint8_t gid_index) const {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = qpair::kAllRights;
    modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = peer.path_mtu;
    attributes.dest_qp_num = peer.qp_num;
    attributes.rq_psn = peer.psn;
    attributes.max_dest_rd_atomic = 16;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.dlid = peer.lid;
    if (peer.gid) {
      attributes.ah_attr.is_global = 1;
      attributes.ah_attr.grh.dgid = peer.gid->to_ibv();
      attributes.ah_attr.grh.sgid_index = gid_index;
      attributes.ah_attr.grh.hop_limit = 64;
    }
    modify(attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 14;
    attributes.retry_cnt = attributes.rnr_retry = 7;
    attributes.max_rd_atomic = 16;
    modify(attributes, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_MAX_QP_RD_ATOMIC);
  }

  void take_completions() const {
    for (std::size_t taken = 0; taken != 1 + kBatches * kBatch;) {
      ibv_wc wc[kBatch];
      const int count = ibv_poll_cq(cq, kBatch, wc);
      if (count == 0) std::this_thread::yield();
      for (int i = 0; i < count; ++i) {
        if (wc[i].status != IBV_WC_SUCCESS) std::exit(1);
      }
      taken += static_cast<std::size_t>(std::max(count, 0));
    }
  }

  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;

 private:
  void modify(ibv_qp_attr& attributes, int mask) const {
    if (const int failure = ibv_modify_qp(qp, &attributes, mask); failure != 0) {
      fmt::print(stderr, "bench-post: ibv_modify_qp: errno {}\n", failure);
      std::exit(1);
    }
  }
};

struct Bench {
  Bench()
      : domain(must(RdmaDomain::create())),
        memory(must(domain.allocate(1 << 16))),
        qp(must(RdmaQueuePair::create(domain, config))),
        qp_peer(must(RdmaQueuePair::create(domain, config))),
        verbs(domain, config),
        verbs_peer(must(RdmaQueuePair::create(domain, config))) {
    const RdmaQpInfo info = must(qp.get_qp_info());
    must(qp.connect(must(qp_peer.get_qp_info())));
    must(qp_peer.connect(info));
    verbs.connect(must(verbs_peer.get_qp_info()), qp.config().gid_index.value_or(0));
    RdmaQpInfo of_verbs = info;
    of_verbs.qp_num = verbs.qp->qp_num;
    of_verbs.psn = 0;
    must(verbs_peer.connect(of_verbs));
    for (std::size_t i = 0; i != kBatch; ++i) {
      local.push_back(must(memory.slice(i * kBytes, kBytes)));
      remote.push_back(must(memory.slice(32768 + i * kBytes, kBytes)));
    }
  }

  IbverbsConfig config;
  RdmaDomain domain;
  MemoryRegion memory;
  RdmaQueuePair qp;
  RdmaQueuePair qp_peer;
  VerbsQueuePair verbs;
  RdmaQueuePair verbs_peer;
  std::vector<RdmaBuffer> local;
  std::vector<RdmaBuffer> remote;
};

Bench& bench() {
  static Bench instance;
  return instance;
}

// Times `post` alone, after one untimed operation that wakes the NIC: a real one is always awake, while an
// emulated one stops the program at the first doorbell after a rest, for microseconds. What was posted is
// completed, untimed, before the next round.
template <typename Wake, typename Post, typename Complete>
void run(benchmark::State& state, Wake wake, Post post, Complete complete) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> batches;
  for (auto unused : state) {
    static_cast<void>(unused);
    wake();
    const auto begin = Clock::now();
    for (std::size_t batch = 0; batch != kBatches; ++batch) post();
    const std::chrono::duration<double> taken = Clock::now() - begin;
    state.SetIterationTime(taken.count());
    batches.push_back(taken.count());
    complete();
  }
  // The mean counts the times that the scheduler took the processor away; the median does not.
  std::nth_element(batches.begin(), batches.begin() + static_cast<std::ptrdiff_t>(batches.size() / 2),
                   batches.end());
  state.counters["ns_per_op"] = batches[batches.size() / 2] / (kBatches * kBatch) * 1e9;
}

void take_qpair_completions() {
  static std::vector<qpair::IbvWc> wcs(kBatch);
  for (std::size_t taken = 0; taken != 1 + kBatches * kBatch;) {
    const std::size_t count = must(bench().qp.poll_completions(qpair::PollTarget::Send, wcs));
    if (count == 0) std::this_thread::yield();
    for (std::size_t i = 0; i != count; ++i) {
      if (!wcs[i].is_valid()) std::exit(1);
    }
    taken += count;
  }
}

void qpair_enqueue(benchmark::State& state) {
  Bench& b = bench();
  run(
      state,
      [&b] {
        if (!b.qp.put(b.local[0], b.remote[0])) std::exit(1);
      },
      [&b] {
        for (std::size_t i = 0; i != kBatch; ++i) {
          if (!b.qp.enqueue_put(b.local[i], b.remote[i])) std::exit(1);
        }
        if (!b.qp.ring_doorbell()) std::exit(1);
      },
      take_qpair_completions);
}

void post_through_ibv_wr(Bench& b, std::size_t count) {
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(b.verbs.qp);
  ibv_wr_start(qp);
  for (std::size_t i = 0; i != count; ++i) {
    qp->wr_id = i;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qp, b.remote[i].rkey, b.remote[i].addr);
    ibv_wr_set_sge(qp, b.local[i].lkey, b.local[i].addr, static_cast<std::uint32_t>(b.local[i].size));
  }
  if (ibv_wr_complete(qp) != 0) std::exit(1);
}

void ibv_wr(benchmark::State& state) {
  Bench& b = bench();
  run(
      state, [&b] { post_through_ibv_wr(b, 1); }, [&b] { post_through_ibv_wr(b, kBatch); },
      [&b] { b.verbs.take_completions(); });
}

void ibv_post_send_list(benchmark::State& state) {
  Bench& b = bench();
  std::vector<ibv_send_wr> requests(kBatch);
  std::vector<ibv_sge> pieces(kBatch);
  run(
      state, [&b] { post_through_ibv_wr(b, 1); },
      [&] {
        for (std::size_t i = 0; i != kBatch; ++i) {
          pieces[i] = {b.local[i].addr, static_cast<std::uint32_t>(b.local[i].size), b.local[i].lkey};
          ibv_send_wr& request = requests[i];
          request.wr_id = i;
          request.next = i + 1 == kBatch ? nullptr : &requests[i + 1];
          request.sg_list = &pieces[i];
          request.num_sge = 1;
          request.opcode = IBV_WR_RDMA_WRITE;
          request.send_flags = IBV_SEND_SIGNALED;
          request.wr.rdma.remote_addr = b.remote[i].addr;
          request.wr.rdma.rkey = b.remote[i].rkey;
        }
        ibv_send_wr* bad = nullptr;
        if (ibv_post_send(b.verbs.qp, requests.data(), &bad) != 0) std::exit(1);
      },
      [&b] { b.verbs.take_completions(); });
}

// Prints the usual table, and at the end the ratios that the project promises something about.
class Ratios : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
      times_[run.run_name.function_name].push_back(run.counters.at("ns_per_op"));
    }
  }
  void Finalize() override {
    ConsoleReporter::Finalize();
    const double mine = median("qpair_enqueue");
    for (const char* other : {"ibv_wr", "ibv_post_send_list"}) {
      const double theirs = median(other);
      if (mine > 0 && theirs > 0) {
        fmt::print("ratio qpair_enqueue / {}: {:.3f} ({:.2f} ns / {:.2f} ns)\n", other, mine / theirs, mine,
                   theirs);
      }
    }
  }

 private:
  double median(const std::string& name) {
    std::vector<double>& values = times_[name];
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
  std::map<std::string, std::vector<double>> times_;
};

BENCHMARK(qpair_enqueue)->UseManualTime()->Iterations(2000)->Repetitions(9);
BENCHMARK(ibv_wr)->UseManualTime()->Iterations(2000)->Repetitions(9);
BENCHMARK(ibv_post_send_list)->UseManualTime()->Iterations(2000)->Repetitions(9);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  Ratios reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::Shutdown();
  return 0;
}
