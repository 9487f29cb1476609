// Where WQEs go, what a full ring does, and what happens to indices that wrap.
#include <gtest/gtest.h>

#include "tests/unit/core/fake_nic.hpp"

namespace qpair::test {
namespace {

using mlx5::Opcode;

// Puts, rings and completes `count` operations one by one.
void run_puts(FakeNic& nic, std::uint64_t count) {
  for (std::uint64_t i = 0; i != count; ++i) {
    const auto index = static_cast<std::uint16_t>(nic.path.send_counters().wqe);
    const Result<WrId> id = nic.path.post_put(kLocal, kRemote, Signal::Yes);
    ASSERT_TRUE(id);
    nic.complete(index, Opcode::RdmaWrite);
    IbvWc wc;
    ASSERT_EQ(nic.path.poll_send(wc), 1);
    ASSERT_EQ(wc.wr_id, *id);
  }
}

// cq_idx <= db_idx <= wqe_idx
void expect_counters(const detail::Counters& counters, std::uint64_t wqe, std::uint64_t db,
                     std::uint64_t cq) {
  EXPECT_EQ(counters.wqe, wqe);
  EXPECT_EQ(counters.db, db);
  EXPECT_EQ(counters.cq, cq);
}

detail::Work inline_work(std::span<const std::byte> data) {
  detail::Work work = work_of(Opcode::RdmaWrite, {}, &kRemote);
  work.is_inline = true;
  work.inline_data = data;
  return work;
}

TEST(Mlx5Ring, EnqueuedWorkDoesNotTouchTheDoorbellRecord) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(nic.send_record(), 0);
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset, 8), "00000000 00000000");
  expect_counters(nic.path.send_counters(), 1, 0, 0);
}

TEST(Mlx5Ring, OneDoorbellForEverythingEnqueued) {
  FakeNic nic;
  for (int i = 0; i != 3; ++i) ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(nic.path.ring_doorbell());
  EXPECT_EQ(nic.send_record(), 3);
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset, 8),
            "00000208 abcdef03");  // the last WQE's first bytes
  expect_counters(nic.path.send_counters(), 3, 3, 0);
}

TEST(Mlx5Ring, PutRingsForWhatWasEnqueuedBeforeIt) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(nic.path.post_get(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(nic.send_record(), 2);
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(nic.send_record(), 2);
  expect_counters(nic.path.send_counters(), 3, 2, 0);
}

TEST(Mlx5Ring, RingingWithNothingNewDoesNothing) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.ring_doorbell());
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset, 8), "00000000 00000000");
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(nic.path.ring_doorbell());
  expect_counters(nic.path.send_counters(), 1, 1, 0);
}

TEST(Mlx5Ring, FullQueueIsRefusedBeforeAByteIsWritten) {
  FakeNic nic({.blocks = 4});
  for (int i = 0; i != 4; ++i) ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  const std::string before = nic.send_bytes(0, 256);
  for (const Opcode opcode : {Opcode::RdmaWrite, Opcode::RdmaWriteImm}) {
    const Result<WrId> refused = nic.path.enqueue(work_of(opcode, {&kRemote, 1}, &kRemote));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::queue_full);
  }
  EXPECT_EQ(nic.path.post_put(kLocal, kRemote, Signal::Yes).error().code(), ErrorCode::queue_full);
  EXPECT_EQ(nic.send_bytes(0, 256), before);
  EXPECT_EQ(nic.send_record(), 0);
  expect_counters(nic.path.send_counters(), 4, 0, 0);
}

TEST(Mlx5Ring, ACompletionGivesItsRoomBack) {
  FakeNic nic({.blocks = 2});
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  EXPECT_FALSE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  nic.complete(0, Opcode::RdmaWrite);
  IbvWc wc;
  ASSERT_EQ(nic.path.poll_send(wc), 1);
  EXPECT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  EXPECT_FALSE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  expect_counters(nic.path.send_counters(), 3, 2, 1);
}

TEST(Mlx5Ring, NoMoreWorkThanTheCompletionQueueHasEntries) {
  FakeNic nic({.blocks = 8, .cq_entries = 2});
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes).error().code(), ErrorCode::queue_full);
}

