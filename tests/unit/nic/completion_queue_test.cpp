// Completion queues: ownership over wraps, overrun, arming, resizing.

#include "softnic/nic/completion_queue.hpp"

#include "tests/unit/nic/harness.hpp"

namespace qpair::softnic::nic {
namespace {

using namespace testing_support;
using mlx5::Opcode;

class CompletionQueues : public testing::Test {
 protected:
  explicit CompletionQueues(std::uint32_t entries = 256, std::uint32_t cqe_size = 64)
      : pair(machine, {}, cqe_size, entries) {}
  // Sends from a to b; the receive completion at b is solicited if asked for.
  void send(std::uint8_t flags = 0) {
    pair.b.receive({{memory.address(), 8, mkey}});
    pair.a.post(Wqe(Opcode::Send, flags).data(memory.address(), 8, mkey));
  }
  void nops(int count) {
    for (int i = 0; i < count; ++i) pair.a.write(Wqe(Opcode::Nop));
    pair.a.ring();
  }

  Machine machine;
  Memory memory{4096};
  Mkey mkey = machine.register_memory(memory);
  Connected pair;
};

class ShortQueues : public CompletionQueues {
 protected:
  ShortQueues() : CompletionQueues(4) {}
};

TEST_F(ShortQueues, OwnershipBitFollowsThePassesThroughTheRing) {
  for (int i = 0; i < 50; ++i) {
    nops(1);
    EXPECT_EQ(pair.a_cq.next().wqe_counter, i);
    EXPECT_EQ(pair.a_cq.peek(), nullptr);
  }
}

TEST_F(ShortQueues, OverrunIsAnEventAndTheQueuePairsEndInError) {
  nops(5);
  EXPECT_TRUE(eventually([&] { return machine.sink.has(pair.a_cq.number(), IBV_EVENT_CQ_ERR); }));
  EXPECT_TRUE(eventually([&] { return machine.sink.has(pair.a.number(), IBV_EVENT_QP_FATAL); }));
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pair.a_cq.next().wqe_counter, i);  // what was there is not damaged
}

TEST_F(ShortQueues, OverrunMayBeIgnored) {
  Completions cq(machine, 4, 64, true);
  Pair one(machine, cq, cq, {});
  Pair other(machine, cq, cq, {});
  one.connect(other.qpn());
  for (int i = 0; i < 10; ++i) one.write(Wqe(Opcode::Nop));
  one.ring();
  EXPECT_TRUE(eventually([&] { return cq.peek(9) != nullptr && cq.peek(9)->wqe_counter == 9; }));
  EXPECT_FALSE(machine.sink.has(cq.number(), IBV_EVENT_CQ_ERR));
  EXPECT_EQ(one.state(), IBV_QPS_RTS);
}

TEST_F(ShortQueues, FullIsNotOverrun) {
  nops(4);
  for (int i = 0; i < 4; ++i) pair.a_cq.next();
  nops(4);
  for (int i = 4; i < 8; ++i) EXPECT_EQ(pair.a_cq.next().wqe_counter, i);
  EXPECT_FALSE(machine.sink.has(pair.a_cq.number(), IBV_EVENT_CQ_ERR));
}

TEST_F(CompletionQueues, RingThatTheProgramTookAwayIsAnErrorEvent) {
  pair.a_cq.ring().take_away();
  nops(1);
  EXPECT_TRUE(eventually([&] { return machine.sink.has(pair.a_cq.number(), IBV_EVENT_CQ_ERR); }));
  EXPECT_TRUE(eventually([&] { return machine.sink.has(pair.a.number(), IBV_EVENT_QP_FATAL); }));
}

TEST_F(CompletionQueues, UnarmedQueueRaisesNothing) {
  send();
  pair.b_cq.next();
  EXPECT_EQ(machine.sink.completions(), 0U);
}

TEST_F(CompletionQueues, ArmIsAnsweredOnce) {
  pair.b_cq.arm();
  send();
  send();
  pair.b_cq.next();
  pair.b_cq.next();
  EXPECT_TRUE(eventually([&] { return machine.sink.completions() == 1; }));

  pair.b_cq.took_event();
  pair.b_cq.arm();
  send();
  pair.b_cq.next();
  EXPECT_TRUE(eventually([&] { return machine.sink.completions() == 2; }));
}

TEST_F(CompletionQueues, ArmAfterTheCompletionIsAnsweredAtOnce) {
  send();
  ASSERT_TRUE(eventually([&] { return pair.b_cq.peek() != nullptr; }));
  pair.b_cq.arm();
  EXPECT_TRUE(eventually([&] { return machine.sink.completions() == 1; }));
}

// perftest's latency tests: take the event, arm, then poll once. A second event for the same completion would
// be taken for the next one's.
TEST_F(CompletionQueues, ArmBeforePollingRaisesNothingForWhatWasNotifiedAlready) {
  pair.b_cq.arm();
  send();
  ASSERT_TRUE(eventually([&] { return machine.sink.completions() == 1; }));
  pair.b_cq.took_event();
  pair.b_cq.arm();
  pair.b_cq.next();
  nops(1);
  pair.a_cq.next();  // the engine has been through its rounds since
  EXPECT_EQ(machine.sink.completions(), 1U);
  send();
  EXPECT_TRUE(eventually([&] { return machine.sink.completions() == 2; }));
}

TEST_F(CompletionQueues, SolicitedOnlyWaitsForASolicitedOne) {
  pair.b_cq.arm(true);
  send();
  pair.b_cq.next();
  send();
  pair.b_cq.next();
  EXPECT_EQ(machine.sink.completions(), 0U);
  send(mlx5::kSolicited);
  pair.b_cq.next();
  EXPECT_TRUE(eventually([&] { return machine.sink.completions() == 1; }));
}

TEST_F(CompletionQueues, AModeratedOneRaisesAnEventForManyCompletions) {
  ASSERT_EQ(machine.nic->moderate_cq(pair.b_cq.number(), 3, 0xffff).value, 0);
  pair.b_cq.arm();
  for (int i = 0; i < 2; ++i) {
    send();
    pair.b_cq.next();
  }
  EXPECT_EQ(machine.sink.completions(), 0U);
  send();
  EXPECT_TRUE(eventually([&] { return machine.sink.completions() == 1; }));
}

TEST_F(CompletionQueues, AModeratedOneRaisesItsEventAfterThePeriodAtTheLatest) {
  ASSERT_EQ(machine.nic->moderate_cq(pair.b_cq.number(), 1000, 2000).value, 0);
  pair.b_cq.arm();
  send();
  EXPECT_TRUE(eventually([&] { return machine.sink.completions() == 1; }));
}

TEST_F(CompletionQueues, WhatModerationHeldBackIsRaisedWhenItEnds) {
  ASSERT_EQ(machine.nic->moderate_cq(pair.b_cq.number(), 1000, 0xffff).value, 0);
  pair.b_cq.arm();
  send();
  pair.b_cq.next();
  ASSERT_EQ(machine.sink.completions(), 0U);
  ASSERT_EQ(machine.nic->moderate_cq(pair.b_cq.number(), 0, 0).value, 0);
  EXPECT_EQ(machine.sink.completions(), 1U);
}

TEST_F(CompletionQueues, TheEndOfModerationRaisesNothingWithoutACompletion) {
  ASSERT_EQ(machine.nic->moderate_cq(pair.b_cq.number(), 10, 10).value, 0);
  pair.b_cq.arm();
  nops(1);
  pair.a_cq.next();
  ASSERT_EQ(machine.nic->moderate_cq(pair.b_cq.number(), 0, 0).value, 0);
  EXPECT_EQ(machine.sink.completions(), 0U);
}

TEST_F(CompletionQueues, ErrorsCountAsSolicited) {
  pair.b.receive({{memory.address(), 8, mkey}});
  pair.b_cq.arm(true);
  ASSERT_EQ(pair.b.to_state(IBV_QPS_ERR).value, 0);
  EXPECT_TRUE(eventually([&] { return machine.sink.completions() == 1; }));
}

TEST_F(CompletionQueues, TwoQueuesArmedThroughTheSameRegisterAreBothArmed) {
  // Both first arms are the value 0, and the second doorbell may overwrite the first.
  pair.a_cq.arm();
  pair.b_cq.arm();
  send(mlx5::kCqUpdate);
  pair.a_cq.next();
  pair.b_cq.next();
  EXPECT_TRUE(eventually([&] { return machine.sink.completions() == 2; }));
}

TEST_F(CompletionQueues, ResizeKeepsWhatWaitsAndGoesOn) {
  nops(3);
  ASSERT_TRUE(eventually([&] { return pair.a_cq.ring().as<mlx5::Cqe64>()[2].op_own >> 4 == 0; }));
  ASSERT_EQ(pair.a_cq.resize(16, 128).value, 0);
  nops(10);
  for (int i = 0; i < 13; ++i) EXPECT_EQ(pair.a_cq.next().wqe_counter, i);
  ASSERT_EQ(pair.a_cq.resize(8).value, 0);
  for (int i = 0; i < 20; ++i) {
    nops(1);
    EXPECT_EQ(pair.a_cq.next().wqe_counter, 13 + i);
  }
}

TEST_F(CompletionQueues, ResizeBelowWhatWaitsIsRefused) {
  nops(9);
  ASSERT_TRUE(eventually([&] { return pair.a_cq.ring().as<mlx5::Cqe64>()[8].op_own >> 4 == 0; }));
  EXPECT_EQ(pair.a_cq.resize(8).value, EINVAL);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(pair.a_cq.next().wqe_counter, i);
}

TEST_F(CompletionQueues, QueueInUseIsNotDestroyed) {
  EXPECT_EQ(machine.nic->destroy_cq(pair.a_cq.number()).value, EBUSY);
}

// Without a NIC around it: indices far beyond 24 bits.
TEST(CompletionQueueAlone, SurvivesTheWrapOfItsConsumerIndex) {
  Sink sink;
  const Memory ring(4 * 64), record(4096);
  CompletionQueue cq(Cqn{1}, {ring.address(), record.address(), 4, 64, UarId{}, &sink});
  mlx5::Cqe64 cqe{};
  for (std::uint32_t i = 0; i < (1U << 24) + 100; ++i) {
    ASSERT_TRUE(cq.push(cqe, CompletionQueue::Notice::Plain)) << i;
    ASSERT_EQ(ring.as<mlx5::Cqe64>()[i & 3].op_own & 1, (i >> 2) & 1);
    *record.as<mlx5::be32>() = (i + 1) & 0xff'ffff;
  }
}

}  // namespace
}  // namespace qpair::softnic::nic
