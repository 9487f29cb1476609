// Operations through hand-written WQEs between two queue pairs of one NIC.

#include <numeric>

#include "tests/unit/nic/harness.hpp"

namespace qpair::softnic::nic {
namespace {

using namespace testing_support;
using mlx5::CqeOpcode;
using mlx5::Opcode;

CqeOpcode opcode_of(const mlx5::Cqe64& cqe) {
  return mlx5::cqe_opcode(cqe.op_own);
}

TEST(DataPath, WriteMovesBytesAndCompletesWithItsIndex) {
  Machine machine;
  Connected pair(machine);
  const Memory local(4096), remote(4096);
  local.fill("to be or not to be");
  const Mkey lkey = machine.register_memory(local), rkey = machine.register_memory(remote);

  const auto index = pair.a.post(
      Wqe(Opcode::RdmaWrite).remote(remote.address() + 8, key(rkey)).data(local.address(), 18, lkey));
  const mlx5::Cqe64 cqe = pair.a_cq.next();
  EXPECT_EQ(opcode_of(cqe), CqeOpcode::Request);
  EXPECT_EQ(cqe.wqe_counter, index);
  EXPECT_EQ(cqe.sop_drop_qpn, (static_cast<std::uint32_t>(Opcode::RdmaWrite) << 24) | pair.a.qpn());
  EXPECT_EQ(cqe.srqn_uidx, Pair::kUserIndex);
  EXPECT_EQ(remote.text(18, 8), "to be or not to be");
  EXPECT_EQ(pair.b_cq.peek(), nullptr);
}

TEST(DataPath, ReadGathersWhatIsThereAndCountsIt) {
  Machine machine;
  Connected pair(machine);
  const Memory local(8192), remote(8192);
  std::iota(remote.as<std::uint8_t>(), remote.as<std::uint8_t>(8192), std::uint8_t{0});
  const Mkey lkey = machine.register_memory(local), rkey = machine.register_memory(remote);

  pair.a.post(Wqe(Opcode::RdmaRead).remote(remote.address(), key(rkey)).data(local.address(), 8000, lkey));
  EXPECT_EQ(pair.a_cq.next().byte_cnt, 8000U);
  EXPECT_EQ(0, std::memcmp(local.data(), remote.data(), 8000));
  EXPECT_EQ(local.as<std::uint8_t>()[8000], 0);
}

TEST(DataPath, SendScattersIntoTheReceiveAndTellsItsImmediate) {
  Machine machine;
  Connected pair(machine);
  const Memory local(4096), remote(4096);
  local.fill("hello, world");
  const Mkey lkey = machine.register_memory(local), other = machine.register_memory(remote);

  const auto posted = pair.b.receive({{remote.address(), 5, other}, {remote.address() + 100, 100, other}});
  pair.a.post(
      Wqe(Opcode::SendImm, mlx5::kCqUpdate | mlx5::kSolicited, 0xcafe).data(local.address(), 12, lkey));
  const mlx5::Cqe64 got = pair.b_cq.next();
  EXPECT_EQ(opcode_of(got), CqeOpcode::ResponderSendImm);
  EXPECT_EQ(got.wqe_counter, posted);
  EXPECT_EQ(got.byte_cnt, 12U);
  EXPECT_EQ(got.imm_inval_pkey, 0xcafeU);
  EXPECT_NE(got.op_own & mlx5::kCqeSolicited, 0);
  EXPECT_EQ(got.flags_rqpn & 0xff'ffff, pair.a.qpn());
  EXPECT_EQ(remote.text(5), "hello");
  EXPECT_EQ(remote.text(7, 100), ", world");
  EXPECT_EQ(opcode_of(pair.a_cq.next()), CqeOpcode::Request);
}

TEST(DataPath, WriteWithImmediateTakesAReceiveButNotItsMemory) {
  Machine machine;
  Connected pair(machine);
  const Memory local(4096), remote(4096);
  local.fill("payload");
  const Mkey lkey = machine.register_memory(local), rkey = machine.register_memory(remote);

  pair.b.receive({});
  pair.a.post(Wqe(Opcode::RdmaWriteImm, mlx5::kCqUpdate, 7)
                  .remote(remote.address(), key(rkey))
                  .data(local.address(), 7, lkey));
  const mlx5::Cqe64 got = pair.b_cq.next();
  EXPECT_EQ(opcode_of(got), CqeOpcode::ResponderWriteImm);
  EXPECT_EQ(got.byte_cnt, 7U);
  EXPECT_EQ(got.imm_inval_pkey, 7U);
  EXPECT_EQ(remote.text(7), "payload");
}

TEST(DataPath, AtomicsReturnTheOriginalValue) {
  Machine machine;
  Connected pair(machine);
  const Memory local(4096), remote(4096);
  const Mkey lkey = machine.register_memory(local), rkey = machine.register_memory(remote);
  *remote.as<std::uint64_t>() = 40;

  pair.a.post(Wqe(Opcode::AtomicFetchAdd)
                  .remote(remote.address(), key(rkey))
                  .atomic(2, 0)
                  .data(local.address(), 8, lkey));
  pair.a_cq.next();
  EXPECT_EQ(*local.as<std::uint64_t>(), 40U);
  EXPECT_EQ(*remote.as<std::uint64_t>(), 42U);

  pair.a.post(Wqe(Opcode::AtomicCompareSwap)
                  .remote(remote.address(), key(rkey))
                  .atomic(7, 42)
                  .data(local.address(), 8, lkey));
  pair.a_cq.next();
  EXPECT_EQ(*local.as<std::uint64_t>(), 42U);
  EXPECT_EQ(*remote.as<std::uint64_t>(), 7U);
}

TEST(DataPath, ThirtyPiecesAreOneMessage) {
  Machine machine;
  Connected pair(machine);
  const Memory local(4096), remote(4096);
  const Mkey lkey = machine.register_memory(local), rkey = machine.register_memory(remote);
  std::iota(local.as<std::uint8_t>(), local.as<std::uint8_t>(4096), std::uint8_t{3});

  Wqe wqe(Opcode::RdmaWrite);
  wqe.remote(remote.address(), key(rkey));
  for (std::uint32_t i = 0; i < 30; ++i) wqe.data(local.address() + i * 100, 50, lkey);
  pair.a.post(wqe);
  pair.a_cq.next();
  for (std::size_t i = 0; i < 30; ++i) {
    EXPECT_EQ(0, std::memcmp(remote.data() + i * 50, local.data() + i * 100, 50)) << i;
  }
}

TEST(DataPath, InlineDataIsTakenFromTheRingAlsoAroundItsEnd) {
  Machine machine;
  Connected pair(machine, {.send_blocks = 8});
  const Memory remote(4096);
  const Mkey rkey = machine.register_memory(remote);
  const std::string text =
      "a rather long message that does not fit into one or two basic blocks but needs several of "
      "them, one after the other, the last in front of the first";
  // Three blocks each: of every eight WQEs, some lie across the ring's end at each possible place.
  for (int i = 0; i < 24; ++i) {
    const std::string message = std::to_string(100 + i) + text;
    pair.a.post(Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey)).inline_data(message));
    const mlx5::Cqe64 cqe = pair.a_cq.next();
    ASSERT_EQ(opcode_of(cqe), CqeOpcode::Request) << i;
    ASSERT_EQ(remote.text(message.size()), message) << i;
  }
}

TEST(DataPath, WhatWasNotRungDoesNotRunAndOneDoorbellRunsAll) {
  Machine machine;
  Connected pair(machine);
  const Memory local(4096), remote(4096);
  const Mkey lkey = machine.register_memory(local), rkey = machine.register_memory(remote);

  for (std::uint32_t i = 0; i < 5; ++i) {
    local.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i + 1);
    pair.a.write(Wqe(Opcode::RdmaWrite, i == 4 ? mlx5::kCqUpdate : std::uint8_t{0})
                     .remote(remote.address() + i, key(rkey))
                     .data(local.address() + i, 1, lkey));
  }
  // Another queue pair's whole operation passes through the engine meanwhile.
  Connected other(machine);
  other.a.post(
      Wqe(Opcode::RdmaWrite).remote(remote.address() + 100, key(rkey)).data(local.address(), 1, lkey));
  other.a_cq.next();
  EXPECT_EQ(remote.as<std::uint8_t>()[0], 0);

