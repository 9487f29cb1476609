// Datagrams, step by step: what leaves, what is taken, and what is lost without a word.

#include "softnic/roce/ud_queue_pair.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>

#include "softnic/roce/grh.hpp"
#include "tests/unit/roce/support.hpp"

namespace qpair::softnic::roce::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint32_t kOwnQpn = 0x11, kPeerQpn = 0x22, kQkey = 0x1111'1111;
constexpr std::uint32_t kMtu = 1024;

class Datagrams : public ::testing::Test {
 protected:
  void SetUp() override {
    host.queue_pair = &qp;
    host.after_failed_send = IBV_QPS_SQE;
  }
  void to_rtr() {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.qkey = kQkey;
    qp.modify(a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, now);
    a.qp_state = IBV_QPS_RTR;
    qp.modify(a, IBV_QP_STATE, now);
  }
  void to_rts() {
    to_rtr();
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTS;
    a.sq_psn = 0xff'ffff;
    qp.modify(a, IBV_QP_STATE | IBV_QP_SQ_PSN, now);
  }
  std::uint16_t post(Operation operation, std::uint64_t length, std::uint8_t to = 2,
                     std::uint32_t qkey = kQkey) {
    SendRequest request;
    request.operation = operation;
    request.length = length;
    request.immediate = 0xabcd;
    const std::uint16_t index = host.post(request, 0);
    AddressVector vector;
    vector.destination = endpoint(to);
    vector.remote_qpn = kPeerQpn + to;
    vector.qkey = qkey;
    host.addresses[index] = vector;
    return index;
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
  Packet sent() { return *Packet::parse(last_sent); }
  struct Arrival {
    Opcode opcode = Opcode::UdSendOnly;
    std::uint32_t qkey = kQkey;
    std::uint32_t immediate = 0;
    bool solicited = false;
  };
  std::vector<std::byte> datagram(std::size_t size, const Arrival& arrival) {
    std::vector<std::byte> bytes(PacketWriter::size(arrival.opcode, size));
    PacketHeader header;
    header.opcode = arrival.opcode;
    header.solicited = arrival.solicited;
    header.destination_qpn = kOwnQpn;
    PacketWriter writer(bytes, header, size);
    writer.set_deth({arrival.qkey, kPeerQpn});
    writer.set_immediate(arrival.immediate);
    for (std::size_t i = 0; i < size; ++i) writer.payload()[i] = pattern(1, i);
    return bytes;
  }
  void receive(std::size_t size, const Arrival& arrival = {Opcode::UdSendOnly, kQkey, 0, false}) {
    auto bytes = datagram(size, arrival);
    qp.receive(*Packet::parse(bytes), endpoint(2), now);
  }

  wire::TimePoint now{};
  FakeHost host{1 << 16};
  HandLink link{endpoint(1)};
  UdQueuePair qp{kOwnQpn, host, link, kMtu};
  std::vector<std::byte> last_sent;
  bool more = false;
};

TEST_F(Datagrams, ABudgetOfNothingSendsNothing) {
  to_rts();
  post(Operation::Send, 100, 2);
  EXPECT_TRUE(sends(0).empty());
  EXPECT_TRUE(more);
  EXPECT_EQ(sends().size(), 1U);
}

TEST_F(Datagrams, EachGoesWhereItsRequestSaysAndIsCompleteAtOnce) {
  to_rts();
  host.fill(0, 100, 7);
  const auto first = post(Operation::Send, 100, 2);
  const auto second = post(Operation::SendImm, 0, 3);
  EXPECT_THAT(sends(1), ElementsAre("UD SEND Only 16777215 [100]"));
  EXPECT_TRUE(more);
  EXPECT_EQ(sent().deth().source_qpn, kOwnQpn);
  EXPECT_EQ(sent().deth().qkey, kQkey);
  EXPECT_EQ(sent().destination_qpn(), kPeerQpn + 2);
  EXPECT_EQ(sent().payload()[99], pattern(7, 99));
  EXPECT_THAT(sends(), ElementsAre("UD SEND Only with Immediate 0 [0]"));
  EXPECT_FALSE(more);
  EXPECT_EQ(sent().destination_qpn(), kPeerQpn + 3);
  EXPECT_EQ(sent().immediate(), 0xabcdU);
  EXPECT_THAT(link.destinations, ElementsAre(endpoint(2), endpoint(3)));
  ASSERT_EQ(host.completions.size(), 2U);
  EXPECT_EQ(host.completions[0].index, first);
  EXPECT_EQ(host.completions[1].index, second);
  EXPECT_EQ(qp.deadline(), TimePoint::max()) << "no answer is awaited";
}

TEST_F(Datagrams, AControlledQkeyInTheRequestMeansTheQueuePairsOwn) {
  to_rts();
  post(Operation::Send, 4, 2, 0x8001'0000);
  sends();
  EXPECT_EQ(sent().deth().qkey, kQkey);
}

TEST_F(Datagrams, OneLongerThanTheMtuIsALocalLengthErrorAndStopsTheSendQueueAlone) {
  to_rts();
  post(Operation::Send, kMtu + 1);
  post(Operation::Send, 4);
  EXPECT_THAT(sends(), IsEmpty());
  ASSERT_EQ(host.completions.size(), 1U);
  EXPECT_EQ(host.completions[0].why.syndrome, mlx5::Syndrome::LocalLength);
  EXPECT_THAT(host.completions[0].why.reason, HasSubstr("1025 bytes"));
  EXPECT_EQ(qp.state(), IBV_QPS_SQE);

  host.post_receive(1000, 100);
  receive(10);
  EXPECT_EQ(host.receipts.size(), 1U) << "in SQE it still receives";

  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTS;
  qp.modify(a, IBV_QP_STATE, now);
  EXPECT_THAT(sends(), ElementsAre("UD SEND Only 16777215 [4]"));
}

TEST_F(Datagrams, MemoryThatCannotBeReadFailsTheRequest) {
  to_rts();
  host.local_end = 10;
  post(Operation::Send, 11);
  EXPECT_THAT(sends(), IsEmpty());
  ASSERT_EQ(host.completions.size(), 1U);
  EXPECT_EQ(host.completions[0].why.syndrome, mlx5::Syndrome::LocalProtection);
}

TEST_F(Datagrams, OneIsDeliveredBehindItsNetworkHeader) {
  to_rtr();
  host.post_receive(1000, 140);
  receive(100, {Opcode::UdSendOnlyImm, kQkey, 0x1234, true});
  ASSERT_EQ(host.receipts.size(), 1U);
  const Received& what = host.receipts[0].what;
  EXPECT_EQ(what.byte_count, 140U);
  EXPECT_EQ(what.source_qpn, kPeerQpn);
  EXPECT_EQ(what.immediate, 0x1234U);
  EXPECT_EQ(what.opcode, mlx5::CqeOpcode::ResponderSendImm);
  EXPECT_TRUE(what.solicited);
  EXPECT_EQ(what.grh, Received::Grh::Ipv4);
  EXPECT_TRUE(host.holds(1040, 100, 1));

  iphdr ip;
  std::memcpy(&ip, &host.memory[1020], sizeof ip);
  EXPECT_EQ(ip.version, 4U);
  EXPECT_EQ(ip.protocol, 17U);
  EXPECT_EQ(std::memcmp(&ip.saddr, endpoint(2).address.data() + 12, 4), 0);
  EXPECT_EQ(std::memcmp(&ip.daddr, endpoint(1).address.data() + 12, 4), 0);
  EXPECT_EQ(ntohs(ip.tot_len), 20 + 8 + PacketWriter::size(Opcode::UdSendOnlyImm, 100));
}

TEST_F(Datagrams, WithoutAReceiveOneIsLostAndThatIsSaidOnce) {
  to_rtr();
  receive(10);
  receive(10);
  EXPECT_THAT(host.receipts, IsEmpty());
  EXPECT_THAT(host.losses, ElementsAre(HasSubstr("no receive is posted")));
  EXPECT_EQ(qp.counters().out_of_buffer, 2U);
  host.post_receive(0, 100);
  receive(10);
  EXPECT_EQ(host.receipts.size(), 1U);
  EXPECT_THAT(link.sent, IsEmpty()) << "nothing is answered";
}

TEST_F(Datagrams, AnotherQkeyIsDropped) {
  to_rtr();
  host.post_receive(0, 100);
  receive(10, {Opcode::UdSendOnly, kQkey + 1, 0, false});
  EXPECT_THAT(host.receipts, IsEmpty());
  EXPECT_EQ(host.receives_left(), 1U);
  EXPECT_THAT(host.losses, ElementsAre(HasSubstr("0x11111112")));
}

TEST_F(Datagrams, AReceiveWithoutRoomForTheHeaderFails) {
  to_rtr();
  host.post_receive(0, 49);
  receive(10);
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_EQ(host.receipts[0].why.syndrome, mlx5::Syndrome::LocalLength);
  EXPECT_THAT(host.receipts[0].why.reason, HasSubstr("40 bytes of its GRH"));
  EXPECT_EQ(qp.state(), IBV_QPS_ERR);
}

TEST_F(Datagrams, PacketsOfOtherServicesAndOfOtherStatesAreIgnored) {
  host.post_receive(0, 100);
  receive(10);  // in RESET
  to_rtr();
  receive(10, {Opcode::SendOnly, kQkey, 0, false});
  receive(10, {Opcode::UcSendOnly, kQkey, 0, false});
  qp.set_state(IBV_QPS_ERR);
  receive(10);
  EXPECT_THAT(host.receipts, IsEmpty());
}

TEST_F(Datagrams, OneToAGroupShowsTheGroup) {
  to_rtr();
  host.post_receive(0, 100);
  wire::Endpoint group = endpoint(0);
  group.address[12] = 239;
  auto bytes = datagram(8, {});
  qp.receive_multicast(*Packet::parse(bytes), endpoint(2), group);
  ASSERT_EQ(host.receipts.size(), 1U);
  EXPECT_EQ(host.memory[20 + 16], std::byte{239});
}

TEST_F(Datagrams, ADrainingSendQueueIsDrainedAtOnce) {
  to_rts();
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  a.en_sqd_async_notify = 1;
  qp.modify(a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY, now);
  EXPECT_THAT(host.events, ElementsAre(IBV_EVENT_SQ_DRAINED));
  post(Operation::Send, 4);
  EXPECT_THAT(sends(), IsEmpty());
}

TEST_F(Datagrams, OneWaitsUntilTheLinkHasRoomForIt) {
  to_rts();
  post(Operation::Send, 10);
  post(Operation::Send, 20, 3);
  post(Operation::Send, 30);
  link.congested = endpoint(3);
  link.deadline_ = now + std::chrono::milliseconds(10);
  EXPECT_EQ(sends().size(), 1U);
  EXPECT_FALSE(more) << "it is not to be asked again at once";
  EXPECT_TRUE(qp.waits_for_room());
  EXPECT_FALSE(qp.has_work(now));
  EXPECT_EQ(qp.deadline(), TimePoint::max()) << "expire() could do nothing about it";
  EXPECT_EQ(host.completions.size(), 1U);
  link.congested = {};
  EXPECT_FALSE(qp.waits_for_room());
  EXPECT_TRUE(qp.has_work(now));
  qp.expire(now);
  EXPECT_EQ(sends().size(), 2U);
  EXPECT_EQ(host.completions.size(), 3U);
  EXPECT_EQ(qp.deadline(), TimePoint::max());
}

TEST_F(Datagrams, ADrainingSendQueueSendsTheOneThatWaitsAndNoOther) {
  to_rts();
  post(Operation::Send, 10);
  post(Operation::Send, 20);
  link.room = 0;
  EXPECT_THAT(sends(), IsEmpty());
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  a.en_sqd_async_notify = 1;
  qp.modify(a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY, now);
  qp.query(a);
  EXPECT_EQ(a.sq_draining, 1);
  EXPECT_THAT(host.events, IsEmpty());
  link.room = 10;
  EXPECT_EQ(sends().size(), 1U);
  EXPECT_THAT(host.events, ElementsAre(IBV_EVENT_SQ_DRAINED));
  EXPECT_EQ(host.sends_left(), 1U);
}

TEST_F(Datagrams, AnErrorEndsTheWaitForRoom) {
  to_rts();
  post(Operation::Send, 10);
  link.room = 0;
  EXPECT_THAT(sends(), IsEmpty());
  EXPECT_TRUE(qp.waits_for_room());
  qp.set_state(IBV_QPS_ERR);
  EXPECT_FALSE(qp.waits_for_room());
  EXPECT_EQ(qp.deadline(), TimePoint::max());
}

TEST(Grh, OfIpv6IsTheHeaderItself) {
  wire::Endpoint a = endpoint(1), b = endpoint(2);
  a.address = {0xfd, 1};
  b.address = {0xfd, 2};
  const Grh grh = make_grh(a, b, 64);
  ip6_hdr ip;
  std::memcpy(&ip, grh.data(), sizeof ip);
  EXPECT_EQ(ip.ip6_vfc, 0x60);
  EXPECT_EQ(ntohs(ip.ip6_plen), 72);
  EXPECT_EQ(ip.ip6_nxt, 17);
  EXPECT_EQ(std::memcmp(&ip.ip6_src, a.address.data(), 16), 0);
  EXPECT_EQ(std::memcmp(&ip.ip6_dst, b.address.data(), 16), 0);
  EXPECT_EQ(grh_kind(a, b), Received::Grh::Ipv6);
}

// get_grh_header_version() in libibverbs/verbs.c believes an IPv4 header when its checksum is right.
TEST(Grh, OfIpv4HasARightChecksum) {
  const Grh grh = make_grh(endpoint(1), endpoint(2), 64);
  std::uint32_t sum = 0;
  for (std::size_t i = 20; i < 40; i += 2) {
    sum += (std::to_integer<std::uint32_t>(grh[i]) << 8) | std::to_integer<std::uint32_t>(grh[i + 1]);
  }
  EXPECT_EQ((sum & 0xffff) + (sum >> 16), 0xffffU);
}

}  // namespace
}  // namespace qpair::softnic::roce::test
