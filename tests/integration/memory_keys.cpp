// Memory keys beyond plain regions, through libibverbs and libmlx5 as a program uses them.

#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>

namespace {

constexpr std::chrono::seconds kPatience{30};
constexpr std::size_t kSize = 8192;
// The queue pair is both sides: its refusal of the request ends it, and the request is flushed.
constexpr ibv_wc_status kRefused = IBV_WC_WR_FLUSH_ERR;
constexpr unsigned kRemote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

template <typename T, auto Destroy>
struct Deleter {
  void operator()(T* object) const { EXPECT_EQ(Destroy(object), 0); }
};
template <typename T, auto Destroy>
using Handle = std::unique_ptr<T, Deleter<T, Destroy>>;

ibv_context* open_device() {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  mlx5dv_context_attr attributes{};
  attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
  ibv_context* const context = mlx5dv_open_device(list[0], &attributes);
  ibv_free_device_list(list);
  return context;
}

ibv_mr* register_memory(ibv_pd* pd, void* address, std::size_t size, unsigned access) {
  return ibv_reg_mr_iova2(pd, address, size, reinterpret_cast<std::uintptr_t>(address), access);
}

// A queue pair that is connected to itself.
class MemoryKeys : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(context, nullptr);
    ASSERT_NE(mr, nullptr);
    ibv_qp_init_attr_ex attributes{};
    attributes.send_cq = attributes.recv_cq = cq.get();
    attributes.cap = {
        .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 512};
    attributes.qp_type = IBV_QPT_RC;
    attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attributes.pd = pd.get();
    attributes.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
                                IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV |
                                IBV_QP_EX_WITH_SEND_WITH_INV;
    mlx5dv_qp_init_attr mlx5{};
    mlx5.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS | MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
    mlx5.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
    mlx5.send_ops_flags = MLX5DV_QP_EX_WITH_MKEY_CONFIGURE | MLX5DV_QP_EX_WITH_MR_LIST |
                          MLX5DV_QP_EX_WITH_MR_INTERLEAVED | MLX5DV_QP_EX_WITH_MEMCPY;
    qp.reset(mlx5dv_create_qp(context.get(), &attributes, &mlx5));
    ASSERT_NE(qp, nullptr);
    ex = ibv_qp_to_qp_ex(qp.get());
    dv = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
    connect();
  }

  void connect() {
    ibv_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    init.port_num = 1;
    init.qp_access_flags = kRemote;
    ASSERT_EQ(
        ibv_modify_qp(qp.get(), &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        0);
    ibv_qp_attr rtr{};
    rtr.qp_state = IBV_QPS_RTR;
    rtr.path_mtu = IBV_MTU_1024;
    rtr.dest_qp_num = qp->qp_num;
    rtr.max_dest_rd_atomic = 1;
    rtr.min_rnr_timer = 1;
    rtr.ah_attr.is_global = 1;
    rtr.ah_attr.port_num = 1;
    rtr.ah_attr.grh.sgid_index = 3;
    ASSERT_EQ(ibv_query_gid(context.get(), 1, 3, &rtr.ah_attr.grh.dgid), 0);
    ASSERT_EQ(ibv_modify_qp(qp.get(), &rtr,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
    ibv_qp_attr rts{};
    rts.qp_state = IBV_QPS_RTS;
    rts.timeout = 14;
    rts.retry_cnt = 7;
    rts.rnr_retry = 7;
    rts.max_rd_atomic = 1;
    ASSERT_EQ(ibv_modify_qp(qp.get(), &rts,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }

  ibv_wc wait() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    ibv_wc wc{};
    while (ibv_poll_cq(cq.get(), 1, &wc) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "no completion came";
        break;
      }
    }
    return wc;
  }
  void expect(ibv_wc_opcode opcode) {
    const ibv_wc wc = wait();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(wc.opcode, opcode);
  }
  std::uint64_t at(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory.data()) + offset;
  }
  std::string_view text(std::size_t offset, std::size_t size) const { return {memory.data() + offset, size}; }
  void fill(std::size_t offset, std::string_view bytes) {
    std::memcpy(memory.data() + offset, bytes.data(), bytes.size());
  }

  ibv_wc_status transfer(bool is_read, std::uint32_t lkey, std::uint64_t from, std::uint32_t size,
                         std::uint32_t rkey, std::uint64_t remote) {
    ibv_wr_start(ex);
    ex->wr_flags = IBV_SEND_SIGNALED;
    is_read ? ibv_wr_rdma_read(ex, rkey, remote) : ibv_wr_rdma_write(ex, rkey, remote);
    ibv_wr_set_sge(ex, lkey, from, size);
    EXPECT_EQ(ibv_wr_complete(ex), 0);
    return wait().status;
  }
  ibv_wc_status write(std::uint32_t lkey, std::uint64_t from, std::uint32_t size, std::uint32_t rkey,
                      std::uint64_t to) {
    return transfer(false, lkey, from, size, rkey, to);
  }

  alignas(4096) std::array<char, kSize> memory{};
  Handle<ibv_context, ibv_close_device> context{open_device()};
  Handle<ibv_pd, ibv_dealloc_pd> pd{ibv_alloc_pd(context.get())};
  Handle<ibv_cq, ibv_destroy_cq> cq{ibv_create_cq(context.get(), 64, nullptr, nullptr, 0)};
  Handle<ibv_mr, ibv_dereg_mr> mr{
      register_memory(pd.get(), memory.data(), kSize, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)};
  Handle<ibv_qp, ibv_destroy_qp> qp;
  ibv_qp_ex* ex = nullptr;
  mlx5dv_qp_ex* dv = nullptr;
};

TEST_F(MemoryKeys, AWindowIsBoundUsedAndInvalidated) {
  const Handle<ibv_mw, ibv_dealloc_mw> mw(ibv_alloc_mw(pd.get(), IBV_MW_TYPE_2));
  ASSERT_NE(mw, nullptr);
  const std::uint32_t rkey = ibv_inc_rkey(mw->rkey);
  fill(0, "window");
  ibv_wr_start(ex);
  ex->wr_flags = IBV_SEND_SIGNALED;
  const ibv_mw_bind_info info{.mr = mr.get(), .addr = at(4096), .length = 64, .mw_access_flags = kRemote};
  ibv_wr_bind_mw(ex, mw.get(), rkey, &info);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  expect(IBV_WC_BIND_MW);
  EXPECT_EQ(write(mr->lkey, at(0), 6, rkey, at(4096)), IBV_WC_SUCCESS);
  EXPECT_EQ(text(4096, 6), "window");
  EXPECT_EQ(ibv_dereg_mr(mr.get()), EBUSY);
  ibv_wr_start(ex);
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_local_inv(ex, rkey);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  expect(IBV_WC_LOCAL_INV);
  EXPECT_EQ(write(mr->lkey, at(0), 6, rkey, at(4096)), kRefused);
}

TEST_F(MemoryKeys, TheNullRegionSwallowsAndGivesZeros) {
  const Handle<ibv_mr, ibv_dereg_mr> null(ibv_alloc_null_mr(pd.get()));
  ASSERT_NE(null, nullptr);
  const Handle<ibv_mr, ibv_dereg_mr> target(
      register_memory(pd.get(), memory.data(), kSize, IBV_ACCESS_LOCAL_WRITE | kRemote));
  fill(0, "something");
  EXPECT_EQ(write(null->lkey, 0, 4, target->rkey, at(0)), IBV_WC_SUCCESS);
  EXPECT_EQ(text(0, 9), std::string_view("\0\0\0\0thing", 9));
  EXPECT_EQ(transfer(true, null->lkey, 0, 9, target->rkey, at(0)), IBV_WC_SUCCESS);
}

TEST_F(MemoryKeys, AllOfMemoryIsOneRegionAndAPageThatIsGoneFailsTheOperation) {
  const Handle<ibv_mr, ibv_dereg_mr> everything(ibv_reg_mr_iova2(
      pd.get(), nullptr, SIZE_MAX, 0, IBV_ACCESS_LOCAL_WRITE | kRemote | IBV_ACCESS_ON_DEMAND));
  ASSERT_NE(everything, nullptr);
  void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  fill(0, "on demand");
  EXPECT_EQ(write(everything->lkey, at(0), 9, everything->rkey, reinterpret_cast<std::uintptr_t>(page)),
            IBV_WC_SUCCESS);
  EXPECT_EQ(std::string_view(static_cast<char*>(page), 9), "on demand");
  munmap(page, 4096);
  EXPECT_NE(write(everything->lkey, at(0), 9, everything->rkey, reinterpret_cast<std::uintptr_t>(page)),
            IBV_WC_SUCCESS);
}

TEST_F(MemoryKeys, DeviceMemoryIsWrittenByPeersAndReadByTheProgram) {
  ibv_alloc_dm_attr attributes{};
  attributes.length = 4096;
  const Handle<ibv_dm, ibv_free_dm> dm(ibv_alloc_dm(context.get(), &attributes));
  ASSERT_NE(dm, nullptr);
  const Handle<ibv_mr, ibv_dereg_mr> region(
      ibv_reg_dm_mr(pd.get(), dm.get(), 64, 128, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | kRemote));
  ASSERT_NE(region, nullptr);
  fill(0, "device memory---");
  EXPECT_EQ(write(mr->lkey, at(0), 16, region->rkey, 8), IBV_WC_SUCCESS);
  std::array<char, 16> copy{};
  EXPECT_EQ(ibv_memcpy_from_dm(copy.data(), dm.get(), 72, copy.size()), 0);
  EXPECT_EQ(std::string_view(copy.data(), copy.size()), "device memory---");
}

TEST_F(MemoryKeys, PiecesOfARegionAreOneKey) {
  mlx5dv_mkey_init_attr attributes{};
  attributes.pd = pd.get();
  attributes.create_flags = MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT;
  attributes.max_entries = 3;
  const Handle<mlx5dv_mkey, mlx5dv_destroy_mkey> mkey(mlx5dv_create_mkey(&attributes));
  ASSERT_NE(mkey, nullptr);
  std::array<ibv_sge, 2> pieces{{{at(4096), 3, mr->lkey}, {at(5000), 4, mr->lkey}}};
  ibv_wr_start(ex);
  ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  mlx5dv_wr_mr_list(dv, mkey.get(), IBV_ACCESS_LOCAL_WRITE | kRemote, pieces.size(), pieces.data());
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(wait().status, IBV_WC_SUCCESS);
  fill(0, "twoparts");
  EXPECT_EQ(write(mr->lkey, at(0), 7, mkey->rkey, 0), IBV_WC_SUCCESS);
  EXPECT_EQ(text(4096, 3), "two");
  EXPECT_EQ(text(5000, 4), "part");
  EXPECT_EQ(write(mr->lkey, at(0), 8, mkey->rkey, 0), kRefused);
}

TEST_F(MemoryKeys, MemoryIsCopiedByAWorkRequest) {
  fill(0, "copy me");
  ibv_wr_start(ex);
  ex->wr_flags = IBV_SEND_SIGNALED;
  mlx5dv_wr_memcpy(dv, mr->lkey, at(6000), mr->lkey, at(0), 7);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(text(6000, 7), "copy me");
}

}  // namespace