TEST(Mlx5Ring, SplitOperationIsAllOrNothing) {
  FakeNic nic({.blocks = 4, .max_message = 0x400});
  ASSERT_TRUE(nic.path.enqueue_put(*kLocal.slice(0, 1), kRemote, Signal::Yes));
  const std::string before = nic.send_bytes(0, 256);
  // Four parts, three places: nothing is written.
  EXPECT_EQ(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes).error().code(), ErrorCode::queue_full);
  EXPECT_EQ(nic.send_bytes(0, 256), before);
  expect_counters(nic.path.send_counters(), 1, 0, 0);
}

TEST(Mlx5Ring, OperationLargerThanTheWholeQueueSaysSoInsteadOfFull) {
  FakeNic nic({.blocks = 4, .max_message = 0x200});
  const Result<WrId> refused = nic.path.enqueue_put(kLocal, kRemote, Signal::Yes);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
}

TEST(Mlx5Ring, WqeGoesOnAtTheRingsStart) {
  FakeNic nic({.blocks = 4, .cq_entries = 8});
  run_puts(nic, 3);
  const std::vector<RdmaBuffer> pieces(
      4, RdmaBuffer{0, 0xa, 0, 0x1000, 2});  // 6 segments: 2 blocks, the last and the first
  ASSERT_TRUE(nic.path.post(work_of(Opcode::RdmaWrite, pieces, &kRemote)));
  EXPECT_EQ(nic.send_bytes(3, 64),
            "00000308 abcdef06 00000008 00000000\n"
            "0000700a 0b0c0d0e ddeeff00 00000000\n"
            "00000002 0000000a 00000000 00001000\n"
            "00000002 0000000a 00000000 00001000");
  EXPECT_EQ(nic.send_bytes(0, 32),
            "00000002 0000000a 00000000 00001000\n"
            "00000002 0000000a 00000000 00001000");
  EXPECT_EQ(nic.send_record(), 5);  // blocks
  expect_counters(nic.path.send_counters(), 4, 4, 3);
}

TEST(Mlx5Ring, InlineDataGoesOnAtTheRingsStart) {
  FakeNic nic({.blocks = 2, .cq_entries = 8});
  run_puts(nic, 1);
  std::vector<std::byte> data(30);
  for (std::size_t i = 0; i != data.size(); ++i) data[i] = static_cast<std::byte>(i + 1);
  ASSERT_TRUE(nic.path.enqueue(inline_work(data)));
  EXPECT_EQ(nic.send_bytes(1, 64),
            "00000108 abcdef05 00000008 00000000\n"
            "0000700a 0b0c0d0e ddeeff00 00000000\n"
            "8000001e 01020304 05060708 090a0b0c\n"
            "0d0e0f10 11121314 15161718 191a1b1c");
  EXPECT_EQ(nic.send_bytes(0, 2), "1d1e");
}

TEST(Mlx5Ring, CountersCountWqesAndRecordsCountBlocks) {
  FakeNic nic({.blocks = 8});
  const std::vector<std::byte> data(100);  // 2 + 7 segments: 3 blocks
  ASSERT_TRUE(nic.path.post(inline_work(data)));
  const Result<WrId> put = nic.path.enqueue_put(kLocal, kRemote, Signal::Yes);
  EXPECT_EQ(put, WrId{1});
  EXPECT_EQ(nic.send_bytes(3, 4), "00000308");
  EXPECT_EQ(nic.send_record(), 3);
  expect_counters(nic.path.send_counters(), 2, 1, 0);
  ASSERT_TRUE(nic.path.ring_doorbell());
  EXPECT_EQ(nic.send_record(), 4);
  nic.complete(0, Opcode::RdmaWrite);
  nic.complete(3, Opcode::RdmaWrite);
  IbvWc wc;
  ASSERT_EQ(nic.path.poll_send(wc), 1);
  EXPECT_EQ(wc.wr_id, WrId{0});
  expect_counters(nic.path.send_counters(), 2, 2, 1);
  ASSERT_EQ(nic.path.poll_send(wc), 1);
  EXPECT_EQ(wc.wr_id, WrId{1});
}

// --- Wraps ---

