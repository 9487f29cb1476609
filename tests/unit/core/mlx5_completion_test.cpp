// CQEs: whose turn, what they say, which work they are about.
#include <gtest/gtest.h>

#include "tests/unit/core/fake_nic.hpp"

namespace qpair::test {
namespace {

using mlx5::CqeOpcode;
using mlx5::Opcode;
using mlx5::Syndrome;

IbvWc poll_one(FakeNic& nic) {
  IbvWc wc;
  EXPECT_EQ(nic.path.poll_send(wc), 1);
  return wc;
}

IbvWc poll_receive(FakeNic& nic) {
  IbvWc wc;
  EXPECT_EQ(nic.path.poll_receive(wc), 1);
  return wc;
}

void expect_nothing(FakeNic& nic) {
  IbvWc wc;
  EXPECT_EQ(nic.path.poll_send(wc), 0);
  EXPECT_EQ(nic.path.poll_receive(wc), 0);
}

TEST(Mlx5Completion, NothingInAFreshQueue) {
  FakeNic nic;
  expect_nothing(nic);
  EXPECT_EQ(nic.send_consumer_index(), 0);
}

TEST(Mlx5Completion, OwnershipChangesWithEveryLap) {
  for (const std::uint32_t cqe_size : {64U, 128U}) {
    FakeNic nic({.cq_entries = 2, .cqe_size = cqe_size});
    for (std::uint16_t i = 0; i != 9; ++i) {
      expect_nothing(nic);
      ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
      nic.complete(i, Opcode::RdmaWrite);
      EXPECT_EQ(poll_one(nic).wr_id, WrId{i});
      EXPECT_EQ(nic.send_consumer_index(), i + 1);
    }
    expect_nothing(nic);
  }
}

TEST(Mlx5Completion, SaysWhatWasDone) {
  FakeNic nic({.blocks = 16, .cq_entries = 16});
  RdmaBuffer aligned = kRemote;
  aligned.addr = 0;
  const struct {
    Opcode opcode;
    ibv_wc_opcode expected;
    std::uint64_t bytes;
  } kinds[] = {{Opcode::RdmaWrite, IBV_WC_RDMA_WRITE, 0},
               {Opcode::RdmaWriteImm, IBV_WC_RDMA_WRITE, 0},
               {Opcode::RdmaRead, IBV_WC_RDMA_READ, 4096},
               {Opcode::Send, IBV_WC_SEND, 0},
               {Opcode::SendImm, IBV_WC_SEND, 0},
               {Opcode::AtomicFetchAdd, IBV_WC_FETCH_ADD, 8},
               {Opcode::AtomicCompareSwap, IBV_WC_COMP_SWAP, 8}};
  std::uint16_t index = 0;
  for (const auto& kind : kinds) {
    const bool is_send = kind.opcode == Opcode::Send || kind.opcode == Opcode::SendImm;
    ASSERT_TRUE(nic.path.post(work_of(kind.opcode, {&kLocal, 1}, is_send ? nullptr : &aligned)));
    nic.complete(index, kind.opcode, 4096);
    const IbvWc wc = poll_one(nic);
    EXPECT_TRUE(wc.is_valid());
    EXPECT_FALSE(wc.error());
    EXPECT_FALSE(wc.is_receive());
    EXPECT_FALSE(wc.has_imm()) << "that is the receiver's";
    EXPECT_EQ(wc.opcode, kind.expected);
    EXPECT_EQ(wc.byte_len, kind.bytes);
    EXPECT_EQ(wc.wr_id, WrId{index});
    EXPECT_EQ(wc.qp_num, kQpn);
    ++index;
  }
}

TEST(Mlx5Completion, ASignaledOneRetiresTheUnsignaledBeforeIt) {
  FakeNic nic({.blocks = 8});
  for (int i = 0; i != 3; ++i) ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::No));
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  nic.complete(3, Opcode::RdmaWrite);
  EXPECT_EQ(poll_one(nic).wr_id, WrId{3});
  EXPECT_EQ(nic.path.send_counters().cq, 4);
  for (int i = 0; i != 8; ++i) EXPECT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes)) << i;
}

