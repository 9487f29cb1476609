// The bytes of every WQE, written out by hand from the layout in rdma-core's mlx5dv.h.
#include <gtest/gtest.h>

#include "tests/unit/core/fake_nic.hpp"

namespace qpair::test {
namespace {

using mlx5::Opcode;

TEST(Mlx5Wqe, PutIsControlRemoteAddressAndData) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(nic.send_bytes(0, 48),
            "00000008 abcdef03 00000008 00000000\n"  // index 0, RDMA write; QPN, 3 segments; CQE wanted; no
                                                     // immediate
            "0000700a 0b0c0d0e ddeeff00 00000000\n"  // remote address, rkey
            "00001000 11223344 00007f01 02030405");  // byte count, lkey, local address
}

TEST(Mlx5Wqe, GetDiffersByItsOpcode) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.enqueue_get(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(nic.send_bytes(0, 16), "00000010 abcdef03 00000008 00000000");
}

TEST(Mlx5Wqe, UnsignaledPutDoesNotAskForACqe) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::No));
  EXPECT_EQ(nic.send_bytes(0, 48),
            "00000008 abcdef03 00000000 00000000\n"
            "0000700a 0b0c0d0e ddeeff00 00000000\n"
            "00001000 11223344 00007f01 02030405");
}

TEST(Mlx5Wqe, FastAndGeneralPathWriteTheSameBytes) {
  FakeNic fast;
  FakeNic general;
  ASSERT_TRUE(fast.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(general.path.enqueue(work_of(Opcode::RdmaWrite, {&kLocal, 1}, &kRemote)));
  EXPECT_EQ(fast.send_bytes(0, 64), general.send_bytes(0, 64));
  EXPECT_EQ(fast.path.send_counters().wqe, general.path.send_counters().wqe);
}

TEST(Mlx5Wqe, ImmediateTravelsInNetworkOrder) {
  FakeNic nic;
  detail::Work work = work_of(Opcode::RdmaWriteImm, {&kLocal, 1}, &kRemote);
  work.imm = 0x01020304;
  ASSERT_TRUE(nic.path.enqueue(work));
  EXPECT_EQ(nic.send_bytes(0, 16), "00000009 abcdef03 00000008 01020304");
}

TEST(Mlx5Wqe, ZeroLengthPutHasNoDataSegment) {
  FakeNic nic;
  RdmaBuffer nothing = kLocal;
  nothing.size = 0;
  ASSERT_TRUE(nic.path.enqueue_put(nothing, kRemote, Signal::Yes));
  EXPECT_EQ(nic.send_bytes(0, 32),
            "00000008 abcdef02 00000008 00000000\n"
            "0000700a 0b0c0d0e ddeeff00 00000000");
  EXPECT_EQ(nic.path.send_counters().wqe, 1);
}

TEST(Mlx5Wqe, SendHasNoRemoteAddress) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.enqueue(work_of(Opcode::Send, {&kLocal, 1}, nullptr)));
  EXPECT_EQ(nic.send_bytes(0, 32),
            "0000000a abcdef02 00000008 00000000\n"
            "00001000 11223344 00007f01 02030405");
}

TEST(Mlx5Wqe, FetchAddPutsTheNumberInTheFirstOperand) {
  FakeNic nic;
  detail::Work work = work_of(Opcode::AtomicFetchAdd, {&kLocal, 1}, &kRemote);
  RdmaBuffer aligned = kRemote;
  aligned.addr = 0x7000000000000008;
  work.remote = &aligned;
  work.swap_add = 0x0102030405060708;
  ASSERT_TRUE(nic.path.enqueue(work));
  EXPECT_EQ(nic.send_bytes(0, 64),
            "00000012 abcdef04 00000008 00000000\n"
            "70000000 00000008 ddeeff00 00000000\n"
            "01020304 05060708 00000000 00000000\n"
            "00000008 11223344 00007f01 02030405");
}

TEST(Mlx5Wqe, CompareSwapHasBothOperands) {
  FakeNic nic;
  detail::Work work = work_of(Opcode::AtomicCompareSwap, {&kLocal, 1}, &kRemote);
  RdmaBuffer aligned = kRemote;
  aligned.addr = 0x10;
  work.remote = &aligned;
  work.swap_add = 0x1111111111111111;
  work.compare = 0x2222222222222222;
  ASSERT_TRUE(nic.path.enqueue(work));
  EXPECT_EQ(nic.send_bytes(0, 48),
            "00000011 abcdef04 00000008 00000000\n"
            "00000000 00000010 ddeeff00 00000000\n"
            "11111111 11111111 22222222 22222222");
}

