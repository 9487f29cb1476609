// The requester's side, narrated: the test is the responder.

#include "softnic/roce/tunables.hpp"
#include "tests/unit/roce/support.hpp"

namespace qpair::softnic::roce::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Requesting = Narrated;

TEST_F(Requesting, OnePacketMessages) {
  connect();
  host.post(make(Operation::Send, 0), 0);
  host.post(make(Operation::Write, 100), 0);
  SendRequest immediate = make(Operation::SendImm, 256);
  immediate.solicited = true;
  host.post(immediate, 0);
  host.post(make(Operation::WriteImm, 0), 0);
  host.post(make(Operation::SendInvalidate, 1), 0);
  EXPECT_THAT(sends(), ElementsAre("SEND Only 5 [0] ack?", "RDMA WRITE Only 6 [100] ack?",
                                   "SEND Only with Immediate 7 [256] ack? solicited",
                                   "RDMA WRITE Only with Immediate 8 [0] ack?",
                                   "SEND Only with Invalidate 9 [1] ack?"));
  // One acknowledgment for all of them.
  receive_ack(9);
  EXPECT_THAT(completed(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(qp.deadline(), wire::TimePoint::max());
}

TEST_F(Requesting, LongMessagesAreSegmentedAtEveryPathMtu) {
  for (const std::uint32_t mtu : {256U, 512U, 1024U, 2048U, 4096U}) {
    RcQueuePair one(kOwnQpn, host, link);
    to_rtr(one, kPeer, kPeerQpn, {.mtu = mtu}, now);
    to_rts(one, {.mtu = mtu}, now);
    host.fill(100, 2 * mtu + 1, 3);
    host.post(make(Operation::WriteImm, 2 * mtu + 1, 64), 100);
    one.transmit(100, now);
    ASSERT_EQ(link.sent.size(), 3U);
    std::vector<std::byte> joined;
    for (auto& bytes : link.sent) {
      const auto payload = Packet::parse(bytes)->payload();
      joined.insert(joined.end(), payload.begin(), payload.end());
    }
    EXPECT_EQ(describe(link.sent[0]), fmt::format("RDMA WRITE First 5 [{}]", mtu));
    EXPECT_EQ(Packet::parse(link.sent[0])->reth().length, 2 * mtu + 1);
    EXPECT_EQ(Packet::parse(link.sent[0])->reth().address, kBase + 64);
    EXPECT_EQ(describe(link.sent[1]), fmt::format("RDMA WRITE Middle 6 [{}]", mtu));
    EXPECT_EQ(describe(link.sent[2]), "RDMA WRITE Last with Immediate 7 [1] ack?");
    EXPECT_TRUE(std::equal(joined.begin(), joined.end(), host.memory.begin() + 100));
    link.sent.clear();
  }
}

TEST_F(Requesting, AMessageOfExactlyOnePathMtuIsOnePacket) {
  connect();
  host.post(make(Operation::Send, 256), 0);
  host.post(make(Operation::Send, 512), 0);
  EXPECT_THAT(sends(), ElementsAre("SEND Only 5 [256] ack?", "SEND First 6 [256]", "SEND Last 7 [256] ack?"));
}

TEST_F(Requesting, PsnsWrap) {
  connect({.first_psn = 0xfffffe});
  host.post(make(Operation::Write, 256 * 4), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA WRITE First 16777214 [256]", "RDMA WRITE Middle 16777215 [256]",
                                   "RDMA WRITE Middle 0 [256]", "RDMA WRITE Last 1 [256] ack?"));
  receive_ack(0xffffff);
  EXPECT_THAT(completed(), IsEmpty());
  receive_ack(1);
  EXPECT_THAT(completed(), ElementsAre(0));
}

TEST_F(Requesting, TheBudgetBoundsACall) {
  connect();
  host.post(make(Operation::Write, 256 * 10), 0);
  EXPECT_TRUE(qp.transmit(4, now));
  EXPECT_EQ(link.sent.size(), 4U);
  EXPECT_TRUE(qp.transmit(4, now));
  EXPECT_FALSE(qp.transmit(4, now));
  EXPECT_EQ(link.sent.size(), 10U);
}

TEST_F(Requesting, NothingIsSentIntoALinkThatIsFullAndNobodyWaitsInVain) {
  connect();
  link.full = true;
  host.post(make(Operation::Write, 256 * 2), 0);
  EXPECT_FALSE(qp.transmit(10, now));
  EXPECT_THAT(link.sent, IsEmpty());
  EXPECT_TRUE(qp.waits_for_room());
  EXPECT_FALSE(qp.has_work(now));
  EXPECT_GT(qp.deadline(), now) << "its turn comes when there is room, not before";
  link.full = false;
  EXPECT_FALSE(qp.waits_for_room());
  EXPECT_TRUE(qp.has_work(now));
  EXPECT_THAT(sends(), ElementsAre("RDMA WRITE First 5 [256]", "RDMA WRITE Last 6 [256] ack?"));
}

// ---- Requests that the host carries out itself -----------------------------------------------------

TEST_F(Requesting, WhatTheHostCopiesTakesNoPacketsAndNoPsns) {
  connect();
  host.copies = true;
  host.post(make(Operation::Write, 3'000'000), 0);
  EXPECT_TRUE(qp.transmit(10, now)) << "others have their turn in between";
  EXPECT_THAT(completed(), IsEmpty());
  EXPECT_TRUE(qp.transmit(10, now));
  EXPECT_FALSE(qp.transmit(10, now));
  EXPECT_THAT(link.sent, IsEmpty());
  EXPECT_THAT(completed(), ElementsAre(0));
  EXPECT_THAT(host.copied,
              ElementsAre(std::pair(0, 1048576), std::pair(1048576, 1048576), std::pair(2097152, 902848)));
  EXPECT_EQ(qp.deadline(), TimePoint::max()) << "nobody is waited for";
  host.copies = false;
  host.post(make(Operation::Write, 100), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA WRITE Only 5 [100] ack?"));
}

TEST_F(Requesting, NothingOvertakesWhatIsOnItsWay) {
  connect();
  host.copies = true;
  host.post(make(Operation::Send, 100), 0);
  host.post(make(Operation::Write, 100), 0);
  EXPECT_THAT(sends(), ElementsAre("SEND Only 5 [100] ack?", "RDMA WRITE Only 6 [100] ack?"));
  EXPECT_THAT(host.copied, IsEmpty());
  receive_ack(6);
  host.post(make(Operation::Write, 200'000), 0);
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_EQ(host.copied.size(), 1U);
  // A long one is worth waiting for.
  host.post(make(Operation::Send, 100), 0);
  host.post(make(Operation::Write, 200'000), 0);
  EXPECT_THAT(sends(), ElementsAre("SEND Only 7 [100] ack?"));
  EXPECT_EQ(host.copied.size(), 1U);
  EXPECT_FALSE(qp.has_work(now));
  receive_ack(7);
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_EQ(host.copied.size(), 2U);
}

// The first request of a connection travels in packets when the peer is not known yet.
TEST_F(Requesting, AStreamOfLongOnesIsCopiedAsSoonAsTheHostCan) {
  connect();
  host.post(make(Operation::Write, 100), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA WRITE Only 5 [100] ack?"));
  host.copies = true;
  host.post(make(Operation::Write, 200'000), 0);
  EXPECT_THAT(sends(), IsEmpty()) << "it waits for its turn to be copied";
  receive_ack(5);
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_EQ(host.copied.size(), 1U);
  EXPECT_EQ(completed().size(), 2U);
}

// While a long one waits for its turn to be copied, what is before it is sent again as ever.
TEST_F(Requesting, ACopyThatWaitsDoesNotKeepWhatIsBeforeItFromBeingSentAgain) {
  connect();
  host.copies = true;
  host.post(make(Operation::Write, 200'000), 0);
  EXPECT_THAT(sends(), IsEmpty());
  host.post(make(Operation::Send, 1), 0);
  host.post(make(Operation::Write, 200'000), 0);
  EXPECT_THAT(sends(), ElementsAre("SEND Only 5 [1] ack?"));
  receive_rnr(5, 12);  // 640 µs
  EXPECT_EQ(qp.deadline(), now + 640us);
  now += 640us;
  EXPECT_TRUE(qp.has_work(now));
  EXPECT_THAT(sends(), ElementsAre("SEND Only 5 [1] ack?"));
  receive_nak(5, NakCode::SequenceError);
  EXPECT_THAT(sends(), ElementsAre("SEND Only 5 [1] ack?"));
  receive_ack(5);
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_EQ(host.copied.size(), 2U);
  EXPECT_EQ(completed().size(), 3U);
}

TEST_F(Requesting, WhatCannotBeCopiedToTheEndTravelsWhole) {
  connect();
  host.copies = true;
  host.post(make(Operation::Write, 1'100'000), 0);
  EXPECT_TRUE(qp.transmit(10, now));
  host.copies = false;
  qp.transmit(1, now);
  ASSERT_EQ(link.sent.size(), 1U);
  EXPECT_EQ(describe(link.sent.front()), "RDMA WRITE First 5 [256]");
}

TEST_F(Requesting, APeerThatIsGoneFailsWhatIsOutstanding) {
  connect();
  host.post(make(Operation::Write, 100), 0);
  EXPECT_EQ(sends().size(), 1U);
  qp.peer_departed(wire::Endpoint{});
  EXPECT_THAT(completed(), IsEmpty()) << "somebody else is gone";
  qp.peer_departed(kPeer);
  ASSERT_EQ(host.completions.size(), 1U);
  EXPECT_FALSE(host.completions[0].ok);
  EXPECT_EQ(host.completions[0].why.syndrome, mlx5::Syndrome::TransportRetryExceeded);
}

TEST_F(Requesting, APeerThatIsGoneFailsWhatComesAtOnce) {
  connect();
  qp.peer_departed(kPeer);
  host.post(make(Operation::Write, 100), 0);
  EXPECT_THAT(sends(), IsEmpty());
  ASSERT_EQ(host.completions.size(), 1U);
  EXPECT_EQ(host.completions[0].why.syndrome, mlx5::Syndrome::TransportRetryExceeded);
}

TEST_F(Requesting, TheWindowBoundsWhatIsOnItsWay) {
  connect();
  host.post(make(Operation::Write, 256 * 1000), 0);
  EXPECT_EQ(sends().size(), 256U);
  const auto first = Packet::parse(last_sent);
  EXPECT_TRUE(first->ack_request()) << "the packet that closes the window asks for an acknowledgment";
  EXPECT_FALSE(qp.has_work(now));
  receive_ack(5 + 99);
  EXPECT_TRUE(qp.has_work(now));
  EXPECT_EQ(sends().size(), 100U);
}

TEST_F(Requesting, LongMessagesAskForAcknowledgmentsOnTheWay) {
  connect();
  host.post(make(Operation::Write, 256 * 256), 0);
  unsigned asked = 0;
  for (const auto& text : sends()) asked += text.ends_with("ack?") ? 1 : 0;
  EXPECT_GE(asked, 4U);
  EXPECT_LE(asked, 5U);
}

TEST_F(Requesting, RequestsInFlightAreBounded) {
  connect();
  for (int i = 0; i < 200; ++i) host.post(make(Operation::Write, 1), 0);
  EXPECT_EQ(sends().size(), kMaxOutstandingRequests);
  EXPECT_EQ(host.sends_left(), 200 - kMaxOutstandingRequests);
  receive_ack(5);
  EXPECT_TRUE(qp.has_work(now));
  EXPECT_EQ(sends().size(), 1U);
}

TEST_F(Requesting, SequenceNakGoesBack) {
  connect();
  host.post(make(Operation::Write, 256 * 3), 0);
  host.post(make(Operation::Send, 1), 0);
  EXPECT_EQ(sends().size(), 4U);
  // The second packet was lost. Expect: everything from there again, with data gathered again.
  const unsigned gathers = host.gathers;
  receive_nak(6, NakCode::SequenceError);
  EXPECT_THAT(sends(), ElementsAre("RDMA WRITE Middle 6 [256]", "RDMA WRITE Last 7 [256] ack?",
                                   "SEND Only 8 [1] ack?"));
  EXPECT_EQ(host.gathers, gathers + 3);
  EXPECT_EQ(qp.counters().packet_seq_err, 1U);
  EXPECT_EQ(qp.counters().retransmitted_packets, 3U);
  receive_ack(8);
  EXPECT_THAT(completed(), ElementsAre(0, 1));
}

TEST_F(Requesting, ANakThatCameTwiceGoesBackOnce) {
  connect();
  host.post(make(Operation::Write, 256 * 3), 0);
  sends();
  receive_nak(6, NakCode::SequenceError);
  receive_nak(6, NakCode::SequenceError);
  EXPECT_EQ(sends().size(), 2U);
}

TEST_F(Requesting, LossHalvesTheWindowAndSuccessLetsItGrow) {
  connect();
  host.post(make(Operation::Write, 256 * 3000), 0);
  EXPECT_EQ(sends().size(), 256U);
  receive_nak(5, NakCode::SequenceError);
  EXPECT_EQ(sends().size(), 128U);
  std::uint32_t next = 5 + 128;
  receive_ack(next - 1);
  const std::size_t grown = sends().size();
  EXPECT_GT(grown, 128U);
  EXPECT_LT(grown, 256U);
}

TEST_F(Requesting, WithoutLossTheWindowGrowsToItsBound) {
  connect({.mtu = 4096});
  host.post(make(Operation::Write, 4096 * 8000), 0);
  host.memory.resize(4096 * 8000);
  std::uint32_t next = 5;
  std::size_t largest = 0;
  for (int i = 0; i < 10; ++i) {
    const std::size_t sent = sends().size();
    largest = std::max(largest, sent);
    next += static_cast<std::uint32_t>(sent);
    receive_ack(next - 1);
  }
  EXPECT_EQ(largest, kLargestWindowBytes / 4096);
}

TEST_F(Requesting, AcknowledgmentsOutsideOfWhatIsOutstandingAreIgnored) {
  connect();
  host.post(make(Operation::Send, 1), 0);
  sends();
  receive_ack(4);
  receive_ack(6);
  receive_ack(0x800000);
  receive_nak(6, NakCode::RemoteAccess);
  EXPECT_THAT(host.completions, IsEmpty());
  receive_ack(5);
  receive_ack(5);
  EXPECT_THAT(completed(), ElementsAre(0));
}

TEST_F(Requesting, ReadsTakeOnePsnForEachResponse) {
  connect();
  host.post(make(Operation::Read, 600, 64), 0);
  host.post(make(Operation::Write, 1), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 600", "RDMA WRITE Only 8 [1] ack?"));
  receive(Opcode::ReadResponseFirst, 5, 256, {.seed = 9});
  receive(Opcode::ReadResponseMiddle, 6, 256, {.seed = 9, .seed_offset = 256});
  EXPECT_THAT(completed(), IsEmpty());
  receive(Opcode::ReadResponseLast, 7, 88, {.seed = 9, .seed_offset = 512});
  EXPECT_THAT(completed(), ElementsAre(0));
  EXPECT_TRUE(host.holds(0, 600, 9));
  receive_ack(8);
  EXPECT_THAT(completed(), ElementsAre(0, 1));
}

TEST_F(Requesting, AZeroLengthReadGetsOneEmptyResponse) {
  connect();
  host.post(make(Operation::Read, 0), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 0"));
  receive(Opcode::ReadResponseOnly, 5, 0);
  EXPECT_THAT(completed(), ElementsAre(0));
}

TEST_F(Requesting, AResponseAcknowledgesWhatCameBefore) {
  connect();
  host.post(make(Operation::Write, 1), 0);
  host.post(make(Operation::Send, 1), 0);
  host.post(make(Operation::Read, 8), 0);
  sends();
  receive(Opcode::ReadResponseOnly, 7, 8);
  EXPECT_THAT(completed(), ElementsAre(0, 1, 2));
}

TEST_F(Requesting, AReadIsAskedForAgainFromWhereTheResponsesStopped) {
  connect();
  host.post(make(Operation::Read, 256 * 4, 64), 0);
  sends();
  receive(Opcode::ReadResponseFirst, 5, 256, {.seed = 9});
  // 6 is lost; 7 and 8 come. Expect: one request for the last three packets, with their PSN and address.
  receive(Opcode::ReadResponseMiddle, 7, 256);
  receive(Opcode::ReadResponseLast, 8, 256);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 6 for 768"));
  EXPECT_EQ(Packet::parse(last_sent)->reth().address, kBase + 64 + 256);
  receive(Opcode::ReadResponseFirst, 6, 256, {.seed = 9, .seed_offset = 256});
  receive(Opcode::ReadResponseMiddle, 7, 256, {.seed = 9, .seed_offset = 512});
  receive(Opcode::ReadResponseLast, 8, 256, {.seed = 9, .seed_offset = 768});
  EXPECT_THAT(completed(), ElementsAre(0));
  EXPECT_TRUE(host.holds(0, 1024, 9));
}

TEST_F(Requesting, ALaterAcknowledgmentImpliesThatAResponseWasLost) {
  connect();
  host.post(make(Operation::Read, 8), 0);
  host.post(make(Operation::Write, 1), 0);
  sends();
  receive_ack(6);
  EXPECT_THAT(completed(), IsEmpty());
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 8", "RDMA WRITE Only 6 [1] ack?"));
  // The same acknowledgment, once more from the network: nothing new.
  receive_ack(6);
  EXPECT_THAT(sends(), IsEmpty());
  receive(Opcode::ReadResponseOnly, 5, 8);
  receive_ack(6);
  EXPECT_THAT(completed(), ElementsAre(0, 1));
}

TEST_F(Requesting, ARepeatedResponseThatIsLostTooIsAskedForAgain) {
  connect();
  host.post(make(Operation::Read, 256 * 4), 0);
  sends();
  receive(Opcode::ReadResponseMiddle, 7, 256);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 1024"));
  // What was still on its way changes nothing…
  receive(Opcode::ReadResponseLast, 8, 256);
  EXPECT_THAT(sends(), IsEmpty());
  // …but responses that start over and lack the first again do.
  receive(Opcode::ReadResponseMiddle, 6, 256);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 1024"));
}

TEST_F(Requesting, OutstandingReadsAreLimited) {
  connect({.max_reads = 2});
  for (int i = 0; i < 3; ++i) host.post(make(Operation::Read, 8), 0);
  host.post(make(Operation::Write, 1), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 8", "RDMA READ Request 6 for 8"));
  receive(Opcode::ReadResponseOnly, 5, 8);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 7 for 8", "RDMA WRITE Only 8 [1] ack?"));
}

TEST_F(Requesting, AReadWithoutRoomForReadsFailsWithTheReason) {
  connect({.max_reads = 0});
  host.post(make(Operation::Write, 1), 0);
  host.post(make(Operation::Read, 8), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA WRITE Only 5 [1] ack?"));
  EXPECT_THAT(host.completions, IsEmpty()) << "in order: not before the write is complete";
  receive_ack(5);
  sends();
  ASSERT_EQ(host.completions.size(), 2U);
  EXPECT_EQ(host.completions[1].why.syndrome, mlx5::Syndrome::LocalQpOperation);
  EXPECT_THAT(host.completions[1].why.reason, ::testing::HasSubstr("max_rd_atomic"));
  EXPECT_EQ(qp.state(), IBV_QPS_ERR);
}

TEST_F(Requesting, AReadWithoutRoomForReadsFailsAlsoWhenWhatIsBeforeItIsSentAgain) {
  connect({.max_reads = 0});
  host.post(make(Operation::Send, 1), 0);
  host.post(make(Operation::Read, 8), 0);
  EXPECT_THAT(sends(), ElementsAre("SEND Only 5 [1] ack?"));
  receive_rnr(5, 1);
  now += 10us;
  EXPECT_THAT(sends(), ElementsAre("SEND Only 5 [1] ack?"));
  receive_ack(5);
  EXPECT_TRUE(qp.has_work(now));
  sends();
  ASSERT_EQ(host.completions.size(), 2U);
  EXPECT_THAT(host.completions[1].why.reason, ::testing::HasSubstr("max_rd_atomic"));
}

TEST_F(Requesting, AFenceWaitsForEarlierReads) {
  connect();
  host.post(make(Operation::Read, 300), 0);
  host.post(make(Operation::Write, 1), 0);
  SendRequest fenced = make(Operation::Send, 1);
  fenced.fence = true;
  host.post(fenced, 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 300", "RDMA WRITE Only 7 [1] ack?"));
  receive(Opcode::ReadResponseFirst, 5, 256);
  EXPECT_THAT(sends(), IsEmpty());
  receive(Opcode::ReadResponseLast, 6, 44);
  EXPECT_THAT(sends(), ElementsAre("SEND Only 8 [1] ack?")) << "the write before it may still be outstanding";
}

TEST_F(Requesting, LongReadsTravelInPieces) {
  connect({.mtu = 4096, .max_reads = 4});
  host.post(make(Operation::Read, 4096 * 100), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 65536", "RDMA READ Request 21 for 65536",
                                   "RDMA READ Request 37 for 65536", "RDMA READ Request 53 for 65536"));
  for (std::uint32_t i = 0; i < 16; ++i) receive(Opcode::ReadResponseMiddle, 5 + i, 4096);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 69 for 65536"));
  for (std::uint32_t i = 16; i < 100; ++i) {
    receive(Opcode::ReadResponseMiddle, 5 + i, 4096);
    sends();
  }
  EXPECT_THAT(completed(), ElementsAre(0));
}

TEST_F(Requesting, WithOneReadAtATimeAPieceIsAWindow) {
  connect({.mtu = 4096, .max_reads = 1});
  host.post(make(Operation::Read, 4096 * 100), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 262144"));
}

TEST_F(Requesting, ARepeatedPieceNeverCrossesIntoTheNext) {
  connect({.mtu = 4096, .max_reads = 4});
  host.post(make(Operation::Read, 4096 * 32), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 65536", "RDMA READ Request 21 for 65536"));
  receive(Opcode::ReadResponseFirst, 5, 4096);
  receive(Opcode::ReadResponseMiddle, 7, 4096);  // 6 is missing
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 6 for 61440", "RDMA READ Request 21 for 65536"));
}

TEST_F(Requesting, APeerThatAnswersLateIsProbedLater) {
  connect();
  for (std::uint32_t psn = 5; psn < 105; ++psn) {
    host.post(make(Operation::Write, 1), 0);
    sends();
    now += 5ms;
    receive_ack(psn);
  }
  host.post(make(Operation::Write, 1), 0);
  sends();
  EXPECT_GT(qp.deadline(), now + 4ms);
  EXPECT_LT(qp.deadline(), now + 10ms);
}

TEST_F(Requesting, AtomicsReturnWhatWasThere) {
  connect();
  SendRequest add = make(Operation::FetchAdd, 8, 16);
  add.swap_add = 3;
  SendRequest swap = make(Operation::CompareSwap, 8, 24);
  swap.compare = 1;
  swap.swap_add = 2;
  host.post(add, 128);
  host.post(swap, 136);
  EXPECT_THAT(sends(), ElementsAre("FetchAdd 5", "CmpSwap 6"));
  EXPECT_EQ(Packet::parse(last_sent)->atomic().compare, 1U);
  EXPECT_EQ(Packet::parse(last_sent)->atomic().swap_add, 2U);
  EXPECT_EQ(Packet::parse(last_sent)->atomic().address, kBase + 24);
  receive(Opcode::AtomicAcknowledge, 5, 0, {.original = 41});
  receive(Opcode::AtomicAcknowledge, 6, 0, {.original = 1});
  EXPECT_THAT(completed(), ElementsAre(0, 1));
  EXPECT_EQ(host.word(128), 41U);
  EXPECT_EQ(host.word(136), 1U);
}

TEST_F(Requesting, AResponseOfTheWrongLengthIsABadResponse) {
  connect();
  host.post(make(Operation::Read, 300), 0);
  sends();
  receive(Opcode::ReadResponseFirst, 5, 252);
  ASSERT_EQ(host.completions.size(), 1U);
  EXPECT_EQ(host.completions[0].why.syndrome, mlx5::Syndrome::BadResponse);
}

TEST_F(Requesting, AResponseToSomethingElseIsDropped) {
  connect();
  host.post(make(Operation::Write, 8), 0);
  sends();
  receive(Opcode::ReadResponseOnly, 5, 8);
  receive(Opcode::AtomicAcknowledge, 5, 0);
  EXPECT_THAT(host.completions, IsEmpty());
}

struct Answer {
  NakCode code;
  mlx5::Syndrome syndrome;
  std::uint8_t vendor;
};
class Refused : public Narrated, public ::testing::WithParamInterface<Answer> {};

TEST_P(Refused, EndsTheConnectionWithTheRemoteReason) {
  connect();
  host.post(make(Operation::Write, 1), 0);
  host.post(make(Operation::Write, 700), 0);
  host.post(make(Operation::Write, 1), 0);
  sends();
  receive_reason(7, "key 0x1234 has no right\x1b[31m to write");
  receive_nak(7, GetParam().code);
  ASSERT_EQ(host.completions.size(), 2U);
  EXPECT_TRUE(host.completions[0].ok) << "a NAK acknowledges what came before";
  EXPECT_EQ(host.completions[1].index, 1);
  EXPECT_EQ(host.completions[1].why.syndrome, GetParam().syndrome);
  EXPECT_EQ(host.completions[1].why.vendor_err, GetParam().vendor);
  EXPECT_EQ(host.completions[1].why.reason, "remote side refused: key 0x1234 has no right [31m to write");
  EXPECT_EQ(qp.state(), IBV_QPS_ERR);
  EXPECT_THAT(sends(), IsEmpty());
}
INSTANTIATE_TEST_SUITE_P(
    Naks, Refused,
    ::testing::Values(Answer{NakCode::InvalidRequest, mlx5::Syndrome::RemoteInvalidRequest, 0x8a},
                      Answer{NakCode::RemoteAccess, mlx5::Syndrome::RemoteAccess, 0x88},
                      Answer{NakCode::RemoteOperation, mlx5::Syndrome::RemoteOperation, 0x89}));

TEST_F(Requesting, AReasonForAnotherPacketIsNotThisOnes) {
  connect();
  host.post(make(Operation::Write, 700), 0);
  sends();
  receive_reason(5, "about the first packet");
  receive_nak(6, NakCode::RemoteAccess);
  ASSERT_EQ(host.completions.size(), 1U);
  EXPECT_THAT(host.completions[0].why.reason, ::testing::HasSubstr("remote access error"));
}

TEST_F(Requesting, ReceiverNotReadyWaitsAsLongAsItSays) {
  connect();
  host.post(make(Operation::Send, 1), 0);
  host.post(make(Operation::Send, 1), 0);
  sends();
  receive_rnr(5, 12);  // 640 µs
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_EQ(qp.deadline(), now + 640us);
  now += 639us;
  qp.expire(now);
  EXPECT_THAT(sends(), IsEmpty());
  now += 1us;
  qp.expire(now);
  EXPECT_THAT(sends(), ElementsAre("SEND Only 5 [1] ack?", "SEND Only 6 [1] ack?"));
}

// A copy that was under way found a receive.
TEST_F(Requesting, ReceiverNotReadyEndsWhenTheReceiverWas) {
  connect();
  host.post(make(Operation::Send, 1), 0);
  sends();
  receive_rnr(5, 12);  // 640 µs
  receive_ack(5);
  EXPECT_EQ(completed().size(), 1U);
  host.post(make(Operation::Send, 1), 0);
  EXPECT_THAT(sends(), ElementsAre("SEND Only 6 [1] ack?"));
}

TEST_F(Requesting, SevenRnrRetriesMeansForEver) {
  connect({.rnr_retry = 7});
  host.post(make(Operation::Send, 1), 0);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sends().size(), 1U);
    receive_rnr(5, 1);
    now += 10us;
  }
  EXPECT_THAT(host.completions, IsEmpty());
}

// A receiver that is not ready for long, on a network that loses a packet now and then: each RNR NAK shows
// that the connection lives, so losses do not add up to retries exceeded.
TEST_F(Requesting, LossesBetweenRnrNaksAreNoRetriesInARow) {
  connect({.retry_count = 2, .rnr_retry = 7});
  host.post(make(Operation::Send, 1), 0);
  host.post(make(Operation::Send, 1), 0);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(sends().size(), 2U);
    receive_nak(5, NakCode::SequenceError);  // the first was lost
    EXPECT_EQ(sends().size(), 2U);
    receive_rnr(5, 1);
    now += 10us;
  }
  EXPECT_THAT(host.completions, IsEmpty());
}

TEST_F(Requesting, RnrRetriesAreCounted) {
  connect({.rnr_retry = 2});
  host.post(make(Operation::Send, 1), 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(host.completions, IsEmpty());
    EXPECT_EQ(sends().size(), 1U);
    receive_rnr(5, 1);
    now += 10us;
  }
  ASSERT_EQ(host.completions.size(), 1U);
  EXPECT_EQ(host.completions[0].why.syndrome, mlx5::Syndrome::RnrRetryExceeded);
  EXPECT_EQ(host.completions[0].why.vendor_err, 0x87);
}

// Nobody answers. What does the time look like?
TEST_F(Requesting, RetriesAreExceededWhenTimeoutAndCountSay) {
  connect({.timeout = 14, .retry_count = 3});
  host.post(make(Operation::Write, 1), 0);
  const wire::TimePoint start = now;
  sends();
  while (host.completions.empty()) {
    ASSERT_LT(qp.deadline(), start + 10s);
    now = std::max(now, qp.deadline());
    qp.expire(now);
    sends();
  }
  EXPECT_EQ(host.completions[0].why.syndrome, mlx5::Syndrome::TransportRetryExceeded);
  EXPECT_EQ(host.completions[0].why.vendor_err, 0x81);
  EXPECT_THAT(host.completions[0].why.reason, ::testing::HasSubstr("127.71.0.2"));
  EXPECT_EQ(now - start, 4 * ack_timeout(14));
  EXPECT_EQ(qp.counters().local_ack_timeout_err, 4U);
}

TEST_F(Requesting, WithoutATimeoutItNeverGivesUp) {
  connect({.timeout = 0, .retry_count = 0});
  host.post(make(Operation::Write, 1), 0);
  const wire::TimePoint start = now;
  sends();
  while (now < start + 1h) {
    now = qp.deadline();
    qp.expire(now);
  }
  EXPECT_THAT(host.completions, IsEmpty());
  EXPECT_LT(link.sent.size(), 10000U) << "it probes, but seldom";
  receive_ack(5);
  EXPECT_THAT(completed(), ElementsAre(0));
}

TEST_F(Requesting, ProgressRestartsTheTimerAndTheRetries) {
  connect({.timeout = 14, .retry_count = 1});
  host.post(make(Operation::Write, 256 * 4), 0);
  sends();
  for (std::uint32_t psn = 5; psn < 8; ++psn) {
    now += ack_timeout(14);
    qp.expire(now);  // the only retry
    sends();
    receive_ack(psn);
  }
  EXPECT_THAT(host.completions, IsEmpty());
  receive_ack(8);
  EXPECT_THAT(completed(), ElementsAre(0));
}

TEST_F(Requesting, ALostTailIsProbedLongBeforeTheTimeout) {
  connect();
  host.post(make(Operation::Write, 256 * 2), 0);
  sends();
  EXPECT_EQ(qp.deadline(), now + kFirstProbe);
  now += kFirstProbe;
  qp.expire(now);
  EXPECT_THAT(sends(), ElementsAre("RDMA WRITE Last 6 [256] ack?"));
  EXPECT_EQ(qp.deadline(), now + 2 * kFirstProbe);
  // The responder lacks the first packet, and says so.
  receive_nak(5, NakCode::SequenceError);
  EXPECT_EQ(sends().size(), 2U);
  EXPECT_EQ(qp.counters().local_ack_timeout_err, 0U);
}

TEST_F(Requesting, ALostReadResponseIsProbedFromWhereItStopped) {
  connect();
  host.post(make(Operation::Read, 256 * 3), 0);
  sends();
  receive(Opcode::ReadResponseFirst, 5, 256);
  now += kFirstProbe;
  qp.expire(now);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 6 for 512"));
}

// Found by the storm: the write behind the read was acknowledged again and again, and the read never asked
// for.
TEST_F(Requesting, AReadThatEverythingWaitsForIsWhatIsProbed) {
  connect();
  host.post(make(Operation::Read, 8), 0);
  host.post(make(Operation::Write, 1), 0);
  sends();
  receive_ack(6);
  sends();
  now += kFirstProbe;
  qp.expire(now);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 8"));
}

TEST_F(Requesting, UnreadableMemoryFailsThatRequestAfterThoseBeforeIt) {
  connect();
  host.local_end = 1000;
  host.post(make(Operation::Write, 10), 0);
  host.post(make(Operation::Write, 1024), 0);  // its last packet cannot be gathered
  host.post(make(Operation::Write, 10), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA WRITE Only 5 [10] ack?", "RDMA WRITE First 6 [256]",
                                   "RDMA WRITE Middle 7 [256]", "RDMA WRITE Middle 8 [256]"));
  EXPECT_THAT(host.completions, IsEmpty());
  receive_ack(5);
  sends();
  ASSERT_EQ(host.completions.size(), 2U);
  EXPECT_TRUE(host.completions[0].ok);
  EXPECT_EQ(host.completions[1].index, 1);
  EXPECT_EQ(host.completions[1].why.syndrome, mlx5::Syndrome::LocalProtection);
  EXPECT_EQ(host.completions[1].why.vendor_err, 0x51);
}

TEST_F(Requesting, UnwritableMemoryFailsTheRead) {
  connect();
  host.local_end = 100;
  host.post(make(Operation::Read, 256), 0);
  sends();
  receive(Opcode::ReadResponseOnly, 5, 256);
  ASSERT_EQ(host.completions.size(), 1U);
  EXPECT_EQ(host.completions[0].why.syndrome, mlx5::Syndrome::LocalProtection);
}

TEST_F(Requesting, ALinkWithoutRoomIsALossyLink) {
  connect();
  host.post(make(Operation::Write, 10), 0);
  link.full = true;
  EXPECT_THAT(sends(), IsEmpty());
  link.full = false;
  now += kFirstProbe;
  qp.expire(now);
  EXPECT_THAT(sends(), ElementsAre("RDMA WRITE Only 5 [10] ack?"));
}

TEST_F(Requesting, PacketsFromElsewhereAreDropped) {
  connect();
  host.post(make(Operation::Write, 10), 0);
  sends();
  receive(Opcode::Acknowledge, 5, 0, {.aeth = {Aeth::kAck, 0}, .from = endpoint(9)});
  EXPECT_THAT(host.completions, IsEmpty());
}

TEST_F(Requesting, DrainingFinishesWhatWasBegunAndSaysSo) {
  connect();
  host.post(make(Operation::Write, 10), 0);
  sends();
  host.post(make(Operation::Write, 10), 0);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  a.en_sqd_async_notify = 1;
  qp.modify(a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY, now);
  qp.query(a);
  EXPECT_EQ(a.sq_draining, 1);
  EXPECT_THAT(sends(), IsEmpty()) << "nothing new is begun";
  EXPECT_THAT(host.events, IsEmpty());
  receive_ack(5);
  EXPECT_THAT(host.events, ElementsAre(IBV_EVENT_SQ_DRAINED));
  qp.query(a);
  EXPECT_EQ(a.sq_draining, 0);
  // Back to RTS: on with the next.
  a.qp_state = IBV_QPS_RTS;
  qp.modify(a, IBV_QP_STATE, now);
  EXPECT_THAT(sends(), ElementsAre("RDMA WRITE Only 6 [10] ack?"));
}

TEST_F(Requesting, AFullQueueThatDrainsHasNothingElseToDo) {
  connect();
  for (std::size_t i = 0; i < 2 * kMaxOutstandingRequests; ++i) host.post(make(Operation::Write, 1), 0);
  EXPECT_EQ(sends().size(), kMaxOutstandingRequests);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  qp.modify(a, IBV_QP_STATE, now);
  receive_ack(5);
  EXPECT_FALSE(qp.has_work(now)) << "what was not begun waits for RTS";
  EXPECT_GT(qp.deadline(), now);
  a.qp_state = IBV_QPS_RTS;
  qp.modify(a, IBV_QP_STATE, now);
  EXPECT_EQ(sends().size(), 1U);
}

TEST_F(Requesting, ThatAQueueHasDrainedIsSaidThoughItWasModifiedMeanwhile) {
  connect();
  host.post(make(Operation::Write, 10), 0);
  sends();
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  a.en_sqd_async_notify = 1;
  qp.modify(a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY, now);
  a.en_sqd_async_notify = 0;
  a.timeout = 15;
  qp.modify(a, IBV_QP_STATE | IBV_QP_TIMEOUT, now);
  receive_ack(5);
  EXPECT_THAT(host.events, ElementsAre(IBV_EVENT_SQ_DRAINED));
}

TEST_F(Requesting, AnIdleQueueDrainsAtOnce) {
  connect();
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  a.en_sqd_async_notify = 1;
  qp.modify(a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY, now);
  EXPECT_THAT(host.events, ElementsAre(IBV_EVENT_SQ_DRAINED));
}

TEST_F(Requesting, ErrorStopsEverythingAndCompletesNothing) {
  connect();
  host.post(make(Operation::Write, 1000), 0);
  sends(2);
  qp.set_state(IBV_QPS_ERR);
  EXPECT_THAT(sends(), IsEmpty());
  receive_ack(5);
  EXPECT_THAT(host.completions, IsEmpty());
  EXPECT_EQ(qp.deadline(), wire::TimePoint::max());
}

TEST_F(Requesting, ResetMakesItConnectableAgain) {
  connect();
  host.post(make(Operation::Write, 1000), 0);
  sends(2);
  qp.set_state(IBV_QPS_ERR);
  qp.set_state(IBV_QPS_RESET);
  connect({.first_psn = 77});
  host.post(make(Operation::Write, 1), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA WRITE Only 77 [1] ack?"));
  receive_ack(77);
  EXPECT_EQ(host.completions.size(), 1U);
  ibv_qp_attr a{};
  qp.query(a);
  EXPECT_EQ(a.sq_psn, 78U);
}

TEST_F(Requesting, AHostThatEndsTheConnectionInACompletionIsObeyed) {
  connect();
  for (int i = 0; i < 3; ++i) host.post(make(Operation::Write, 1), 0);
  sends();
  host.on_send_done = [this] { qp.set_state(IBV_QPS_ERR); };  // the completion queue overran
  receive_ack(7);
  EXPECT_EQ(host.completions.size(), 1U);
}

TEST_F(Requesting, AGibibyteNeedsNoMoreThanItsWindow) {
  // The most a ConnectX sends at once, at the smallest path MTU: 2^22 packets. No data is looked at: zero
  // budget.
  connect({.mtu = 256, .max_reads = 16});
  host.post(make(Operation::Read, 1ULL << 30), 0);
  host.post(make(Operation::Read, 1ULL << 30), 0);
  EXPECT_THAT(sends(), ElementsAre("RDMA READ Request 5 for 16384", "RDMA READ Request 69 for 16384",
                                   "RDMA READ Request 133 for 16384", "RDMA READ Request 197 for 16384"));
}

}  // namespace
}  // namespace qpair::softnic::roce::test
