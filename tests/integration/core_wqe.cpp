// libmlx5 is the oracle: the same operations posted through ibv_post_send(), through ibv_wr_*, and through
// qpair leave the same bytes in three send rings. Receives likewise.
#include <infiniband/mlx5dv.h>

#include <functional>

#include "qpair/mlx5/wqe.hpp"
#include "tests/integration/core_fixture.hpp"

namespace qpair::test {
namespace {

constexpr std::uint32_t kWrs = 64;
constexpr std::uint32_t kSge = 4;
constexpr std::uint32_t kInline = 200;

IbverbsConfig config() {
  IbverbsConfig config;
  config.max_send_wr = config.max_recv_wr = kWrs;
  config.max_send_sge = config.max_recv_sge = kSge;
  config.max_inline_data = kInline;
  return config;
}

// A queue pair made and driven the ordinary way.
class VerbsQueuePair {
 public:
  VerbsQueuePair() {
    ibv_context* context = shared_domain().context();
    send_cq_ = ibv_create_cq(context, 1024, nullptr, nullptr, 0);
    recv_cq_ = ibv_create_cq(context, 1024, nullptr, nullptr, 0);
    ibv_qp_init_attr_ex attributes{};
    attributes.send_cq = send_cq_;
    attributes.recv_cq = recv_cq_;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {kWrs, kWrs, kSge, kSge, kInline};
    attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attributes.pd = shared_domain().pd();
    attributes.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    qp = ibv_create_qp_ex(context, &attributes);
    if (qp == nullptr) throw std::runtime_error("ibv_create_qp_ex");
    mlx5dv_obj object{};
    object.qp.in = qp;
    object.qp.out = &rings;
    mlx5dv_init_obj(&object, MLX5DV_OBJ_QP);
  }
  VerbsQueuePair(const VerbsQueuePair&) = delete;
  VerbsQueuePair& operator=(const VerbsQueuePair&) = delete;
  ~VerbsQueuePair() {
    ibv_destroy_qp(qp);
    ibv_destroy_cq(send_cq_);
    ibv_destroy_cq(recv_cq_);
  }

  RdmaQpInfo info() const {
    RdmaQpInfo info;
    info.qp_num = qp->qp_num;
    ibv_gid gid{};
    ibv_query_gid(qp->context, 1, kGidIndex, &gid);
    info.gid = Gid::from(gid);
    info.psn = 7;
    info.path_mtu = IBV_MTU_4096;
    info.max_dest_rd_atomic = 16;
    return info;
  }

  void connect(const RdmaQpInfo& peer) const {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = kAllRights;
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    ASSERT_EQ(ibv_modify_qp(qp, &attributes, mask), 0);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_4096;
    attributes.dest_qp_num = peer.qp_num;
    attributes.rq_psn = peer.psn;
    attributes.max_dest_rd_atomic = 16;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.dgid = peer.gid->to_ibv();
    attributes.ah_attr.grh.sgid_index = kGidIndex;
    attributes.ah_attr.grh.hop_limit = 64;
    mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    ASSERT_EQ(ibv_modify_qp(qp, &attributes, mask), 0);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = 7;
    attributes.timeout = 14;
    attributes.retry_cnt = attributes.rnr_retry = 7;
    attributes.max_rd_atomic = 16;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
           IBV_QP_MAX_QP_RD_ATOMIC;
    ASSERT_EQ(ibv_modify_qp(qp, &attributes, mask), 0);
  }

  void wait() const {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    ibv_wc wc{};
    while (ibv_poll_cq(send_cq_, 1, &wc) == 0) ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
  }

  ibv_qp* qp = nullptr;
  mlx5dv_qp rings{};

