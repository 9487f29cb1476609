// Datagrams and unreliable connections through hand-written WQEs, and what their errors do to the send queue.

#include "tests/unit/nic/harness.hpp"

namespace qpair::softnic::nic {
namespace {

using namespace testing_support;
using mlx5::CqeOpcode;
using mlx5::Opcode;
using mlx5::Syndrome;

constexpr std::uint32_t kGrh = 40;

class Datagram : public testing::Test {
 protected:
  static QpOptions options() {
    QpOptions is;
    is.type = IBV_QPT_UD;
    return is;
  }
  Wqe to_b(Opcode opcode, std::uint32_t immediate = 0, std::uint8_t flags = mlx5::kCqUpdate) {
    return std::move(Wqe(opcode, flags, immediate).datagram(gid(), pair.b.qpn(), options().qkey));
  }
  const ibv_gid& gid() { return machine.nic->gids().at(3).gid; }
  std::uint16_t post_receive(std::uint32_t length) {
    return pair.b.receive({{remote.address(), length, rkey}});
  }

  Machine machine;
  Connected pair{machine, options()};
  Memory local{8192}, remote{8192};
  Mkey lkey = machine.register_memory(local);
  Mkey rkey = machine.register_memory(remote);
};

TEST_F(Datagram, ArrivesBehindItsHeaderAndSaysWhoSentIt) {
  local.fill("a datagram");
  const auto posted = post_receive(kGrh + 100);
  const auto sent = pair.a.post(to_b(Opcode::Send).data(local.address(), 10, lkey));
  EXPECT_EQ(pair.a_cq.next().wqe_counter, sent);
  const mlx5::Cqe64 got = pair.b_cq.next();
  EXPECT_EQ(mlx5::cqe_opcode(got.op_own), CqeOpcode::ResponderSend);
  EXPECT_EQ(got.wqe_counter, posted);
  EXPECT_EQ(got.byte_cnt, kGrh + 10);
  EXPECT_EQ(got.flags_rqpn & 0xff'ffff, pair.a.qpn());
  EXPECT_EQ((got.flags_rqpn >> 28) & 3, 1U) << "there is a GRH";
  EXPECT_EQ((got.flags_rqpn >> 24) & 3, 2U) << "IPv4";
  EXPECT_EQ(got.imm_inval_pkey & 0xffff, 0U) << "P_Key index";
  EXPECT_EQ(remote.text(10, kGrh), "a datagram");
  EXPECT_EQ(remote.as<std::uint8_t>()[20], 0x45);
}

TEST_F(Datagram, CarriesInlineDataAroundTheRingsEndAndAnImmediate) {
  const Wqe to_nobody = Wqe(Opcode::Send).datagram(gid(), pair.b.qpn() + 1, options().qkey);
  for (int i = 0; i < 63; ++i) pair.a.post(to_nobody);
  for (int i = 0; i < 63; ++i) pair.a_cq.next();
  post_receive(kGrh + 100);
  pair.a.post(to_b(Opcode::SendImm, 0xbeef, mlx5::kCqUpdate | mlx5::kSolicited)
                  .inline_data("thirty bytes of inline data..."));
  const mlx5::Cqe64 got = pair.b_cq.next();
  EXPECT_EQ(mlx5::cqe_opcode(got.op_own), CqeOpcode::ResponderSendImm);
  EXPECT_EQ(got.imm_inval_pkey, 0xbeefU);
  EXPECT_NE(got.op_own & mlx5::kCqeSolicited, 0);
  EXPECT_EQ(remote.text(30, kGrh), "thirty bytes of inline data...");
}

TEST_F(Datagram, ALinkLocalGidReachesTheSameNic) {
  post_receive(kGrh + 8);
  pair.a.post(Wqe(Opcode::Send)
                  .datagram(machine.nic->gids().at(1).gid, pair.b.qpn(), options().qkey, 1)
                  .data(local.address(), 8, lkey));
  EXPECT_EQ(pair.b_cq.next().byte_cnt, kGrh + 8);
}

TEST_F(Datagram, TooLongForTheMtuStopsTheSendQueueUntilItIsModifiedBack) {
  const auto first = pair.a.write(to_b(Opcode::Send).data(local.address(), 4097, lkey));
  const auto second = pair.a.write(to_b(Opcode::Send).data(local.address(), 8, lkey));
  pair.a.ring();
  const mlx5::ErrorCqe error = pair.a_cq.next_error();
  EXPECT_EQ(error.wqe_counter, first);
  EXPECT_EQ(error.syndrome, Syndrome::LocalLength);
  const mlx5::ErrorCqe flushed = pair.a_cq.next_error();
  EXPECT_EQ(flushed.wqe_counter, second);
  EXPECT_EQ(flushed.syndrome, Syndrome::WorkRequestFlushed);
  EXPECT_EQ(pair.a.state(), IBV_QPS_SQE);

  const auto third = pair.a.post(to_b(Opcode::Send).data(local.address(), 8, lkey));
  EXPECT_EQ(pair.a_cq.next_error().wqe_counter, third) << "posted in SQE: flushed";

  pair.a.receive({{remote.address(), kGrh + 8, rkey}});
  pair.b.post(Wqe(Opcode::Send).datagram(gid(), pair.a.qpn(), options().qkey).data(local.address(), 8, lkey));
  EXPECT_EQ(pair.a_cq.next().byte_cnt, kGrh + 8) << "it goes on receiving";

  ASSERT_EQ(0, pair.a.to_state(IBV_QPS_RTS).value);
  post_receive(kGrh + 8);
  pair.a.post(to_b(Opcode::Send).data(local.address(), 8, lkey));
  EXPECT_EQ(mlx5::cqe_opcode(pair.a_cq.next().op_own), CqeOpcode::Request);
}

TEST_F(Datagram, AReceiveThatIsTooShortFailsAndEndsTheQueuePair) {
  const auto posted = post_receive(kGrh + 7);
  pair.a.post(to_b(Opcode::Send).data(local.address(), 8, lkey));
  const mlx5::ErrorCqe error = pair.b_cq.next_error();
  EXPECT_EQ(error.wqe_counter, posted);
  EXPECT_EQ(error.syndrome, Syndrome::LocalLength);
  EXPECT_TRUE(eventually([&] { return pair.b.state() == IBV_QPS_ERR; }));
  EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
}

TEST_F(Datagram, AnAddressVectorWithoutAGidIsRefused) {
  mlx5::DatagramSegment segment{};
  segment.dqp_dct = pair.b.qpn();  // not the extended one
  pair.a.post(Wqe(Opcode::Send).datagram(segment));
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::LocalQpOperation);
}

TEST_F(Datagram, ASourceGidThatTheTableDoesNotHaveIsRefused) {
  pair.a.post(Wqe(Opcode::Send).datagram(gid(), pair.b.qpn(), options().qkey, 200));
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::LocalQpOperation);
  EXPECT_EQ(pair.a.state(), IBV_QPS_SQE);
}

TEST_F(Datagram, OnlySendsExist) {
  pair.a.post(Wqe(Opcode::RdmaWrite).datagram(gid(), pair.b.qpn(), options().qkey).remote(0, 0));
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::LocalQpOperation);
}

