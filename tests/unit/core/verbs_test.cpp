// The data path of other devices, on a device made of three functions: ibv_post_send(), ibv_post_recv() and
// ibv_poll_cq() call through the context, so a test can be the driver.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "src/datapath/verbs.hpp"

namespace qpair::test {
namespace {

using mlx5::Opcode;

constexpr RdmaBuffer kLocal{1, 0x11, 0x55, 0x1000, 0x100};
constexpr RdmaBuffer kRemote{2, 0x99, 0xdd, 0x2000, 0x10000};

struct Posted {
  ibv_send_wr request;
  std::vector<ibv_sge> pieces;
  std::string inline_data;
};

class FakeDriver {
 public:
  explicit FakeDriver(std::uint32_t capacity = 4, std::uint32_t max_message = 1U << 30)
      : path(&qp, &send_cq, &receive_cq, {max_message, 2, 2, 16}, capacity, 2) {
    instance = this;
    context.ops.post_send = [](ibv_qp*, ibv_send_wr* first, ibv_send_wr** bad) {
      return instance->post_send(first, bad);
    };
    context.ops.post_recv = [](ibv_qp*, ibv_recv_wr* request, ibv_recv_wr**) {
      instance->receives.push_back(request->wr_id);
      return instance->refuse_receives;
    };
    context.ops.poll_cq = [](ibv_cq* cq, int, ibv_wc* wc) {
      auto& queue = cq == &instance->send_cq ? instance->send_completions : instance->receive_completions;
      if (instance->broken) return -1;
      if (queue.empty()) return 0;
      *wc = queue.front();
      queue.pop_front();
      return 1;
    };
    qp.context = send_cq.context = receive_cq.context = &context;
    path.open_receive();
    path.open_send();
  }

  int post_send(ibv_send_wr* first, ibv_send_wr** bad) {
    ++calls;
    for (ibv_send_wr* request = first; request != nullptr; request = request->next) {
      if (accept == 0) {
        *bad = request;
        return ENOMEM;
      }
      --accept;
      Posted copy{*request, {request->sg_list, request->sg_list + request->num_sge}, {}};
      if ((request->send_flags & IBV_SEND_INLINE) != 0 && request->num_sge == 1) {
        copy.inline_data.assign(reinterpret_cast<const char*>(copy.pieces[0].addr), copy.pieces[0].length);
      }
      posted.push_back(copy);
    }
    return 0;
  }

  void complete(std::uint64_t id, ibv_wc_status status = IBV_WC_SUCCESS,
                ibv_wc_opcode opcode = IBV_WC_RDMA_WRITE) {
    ibv_wc wc{};
    wc.wr_id = id;
    wc.status = status;
    wc.opcode = opcode;
    send_completions.push_back(wc);
  }