class Mlx5RingWrap : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Mlx5RingWrap, NothingHappensWhenAnIndexWraps) {
  const std::uint64_t start = GetParam();
  FakeNic nic({.blocks = 4, .start = {start, start}});
  expect_counters(nic.path.send_counters(), start, start, start);
  run_puts(nic, 20);
  expect_counters(nic.path.send_counters(), start + 20, start + 20, start + 20);
  for (int i = 0; i != 4; ++i) ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  EXPECT_FALSE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  expect_counters(nic.path.send_counters(), start + 24, start + 20, start + 20);
  ASSERT_TRUE(nic.path.ring_doorbell());
  EXPECT_EQ(nic.send_record(), (start + 24) & 0xffff);

  for (std::uint64_t i = 0; i != 20; ++i) {
    const Result<WrId> id = nic.path.receive({&kLocal, 1});
    ASSERT_TRUE(id);
    EXPECT_EQ(nic.receive_record(), (start + i + 1) & 0xffff);
    nic.receive(mlx5::CqeOpcode::ResponderSend, 1);
    IbvWc wc;
    ASSERT_EQ(nic.path.poll_receive(wc), 1);
    EXPECT_EQ(wc.wr_id, *id);
  }
  expect_counters(nic.path.receive_counters(), start + 20, start + 20, start + 20);
}

INSTANTIATE_TEST_SUITE_P(Starts, Mlx5RingWrap,
                         testing::Values(0, 65'536 - 10, (std::uint64_t{1} << 32) - 10,
                                         (std::uint64_t{1} << 32) - 65'536, (std::uint64_t{1} << 48) - 3));

TEST(Mlx5Ring, TwoHundredThousandOperationsOfMixedLength) {
  FakeNic nic({.blocks = 16, .cq_entries = 16});
  const std::vector<std::byte> data(200);
  std::uint64_t blocks = 0;
  for (std::uint64_t i = 0; i != 200'000; ++i) {
    const auto counter = static_cast<std::uint16_t>(blocks);
    const std::size_t bytes = i % 7 == 0 ? 200 : i % 5;
    const Result<WrId> id = nic.path.post(inline_work(std::span(data).first(bytes)));
    ASSERT_TRUE(id);
    ASSERT_EQ(*id, WrId{i});
    blocks += bytes == 200 ? 4 : 1;  // 2 + 13 segments
    nic.complete(counter, Opcode::RdmaWrite);
    IbvWc wc;
    ASSERT_EQ(nic.path.poll_send(wc), 1);
    ASSERT_EQ(wc.wr_id, *id);
    ASSERT_EQ(nic.send_record(), blocks & 0xffff);
  }
  expect_counters(nic.path.send_counters(), 200'000, 200'000, 200'000);
}

TEST(Mlx5Ring, FullReceiveRingIsRefused) {
  FakeNic nic({.receives = 4});
  for (int i = 0; i != 4; ++i) ASSERT_TRUE(nic.path.receive({&kLocal, 1}));
  EXPECT_EQ(nic.path.receive({&kLocal, 1}).error().code(), ErrorCode::queue_full);
  EXPECT_EQ(nic.receive_record(), 4);
  nic.receive(mlx5::CqeOpcode::ResponderSend, 1);
  IbvWc wc;
  ASSERT_EQ(nic.path.poll_receive(wc), 1);
  EXPECT_TRUE(nic.path.receive({&kLocal, 1}));
}

// --- Before connecting, after a reset ---

TEST(Mlx5Ring, NothingCanBePostedBeforeTheQueuePairIsConnected) {
  FakeNic nic;
  nic.path.reset();
  EXPECT_EQ(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes).error().code(), ErrorCode::not_connected);
  EXPECT_EQ(nic.path.post_get(kLocal, kRemote, Signal::Yes).error().code(), ErrorCode::not_connected);
  EXPECT_EQ(nic.path.receive({&kLocal, 1}).error().code(), ErrorCode::not_connected);
  expect_counters(nic.path.send_counters(), 0, 0, 0);
  nic.path.open_receive();
  EXPECT_TRUE(nic.path.receive({&kLocal, 1}));
  EXPECT_EQ(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes).error().code(), ErrorCode::not_connected);
}

TEST(Mlx5Ring, ResetForgetsWorkAndCompletionsAndStartsTheHardwareAtZero) {
  FakeNic nic({.blocks = 4});
  run_puts(nic, 5);
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(nic.path.receive({&kLocal, 1}));
  nic.complete(5, Opcode::RdmaWrite);  // never polled
  nic.path.reset();
  EXPECT_EQ(nic.send_record(), 0);
  EXPECT_EQ(nic.receive_record(), 0);
  EXPECT_EQ(nic.send_consumer_index(), 6);
  expect_counters(nic.path.send_counters(), 7, 7, 7);
  expect_counters(nic.path.receive_counters(), 1, 1, 1);

  nic.path.open_receive();
  nic.path.open_send();
  IbvWc wc;
  EXPECT_EQ(nic.path.poll_send(wc), 0);
  const Result<WrId> id = nic.path.post_put(kLocal, kRemote, Signal::Yes);
  ASSERT_TRUE(id);
  EXPECT_EQ(*id, WrId{7});  // no id is used twice
  EXPECT_EQ(nic.send_bytes(0, 4), "00000008");
  EXPECT_EQ(nic.send_record(), 1);
  nic.complete(0, Opcode::RdmaWrite);
  ASSERT_EQ(nic.path.poll_send(wc), 1);
  EXPECT_EQ(wc.wr_id, WrId{7});
  expect_counters(nic.path.send_counters(), 8, 8, 8);
  ASSERT_TRUE(nic.path.receive({&kLocal, 1}));
  EXPECT_EQ(nic.receive_record(), 1);
  expect_counters(nic.path.receive_counters(), 2, 2, 1);
}

// --- BlueFlame and doorbells that others ring ---

TEST(Mlx5Ring, BlueFlameCopiesTheWholeWqeAndAlternates) {
  FakeNic nic({.blocks = 4, .blue_flame = 256});
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset, 64), nic.send_bytes(0, 64));
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset + 256, 64), nic.send_bytes(1, 64));
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset, 64), nic.send_bytes(0, 64));
}