class UnreliableConnection : public testing::Test {
 protected:
  static QpOptions options() {
    QpOptions is;
    is.type = IBV_QPT_UC;
    return is;
  }
  Machine machine;
  Connected pair{machine, options()};
  Memory local{16384}, remote{16384};
  Mkey lkey = machine.register_memory(local);
  Mkey rkey = machine.register_memory(remote);
};

TEST_F(UnreliableConnection, SendsAndWritesMessagesOfSeveralPackets) {
  for (unsigned i = 0; i < 5000; ++i) local.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 7);
  pair.b.receive({{remote.address(), 5000, rkey}});
  pair.b.receive({});
  pair.a.post(Wqe(Opcode::Send).data(local.address(), 5000, lkey));
  EXPECT_EQ(pair.b_cq.next().byte_cnt, 5000U);
  EXPECT_EQ(0, std::memcmp(local.data(), remote.data(), 5000));
  pair.a.post(Wqe(Opcode::RdmaWriteImm, mlx5::kCqUpdate, 3)
                  .remote(remote.address() + 8192, key(rkey))
                  .data(local.address(), 5000, lkey));
  const mlx5::Cqe64 got = pair.b_cq.next();
  EXPECT_EQ(mlx5::cqe_opcode(got.op_own), CqeOpcode::ResponderWriteImm);
  EXPECT_EQ(got.byte_cnt, 5000U);
  EXPECT_EQ(got.flags_rqpn >> 24, 0U) << "no GRH: there is none in front of the data";
  EXPECT_EQ(0, std::memcmp(local.data(), remote.data() + 8192, 5000));
}

