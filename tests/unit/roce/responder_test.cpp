// The responder's side, narrated: the test is the requester.

#include "tests/unit/roce/support.hpp"

namespace qpair::softnic::roce::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Responding : public Narrated {
 protected:
  static Extra to(std::uint64_t remote, std::uint32_t length) {
    return {.reth = {kBase + remote, kKey, length}};
  }
  static Extra quiet() { return {.ack_request = false}; }
  static Extra atomic(std::uint64_t remote, std::uint64_t swap_add, std::uint64_t compare = 0) {
    return {.atomic = {kBase + remote, kKey, swap_add, compare}};
  }
};

TEST_F(Responding, AWriteOfThreePackets) {
  connect();
  Extra first = to(100, 600);
  first.ack_request = false;
  receive(Opcode::WriteFirst, 5, 256, first);
  EXPECT_THAT(sends(), IsEmpty()) << "nobody asked";
  receive(Opcode::WriteMiddle, 6, 256, {.ack_request = false, .seed_offset = 256});
  receive(Opcode::WriteLast, 7, 88, {.seed_offset = 512});
  EXPECT_THAT(sends(), ElementsAre("ACK 7"));
  EXPECT_EQ(Packet::parse(last_sent)->aeth().msn, 1U);
  EXPECT_EQ(Packet::parse(last_sent)->destination_qpn(), kPeerQpn);
  EXPECT_TRUE(host.holds(100, 600, 1));
  EXPECT_THAT(host.receipts, IsEmpty());
}

TEST_F(Responding, LoseTheMiddle) {
  connect();
  receive(Opcode::WriteFirst, 5, 256, to(0, 1024));
  sends();
  // 6 is lost. Expect: one NAK, however many packets follow.
  receive(Opcode::WriteMiddle, 7, 256);
  EXPECT_THAT(sends(), ElementsAre("NAK 6 PSN sequence error"));
  receive(Opcode::WriteLast, 8, 256);
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_EQ(qp.counters().out_of_sequence, 2U);
  // The requester went back, and 6 is lost again. Expect: another NAK.
  receive(Opcode::WriteMiddle, 7, 256);
  EXPECT_THAT(sends(), ElementsAre("NAK 6 PSN sequence error"));
  receive(Opcode::WriteMiddle, 6, 256, {.seed_offset = 256});
  receive(Opcode::WriteMiddle, 7, 256, {.seed_offset = 512});
  receive(Opcode::WriteLast, 8, 256, {.seed_offset = 768});
  EXPECT_THAT(sends(), ElementsAre("ACK 8"));
  EXPECT_TRUE(host.holds(0, 1024, 1));
}

TEST_F(Responding, APacketThatOnlyCameLateDrawsNoNak) {
  connect();
  receive(Opcode::WriteOnly, 6, 4, to(4, 4));
  receive(Opcode::WriteOnly, 5, 4, to(0, 4));
  EXPECT_THAT(sends(), ElementsAre("ACK 5")) << "the NAK was still here when the packet came";
}

TEST_F(Responding, ABatchIsAcknowledgedOnce) {
  connect();
  for (std::uint32_t psn = 5; psn < 25; ++psn) receive(Opcode::WriteOnly, psn, 4, to(0, 4));
  EXPECT_TRUE(qp.has_work(now));
  EXPECT_THAT(sends(), ElementsAre("ACK 24"));
  EXPECT_EQ(Packet::parse(last_sent)->aeth().msn, 20U);
  EXPECT_FALSE(qp.has_work(now));
}

TEST_F(Responding, AnEngineThatOnlyCallsExpireStillAcknowledges) {
  connect();
  receive(Opcode::WriteOnly, 5, 4, to(0, 4));
  EXPECT_LE(qp.deadline(), now);
  qp.expire(now);
  ASSERT_EQ(link.sent.size(), 1U);
  EXPECT_EQ(describe(link.sent[0]), "ACK 5");
}

