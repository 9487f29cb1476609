// Dynamic connections: initiators that go from target to target, and targets that serve many initiators.

#include <functional>
#include <memory>

#include "softnic/roce/dc_initiator.hpp"
#include "softnic/roce/dc_target.hpp"
#include "tests/unit/roce/support.hpp"

namespace qpair::softnic::roce::test {
namespace {

constexpr std::uint64_t kAccessKey = 0xdc00'0000'0000'0001;

struct Side {
  Side(std::uint8_t address, std::uint32_t number) : link(endpoint(address)), qpn(number) {}

  FakeHost host{1U << 16};
  HandLink link;
  std::uint32_t qpn;
  std::unique_ptr<Transport> transport;
};

class Dynamic : public testing::Test {
 protected:
  Dynamic() {
    for (Side* const side : {&red, &blue}) make_initiator(*side);
    for (Side* const side : {&north, &south}) {
      side->transport = std::make_unique<DcTarget>(side->qpn, side->host, side->link, kAccessKey);
      ibv_qp_attr a{};
      a.qp_state = IBV_QPS_RTR;
      a.path_mtu = IBV_MTU_256;
      a.min_rnr_timer = 12;
      side->transport->modify(a, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV, now);
    }
  }

  void make_initiator(Side& side) {
    side.transport = std::make_unique<DcInitiator>(side.qpn, side.host, side.link);
    side.host.queue_pair = side.transport.get();
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_256;
    side.transport->modify(a, IBV_QP_STATE | IBV_QP_PATH_MTU, now);
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 14;
    a.retry_cnt = 7;
    a.rnr_retry = 7;
    a.max_rd_atomic = 4;
    a.sq_psn = 0xff'fffe;  // wraps soon
    side.transport->modify(a,
                           IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                               IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
                           now);
  }

  std::uint16_t post(Side& from, const Side& to, SendRequest request, std::uint64_t local,
                     std::uint64_t key = kAccessKey) {
    const std::uint16_t index = from.host.post(request, local);
    AddressVector vector;
    vector.destination = to.link.local();
    vector.remote_qpn = to.qpn;
    vector.dc_key = key;
    from.host.addresses[index] = vector;
    return index;
  }

  // Takes what `from` has sent to where it is for. `loses` says which packets the network loses.
  bool carry(Side& from, const std::function<bool(const Packet&)>& loses) {
    bool any = false;
    while (!from.link.sent.empty()) {
      any = true;
      std::vector<std::byte> bytes = std::move(from.link.sent.front());
      from.link.sent.pop_front();
      const auto packet = Packet::parse(bytes);
      if (!packet || loses(*packet)) continue;
      for (Side* const side : sides) {
        if (side->qpn == packet->destination_qpn()) side->transport->receive(*packet, from.link.local(), now);
      }
    }
    return any;
  }
  static bool nothing(const Packet&) { return false; }

  // Until nobody has anything to say.
  void run(const std::function<bool(const Packet&)>& loses = nothing) {
    for (unsigned quiet = 0; quiet < 3;) {
      bool any = false;
      for (Side* const side : sides) {
        side->transport->transmit(64, now);
        any |= carry(*side, loses);
      }
      quiet = any ? 0 : quiet + 1;
      if (any) continue;
      for (Side* const side : sides) {
        if (side->transport->deadline() == TimePoint::max()) continue;
        quiet = 0;
        now = std::max(now, side->transport->deadline());
        side->transport->expire(now);
      }
    }
  }

  static std::vector<std::uint16_t> completed(const Side& side) {
    std::vector<std::uint16_t> all;
    for (const auto& completion : side.host.completions) {
      EXPECT_TRUE(completion.ok) << completion.why.reason;
      all.push_back(completion.index);
    }
    return all;
  }