TEST(Mlx5Ring, BlueFlameGoesOnAtTheRingsStart) {
  FakeNic nic({.blocks = 4, .blue_flame = 256});
  run_puts(nic, 3);  // the next doorbell goes to the second buffer
  const std::vector<std::byte> data(40, std::byte{0x77});
  ASSERT_TRUE(nic.path.post(inline_work(data)));
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset + 256, 64), nic.send_bytes(3, 64));
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset + 320, 64), nic.send_bytes(0, 64));
}

TEST(Mlx5Ring, SeveralWqesAreNotCopied) {
  FakeNic nic({.blocks = 4, .blue_flame = 256});
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset, 16), "00000108 abcdef03 00000000 00000000");
}

TEST(Mlx5Ring, WqeLongerThanTheBufferIsNotCopied) {
  FakeNic nic({.blocks = 8, .blue_flame = 64});
  const std::vector<std::byte> data(100);
  ASSERT_TRUE(nic.path.post(inline_work(data)));
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset, 16), "00000008 abcdef09 00000000 00000000");
}

TEST(DoorBell, RingsEverythingEnqueuedUntilItWasTaken) {
  FakeNic nic;
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  const DoorBell doorbell = *nic.path.doorbell();
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  expect_counters(nic.path.send_counters(), 3, 0, 0);
  doorbell.ring();
  EXPECT_EQ(nic.send_record(), 2);
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset, 8), "00000108 abcdef03");
  expect_counters(nic.path.send_counters(), 3, 2, 0);
  ASSERT_TRUE(nic.path.ring_doorbell());
  expect_counters(nic.path.send_counters(), 3, 3, 0);
}

TEST(DoorBell, AnOldOneNeverTakesTheRecordBack) {
  FakeNic nic({.start = {65'534, 0}});
  ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  const DoorBell old = *nic.path.doorbell();
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(nic.send_record(), 1);
  old.ring();
  EXPECT_EQ(nic.send_record(), 1);
  EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset, 8), "00000008 abcdef03");
}

TEST(DoorBell, CountsTheBlocksOfALongWqe) {
  FakeNic nic;
  const std::vector<std::byte> data(100);
  ASSERT_TRUE(nic.path.enqueue(inline_work(data)));
  nic.path.doorbell()->ring();
  EXPECT_EQ(nic.send_record(), 3);
  expect_counters(nic.path.send_counters(), 1, 1, 0);
}

TEST(DoorBell, OfNothingDoesNothing) {
  FakeNic nic;
  const DoorBell doorbell = *nic.path.doorbell();
  EXPECT_EQ(doorbell.size, 0);
  doorbell.ring();
  EXPECT_EQ(nic.send_record(), 0);
}

}  // namespace
}  // namespace qpair::test