TEST_F(Responding, DuplicatesAreAcknowledgedAndNotCarriedOut) {
  connect();
  receive(Opcode::WriteOnly, 5, 4, to(0, 4));
  receive(Opcode::WriteOnly, 6, 4, to(4, 4));
  sends();
  host.fill(0, 8, 99);
  receive(Opcode::WriteOnly, 5, 4, to(0, 4));
  EXPECT_THAT(sends(), ElementsAre("ACK 6"));
  EXPECT_TRUE(host.holds(0, 8, 99));
  EXPECT_EQ(qp.counters().duplicate_request, 1U);
}

TEST_F(Responding, ADuplicateSendTakesNoReceive) {
  connect();
  host.post_receive(0, 100);
  host.post_receive(100, 100);
  receive(Opcode::SendOnly, 5, 10);
  receive(Opcode::SendOnly, 5, 10);
  EXPECT_EQ(host.receipts.size(), 1U);
  EXPECT_EQ(host.receives_left(), 1U);
}

TEST_F(Responding, SendsFillReceives) {
  connect();
  host.post_receive(0, 1000);
  host.post_receive(1000, 0);
  host.post_receive(2000, 16);
  receive(Opcode::SendFirst, 5, 256, quiet());
  EXPECT_EQ(host.receives_left(), 2U) << "taken by the first packet";
  receive(Opcode::SendLastImm, 6, 44, {.immediate = 0x01020304, .solicited = true, .seed_offset = 256});
  receive(Opcode::SendOnly, 7, 0);
  receive(Opcode::SendOnlyInvalidate, 8, 16, {.immediate = 0x99});
  EXPECT_THAT(sends(), ElementsAre("ACK 8"));
  ASSERT_EQ(host.receipts.size(), 3U);
  EXPECT_EQ(host.receipts[0].what.opcode, mlx5::CqeOpcode::ResponderSendImm);
  EXPECT_EQ(host.receipts[0].what.byte_count, 300U);
  EXPECT_EQ(host.receipts[0].what.immediate, 0x01020304U);
  EXPECT_EQ(host.receipts[0].what.source_qpn, kPeerQpn);
  EXPECT_TRUE(host.receipts[0].what.solicited);
  EXPECT_TRUE(host.holds(0, 300, 1));
  EXPECT_EQ(host.receipts[1].what.opcode, mlx5::CqeOpcode::ResponderSend);
  EXPECT_EQ(host.receipts[1].what.byte_count, 0U);
  EXPECT_EQ(host.receipts[2].what.opcode, mlx5::CqeOpcode::ResponderSendInvalidate);
  EXPECT_THAT(host.invalidated, ElementsAre(0x99U));
}

TEST_F(Responding, AWriteWithImmediateTakesAReceiveAtItsEnd) {
  connect();
  host.post_receive(0, 0);
  receive(Opcode::WriteFirst, 5, 256, to(512, 300));
  EXPECT_EQ(host.receives_left(), 1U);
  receive(Opcode::WriteLastImm, 6, 44, {.immediate = 7, .seed_offset = 256});
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_EQ(host.receipts[0].what.opcode, mlx5::CqeOpcode::ResponderWriteImm);
  EXPECT_EQ(host.receipts[0].what.byte_count, 300U);
  EXPECT_TRUE(host.holds(512, 300, 1));
}

TEST_F(Responding, WithoutAReceiveTheSenderHasToWait) {
  connect({.rnr_timer = 14});
  receive(Opcode::SendOnly, 5, 10);
  receive(Opcode::SendOnly, 6, 10);  // what follows draws no sequence NAK
  EXPECT_THAT(sends(), ElementsAre("RNR 5 timer 14"));
  host.post_receive(0, 100);
  receive(Opcode::SendOnly, 5, 10);
  EXPECT_THAT(sends(), ElementsAre("ACK 5"));
  EXPECT_EQ(host.receipts.size(), 1U);
}