  pair.a.ring();
  EXPECT_EQ(pair.a_cq.next().wqe_counter, 4);  // one signaled completion for the five
  EXPECT_EQ(pair.a_cq.peek(), nullptr);
  EXPECT_EQ(0, std::memcmp(remote.data(), local.data(), 5));
}

TEST(DataPath, IndicesSurviveMoreThan65536Operations) {
  Machine machine;
  Connected pair(machine, {.send_blocks = 256}, 64, 64);
  const Memory local(4096), remote(4096);
  const Mkey lkey = machine.register_memory(local), rkey = machine.register_memory(remote);
  const Wqe quiet =
      Wqe(Opcode::RdmaWrite, 0).remote(remote.address(), key(rkey)).data(local.address(), 8, lkey);
  const Wqe loud = Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey)).data(local.address(), 8, lkey);
  for (int round = 0; round < 70'000 / 250; ++round) {
    for (int i = 0; i < 249; ++i) pair.a.write(quiet);
    const auto index = pair.a.post(loud);
    const mlx5::Cqe64 cqe = pair.a_cq.next();
    ASSERT_EQ(opcode_of(cqe), CqeOpcode::Request);
    ASSERT_EQ(cqe.wqe_counter, index);
  }
}

TEST(DataPath, NopCompletesInItsTurn) {
  Machine machine;
  Connected pair(machine);
  const Memory local(4096), remote(4096);
  const Mkey lkey = machine.register_memory(local), rkey = machine.register_memory(remote);
  pair.a.write(Wqe(Opcode::Nop));
  pair.a.write(Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey)).data(local.address(), 4096, lkey));
  pair.a.write(Wqe(Opcode::Nop));
  pair.a.write(Wqe(Opcode::Nop));
  pair.a.ring();
  for (std::uint16_t i = 0; i < 4; ++i) EXPECT_EQ(pair.a_cq.next().wqe_counter, i);
}