  static inline FakeDriver* instance = nullptr;
  ibv_context context{};
  ibv_qp qp{};
  ibv_cq send_cq{};
  ibv_cq receive_cq{};
  std::deque<ibv_wc> send_completions;
  std::deque<ibv_wc> receive_completions;
  std::vector<Posted> posted;
  std::vector<std::uint64_t> receives;
  int calls = 0;
  int accept = 1000;
  int refuse_receives = 0;
  bool broken = false;
  detail::VerbsDataPath path;
};

detail::Work work_of(Opcode opcode, std::span<const RdmaBuffer> local, const RdmaBuffer* remote,
                     Signal signal = Signal::Yes) {
  detail::Work work;
  work.opcode = opcode;
  work.local = local;
  work.remote = remote;
  work.signal = signal;
  return work;
}

void expect_counters(const detail::Counters& counters, std::uint64_t wqe, std::uint64_t db,
                     std::uint64_t cq) {
  EXPECT_EQ(counters.wqe, wqe);
  EXPECT_EQ(counters.db, db);
  EXPECT_EQ(counters.cq, cq);
}

TEST(VerbsPath, EnqueuedWorkIsNotPostedUntilRung) {
  FakeDriver driver;
  ASSERT_TRUE(driver.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(driver.path.enqueue_get(kLocal, kRemote, Signal::No));
  EXPECT_EQ(driver.calls, 0);
  expect_counters(driver.path.send_counters(), 2, 0, 0);
  ASSERT_TRUE(driver.path.ring_doorbell());
  EXPECT_EQ(driver.calls, 1);
  ASSERT_EQ(driver.posted.size(), 2);
  EXPECT_EQ(driver.posted[0].request.opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(driver.posted[0].request.send_flags, IBV_SEND_SIGNALED);
  EXPECT_EQ(driver.posted[0].request.wr.rdma.remote_addr, 0x2000);
  EXPECT_EQ(driver.posted[0].request.wr.rdma.rkey, 0xdd);
  EXPECT_EQ(driver.posted[0].pieces[0].lkey, 0x11);
  EXPECT_EQ(driver.posted[1].request.opcode, IBV_WR_RDMA_READ);
  EXPECT_EQ(driver.posted[1].request.send_flags, 0);
  expect_counters(driver.path.send_counters(), 2, 2, 0);
  ASSERT_TRUE(driver.path.ring_doorbell());
  EXPECT_EQ(driver.calls, 1);
}

TEST(VerbsPath, InlineDataIsTakenWhenEnqueued) {
  FakeDriver driver;
  std::string data = "before";
  detail::Work work = work_of(Opcode::RdmaWrite, {}, &kRemote);
  work.is_inline = true;
  work.inline_data = std::as_bytes(std::span(data));
  ASSERT_TRUE(driver.path.enqueue(work));
  data = "after!";
  ASSERT_TRUE(driver.path.ring_doorbell());
  EXPECT_EQ(driver.posted[0].inline_data, "before");
}

TEST(VerbsPath, FullQueueIsRefused) {
  FakeDriver driver(2);
  ASSERT_TRUE(driver.path.post_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(driver.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(driver.path.enqueue_put(kLocal, kRemote, Signal::Yes).error().code(), ErrorCode::queue_full);
  driver.complete(0);
  IbvWc wc;
  ASSERT_EQ(driver.path.poll_send(wc), 1);
  EXPECT_EQ(wc.wr_id, WrId{0});
  EXPECT_TRUE(driver.path.enqueue_put(kLocal, kRemote, Signal::Yes));
}

TEST(VerbsPath, PutThatTheDeviceRefusesWasNeverThere) {
  FakeDriver driver;
  driver.accept = 0;
  EXPECT_EQ(driver.path.post_put(kLocal, kRemote, Signal::Yes).error().code(), ErrorCode::out_of_resources);
  expect_counters(driver.path.send_counters(), 0, 0, 0);
  // With work enqueued before it that is taken, it alone is undone.
  ASSERT_TRUE(driver.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  driver.accept = 1;
  EXPECT_FALSE(driver.path.post_put(kLocal, kRemote, Signal::Yes));
  expect_counters(driver.path.send_counters(), 1, 1, 0);
  driver.accept = 1;
  EXPECT_TRUE(driver.path.post_put(kLocal, kRemote, Signal::Yes));
}

TEST(VerbsPath, DoorbellThatIsRefusedHalfwayKeepsTheRest) {
  FakeDriver driver;
  for (int i = 0; i != 3; ++i) ASSERT_TRUE(driver.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  driver.accept = 1;
  EXPECT_FALSE(driver.path.ring_doorbell());
  expect_counters(driver.path.send_counters(), 3, 1, 0);
  driver.accept = 10;
  EXPECT_TRUE(driver.path.ring_doorbell());
  ASSERT_EQ(driver.posted.size(), 3);
  EXPECT_EQ(driver.posted[2].request.wr_id, 2);
}

TEST(VerbsPath, SplitOperationIsSignaledOnceAndFailsOnce) {
  FakeDriver driver(8, 0x40);
  detail::Work work = work_of(Opcode::RdmaWriteImm, {&kLocal, 1}, &kRemote);
  work.imm = 0x01020304;
  const Result<WrId> id = driver.path.post(work);
  ASSERT_TRUE(id);
  ASSERT_EQ(driver.posted.size(), 4);
  for (std::size_t i = 0; i != 4; ++i) {
    EXPECT_EQ(driver.posted[i].request.opcode, i == 3 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
    EXPECT_EQ(driver.posted[i].request.send_flags, i == 3 ? IBV_SEND_SIGNALED : 0);
    EXPECT_EQ(driver.posted[i].request.wr.rdma.remote_addr, 0x2000 + 0x40 * i);
    EXPECT_EQ(driver.posted[i].pieces[0].addr, 0x1000 + 0x40 * i);
    EXPECT_EQ(driver.posted[i].pieces[0].length, 0x40);
  }
  EXPECT_EQ(driver.posted[3].request.imm_data, 0x04030201);
  driver.complete(1, IBV_WC_REM_ACCESS_ERR);
  driver.complete(2, IBV_WC_WR_FLUSH_ERR);
  driver.complete(3, IBV_WC_WR_FLUSH_ERR);
  IbvWc wc;
  ASSERT_EQ(driver.path.poll_send(wc), 1);
  EXPECT_EQ(wc.wr_id, *id);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(driver.path.poll_send(wc), 0);
  expect_counters(driver.path.send_counters(), 4, 4, 4);
}

TEST(VerbsPath, SplitReadReportsAllItsBytes) {
  FakeDriver driver(8, 0x40);
  ASSERT_TRUE(driver.path.post_get(kLocal, kRemote, Signal::Yes));
  driver.complete(3, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
  IbvWc wc;
  ASSERT_EQ(driver.path.poll_send(wc), 1);
  EXPECT_EQ(wc.byte_len, 0x100);
  EXPECT_EQ(wc.wr_id, WrId{3});
}

TEST(VerbsPath, NothingButUnsignaledWorkStillMakesRoom) {
  FakeDriver driver(4);
  for (std::uint64_t i = 0; i != 20; i += 2) {
    ASSERT_TRUE(driver.path.post_put(kLocal, kRemote, Signal::No));
    ASSERT_TRUE(driver.path.post_put(kLocal, kRemote, Signal::No));
    EXPECT_EQ(driver.posted.back().request.send_flags, IBV_SEND_SIGNALED);
    driver.complete(i + 1);
    IbvWc wc;
    EXPECT_EQ(driver.path.poll_send(wc), 0);
    EXPECT_EQ(driver.path.send_counters().cq, i + 2);
  }
}

TEST(VerbsPath, AtomicsKeepTheirOperandsApart) {
  FakeDriver driver;
  detail::Work work = work_of(Opcode::AtomicFetchAdd, {&kLocal, 1}, &kRemote);
  work.swap_add = 5;
  ASSERT_TRUE(driver.path.post(work));
  EXPECT_EQ(driver.posted[0].request.wr.atomic.compare_add, 5);
  work.opcode = Opcode::AtomicCompareSwap;
  work.compare = 7;
  ASSERT_TRUE(driver.path.post(work));
  EXPECT_EQ(driver.posted[1].request.wr.atomic.compare_add, 7);
  EXPECT_EQ(driver.posted[1].request.wr.atomic.swap, 5);
  EXPECT_EQ(driver.posted[1].pieces[0].length, 8);
}

TEST(VerbsPath, AnImmediateIsTheReceiversAlone) {
  FakeDriver driver;
  ASSERT_TRUE(driver.path.post(work_of(Opcode::RdmaWriteImm, {&kLocal, 1}, &kRemote)));
  driver.complete(0);
  driver.send_completions.back().wc_flags = IBV_WC_WITH_IMM;  // as libmlx5 and rxe have it
  driver.send_completions.back().imm_data = 0x04030201;
  IbvWc got;
  ASSERT_EQ(driver.path.poll_send(got), 1);
  EXPECT_TRUE(got.is_valid());
  EXPECT_FALSE(got.has_imm());
  EXPECT_EQ(got.imm_data, 0);
}

TEST(VerbsPath, ReceivesAreCountedRefusedAndCompleted) {
  FakeDriver driver;
  ASSERT_TRUE(driver.path.receive({&kLocal, 1}));
  driver.refuse_receives = ENOMEM;
  EXPECT_FALSE(driver.path.receive({&kLocal, 1}));
  driver.refuse_receives = 0;
  expect_counters(driver.path.receive_counters(), 1, 1, 0);
  ASSERT_TRUE(driver.path.receive({&kLocal, 1}));
  EXPECT_EQ(driver.path.receive({&kLocal, 1}).error().code(), ErrorCode::queue_full);
  ibv_wc wc{};
  wc.opcode = IBV_WC_RECV;
  wc.wc_flags = IBV_WC_WITH_IMM;
  wc.imm_data = 0x04030201;
  wc.byte_len = 9;
  driver.receive_completions.push_back(wc);
  IbvWc got;
  ASSERT_EQ(driver.path.poll_receive(got), 1);
  EXPECT_EQ(got.imm_data, 0x01020304);
  EXPECT_EQ(got.byte_len, 9);
  wc.status = IBV_WC_WR_FLUSH_ERR;
  wc.opcode = IBV_WC_SEND;  // not valid then
  driver.receive_completions.push_back(wc);
  ASSERT_EQ(driver.path.poll_receive(got), 1);
  EXPECT_TRUE(got.is_receive());
  expect_counters(driver.path.receive_counters(), 2, 2, 2);
}

TEST(VerbsPath, ResetDropsWhatIsWaiting) {
  FakeDriver driver;
  ASSERT_TRUE(driver.path.post_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(driver.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  driver.complete(0);
  driver.path.reset();
  expect_counters(driver.path.send_counters(), 2, 2, 2);
  EXPECT_EQ(driver.path.enqueue_put(kLocal, kRemote, Signal::Yes).error().code(), ErrorCode::not_connected);
  driver.path.open_send();
  IbvWc wc;
  EXPECT_EQ(driver.path.poll_send(wc), 0);
  EXPECT_EQ(*driver.path.post_put(kLocal, kRemote, Signal::Yes), WrId{2});
  EXPECT_EQ(driver.posted.size(), 2);
}

TEST(VerbsPath, ACompletionQueueThatCannotBePolledIsAnError) {
  FakeDriver driver;
  driver.broken = true;
  IbvWc wc;
  EXPECT_LT(driver.path.poll_send(wc), 0);
  EXPECT_LT(driver.path.poll_receive(wc), 0);
  EXPECT_EQ(driver.path.doorbell().error().code(), ErrorCode::unsupported);
}

}  // namespace
}  // namespace qpair::test
