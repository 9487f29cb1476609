#pragma once
// Two queue pairs of the same size on the same device, one driven by qpair and one through libibverbs, each
// connected to a peer in this process.

#include <endian.h>
#include <fmt/format.h>
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include "qpair/qpair.hpp"

namespace qpair::bench {

template <typename T>
T must(Result<T> result) {
  if (!result) {
    fmt::print(stderr, "bench: {}\n", result.error());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

inline void must_be_zero(int result, const char* what) {
  if (result == 0) return;
  fmt::print(stderr, "bench: {}: errno {}\n", what, result);
  std::exit(1);
}

// An ordinary queue pair of libibverbs, of the size that qpair's has.
class VerbsQueuePair {
 public:
  VerbsQueuePair(const RdmaDomain& domain, const IbverbsConfig& config) {
    cq = ibv_create_cq(domain.context(), 1024, nullptr, nullptr, 0);
    ibv_qp_init_attr_ex attributes{};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {config.max_send_wr, config.max_recv_wr, 1, 1, 28};
    attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attributes.pd = domain.pd();
    attributes.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
    qp = ibv_create_qp_ex(domain.context(), &attributes);
    if (cq == nullptr || qp == nullptr) must_be_zero(errno, "creating a queue pair through libibverbs");
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
    attributes.qp_access_flags = kAllRights;
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

  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;

 private:
  void modify(ibv_qp_attr& attributes, int mask) const {
    must_be_zero(ibv_modify_qp(qp, &attributes, mask), "ibv_modify_qp");
  }
};

// Waits, without polling it, until a completion queue holds `count` completions.
inline void wait_for_cqes(const mlx5dv_cq& cq, std::uint64_t count) {
  const std::uint32_t taken = be32toh(cq.dbrec[0]);
  const std::uint64_t last = taken + count - 1;
  const auto* op_own =
      static_cast<const std::uint8_t*>(cq.buf) + ((last & (cq.cqe_cnt - 1)) + 1) * cq.cqe_size - 1;
  const std::uint8_t lap = (last & cq.cqe_cnt) != 0 ? 1 : 0;
  for (;;) {
    const std::uint8_t value = __atomic_load_n(op_own, __ATOMIC_ACQUIRE);
    if (value >> 4 != 15 && (value & 1) == lap) return;
    std::this_thread::yield();
  }
}

struct Fixture {
  static constexpr std::uint32_t kBytes = 8;
  static constexpr std::size_t kPuts = 64;

  Fixture()
      : domain(must(RdmaDomain::create())),
        memory(must(domain.allocate(1 << 16))),
        qp(must(RdmaQueuePair::create(domain, config))),
        qp_peer(must(RdmaQueuePair::create(domain, config))),
        verbs(domain, config),
        verbs_peer(must(RdmaQueuePair::create(domain, config))) {
    if (qp.dv_qp() == nullptr) {
      fmt::print(stderr, "bench: this measures the mlx5 data path, and {} is not an mlx5 device\n",
                 domain.device_name());
      std::exit(1);
    }
    const RdmaQpInfo info = must(qp.get_qp_info());
    must(qp.connect(must(qp_peer.get_qp_info())));
    must(qp_peer.connect(info));
    verbs.connect(must(verbs_peer.get_qp_info()), qp.config().gid_index.value_or(0));
    RdmaQpInfo of_verbs = info;
    of_verbs.qp_num = verbs.qp->qp_num;
    of_verbs.psn = 0;
    must(verbs_peer.connect(of_verbs));
    mlx5dv_obj object{};
    object.cq.in = verbs.cq;
    object.cq.out = &verbs_cq;
    must_be_zero(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ), "mlx5dv_init_obj");
    for (std::size_t i = 0; i != kPuts; ++i) {
      puts.push_back(
          {must(memory.slice(i * kBytes, kBytes)), must(memory.slice(32768 + i * kBytes, kBytes))});
    }
  }

  IbverbsConfig config;
  RdmaDomain domain;
  MemoryRegion memory;
  RdmaQueuePair qp;
  RdmaQueuePair qp_peer;
  VerbsQueuePair verbs;
  RdmaQueuePair verbs_peer;
  mlx5dv_cq verbs_cq{};
  std::vector<Put> puts;
};

}  // namespace qpair::bench