TEST_F(Responding, AnImmediateWithoutAReceiveWaitsAtTheLastPacket) {
  connect();
  receive(Opcode::WriteFirst, 5, 256, to(0, 300));
  receive(Opcode::WriteLastImm, 6, 44);
  EXPECT_THAT(sends(), ElementsAre("RNR 6 timer 12"));
  host.post_receive(0, 0);
  receive(Opcode::WriteLastImm, 6, 44, {.seed_offset = 256});
  EXPECT_THAT(sends(), ElementsAre("ACK 6"));
  EXPECT_TRUE(host.holds(0, 300, 1));
}

TEST_F(Responding, AnOnlyPacketWithImmediateMayBeRepeatedAfterRnr) {
  connect();
  receive(Opcode::WriteOnlyImm, 5, 8, to(0, 8));
  EXPECT_THAT(sends(), ElementsAre("RNR 5 timer 12"));
  host.post_receive(0, 0);
  receive(Opcode::WriteOnlyImm, 5, 8, to(0, 8));
  EXPECT_THAT(sends(), ElementsAre("ACK 5"));
}

TEST_F(Responding, AMessageTooLongForItsReceive) {
  connect();
  host.post_receive(0, 300);
  receive(Opcode::SendFirst, 5, 256, quiet());
  receive(Opcode::SendLast, 6, 45);
  EXPECT_THAT(sends(), ElementsAre("Reason 6 [48] \"a message of 301 bytes came for a receive of 300\"",
                                   "NAK 6 invalid request"));
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_FALSE(host.receipts[0].ok);
  EXPECT_EQ(host.receipts[0].why.syndrome, mlx5::Syndrome::LocalLength);
  EXPECT_EQ(qp.state(), IBV_QPS_ERR);
  EXPECT_THAT(host.responder_refusals, IsEmpty()) << "the receive reports it";
}

TEST_F(Responding, AReceiveThatCannotBeWritten) {
  connect();
  host.local_end = 50;
  host.post_receive(0, 300);
  receive(Opcode::SendOnly, 5, 256);
  EXPECT_THAT(sends(), ElementsAre("Reason 5 [12] \"no such lkey\"", "NAK 5 remote operational error"));
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_EQ(host.receipts[0].why.syndrome, mlx5::Syndrome::LocalProtection);
}

TEST_F(Responding, AWriteWithAWrongKey) {
  connect();
  receive(Opcode::WriteOnly, 5, 8, {.reth = {kBase, 0x666, 8}});
  receive(Opcode::WriteOnly, 6, 8, to(0, 8));  // too late
  EXPECT_THAT(sends(), ElementsAre("Reason 5 [12] \"no key 0x666\"", "NAK 5 remote access error"));
  EXPECT_THAT(host.events, ElementsAre(IBV_EVENT_QP_ACCESS_ERR));
  EXPECT_EQ(host.responder_refusals[0].syndrome, mlx5::Syndrome::RemoteAccess);
  EXPECT_EQ(qp.state(), IBV_QPS_ERR);
  EXPECT_EQ(host.memory[0], std::byte{0});
}

TEST_F(Responding, ARefusalThatWasLostIsRepeated) {
  connect();
  receive(Opcode::WriteOnly, 5, 8, {.reth = {kBase, 0x666, 8}});
  EXPECT_EQ(sends().size(), 2U);
  // Both packets are lost. The requester probes with its last packet, then goes back.
  receive(Opcode::WriteOnly, 7, 8, to(0, 8));
  EXPECT_TRUE(qp.has_work(now));
  EXPECT_THAT(sends(), ElementsAre("Reason 5 [12] \"no key 0x666\"", "NAK 5 remote access error"));
  receive(Opcode::WriteOnly, 5, 8, {.reth = {kBase, 0x666, 8}});
  EXPECT_EQ(sends().size(), 2U);
  EXPECT_EQ(host.events.size(), 1U);
  // What is about something else is not answered, nor anything after a reset.
  receive(Opcode::WriteOnly, 4, 8, to(0, 8));
  EXPECT_THAT(sends(), IsEmpty());
  qp.set_state(IBV_QPS_RESET);
  qp.set_state(IBV_QPS_ERR);
  receive(Opcode::WriteOnly, 5, 8, to(0, 8));
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_EQ(qp.deadline(), wire::TimePoint::max());
}