TEST(Mlx5Completion, NothingButUnsignaledWorkStillMakesRoom) {
  FakeNic nic({.blocks = 8});
  std::uint16_t begin = 0;
  for (int round = 0; round != 5; ++round) {
    for (int i = 0; i != 4; ++i) ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::No));
    ASSERT_TRUE(nic.path.ring_doorbell());
    // Half a queue without a signal: the fourth asks for a CQE after all.
    const auto last = static_cast<std::uint16_t>(begin + 3);
    EXPECT_EQ(nic.send_bytes(last % 8, 12).substr(18), "00000008") << round;
    EXPECT_EQ(nic.send_bytes((last - 1) % 8, 12).substr(18), "00000000") << round;
    nic.complete(last, Opcode::RdmaWrite);
    expect_nothing(nic);  // consumed, not reported
    EXPECT_EQ(nic.path.send_counters().cq, begin + 4U);
    begin = static_cast<std::uint16_t>(begin + 4);
  }
}

TEST(Mlx5Completion, UnsignaledWorkOfManyBlocksStillMakesRoom) {
  FakeNic nic({.blocks = 8});
  const std::vector<std::byte> data(100);  // 3 blocks
  detail::Work work = work_of(Opcode::RdmaWrite, {}, &kRemote, Signal::No);
  work.is_inline = true;
  work.inline_data = data;
  ASSERT_TRUE(nic.path.enqueue(work));
  ASSERT_TRUE(nic.path.post(work));
  EXPECT_FALSE(nic.path.enqueue(work));
  EXPECT_EQ(nic.send_bytes(3, 12).substr(18), "00000008");
  nic.complete(3, Opcode::RdmaWrite);
  expect_nothing(nic);
  EXPECT_TRUE(nic.path.enqueue(work));
}

TEST(Mlx5Completion, UnsignaledWorkThatFailsIsReported) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::No));
  nic.fail(0, Opcode::RdmaWrite, Syndrome::RemoteAccess, 0x88);
  const IbvWc wc = poll_one(nic);
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(wc.wr_id, WrId{0});
}

// --- Failures ---

class Mlx5Syndrome : public testing::TestWithParam<std::tuple<int, ibv_wc_status, ErrorCode>> {};

TEST_P(Mlx5Syndrome, BecomesItsStatusAndCode) {
  const auto [syndrome, status, code] = GetParam();
  FakeNic nic;
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  nic.fail(0, Opcode::RdmaWrite, static_cast<Syndrome>(syndrome), 0x5a);
  const IbvWc wc = poll_one(nic);
  EXPECT_EQ(wc.status, status);
  EXPECT_EQ(wc.vendor_err, 0x5a);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_FALSE(wc.is_valid());
  ASSERT_TRUE(wc.error());
  EXPECT_EQ(wc.error()->code(), code);
  EXPECT_EQ(wc.error()->vendor_err(), 0x5a);
  EXPECT_EQ(wc.error()->wc(), wc);
  // The counters move on: an error counts as polled.
  EXPECT_EQ(nic.path.send_counters().cq, 1);
  EXPECT_EQ(nic.send_consumer_index(), 1);
}