  wire::TimePoint now = wire::TimePoint{} + std::chrono::hours(1);
  Side red{1, 0x31}, blue{2, 0x32};     // initiators
  Side north{3, 0x43}, south{4, 0x44};  // targets
  std::array<Side*, 4> sides{&red, &blue, &north, &south};
};

TEST_F(Dynamic, OneInitiatorReachesManyTargetsInTheOrderOfItsRequests) {
  for (unsigned i = 0; i < 8; ++i) {
    red.host.fill(i * 1000, 1000, i);
    post(red, i % 2 == 0 ? north : south, make(Operation::Write, 1000, i * 1000), i * 1000);
  }
  run();
  EXPECT_THAT(completed(red), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  for (unsigned i = 0; i < 8; ++i) {
    EXPECT_TRUE((i % 2 == 0 ? north : south).host.holds(i * 1000, 1000, i)) << i;
  }
}

TEST_F(Dynamic, RequestsForATargetWhoseProcessHasEndedFailAtOnce) {
  post(red, north, make(Operation::Write, 100), 0);
  red.transport->transmit(64, now);
  red.transport->peer_departed(south.link.local());
  EXPECT_TRUE(red.host.completions.empty()) << "that one is nobody's target";
  red.transport->peer_departed(north.link.local());
  ASSERT_EQ(red.host.completions.size(), 1U);
  EXPECT_FALSE(red.host.completions[0].ok);
  EXPECT_EQ(red.host.completions[0].why.syndrome, mlx5::Syndrome::TransportRetryExceeded);
  EXPECT_EQ(red.transport->state(), IBV_QPS_ERR);
}

TEST_F(Dynamic, OtherTargetsAreReachedAfterOneHasEndedThatNothingWaitsFor) {
  post(red, north, make(Operation::Write, 100), 0);
  run();
  red.transport->peer_departed(north.link.local());
  post(red, south, make(Operation::Write, 100), 0);
  run();
  EXPECT_EQ(completed(red).size(), 2U);
}

TEST_F(Dynamic, ARequestForAnotherTargetWaitsForThoseBeforeIt) {
  post(red, north, make(Operation::Write, 100), 0);
  post(red, south, make(Operation::Write, 100), 0);
  red.transport->transmit(64, now);
  ASSERT_EQ(red.link.destinations.size(), 1U);
  EXPECT_EQ(red.link.destinations[0], endpoint(3));
  EXPECT_EQ(red.host.sends_left(), 0U) << "the second one was looked at";
  run();
  EXPECT_EQ(completed(red).size(), 2U);
}

TEST_F(Dynamic, ATargetReceivesMessagesOfManyInitiatorsAtOnce) {
  for (unsigned i = 0; i < 2; ++i) north.host.post_receive(i * 4096, 4096);
  red.host.fill(0, 2000, 5);
  blue.host.fill(0, 3000, 6);
  post(red, north, make(Operation::Send, 2000), 0);
  post(blue, north, make(Operation::Send, 3000), 0);
  for (int round = 0; round < 20; ++round) {  // packet by packet, in turns
    for (Side* const side : sides) {
      side->transport->transmit(1, now);
      carry(*side, nothing);
    }
  }
  run();
  ASSERT_EQ(north.host.receipts.size(), 2U);
  EXPECT_EQ(north.host.receipts[0].what.byte_count, 2000U);
  EXPECT_EQ(north.host.receipts[0].what.source_qpn, red.qpn);
  EXPECT_EQ(north.host.receipts[1].what.byte_count, 3000U);
  EXPECT_TRUE(north.host.holds(0, 2000, 5));
  EXPECT_TRUE(north.host.holds(4096, 3000, 6));
}

TEST_F(Dynamic, AWrongAccessKeyFailsTheRequestAndNobodyElse) {
  post(red, north, make(Operation::Write, 100), 0, 0xbad);
  blue.host.fill(0, 100, 3);
  post(blue, north, make(Operation::Write, 100), 0);
  run();
  ASSERT_EQ(red.host.completions.size(), 1U);
  EXPECT_EQ(red.host.completions[0].why.syndrome, mlx5::Syndrome::RemoteAccess);
  EXPECT_THAT(red.host.completions[0].why.reason, testing::HasSubstr("access key 0xbad"));
  EXPECT_EQ(red.transport->state(), IBV_QPS_ERR);
  EXPECT_THAT(completed(blue), testing::ElementsAre(0));
  EXPECT_TRUE(north.host.holds(0, 100, 3));
  EXPECT_EQ(north.transport->state(), IBV_QPS_RTR);
}

TEST_F(Dynamic, ARefusedRequestEndsItsConnectionAndTheTargetGoesOn) {
  SendRequest foreign = make(Operation::Write, 100);
  foreign.rkey = kKey + 1;
  post(red, north, foreign, 0);
  run();
  ASSERT_EQ(red.host.completions.size(), 1U);
  EXPECT_THAT(red.host.completions[0].why.reason, testing::HasSubstr("no key"));
  ASSERT_EQ(north.host.losses.size(), 1U);
  EXPECT_THAT(north.host.losses[0], testing::HasSubstr("DC initiator 0x31"));
  EXPECT_TRUE(north.host.responder_refusals.empty());
  make_initiator(red);
  post(red, north, make(Operation::Write, 100), 0);
  run();
  EXPECT_TRUE(red.host.completions.back().ok);
}

TEST_F(Dynamic, AMessageThatIsTooLongCompletesItsReceiveInErrorAndTheTargetGoesOn) {
  north.host.post_receive(0, 10);
  north.host.post_receive(0, 100);
  post(red, north, make(Operation::Send, 50), 0);
  run();
  ASSERT_EQ(north.host.receipts.size(), 1U);
  EXPECT_EQ(north.host.receipts[0].why.syndrome, mlx5::Syndrome::LocalLength);
  EXPECT_EQ(red.host.completions[0].why.syndrome, mlx5::Syndrome::RemoteInvalidRequest);
  post(blue, north, make(Operation::Send, 50), 0);
  run();
  EXPECT_TRUE(north.host.receipts.back().ok);
}

TEST_F(Dynamic, ALostFirstPacketIsRepairedFromTheConnectionsBeginning) {
  red.host.fill(0, 1000, 9);
  post(red, north, make(Operation::Write, 1000), 0);
  unsigned count = 0;
  run([&](const Packet&) { return count++ == 0; });
  EXPECT_THAT(completed(red), testing::ElementsAre(0));
  EXPECT_TRUE(north.host.holds(0, 1000, 9));
}

TEST_F(Dynamic, AtomicsAreCarriedOutOnceWhateverIsLost) {
  std::uint32_t state = 7;
  const auto loses = [&](const Packet&) { return (state = state * 1664525 + 1013904223) >> 30 == 0; };
  for (unsigned i = 0; i < 40; ++i) {
    SendRequest add = make(Operation::FetchAdd, 8);
    add.swap_add = 1;
    post(red, i % 2 == 0 ? north : south, add, 64);
  }
  run(loses);
  EXPECT_EQ(completed(red).size(), 40U);
  EXPECT_EQ(north.host.word(0), 20U);
  EXPECT_EQ(south.host.word(0), 20U);
}

TEST_F(Dynamic, APacketOfAnEarlierConnectionChangesNothing) {
  std::vector<std::byte> late;
  red.host.fill(0, 100, 1);
  post(red, north, make(Operation::Write, 100), 0);
  red.transport->transmit(64, now);
  late = red.link.sent.front();
  run();
  post(red, south, make(Operation::Write, 100), 0);
  red.host.fill(0, 100, 2);
  post(red, north, make(Operation::Write, 100), 0);
  run();
  ASSERT_TRUE(north.host.holds(0, 100, 2));
  const auto packet = Packet::parse(late);
  ASSERT_TRUE(packet);
  north.transport->receive(*packet, red.link.local(), now);
  run();
  EXPECT_TRUE(north.host.holds(0, 100, 2));
  EXPECT_EQ(completed(red).size(), 3U);
}

TEST_F(Dynamic, AnInitiatorThatConnectsAnewInTheMiddleOfAMessageLosesThatMessageOnly) {
  north.host.post_receive(0, 4096);
  north.host.post_receive(8192, 4096);
  post(red, north, make(Operation::Send, 1000), 0);
  red.transport->transmit(2, now);
  carry(red, nothing);
  red.transport->set_state(IBV_QPS_RESET);  // its connections are numbered on
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTS;
  a.sq_psn = 1000;
  red.transport->modify(a, IBV_QP_STATE | IBV_QP_SQ_PSN, now);
  red.host.fill(0, 500, 4);
  post(red, north, make(Operation::Send, 500), 0);
  run();
  ASSERT_EQ(north.host.receipts.size(), 2U);
  EXPECT_FALSE(north.host.receipts[0].ok);
  EXPECT_THAT(north.host.receipts[0].why.reason, testing::HasSubstr("ended halfway"));
  EXPECT_TRUE(north.host.receipts[1].ok);
  EXPECT_TRUE(north.host.holds(8192, 500, 4));
}

TEST_F(Dynamic, AReceiveIsNotLostWithTheProcessThatBeganItsMessage) {
  north.host.post_receive(0, 1000);
  post(red, north, make(Operation::Send, 600), 0);
  red.transport->transmit(1, now);
  carry(red, nothing);
  north.transport->peer_departed(blue.link.local());
  EXPECT_TRUE(north.host.receipts.empty());
  north.transport->peer_departed(red.link.local());
  ASSERT_EQ(north.host.receipts.size(), 1U);
  EXPECT_FALSE(north.host.receipts[0].ok);
  red.transport->set_state(IBV_QPS_ERR);  // it is gone
  north.host.post_receive(0, 1000);
  post(blue, north, make(Operation::Send, 600), 0);
  run();
  EXPECT_EQ(completed(blue).size(), 1U);
}

TEST_F(Dynamic, WithoutAReceiveTheInitiatorWaitsAndTriesAgain) {
  post(red, north, make(Operation::Send, 10), 0);
  red.transport->transmit(64, now);
  carry(red, nothing);
  north.transport->transmit(64, now);
  carry(north, nothing);
  EXPECT_TRUE(red.host.completions.empty());
  north.host.post_receive(0, 100);
  run();
  EXPECT_THAT(completed(red), testing::ElementsAre(0));
}

}  // namespace
}  // namespace qpair::softnic::roce::test