TEST_F(Responding, NothingIsLeftToDoAfterAnError) {
  connect();
  receive(Opcode::WriteOnly, 5, 4, to(0, 4));  // an acknowledgment is due
  host.post(make(Operation::Write, 1), 0);
  qp.set_state(IBV_QPS_ERR);
  EXPECT_FALSE(qp.has_work(now));
  EXPECT_EQ(qp.deadline(), wire::TimePoint::max());
}

TEST_F(Responding, BoundsAreCheckedForTheWholeMessageAtItsStart) {
  connect();
  receive(Opcode::WriteFirst, 5, 256, to((1 << 20) - 256, 257));
  EXPECT_THAT(sends(), ElementsAre("Reason 5 [13] \"out of bounds\"", "NAK 5 remote access error"));
}

TEST_F(Responding, AZeroLengthAccessChecksNoKey) {
  connect();
  receive(Opcode::WriteOnly, 5, 0, {.reth = {0, 0, 0}});
  receive(Opcode::ReadRequest, 6, 0, {.reth = {0, 0, 0}});
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Response Only 6 [0]", "ACK 6"));
}

TEST_F(Responding, ReadsAreAnsweredInPackets) {
  connect();
  host.fill(64, 600, 4);
  receive(Opcode::ReadRequest, 5, 0, to(64, 600));
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Response First 5 [256]", "RDMA READ Response Middle 6 [256]",
                                   "RDMA READ Response Last 7 [88]"));
  // The next request has the PSN after the last response.
  receive(Opcode::ReadRequest, 8, 0, to(64, 256));
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Response Only 8 [256]"));
  EXPECT_EQ(Packet::parse(last_sent)->payload()[3], pattern(4, 3));
  EXPECT_EQ(Packet::parse(last_sent)->aeth().msn, 2U);
}

TEST_F(Responding, ALongReadIsPacedAndBlocksLaterAcknowledgments) {
  connect();
  receive(Opcode::ReadRequest, 5, 0, to(0, 256 * 20));
  receive(Opcode::WriteOnly, 25, 8, to(0, 8));
  EXPECT_TRUE(link.sent.empty()) << "receive() never sends";
  EXPECT_EQ(sends(8).size(), 8U);
  EXPECT_TRUE(qp.has_work(now));
  EXPECT_EQ(sends(8).size(), 8U);
  EXPECT_THAT(
      sends(8),
      ElementsAre("RDMA READ Response Middle 21 [256]", "RDMA READ Response Middle 22 [256]",
                  "RDMA READ Response Middle 23 [256]", "RDMA READ Response Last 24 [256]", "ACK 25"));
}

TEST_F(Responding, ADuplicateReadIsCarriedOutAgainFromWhereItIsAsked) {
  connect();
  host.fill(0, 1024, 4);
  receive(Opcode::ReadRequest, 5, 0, to(0, 1024));
  sends();
  host.fill(512, 512, 5);  // memory may have changed
  receive(Opcode::ReadRequest, 7, 0, to(512, 512));
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Response First 7 [256]", "RDMA READ Response Last 8 [256]"));
  EXPECT_EQ(Packet::parse(last_sent)->payload()[0], pattern(5, 256));
}

TEST_F(Responding, ADuplicateReadOfWhatIsNotAnsweredYetChangesNothing) {
  connect();
  receive(Opcode::ReadRequest, 5, 0, to(0, 1024));
  receive(Opcode::ReadRequest, 5, 0, to(0, 1024));
  EXPECT_EQ(sends().size(), 4U);
}