 private:
  static constexpr std::uint8_t kGidIndex = 3;
  ibv_cq* send_cq_ = nullptr;
  ibv_cq* recv_cq_ = nullptr;
};

// One operation in three dialects.
struct Operation {
  const char* name;
  ibv_wr_opcode opcode;
  std::vector<RdmaBuffer> local;
  RdmaBuffer remote;
  bool is_inline = false;
  bool signaled = true;
  std::uint32_t imm = 0;
  std::uint64_t add_or_swap = 0;
  std::uint64_t compare = 0;
};

void post_send(ibv_qp* qp, const Operation& operation) {
  std::vector<ibv_sge> pieces;
  for (const RdmaBuffer& piece : operation.local) {
    pieces.push_back({piece.addr, static_cast<std::uint32_t>(piece.size), piece.lkey});
  }
  ibv_send_wr request{};
  request.opcode = operation.opcode;
  request.sg_list = pieces.data();
  request.num_sge = static_cast<int>(pieces.size());
  if (operation.signaled) request.send_flags |= IBV_SEND_SIGNALED;
  if (operation.is_inline) request.send_flags |= IBV_SEND_INLINE;
  request.imm_data = htobe32(operation.imm);
  if (operation.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || operation.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    request.wr.atomic.remote_addr = operation.remote.addr;
    request.wr.atomic.rkey = operation.remote.rkey;
    const bool swap = operation.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    request.wr.atomic.compare_add = swap ? operation.compare : operation.add_or_swap;
    request.wr.atomic.swap = operation.add_or_swap;
  } else {
    request.wr.rdma.remote_addr = operation.remote.addr;
    request.wr.rdma.rkey = operation.remote.rkey;
  }
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(qp, &request, &bad), 0) << operation.name;
}

void post_wr(ibv_qp* plain, const Operation& operation) {
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(plain);
  ibv_wr_start(qp);
  qp->wr_flags = 0;
  if (operation.signaled) qp->wr_flags |= IBV_SEND_SIGNALED;
  const RdmaBuffer& r = operation.remote;
  switch (operation.opcode) {
    case IBV_WR_RDMA_WRITE:
      ibv_wr_rdma_write(qp, r.rkey, r.addr);
      break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      ibv_wr_rdma_write_imm(qp, r.rkey, r.addr, htobe32(operation.imm));
      break;
    case IBV_WR_RDMA_READ:
      ibv_wr_rdma_read(qp, r.rkey, r.addr);
      break;
    case IBV_WR_SEND:
      ibv_wr_send(qp);
      break;
    case IBV_WR_SEND_WITH_IMM:
      ibv_wr_send_imm(qp, htobe32(operation.imm));
      break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      ibv_wr_atomic_fetch_add(qp, r.rkey, r.addr, operation.add_or_swap);
      break;
    default:
      ibv_wr_atomic_cmp_swp(qp, r.rkey, r.addr, operation.compare, operation.add_or_swap);
  }
  if (operation.is_inline) {
    ibv_wr_set_inline_data(qp, reinterpret_cast<void*>(operation.local[0].addr), operation.local[0].size);
  } else if (operation.local.size() == 1) {
    ibv_wr_set_sge(qp, operation.local[0].lkey, operation.local[0].addr,
                   static_cast<std::uint32_t>(operation.local[0].size));
  } else {
    std::vector<ibv_sge> pieces;
    for (const RdmaBuffer& piece : operation.local) {
      pieces.push_back({piece.addr, static_cast<std::uint32_t>(piece.size), piece.lkey});
    }
    ibv_wr_set_sge_list(qp, pieces.size(), pieces.data());
  }
  ASSERT_EQ(ibv_wr_complete(qp), 0) << operation.name;
}

Result<WrId> post_qpair(RdmaQueuePair& qp, const Operation& operation) {
  const Signal signal = operation.signaled ? Signal::Yes : Signal::No;
  const RdmaBuffer& l = operation.local[0];
  const RdmaBuffer& r = operation.remote;
  const std::optional<std::uint32_t> imm =
      operation.opcode == IBV_WR_SEND_WITH_IMM ? std::optional(operation.imm) : std::nullopt;
  switch (operation.opcode) {
    case IBV_WR_RDMA_WRITE:
      if (operation.is_inline) {
        return qp.put_inline(std::span(reinterpret_cast<const std::byte*>(l.addr), l.size), r, signal);
      }
      return operation.local.size() == 1 ? qp.put(l, r, signal) : qp.put(operation.local, r, signal);
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return operation.local.size() == 1 ? qp.put_with_recv(l, r, operation.imm, signal)
                                         : qp.put_with_recv(operation.local, r, operation.imm, signal);
    case IBV_WR_RDMA_READ:
      return operation.local.size() == 1 ? qp.get(l, r, signal) : qp.get(operation.local, r, signal);
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return qp.send(l, imm, signal);
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return qp.fetch_add(l, r, operation.add_or_swap, signal);
    default:
      return qp.compare_swap(l, r, operation.compare, operation.add_or_swap, signal);
  }
}

// The WQE that begins at a block: its bytes, without what tells one queue pair from another (the QPN) and
// without what nobody reads (the operand that a fetch-and-add does not have, padding behind inline data).
std::vector<std::uint8_t> wqe_at(const mlx5dv_qp& rings, std::uint64_t block, const Operation& operation,
                                 std::uint32_t& blocks) {
  const auto* ring = static_cast<const std::uint8_t*>(rings.sq.buf);
  const std::size_t ring_size = std::size_t{rings.sq.wqe_cnt} * 64;
  const std::size_t begin = (block & (rings.sq.wqe_cnt - 1)) * 64;
  const std::uint32_t segments = ring[begin + 7] & 0x3f;
  blocks = (segments + 3) / 4;
  std::size_t size = segments * 16;
  if (operation.is_inline && operation.local[0].size != 0) size = 32 + 4 + operation.local[0].size;
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i != size; ++i) bytes.push_back(ring[(begin + i) % ring_size]);
  for (std::size_t i = 4; i != 7; ++i) bytes[i] = 0;
  if (operation.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
    std::fill(bytes.begin() + 40, bytes.begin() + 48, std::uint8_t{0});
  return bytes;
}

std::vector<Operation> operations(const Side& mine, const Side& theirs) {
  const auto l = [&](std::uint64_t offset, std::uint64_t size) { return mine.at(offset, size); };
  const auto r = [&](std::uint64_t offset, std::uint64_t size) { return theirs.at(offset, size); };
  std::vector<Operation> all = {
      {"put", IBV_WR_RDMA_WRITE, {l(0, 8)}, r(64, 8)},
      {"get", IBV_WR_RDMA_READ, {l(16, 4096)}, r(0, 4096)},
      {"empty put", IBV_WR_RDMA_WRITE, {l(0, 0)}, r(64, 0)},
      {"unsignaled put", IBV_WR_RDMA_WRITE, {l(0, 100)}, r(64, 100), false, false},
      {"put_with_recv", IBV_WR_RDMA_WRITE_WITH_IMM, {l(0, 8)}, r(64, 8), false, true, 0x01020304},
      {"send", IBV_WR_SEND, {l(0, 8)}, {}},
      {"send with immediate", IBV_WR_SEND_WITH_IMM, {l(0, 8)}, {}, false, true, 0xa0b0c0d0},
      {"fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, {l(0, 8)}, r(64, 8), false, true, 0, 0x0123456789abcdef},
      {"compare_swap", IBV_WR_ATOMIC_CMP_AND_SWP, {l(0, 8)}, r(64, 8), false, true, 0, 0x1111222233334444, 5},
      {"put of two pieces", IBV_WR_RDMA_WRITE, {l(0, 3), l(100, 5)}, r(64, 8)},
      {"put of four pieces", IBV_WR_RDMA_WRITE, {l(0, 3), l(100, 0), l(200, 7), l(300, 9)}, r(64, 19)},
      {"get of three pieces", IBV_WR_RDMA_READ, {l(0, 3), l(100, 5), l(200, 1)}, r(64, 9)},
      {"put_with_recv of two", IBV_WR_RDMA_WRITE_WITH_IMM, {l(0, 3), l(100, 5)}, r(64, 8), false, true, 9},
  };
  for (const std::uint64_t size : {0U, 1U, 12U, 28U, 29U, 44U, 92U, 93U, 200U}) {
    all.push_back({"inline put", IBV_WR_RDMA_WRITE, {l(0, size)}, r(64, size), true});
  }
  return all;
}

TEST(WqeBytes, AreThoseOfLibmlx5ForEveryOperation) {
  if (!is_mlx5(Side().queue_pair)) GTEST_SKIP() << "work queue entries are those of an mlx5";
  Side mine(1 << 16, config());
  Side theirs(1 << 16, config());
  connect(mine, theirs);
  mine.fill(0, 1 << 16, 1);

  VerbsQueuePair posts;
  VerbsQueuePair wrs;
  Side posts_peer(4096, config());
  Side wrs_peer(4096, config());
  posts.connect(MUST(posts_peer.queue_pair.get_qp_info()));
  MUST(posts_peer.queue_pair.connect(posts.info()));
  wrs.connect(MUST(wrs_peer.queue_pair.get_qp_info()));
  MUST(wrs_peer.queue_pair.connect(wrs.info()));

  const std::vector<Operation> all = operations(mine, theirs);
  std::uint64_t block = 0;
  // Round and round, so that every kind comes to begin at every place, the ring's last blocks among them. The
  // odd one more in each round keeps the rounds out of step with the ring.
  for (std::size_t step = 0; block < 8 * mine.queue_pair.dv_qp()->sq.wqe_cnt; ++step) {
    const Operation& operation = all[(step + step / all.size()) % all.size()];
    for (Side* peer : {&theirs, &posts_peer, &wrs_peer}) {
      if (operation.opcode == IBV_WR_SEND || operation.opcode == IBV_WR_SEND_WITH_IMM ||
          operation.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        MUST(peer->queue_pair.recv(peer->at(1024, 64)));
      }
    }
    post_send(posts.qp, operation);
    post_wr(wrs.qp, operation);
    const WrId id = MUST(post_qpair(mine.queue_pair, operation));

    std::uint32_t blocks = 0;
    const auto from_post_send = wqe_at(posts.rings, block, operation, blocks);
    auto from_wr = wqe_at(wrs.rings, block, operation, blocks);
    const auto from_qpair = wqe_at(*mine.queue_pair.dv_qp(), block, operation, blocks);
    // ibv_wr_* leaves an immediate of an earlier lap where none is wanted; ibv_post_send() writes zero, as
    // qpair does.
    const bool has_imm =
        operation.opcode == IBV_WR_SEND_WITH_IMM || operation.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (!has_imm) std::fill(from_wr.begin() + 12, from_wr.begin() + 16, std::uint8_t{0});
    ASSERT_EQ(from_qpair, from_post_send) << operation.name << " at block " << block;
    ASSERT_EQ(from_qpair, from_wr) << operation.name << " at block " << block;
    block += blocks;

    if (operation.signaled) {
      posts.wait();
      wrs.wait();
      const IbvWc wc = wait_for(mine.queue_pair, PollTarget::Send);
      ASSERT_TRUE(wc.is_valid()) << wc;
      ASSERT_EQ(wc.wr_id, id);
    }
    for (Side* peer : {&theirs, &posts_peer, &wrs_peer}) {
      if (peer->queue_pair.recv_wqe_idx() != peer->queue_pair.recv_cq_idx())
        wait_for(peer->queue_pair, PollTarget::Recv);
    }
  }
}

TEST(WqeBytes, ReceivesAreThoseOfLibmlx5) {
  if (!is_mlx5(Side().queue_pair)) GTEST_SKIP() << "work queue entries are those of an mlx5";
  VerbsQueuePair posts;
  Side mine(1 << 16, config());
  Side theirs(1 << 16, config());
  connect(mine, theirs);
  posts.connect(MUST(theirs.queue_pair.get_qp_info()));
  ASSERT_EQ(posts.rings.rq.stride, mine.queue_pair.dv_qp()->rq.stride);
  ASSERT_EQ(posts.rings.rq.wqe_cnt, mine.queue_pair.dv_qp()->rq.wqe_cnt);
  const std::vector<std::vector<RdmaBuffer>> receives = {
      {mine.at(0, 100)},
      {mine.at(0, 0)},
      {},
      {mine.at(0, 1), mine.at(100, 2)},
      {mine.at(0, 1), mine.at(100, 0), mine.at(200, 3)},
      {mine.at(0, 1), mine.at(100, 2), mine.at(200, 3), mine.at(300, 4)},
  };
  for (std::size_t i = 0; i != receives.size(); ++i) {
    std::vector<ibv_sge> pieces;
    std::size_t used = 0;
    for (const RdmaBuffer& piece : receives[i]) {
      pieces.push_back({piece.addr, static_cast<std::uint32_t>(piece.size), piece.lkey});
      if (piece.size != 0) ++used;
    }
    ibv_recv_wr request{};
    request.sg_list = pieces.data();
    request.num_sge = static_cast<int>(pieces.size());
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(posts.qp, &request, &bad), 0);
    MUST(mine.queue_pair.recv(receives[i]));
    const std::size_t stride = posts.rings.rq.stride;
    const std::size_t size = std::min(stride, (used + 1) * 16);
    EXPECT_EQ(std::memcmp(static_cast<const std::byte*>(posts.rings.rq.buf) + i * stride,
                          static_cast<const std::byte*>(mine.queue_pair.dv_qp()->rq.buf) + i * stride, size),
              0)
        << "receive " << i;
    EXPECT_EQ(posts.rings.dbrec[0], mine.queue_pair.dv_qp()->dbrec[0]);
  }
}

// --- What doorbells look like ---

TEST(Doorbell, RecordsAreThoseOfLibmlx5) {
  if (!is_mlx5(Side().queue_pair)) GTEST_SKIP() << "work queue entries are those of an mlx5";
  Side mine(1 << 16, config());
  Side theirs(1 << 16, config());
  connect(mine, theirs);
  VerbsQueuePair posts;
  Side peer(4096, config());
  posts.connect(MUST(peer.queue_pair.get_qp_info()));
  MUST(peer.queue_pair.connect(posts.info()));
  for (const Operation& operation : operations(mine, theirs)) {
    if (operation.opcode != IBV_WR_RDMA_WRITE || !operation.signaled) continue;
    post_send(posts.qp, operation);
    MUST(post_qpair(mine.queue_pair, operation));
    EXPECT_EQ(posts.rings.dbrec[1], mine.queue_pair.dv_qp()->dbrec[1]) << operation.name;
    posts.wait();
    EXPECT_TRUE(wait_for(mine.queue_pair, PollTarget::Send).is_valid());
  }
}

}  // namespace
}  // namespace qpair::test
