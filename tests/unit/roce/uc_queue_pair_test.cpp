// Unreliable connections, step by step.

#include "softnic/roce/uc_queue_pair.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/roce/support.hpp"

namespace qpair::softnic::roce::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint32_t kOwnQpn = 0x11, kPeerQpn = 0x22;

class Unreliable : public ::testing::Test {
 protected:
  void SetUp() override {
    host.queue_pair = &qp;
    host.after_failed_send = IBV_QPS_SQE;
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    qp.modify(a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, now);
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_256;
    a.dest_qp_num = kPeerQpn;
    a.rq_psn = 5;
    std::memcpy(a.ah_attr.grh.dgid.raw, endpoint(2).address.data(), 16);
    qp.modify(a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, now);
  }
  void to_rts() {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTS;
    a.sq_psn = 100;
    qp.modify(a, IBV_QP_STATE | IBV_QP_SQ_PSN, now);
  }
  std::vector<std::string> sends(unsigned budget = 1000) {
    more = qp.transmit(budget, now);
    std::vector<std::string> all;
    for (; !link.sent.empty(); link.sent.pop_front()) {
      last_sent = link.sent.front();
      all.push_back(describe(last_sent));
    }
    return all;
  }
  struct Extra {
    Reth reth{};
    std::uint32_t immediate = 0;
    std::uint64_t seed_offset = 0;
    wire::Endpoint from = endpoint(2);
  };
  void receive(Opcode opcode, std::uint32_t psn, std::size_t size, const Extra& extra) {
    std::vector<std::byte> bytes(PacketWriter::size(opcode, size));
    PacketHeader header;
    header.opcode = opcode;
    header.psn = Psn(psn);
    header.destination_qpn = kOwnQpn;
    PacketWriter writer(bytes, header, size);
    writer.set_reth(extra.reth);
    writer.set_immediate(extra.immediate);
    for (std::size_t i = 0; i < size; ++i) writer.payload()[i] = pattern(1, extra.seed_offset + i);
    qp.receive(*Packet::parse(bytes), extra.from, now);
  }
  void receive(Opcode opcode, std::uint32_t psn, std::size_t size) { receive(opcode, psn, size, Extra()); }

  wire::TimePoint now{};
  FakeHost host{1 << 16};
  HandLink link{endpoint(1)};
  UcQueuePair qp{kOwnQpn, host, link};
  std::vector<std::byte> last_sent;
  bool more = false;
};

TEST_F(Unreliable, AMessageIsCutAndCompleteWhenItsLastPacketHasLeft) {
  to_rts();
  host.post(make(Operation::SendImm, 600), 0);
  EXPECT_THAT(sends(2), ElementsAre("UC SEND First 100 [256]", "UC SEND Middle 101 [256]"));
  EXPECT_TRUE(more);
  EXPECT_TRUE(qp.has_work(now));
  EXPECT_THAT(host.completions, IsEmpty());
  EXPECT_THAT(sends(), ElementsAre("UC SEND Last with Immediate 102 [88]"));
  EXPECT_EQ(host.completions.size(), 1U);
  EXPECT_FALSE(qp.has_work(now));
  EXPECT_EQ(qp.deadline(), TimePoint::max()) << "no answer is awaited";
}

TEST_F(Unreliable, WritesCarryTheirAddressInTheFirstPacket) {
  to_rts();
  host.post(make(Operation::Write, 300, 1000), 0);
  host.post(make(Operation::WriteImm, 0, 0), 0);
  EXPECT_THAT(sends(), ElementsAre("UC RDMA WRITE First 100 [256]", "UC RDMA WRITE Last 101 [44]",
                                   "UC RDMA WRITE Only with Immediate 102 [0]"));
  EXPECT_EQ(host.completions.size(), 2U);
}

TEST_F(Unreliable, MemoryThatCannotBeReadStopsTheSendQueueAlone) {
  to_rts();
  host.local_end = 300;
  host.post(make(Operation::Send, 600), 0);
  host.post(make(Operation::Send, 4), 0);
  EXPECT_THAT(sends(), ElementsAre("UC SEND First 100 [256]"));
  ASSERT_EQ(host.completions.size(), 1U);
  EXPECT_EQ(host.completions[0].why.syndrome, mlx5::Syndrome::LocalProtection);
  EXPECT_EQ(qp.state(), IBV_QPS_SQE);
  host.post_receive(1000, 100);
  receive(Opcode::UcSendOnly, 5, 10);
  EXPECT_EQ(host.receipts.size(), 1U);
}