TEST_F(Responding, ADuplicateReadWindsTheAnswerBack) {
  connect();
  receive(Opcode::ReadRequest, 5, 0, to(0, 256 * 8));
  EXPECT_EQ(sends(6).size(), 6U);
  receive(Opcode::ReadRequest, 7, 0, to(512, 256 * 6));
  EXPECT_THAT(sends(2), ElementsAre("RDMA READ Response First 7 [256]", "RDMA READ Response Middle 8 [256]"));
  EXPECT_EQ(sends().size(), 4U);
}

// Found with ib_read_bw on a lossy link: the answers came last first, and only one of them was of use.
TEST_F(Responding, DuplicateReadsAreAnsweredInTheirOrder) {
  connect();
  for (std::uint32_t psn = 5; psn < 9; ++psn) receive(Opcode::ReadRequest, psn, 0, to(0, 8));
  sends();
  receive(Opcode::ReadRequest, 9, 0, to(0, 8));
  for (std::uint32_t psn = 6; psn < 9; ++psn) receive(Opcode::ReadRequest, psn, 0, to(0, 8));
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Response Only 6 [8]", "RDMA READ Response Only 7 [8]",
                                   "RDMA READ Response Only 8 [8]", "RDMA READ Response Only 9 [8]"));
}

TEST_F(Responding, DuplicateAtomicsAreAnsweredInTheirOrder) {
  connect();
  for (std::uint32_t psn = 5; psn < 8; ++psn) receive(Opcode::FetchAdd, psn, 0, atomic(64, 1));
  sends();
  for (std::uint32_t psn = 5; psn < 8; ++psn) receive(Opcode::FetchAdd, psn, 0, atomic(64, 1));
  EXPECT_THAT(sends(), ElementsAre("ATOMIC Acknowledge 5", "ATOMIC Acknowledge 6", "ATOMIC Acknowledge 7"));
}

TEST_F(Responding, ADuplicateReadBeyondWhatWasAskedIsDropped) {
  connect();
  receive(Opcode::ReadRequest, 5, 0, to(0, 512));
  sends();
  receive(Opcode::ReadRequest, 6, 0, to(0, 512));
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_EQ(qp.state(), IBV_QPS_RTS);
}

TEST_F(Responding, ADuplicateReadOfMemoryThatIsGoneHarmsNobody) {
  connect();
  receive(Opcode::ReadRequest, 5, 0, to(0, 512));
  sends();
  host.remote_end = kBase;  // deregistered, rightly: the read was complete
  receive(Opcode::ReadRequest, 5, 0, to(0, 512));
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_EQ(qp.state(), IBV_QPS_RTS);
}

TEST_F(Responding, MemoryThatGoesAwayDuringAReadIsAnAccessError) {
  connect();
  receive(Opcode::ReadRequest, 5, 0, to(0, 256 * 4));
  receive(Opcode::ReadRequest, 9, 0, to(0, 8));
  EXPECT_EQ(sends(2).size(), 2U);
  host.remote_end = kBase;
  EXPECT_THAT(sends(), ElementsAre("Reason 7 [13] \"out of bounds\"", "NAK 7 remote access error"));
  EXPECT_THAT(host.events, ElementsAre(IBV_EVENT_QP_ACCESS_ERR));
}

TEST_F(Responding, AtomicsAreCarriedOutOnceAndAnsweredAsOftenAsAsked) {
  connect();
  host.set_word(64, 10);
  receive(Opcode::FetchAdd, 5, 0, atomic(64, 3));
  receive(Opcode::CompareSwap, 6, 0, atomic(64, 20, 13));
  EXPECT_THAT(sends(), ElementsAre("ATOMIC Acknowledge 5", "ATOMIC Acknowledge 6"));
  EXPECT_EQ(Packet::parse(last_sent)->atomic_original(), 13U);
  EXPECT_EQ(host.word(64), 20U);
  receive(Opcode::FetchAdd, 5, 0, atomic(64, 3));
  EXPECT_THAT(sends(), ElementsAre("ATOMIC Acknowledge 5"));
  EXPECT_EQ(Packet::parse(last_sent)->atomic_original(), 10U);
  EXPECT_EQ(host.word(64), 20U);
}