TEST(Mlx5Wqe, AtomicsNeedEightAlignedBytes) {
  FakeNic nic;
  detail::Work work = work_of(Opcode::AtomicFetchAdd, {&kLocal, 1}, &kRemote);  // kRemote is at …0d0e
  EXPECT_EQ(nic.path.enqueue(work).error().code(), ErrorCode::invalid_argument);
  RdmaBuffer remote = kRemote;
  remote.addr = 0x1000;
  remote.size = 7;
  work.remote = &remote;
  EXPECT_EQ(nic.path.enqueue(work).error().code(), ErrorCode::invalid_argument);
  remote.size = 8;
  RdmaBuffer local = kLocal;
  local.size = 4;
  work.local = {&local, 1};
  EXPECT_EQ(nic.path.enqueue(work).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(nic.path.send_counters().wqe, 0);
}

TEST(Mlx5Wqe, InlineDataFollowsItsLength) {
  FakeNic nic;
  const char text[] = {'q', 'p', 'a', 'i', 'r'};
  detail::Work work = work_of(Opcode::RdmaWrite, {}, &kRemote);
  work.is_inline = true;
  work.inline_data = std::as_bytes(std::span(text));
  ASSERT_TRUE(nic.path.enqueue(work));
  EXPECT_EQ(nic.send_bytes(0, 41),
            "00000008 abcdef03 00000008 00000000\n"
            "0000700a 0b0c0d0e ddeeff00 00000000\n"
            "80000005 71706169 72");
}

TEST(Mlx5Wqe, TwentyEightInlineBytesFitOneBlock) {
  FakeNic nic;
  const std::vector<std::byte> data(28, std::byte{0x5a});
  detail::Work work = work_of(Opcode::RdmaWrite, {}, &kRemote);
  work.is_inline = true;
  work.inline_data = data;
  ASSERT_TRUE(nic.path.enqueue(work));
  work.inline_data = std::span(data).first(1);
  ASSERT_TRUE(nic.path.enqueue(work));
  EXPECT_EQ(nic.send_bytes(1, 4), "00000108");  // the second WQE has index 1: the first took one block
}

TEST(Mlx5Wqe, GatheredPiecesFollowOneAnotherAndEmptyOnesAreLeftOut) {
  FakeNic nic;
  const RdmaBuffer pieces[] = {{0, 0xa, 0, 0x1000, 1}, {0, 0xb, 0, 0x2000, 0}, {0, 0xc, 0, 0x3000, 3}};
  ASSERT_TRUE(nic.path.enqueue(work_of(Opcode::RdmaWrite, pieces, &kRemote)));
  EXPECT_EQ(nic.send_bytes(0, 64),
            "00000008 abcdef04 00000008 00000000\n"
            "0000700a 0b0c0d0e ddeeff00 00000000\n"
            "00000001 0000000a 00000000 00001000\n"
            "00000003 0000000c 00000000 00003000");
}

TEST(Mlx5Wqe, LocalLongerThanRemoteIsRefusedBeforeAnythingIsWritten) {
  FakeNic nic;
  RdmaBuffer small = kRemote;
  small.size = kLocal.size - 1;
  const Result<WrId> refused = nic.path.enqueue_put(kLocal, small, Signal::Yes);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(refused.error().message(), "l has 4096 bytes, r only 4095; take a slice of l");
  EXPECT_EQ(nic.send_bytes(0, 4), "eeeeeeee");
  EXPECT_EQ(nic.path.send_counters().wqe, 0);
}

TEST(Mlx5Wqe, MorePiecesOrInlineBytesThanConfiguredAreRefused) {
  FakeNic nic({.max_send_sge = 1, .max_inline = 4});
  const RdmaBuffer two[] = {kLocal, kLocal};
  EXPECT_EQ(nic.path.enqueue(work_of(Opcode::RdmaWrite, two, &kRemote)).error().code(),
            ErrorCode::invalid_argument);
  const std::byte five[5] = {};
  detail::Work work = work_of(Opcode::RdmaWrite, {}, &kRemote);
  work.is_inline = true;
  work.inline_data = five;
  EXPECT_EQ(nic.path.enqueue(work).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(nic.path.send_counters().wqe, 0);
}

TEST(Mlx5Wqe, ByteCountsDoNotLoseTheirUpperHalf) {
  FakeNic nic;
  RdmaBuffer huge = kLocal;
  huge.size = (std::uint64_t{1} << 32) + 4096;  // 4096, had it been cut to 32 bits
  EXPECT_EQ(nic.path.enqueue_put(huge, kRemote, Signal::Yes).error().code(), ErrorCode::invalid_argument);
  RdmaBuffer remote = kRemote;
  remote.size = huge.size;
  // Five messages of at most 1 GiB.
  ASSERT_TRUE(nic.path.enqueue_put(huge, remote, Signal::Yes));
  EXPECT_EQ(nic.path.send_counters().wqe, 5);
  EXPECT_EQ(nic.send_bytes(4, 48),
            "00000408 abcdef03 00000008 00000000\n"
            "0000700b 0b0c0d0e ddeeff00 00000000\n"
            "00001000 11223344 00007f02 02030405");
}

// --- Splitting ---

TEST(Mlx5Wqe, LongPutIsSplitAndOnlyItsLastPartIsSignaled) {
  FakeNic nic({.max_message = 0x800});
  RdmaBuffer local = kLocal;
  local.size = 0x1001;
  const Result<WrId> id = nic.path.enqueue_put(local, kRemote, Signal::Yes);
  ASSERT_TRUE(id);
  EXPECT_EQ(*id, WrId{2});
  EXPECT_EQ(nic.send_bytes(0, 48),
            "00000008 abcdef03 00000000 00000000\n"
            "0000700a 0b0c0d0e ddeeff00 00000000\n"
            "00000800 11223344 00007f01 02030405");
  EXPECT_EQ(nic.send_bytes(1, 48),
            "00000108 abcdef03 00000000 00000000\n"
            "0000700a 0b0c150e ddeeff00 00000000\n"
            "00000800 11223344 00007f01 02030c05");
  EXPECT_EQ(nic.send_bytes(2, 48),
            "00000208 abcdef03 00000008 00000000\n"
            "0000700a 0b0c1d0e ddeeff00 00000000\n"
            "00000001 11223344 00007f01 02031405");
}

TEST(Mlx5Wqe, OnlyTheLastPartOfALongPutWithRecvTakesTheReceive) {
  FakeNic nic({.max_message = 0x800});
  detail::Work work = work_of(Opcode::RdmaWriteImm, {&kLocal, 1}, &kRemote);
  work.imm = 7;
  ASSERT_TRUE(nic.path.enqueue(work));
  EXPECT_EQ(nic.send_bytes(0, 16), "00000008 abcdef03 00000000 00000000");
  EXPECT_EQ(nic.send_bytes(1, 16), "00000109 abcdef03 00000008 00000007");
}

TEST(Mlx5Wqe, PiecesAreCutWhereMessagesEnd) {
  FakeNic nic({.max_message = 5});
  const RdmaBuffer pieces[] = {{0, 0xa, 0, 0x1000, 3}, {0, 0xb, 0, 0x2000, 4}};
  ASSERT_TRUE(nic.path.enqueue(work_of(Opcode::RdmaRead, pieces, &kRemote)));
  EXPECT_EQ(nic.send_bytes(0, 64),
            "00000010 abcdef04 00000000 00000000\n"
            "0000700a 0b0c0d0e ddeeff00 00000000\n"
            "00000003 0000000a 00000000 00001000\n"
            "00000002 0000000b 00000000 00002000");
  EXPECT_EQ(nic.send_bytes(1, 48),
            "00000110 abcdef03 00000008 00000000\n"
            "0000700a 0b0c0d13 ddeeff00 00000000\n"
            "00000002 0000000b 00000000 00002002");
}

TEST(Mlx5Wqe, ASendCannotBeSplit) {
  FakeNic nic({.max_message = 0x800});
  EXPECT_EQ(nic.path.enqueue(work_of(Opcode::Send, {&kLocal, 1}, nullptr)).error().code(), ErrorCode::length);
}

// --- Receiving ---

TEST(Mlx5Wqe, ReceiveShorterThanItsSlotEndsWithTheInvalidKey) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.receive({&kLocal, 1}));
  EXPECT_EQ(nic.receive_bytes(0, 32),
            "00001000 11223344 00007f01 02030405\n"
            "00000000 00000100 00000000 00000000");
}

TEST(Mlx5Wqe, ReceiveThatFillsItsSlotHasNoEndMark) {
  FakeNic nic;
  const RdmaBuffer pieces[] = {{0, 0xa, 0, 0x1000, 3}, {0, 0xb, 0, 0x2000, 4}};
  ASSERT_TRUE(nic.path.receive(pieces));
  ASSERT_TRUE(nic.path.receive({&kLocal, 1}));
  EXPECT_EQ(nic.receive_bytes(0, 64),
            "00000003 0000000a 00000000 00001000\n"
            "00000004 0000000b 00000000 00002000\n"
            "00001000 11223344 00007f01 02030405\n"
            "00000000 00000100 00000000 00000000");
}

TEST(Mlx5Wqe, ReceiveWithoutDataIsOnlyTheEndMark) {
  FakeNic nic;
  RdmaBuffer nothing = kLocal;
  nothing.size = 0;
  ASSERT_TRUE(nic.path.receive({&nothing, 1}));
  EXPECT_EQ(nic.receive_bytes(0, 16), "00000000 00000100 00000000 00000000");
}

}  // namespace
}  // namespace qpair::test