TEST_F(Unreliable, ADrainingSendQueueFinishesTheMessageInProgress) {
  to_rts();
  host.post(make(Operation::Send, 600), 0);
  host.post(make(Operation::Send, 4), 0);
  sends(1);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  a.en_sqd_async_notify = 1;
  qp.modify(a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY, now);
  qp.query(a);
  EXPECT_EQ(a.sq_draining, 1);
  EXPECT_THAT(host.events, IsEmpty());
  EXPECT_THAT(sends(), ElementsAre("UC SEND Middle 101 [256]", "UC SEND Last 102 [88]"));
  EXPECT_THAT(host.events, ElementsAre(IBV_EVENT_SQ_DRAINED));
  qp.query(a);
  EXPECT_EQ(a.sq_draining, 0);
  EXPECT_EQ(host.sends_left(), 1U);
}

TEST_F(Unreliable, AMessageStopsWhereTheLinkHasNoRoomAndGoesOnWhenItHas) {
  to_rts();
  host.post(make(Operation::Send, 600), 0);
  link.room = 2;
  link.deadline_ = now + std::chrono::milliseconds(10);
  EXPECT_THAT(sends(), ElementsAre("UC SEND First 100 [256]", "UC SEND Middle 101 [256]"));
  EXPECT_FALSE(more) << "it is not to be asked again at once";
  link.room = 0;
  EXPECT_TRUE(qp.waits_for_room());
  EXPECT_FALSE(qp.has_work(now));
  EXPECT_EQ(qp.deadline(), TimePoint::max()) << "expire() could do nothing about it";
  qp.expire(now);
  EXPECT_THAT(sends(), IsEmpty());
  link.room = 1;
  EXPECT_FALSE(qp.waits_for_room());
  EXPECT_TRUE(qp.has_work(now));
  EXPECT_THAT(sends(), ElementsAre("UC SEND Last 102 [88]"));
  EXPECT_EQ(qp.deadline(), TimePoint::max());
  EXPECT_EQ(host.completions.size(), 1U);
}

TEST_F(Unreliable, AnErrorEndsTheWaitForRoom) {
  to_rts();
  host.post(make(Operation::Send, 600), 0);
  link.room = 0;
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_TRUE(qp.waits_for_room());
  qp.set_state(IBV_QPS_ERR);
  EXPECT_FALSE(qp.waits_for_room());
}

TEST_F(Unreliable, TheFirstPacketInRtrIsAnEvent) {
  host.post_receive(0, 100);
  receive(Opcode::UcSendOnly, 5, 10);
  EXPECT_THAT(host.events, ElementsAre(IBV_EVENT_COMM_EST));
}

TEST_F(Unreliable, AMessageInOrderIsReceived) {
  host.post_receive(0, 1000);
  receive(Opcode::UcSendFirst, 5, 256);
  receive(Opcode::UcSendMiddle, 6, 256, {.seed_offset = 256});
  receive(Opcode::UcSendLastImm, 7, 88, {.immediate = 0x77, .seed_offset = 512});
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_EQ(host.receipts[0].what.byte_count, 600U);
  EXPECT_EQ(host.receipts[0].what.immediate, 0x77U);
  EXPECT_EQ(host.receipts[0].what.source_qpn, kPeerQpn);
  EXPECT_TRUE(host.holds(0, 600, 1));
  EXPECT_THAT(sends(), IsEmpty()) << "nothing is acknowledged";
}

TEST_F(Unreliable, AMessageWithAMissingPacketIsDroppedAndItsReceiveTakenForTheNext) {
  host.post_receive(0, 1000);
  receive(Opcode::UcSendFirst, 5, 256);
  // 6 is lost.
  receive(Opcode::UcSendMiddle, 7, 256);
  receive(Opcode::UcSendLast, 8, 88);
  EXPECT_THAT(host.receipts, IsEmpty());
  receive(Opcode::UcSendOnly, 9, 10);
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_EQ(host.receipts[0].index, 0);
  EXPECT_EQ(host.receipts[0].what.byte_count, 10U);
  EXPECT_EQ(qp.counters().out_of_sequence, 1U);
}