TEST_F(Responding, AnAtomicWhoseAnswerIsForgottenIsDropped) {
  connect({.max_reads = 1});
  receive(Opcode::FetchAdd, 5, 0, atomic(64, 1));
  sends();
  receive(Opcode::FetchAdd, 6, 0, atomic(64, 1));
  sends();
  receive(Opcode::FetchAdd, 5, 0, atomic(64, 1));
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_EQ(host.word(64), 2U);
}

TEST_F(Responding, AFailedCompareChangesNothing) {
  connect();
  host.set_word(64, 10);
  receive(Opcode::CompareSwap, 5, 0, atomic(64, 20, 11));
  sends();
  EXPECT_EQ(host.word(64), 10U);
}

TEST_F(Responding, AMisalignedAtomicIsAnInvalidRequest) {
  connect();
  receive(Opcode::FetchAdd, 5, 0, atomic(68, 1));
  EXPECT_THAT(sends(), ElementsAre(HasSubstr("not a multiple of 8"), "NAK 5 invalid request"));
  EXPECT_THAT(host.events, ElementsAre(IBV_EVENT_QP_REQ_ERR));
}

TEST_F(Responding, MoreReadsThanAgreedAreAnInvalidRequest) {
  connect({.max_reads = 2});
  receive(Opcode::ReadRequest, 5, 0, to(0, 8));
  receive(Opcode::ReadRequest, 6, 0, to(0, 8));
  receive(Opcode::ReadRequest, 7, 0, to(0, 8));
  // What was accepted is answered first.
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Response Only 5 [8]", "RDMA READ Response Only 6 [8]",
                                   HasSubstr("max_dest_rd_atomic is 2"), "NAK 7 invalid request"));
}

// SQD to SQD, while answers wait around the end of the ring.
TEST_F(Responding, MoreReadsMayBeAllowedWhileSomeWait) {
  connect({.max_reads = 4});
  for (unsigned i = 0; i < 6; ++i) {
    receive(Opcode::ReadRequest, 5 + i, 0, to(0, 8));
    EXPECT_EQ(sends().size(), 1U);
  }
  for (unsigned i = 0; i < 3; ++i) receive(Opcode::ReadRequest, 11 + i, 0, to(0, 8));
  ibv_qp_attr a{};
  a.max_dest_rd_atomic = 16;
  qp.modify(a, IBV_QP_MAX_DEST_RD_ATOMIC, now);
  receive(Opcode::ReadRequest, 14, 0, to(0, 8));
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Response Only 11 [8]", "RDMA READ Response Only 12 [8]",
                                   "RDMA READ Response Only 13 [8]", "RDMA READ Response Only 14 [8]"));
}

TEST_F(Responding, ReadsWithoutAnyResourceAreAnInvalidRequest) {
  connect({.max_reads = 0});
  receive(Opcode::ReadRequest, 5, 0, to(0, 8));
  EXPECT_THAT(sends(), ElementsAre(HasSubstr("max_dest_rd_atomic is 0"), "NAK 5 invalid request"));
}