INSTANTIATE_TEST_SUITE_P(
    All, Mlx5Syndrome,
    testing::Values(std::tuple(0x01, IBV_WC_LOC_LEN_ERR, ErrorCode::length),
                    std::tuple(0x02, IBV_WC_LOC_QP_OP_ERR, ErrorCode::system),
                    std::tuple(0x04, IBV_WC_LOC_PROT_ERR, ErrorCode::local_protection),
                    std::tuple(0x05, IBV_WC_WR_FLUSH_ERR, ErrorCode::flushed),
                    std::tuple(0x06, IBV_WC_MW_BIND_ERR, ErrorCode::system),
                    std::tuple(0x10, IBV_WC_BAD_RESP_ERR, ErrorCode::system),
                    std::tuple(0x11, IBV_WC_LOC_ACCESS_ERR, ErrorCode::local_protection),
                    std::tuple(0x12, IBV_WC_REM_INV_REQ_ERR, ErrorCode::remote_access),
                    std::tuple(0x13, IBV_WC_REM_ACCESS_ERR, ErrorCode::remote_access),
                    std::tuple(0x14, IBV_WC_REM_OP_ERR, ErrorCode::remote_access),
                    std::tuple(0x15, IBV_WC_RETRY_EXC_ERR, ErrorCode::transport_retry_exceeded),
                    std::tuple(0x16, IBV_WC_RNR_RETRY_EXC_ERR, ErrorCode::receiver_not_ready),
                    std::tuple(0x22, IBV_WC_REM_ABORT_ERR, ErrorCode::system),
                    std::tuple(0x7f, IBV_WC_GENERAL_ERR, ErrorCode::system)));

TEST(Mlx5Completion, FlushesFollowAFailureAndTheCountersStayRight) {
  FakeNic nic;
  for (int i = 0; i != 4; ++i)
    ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, i < 2 ? Signal::No : Signal::Yes));
  ASSERT_TRUE(nic.path.ring_doorbell());
  nic.fail(1, Opcode::RdmaWrite, Syndrome::RemoteAccess, 0x88);
  nic.fail(2, Opcode::RdmaWrite, Syndrome::WorkRequestFlushed, 0xf9);
  nic.fail(3, Opcode::RdmaWrite, Syndrome::WorkRequestFlushed, 0xf9);
  EXPECT_EQ(poll_one(nic).wr_id, WrId{1});
  EXPECT_EQ(nic.path.send_counters().cq, 2);
  EXPECT_EQ(poll_one(nic).wr_id, WrId{2});
  const IbvWc last = poll_one(nic);
  EXPECT_EQ(last.wr_id, WrId{3});
  EXPECT_EQ(last.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(nic.path.send_counters().cq, 4);
  expect_nothing(nic);
}

TEST(Mlx5Completion, SplitOperationCompletesOnceWithAllItsBytes) {
  FakeNic nic({.max_message = 0x400});
  const Result<WrId> id = nic.path.post_get(kLocal, kRemote, Signal::Yes);
  ASSERT_TRUE(id);
  nic.complete(3, Opcode::RdmaRead, 0x400);
  const IbvWc wc = poll_one(nic);
  EXPECT_EQ(wc.wr_id, *id);
  EXPECT_EQ(wc.byte_len, 4096);
  EXPECT_EQ(nic.path.send_counters().cq, 4);
  expect_nothing(nic);
}

TEST(Mlx5Completion, SplitOperationFailsOnceUnderItsOwnId) {
  FakeNic nic({.max_message = 0x400});
  const Result<WrId> split = nic.path.enqueue_put(kLocal, kRemote, Signal::Yes);
  const Result<WrId> next = nic.path.post_put(*kLocal.slice(0, 8), kRemote, Signal::Yes);
  ASSERT_TRUE(split && next);
  nic.fail(1, Opcode::RdmaWrite, Syndrome::RemoteAccess, 0x88);  // its second part
  for (std::uint16_t i = 2; i != 5; ++i) nic.fail(i, Opcode::RdmaWrite, Syndrome::WorkRequestFlushed, 0xf9);
  IbvWc wc = poll_one(nic);
  EXPECT_EQ(wc.wr_id, *split);
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(nic.path.send_counters().cq, 2);
  wc = poll_one(nic);
  EXPECT_EQ(wc.wr_id, *next);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(nic.path.send_counters().cq, 5);
  expect_nothing(nic);
}