TEST_F(UnreliableConnection, AWriteThatThePeerRefusesIsCompleteAllTheSame) {
  pair.a.post(Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey) ^ 1).data(local.address(), 8, lkey));
  EXPECT_EQ(mlx5::cqe_opcode(pair.a_cq.next().op_own), CqeOpcode::Request);
  EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
}

TEST_F(UnreliableConnection, AnUnknownLocalKeyStopsTheSendQueueAlone) {
  pair.a.post(Wqe(Opcode::Send).data(local.address(), 8, Mkey{0x666600}));
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::LocalProtection);
  EXPECT_EQ(pair.a.state(), IBV_QPS_SQE);
  pair.b.post(Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey)).data(local.address(), 8, lkey));
  EXPECT_EQ(mlx5::cqe_opcode(pair.b_cq.next().op_own), CqeOpcode::Request);
}

TEST_F(UnreliableConnection, HasNeitherReadsNorAtomics) {
  pair.a.post(Wqe(Opcode::RdmaRead).remote(remote.address(), key(rkey)).data(local.address(), 8, lkey));
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::LocalQpOperation);
  EXPECT_EQ(pair.a.state(), IBV_QPS_SQE);
}

// The attributes of the kernel's qp_state_table that differ between services.
TEST(QueuePairStates, EachServiceNeedsItsOwnAttributes) {
  Machine machine;
  Completions cq(machine, 16);
  QpOptions ud;
  ud.type = IBV_QPT_UD;
  Pair datagram(machine, cq, cq, ud);
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = 1;
  constexpr int kCommon = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX;
  EXPECT_EQ(EINVAL, datagram.modify(init, kCommon | IBV_QP_ACCESS_FLAGS).value);
  EXPECT_EQ(0, datagram.modify(init, kCommon | IBV_QP_QKEY).value);
  EXPECT_EQ(0, datagram.to_rtr(0).value);
  EXPECT_EQ(0, datagram.to_rts().value);
  ibv_qp_attr rekey{};
  rekey.qkey = 0x77;
  EXPECT_EQ(0, datagram.modify(rekey, IBV_QP_QKEY).value);
  ibv_qp_attr now{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(0, machine.nic->query_qp(datagram.number(), now, initial).value);
  EXPECT_EQ(now.qkey, 0x77U);
  EXPECT_EQ(initial.qp_type, IBV_QPT_UD);

  QpOptions uc;
  uc.type = IBV_QPT_UC;
  Pair unreliable(machine, cq, cq, uc);
  EXPECT_EQ(EINVAL, unreliable.modify(init, kCommon | IBV_QP_QKEY).value);
  EXPECT_EQ(0, unreliable.to_init().value);
  EXPECT_EQ(0, unreliable.to_rtr(1).value);
  EXPECT_EQ(0, unreliable.to_rts().value);
}

}  // namespace
}  // namespace qpair::softnic::nic