struct BadOrder {
  std::vector<Opcode> packets;
  const char* what;
};
class OutOfOrder : public Responding, public ::testing::WithParamInterface<BadOrder> {};
TEST_P(OutOfOrder, IsAnInvalidRequest) {
  connect();
  host.post_receive(0, 1000);
  host.post_receive(0, 1000);
  std::uint32_t psn = 5;
  for (const Opcode opcode : GetParam().packets) {
    const std::size_t size = opcode_info(opcode).has(OpcodeInfo::kPayload) ? 256 : 0;
    receive(opcode, psn++, size, to(0, 768));
  }
  const auto all = sends();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.back(), fmt::format("NAK {} invalid request", psn - 1));
  EXPECT_EQ(qp.state(), IBV_QPS_ERR);
}
INSTANTIATE_TEST_SUITE_P(
    Opcodes, OutOfOrder,
    ::testing::Values(BadOrder{{Opcode::SendMiddle}, "a middle without a first"},
                      BadOrder{{Opcode::SendLast}, "a last without a first"},
                      BadOrder{{Opcode::WriteLast}, "a write's last without a first"},
                      BadOrder{{Opcode::SendFirst, Opcode::SendFirst}, "two firsts"},
                      BadOrder{{Opcode::SendFirst, Opcode::SendOnly}, "an only within a message"},
                      BadOrder{{Opcode::SendFirst, Opcode::WriteMiddle}, "another operation's middle"},
                      BadOrder{{Opcode::WriteFirst, Opcode::SendLast}, "another operation's last"},
                      BadOrder{{Opcode::WriteFirst, Opcode::ReadRequest}, "a read within a message"},
                      BadOrder{{Opcode::SendFirst, Opcode::FetchAdd}, "an atomic within a message"}),
    [](const auto& param_info) {
      std::string label = param_info.param.what;
      for (char& c : label) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return label;
    });

TEST_F(Responding, AnInterruptedSendFailsItsReceive) {
  connect();
  host.post_receive(0, 1000);
  receive(Opcode::SendFirst, 5, 256, quiet());
  receive(Opcode::WriteOnly, 6, 8, to(0, 8));
  EXPECT_THAT(sends(), ElementsAre(HasSubstr("in the middle of another message"), "NAK 6 invalid request"));
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_FALSE(host.receipts[0].ok);
}

// The answer comes first, so its failure is what the peer learns; the receive is used up all the same.
TEST_F(Responding, AnInterruptedSendFailsItsReceiveAlsoWhenAnEarlierAnswerFails) {
  connect();
  host.post_receive(0, 1000);
  receive(Opcode::ReadRequest, 5, 0, to(0, 256 * 2));
  receive(Opcode::SendFirst, 7, 256, quiet());
  receive(Opcode::WriteOnly, 8, 8, to(0, 8));
  host.remote_end = kBase;
  EXPECT_THAT(sends(), ElementsAre("Reason 5 [13] \"out of bounds\"", "NAK 5 remote access error"));
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_FALSE(host.receipts[0].ok);
}

TEST_F(Responding, PacketsThatDoNotFitThePathAreAnInvalidRequest) {
  connect();
  receive(Opcode::WriteFirst, 5, 128, to(0, 384));
  EXPECT_THAT(sends(), ElementsAre(HasSubstr("path MTU is 256"), "NAK 5 invalid request"));
}

TEST_F(Responding, AnOversizedOnlyPacketIsAnInvalidRequest) {
  connect();
  receive(Opcode::WriteOnly, 5, 512, to(0, 512));
  EXPECT_THAT(sends(), ElementsAre(HasSubstr("512 bytes"), "NAK 5 invalid request"));
}

TEST_F(Responding, AnEmptyLastPacketIsAnInvalidRequest) {
  connect();
  receive(Opcode::WriteFirst, 5, 256, to(0, 257));
  receive(Opcode::WriteLast, 6, 0);
  EXPECT_EQ(sends().back(), "NAK 6 invalid request");
}

TEST_F(Responding, AWriteMustBringWhatItAnnounced) {
  connect();
  receive(Opcode::WriteFirst, 5, 256, to(0, 300));
  receive(Opcode::WriteLast, 6, 40);
  EXPECT_EQ(sends().back(), "NAK 6 invalid request");
  EXPECT_THAT(host.responder_refusals[0].reason, HasSubstr("300"));
}