TEST(Mlx5Completion, OneThatNamesNoWorkUnderWayIsAnErrorAndMovesNothing) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  nic.complete(1, Opcode::RdmaWrite);  // was never rung
  EXPECT_EQ(poll_one(nic).status, IBV_WC_GENERAL_ERR);
  nic.complete(0xfff0, Opcode::RdmaWrite);  // long ago
  EXPECT_EQ(poll_one(nic).status, IBV_WC_GENERAL_ERR);
  nic.complete_odd(CqeOpcode::ResponderSend);  // of a receive queue
  EXPECT_EQ(poll_one(nic).status, IBV_WC_GENERAL_ERR);
  EXPECT_EQ(nic.path.send_counters().cq, 0);
  nic.complete(0, Opcode::RdmaWrite);
  EXPECT_TRUE(poll_one(nic).is_valid());
  EXPECT_EQ(nic.path.send_counters().cq, 1);
}

// --- Receiving ---

TEST(Mlx5Completion, ReceivesCompleteInOrderWithLengthAndImmediate) {
  FakeNic nic;
  for (int i = 0; i != 3; ++i) ASSERT_TRUE(nic.path.receive({&kLocal, 1}));
  nic.receive(CqeOpcode::ResponderSend, 100);
  nic.receive(CqeOpcode::ResponderSendImm, 0, 0xcafe);
  nic.receive(CqeOpcode::ResponderWriteImm, 4096, 0x01020304);
  IbvWc wc = poll_receive(nic);
  EXPECT_EQ(wc.wr_id, WrId{0});
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_EQ(wc.byte_len, 100);
  EXPECT_FALSE(wc.has_imm());
  EXPECT_EQ(wc.src_qp, 0x1234);
  wc = poll_receive(nic);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_TRUE(wc.has_imm());
  EXPECT_EQ(wc.imm_data, 0xcafe);
  wc = poll_receive(nic);
  EXPECT_EQ(wc.wr_id, WrId{2});
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.imm_data, 0x01020304);
  EXPECT_EQ(wc.byte_len, 4096);
  EXPECT_TRUE(wc.is_receive());
  expect_nothing(nic);
}

TEST(Mlx5Completion, FlushedReceivesCountAsPolled) {
  FakeNic nic;
  for (int i = 0; i != 2; ++i) ASSERT_TRUE(nic.path.receive({&kLocal, 1}));
  nic.fail_receive(Syndrome::LocalLength, 0x32);
  nic.fail_receive(Syndrome::WorkRequestFlushed, 0xf9);
  IbvWc wc = poll_receive(nic);
  EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
  EXPECT_TRUE(wc.is_receive());
  wc = poll_receive(nic);
  EXPECT_EQ(wc.wr_id, WrId{1});
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(nic.path.receive_counters().cq, 2);
  EXPECT_EQ(nic.receive_consumer_index(), 2);
}

TEST(Mlx5Completion, ReceiveThatWasNeverPostedIsAnError) {
  FakeNic nic;
  nic.receive(CqeOpcode::ResponderSend, 1);
  EXPECT_EQ(poll_receive(nic).status, IBV_WC_GENERAL_ERR);
  EXPECT_EQ(nic.path.receive_counters().cq, 0);
}

// --- Events ---

TEST(Mlx5Completion, ArmingNamesTheConsumerIndexAndASequenceNumber) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  nic.complete(0, Opcode::RdmaWrite);
  poll_one(nic);
  ASSERT_TRUE(nic.path.arm(PollTarget::Send, false));
  EXPECT_EQ(nic.arm_record(), 0x00000001);
  EXPECT_EQ(nic.register_bytes(mlx5::kCqDoorbellOffset, 8), "00000001 00000051");
  nic.path.event_taken(PollTarget::Send);
  ASSERT_TRUE(nic.path.arm(PollTarget::Send, true));
  EXPECT_EQ(nic.arm_record(), 0x11000001);
  nic.path.event_taken(PollTarget::Recv);
  ASSERT_TRUE(nic.path.arm(PollTarget::Recv, false));
  EXPECT_EQ(nic.register_bytes(mlx5::kCqDoorbellOffset, 8), "10000000 00000052");
}

}  // namespace
}  // namespace qpair::test