TEST(DataPath, SignalAllCompletesWhatDidNotAsk) {
  Machine machine;
  Connected pair(machine, {.signal_all = true});
  pair.a.post(Wqe(Opcode::Nop, 0));
  EXPECT_EQ(opcode_of(pair.a_cq.next()), CqeOpcode::Request);
}

TEST(DataPath, ShortDataLiesInTheCqe) {
  for (const std::uint32_t cqe_size : {64U, 128U}) {
    Machine machine;
    Connected pair(machine, {.scatter_to_cqe = true}, cqe_size);
    const Memory local(4096), remote(4096);
    local.fill("short and sweet");
    const Mkey lkey = machine.register_memory(local), rkey = machine.register_memory(remote);
    const std::size_t data_at = 0;
    const auto flag = cqe_size == 64 ? mlx5::kInlineScatter32 : mlx5::kInlineScatter64;

    pair.b.receive({{remote.address(), 100, rkey}});
    pair.a.post(Wqe(Opcode::Send).data(local.address(), 15, lkey));
    const mlx5::Cqe64 got = pair.b_cq.next();
    EXPECT_EQ(opcode_of(got), CqeOpcode::ResponderSend);
    EXPECT_EQ(got.op_own & 0xc, flag);
    EXPECT_EQ(got.byte_cnt, 15U);
    EXPECT_EQ(pair.b_cq.ring().text(15, data_at), "short and sweet");
    pair.a_cq.next();

    // A read comes back the same way; a longer one does not fit.
    pair.a.post(
        Wqe(Opcode::RdmaRead).remote(remote.address(), key(rkey)).data(local.address() + 100, 15, lkey));
    EXPECT_EQ(pair.a_cq.next().op_own & 0xc, flag);
    EXPECT_EQ(pair.a_cq.ring().text(5, cqe_size), "short");
    pair.a.post(
        Wqe(Opcode::RdmaRead).remote(remote.address(), key(rkey)).data(local.address() + 100, 65, lkey));
    EXPECT_EQ(pair.a_cq.next().op_own & 0xc, 0);
  }
}

TEST(DataPath, LinkLocalGidReachesThePeerToo) {
  Machine machine;
  Completions cq(machine, 64);
  Pair a(machine, cq, cq), b(machine, cq, cq);
  a.connect(b.qpn(), 1);
  b.connect(a.qpn(), 0);
  const Memory memory(4096);
  memory.fill("x");
  const Mkey mkey = machine.register_memory(memory);
  a.post(Wqe(Opcode::RdmaWrite).remote(memory.address() + 10, key(mkey)).data(memory.address(), 1, mkey));
  EXPECT_EQ(opcode_of(cq.next()), CqeOpcode::Request);
  EXPECT_EQ(memory.text(1, 10), "x");
}

TEST(DataPath, WorkRungBeforeRtsRunsOnceTheQueuePairGetsThere) {
  Machine machine;
  Completions cq(machine, 64);
  Pair a(machine, cq, cq), b(machine, cq, cq);
  ASSERT_EQ(0, a.to_init().value);
  a.post(Wqe(Opcode::Nop));
  b.connect(a.qpn());
  ASSERT_EQ(0, a.to_rtr(b.qpn()).value);
  EXPECT_EQ(cq.peek(), nullptr);
  ASSERT_EQ(0, a.to_rts().value);
  EXPECT_EQ(opcode_of(cq.next()), CqeOpcode::Request);
}

TEST(DataPath, DoorbellThatAnotherOneOverwroteIsNotLost) {
  Machine machine;
  Connected first(machine), second(machine);
  // The first pair's record moves, but only the second's doorbell is seen in the shared register.
  first.a.write(Wqe(Opcode::Nop));
  first.a.store_send_record(first.a.send_index());
  second.a.post(Wqe(Opcode::Nop));
  EXPECT_EQ(opcode_of(second.a_cq.next()), CqeOpcode::Request);
  EXPECT_EQ(opcode_of(first.a_cq.next()), CqeOpcode::Request);
}

TEST(DataPath, ManyQueuePairsShareOneDoorbellPage) {
  Machine machine;
  std::vector<std::unique_ptr<Connected>> pairs;
  pairs.reserve(50);
  for (int i = 0; i < 50; ++i) pairs.push_back(std::make_unique<Connected>(machine, QpOptions{}, 64, 16));
  const Memory local(4096), remote(4096);
  const Mkey lkey = machine.register_memory(local), rkey = machine.register_memory(remote);
  for (int round = 0; round < 5; ++round) {
    for (auto& pair : pairs) {
      pair->a.post(
          Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey)).data(local.address(), 64, lkey));
    }
    for (auto& pair : pairs) ASSERT_EQ(opcode_of(pair->a_cq.next()), CqeOpcode::Request);
  }
}

}  // namespace
}  // namespace qpair::softnic::nic