TEST_F(Unreliable, AMessageWhoseLastPacketIsMissingIsDropped) {
  host.post_receive(0, 1000);
  receive(Opcode::UcSendFirst, 5, 256);
  receive(Opcode::UcSendOnly, 7, 10);
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_EQ(host.receipts[0].what.byte_count, 10U);
}

TEST_F(Unreliable, AWriteWithAMissingPacketWritesNoMore) {
  receive(Opcode::UcWriteFirst, 5, 256, {.reth = {kBase, kKey, 600}});
  receive(Opcode::UcWriteLast, 7, 88, {.seed_offset = 512});
  EXPECT_TRUE(host.holds(0, 256, 1));
  EXPECT_FALSE(host.holds(256, 88, 1));
  receive(Opcode::UcWriteOnlyImm, 8, 8, {.reth = {kBase + 1000, kKey, 8}, .immediate = 1});
  EXPECT_THAT(host.receipts, IsEmpty()) << "no receive for the immediate";
  host.post_receive(0, 0);
  receive(Opcode::UcWriteOnlyImm, 9, 8, {.reth = {kBase + 2000, kKey, 8}, .immediate = 2});
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_EQ(host.receipts[0].what.opcode, mlx5::CqeOpcode::ResponderWriteImm);
  EXPECT_EQ(host.receipts[0].what.byte_count, 8U);
  EXPECT_TRUE(host.holds(2000, 8, 1));
}

TEST_F(Unreliable, WithoutAReceiveAMessageIsLostWhole) {
  receive(Opcode::UcSendFirst, 5, 256);
  host.post_receive(0, 1000);
  receive(Opcode::UcSendLast, 6, 88);
  EXPECT_THAT(host.receipts, IsEmpty());
  EXPECT_THAT(host.losses, ElementsAre(HasSubstr("no receive is posted")));
  receive(Opcode::UcSendOnly, 7, 10);
  EXPECT_EQ(host.receipts.size(), 1U);
}

TEST_F(Unreliable, AMessageTooLongForItsReceiveIsLost) {
  host.post_receive(0, 300);
  receive(Opcode::UcSendFirst, 5, 256);
  receive(Opcode::UcSendLast, 6, 88);
  EXPECT_THAT(host.receipts, IsEmpty());
  EXPECT_THAT(host.losses, ElementsAre(HasSubstr("344 bytes")));
  EXPECT_EQ(qp.state(), IBV_QPS_RTR);
  receive(Opcode::UcSendOnly, 7, 10);
  EXPECT_EQ(host.receipts.size(), 1U);
}

TEST_F(Unreliable, AWriteThatIsNotAllowedIsLostAndSaid) {
  receive(Opcode::UcWriteOnly, 5, 8, {.reth = {kBase, kKey + 1, 8}});
  EXPECT_THAT(host.losses, ElementsAre(HasSubstr("no key")));
  EXPECT_EQ(qp.state(), IBV_QPS_RTR);
  receive(Opcode::UcWriteOnly, 6, 8, {.reth = {kBase, kKey, 16}});
  EXPECT_FALSE(host.holds(0, 8, 1)) << "shorter than announced";
  receive(Opcode::UcWriteOnly, 7, 8, {.reth = {kBase, kKey, 8}});
  EXPECT_TRUE(host.holds(0, 8, 1));
}

TEST_F(Unreliable, ReceiveMemoryThatCannotBeWrittenFailsTheReceive) {
  host.local_end = 4;
  host.post_receive(0, 100);
  receive(Opcode::UcSendOnly, 5, 10);
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_FALSE(host.receipts[0].ok);
  EXPECT_EQ(qp.state(), IBV_QPS_ERR);
}

TEST_F(Unreliable, PacketsOfStrangersAndOfOtherServicesAreIgnored) {
  host.post_receive(0, 100);
  receive(Opcode::UcSendOnly, 5, 10, {.from = endpoint(3)});
  receive(Opcode::SendOnly, 5, 10);
  receive(Opcode::UdSendOnly, 5, 10);
  EXPECT_THAT(host.receipts, IsEmpty());
}

TEST_F(Narrated, AReliableConnectionIgnoresPacketsOfUnreliableServices) {
  connect();
  host.post_receive(0, 100);
  receive(Opcode::UcSendOnly, 5, 10);
  receive(Opcode::UdSendOnly, 5, 10);
  EXPECT_THAT(host.receipts, IsEmpty());
  EXPECT_THAT(sends(), IsEmpty());
}

}  // namespace
}  // namespace qpair::softnic::roce::test