TEST_F(Responding, AWriteMayNotBringMoreThanItAnnounced) {
  connect();
  receive(Opcode::WriteFirst, 5, 256, to(0, 300));
  receive(Opcode::WriteMiddle, 6, 256);
  EXPECT_EQ(sends().back(), "NAK 6 invalid request");
  EXPECT_EQ(host.memory[300], std::byte{0});
}

TEST_F(Responding, TheFirstPacketBeforeRtsIsAnEvent) {
  connect({}, false);
  receive(Opcode::WriteOnly, 5, 4, to(0, 4));
  receive(Opcode::WriteOnly, 6, 4, to(0, 4));
  EXPECT_THAT(host.events, ElementsAre(IBV_EVENT_COMM_EST));
  EXPECT_THAT(sends(), ElementsAre("ACK 6"));
  receive_ack(7);  // nothing was ever sent
  EXPECT_EQ(qp.state(), IBV_QPS_RTR);
}

TEST_F(Responding, OutsideOfItsStatesItIsDeaf) {
  receive(Opcode::WriteOnly, 5, 4, to(0, 4));
  EXPECT_THAT(sends(), IsEmpty());
  connect();
  qp.set_state(IBV_QPS_ERR);
  receive(Opcode::WriteOnly, 5, 4, to(0, 4));
  EXPECT_THAT(sends(), IsEmpty());
}

TEST_F(Responding, StrangersAreIgnored) {
  connect();
  Extra stranger = to(0, 4);
  stranger.from = endpoint(77);
  receive(Opcode::WriteOnly, 5, 4, stranger);
  EXPECT_THAT(sends(), IsEmpty());
  stranger = to(0, 4);
  stranger.from = endpoint(2, 50000);  // the UDP source port is only there to spread the load
  receive(Opcode::WriteOnly, 5, 4, stranger);
  EXPECT_THAT(sends(), ElementsAre("ACK 5"));
}

TEST_F(Responding, ALongReasonIsCutBetweenCharacters) {
  connect();
  host.local_end = 0;
  host.post_receive(0, 300);
  std::string reason;
  for (int i = 0; i < 200; ++i) reason += "ä";
  // A host with a lot to say.
  class Talkative : public FakeHost {
   public:
    using FakeHost::FakeHost;
    std::string text;
    Check scatter_receive(const ReceiveRequest&, std::uint64_t, std::span<const std::byte>) override {
      return tl::unexpected(Refusal{mlx5::Syndrome::LocalProtection, 0x51, text});
    }
  } talkative(4096);
  talkative.text = "x" + reason;
  talkative.post_receive(0, 100);
  RcQueuePair other(kOwnQpn, talkative, link);
  talkative.queue_pair = &other;
  to_rtr(other, kPeer, kPeerQpn, {}, now);
  std::vector<std::byte> bytes(PacketWriter::size(Opcode::SendOnly, 4));
  PacketWriter(bytes, {.opcode = Opcode::SendOnly, .psn = Psn(5)}, 4);
  other.receive(*Packet::parse(bytes), kPeer, now);
  other.transmit(10, now);
  ASSERT_EQ(link.sent.size(), 2U);
  EXPECT_EQ(Packet::parse(link.sent[0])->payload().size(), 255U);
}

TEST_F(Responding, BothSidesShareTheBudget) {
  connect();
  receive(Opcode::ReadRequest, 5, 0, to(0, 256 * 50));
  host.post(make(Operation::Write, 256 * 50), 0);
  unsigned answers = 0, requests = 0;
  for (const auto& text : sends(20)) (text.find("Response") != std::string::npos ? answers : requests) += 1;
  EXPECT_EQ(answers, 10U);
  EXPECT_EQ(requests, 10U);
}

}  // namespace
}  // namespace qpair::softnic::roce::test
