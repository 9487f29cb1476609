// Connections from the request to the end, with messages that get lost, come twice, or are not answered.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "world.hpp"

namespace qpair::softnic::cm {
namespace {

using test::Program;
using test::World;
using testing::ElementsAre;
using testing::IsEmpty;
using namespace std::chrono_literals;

constexpr std::uint16_t kPort = 7471;

class Conversation : public testing::Test {
 protected:
  Conversation() { listen(); }

  void listen() {
    listener_ = std::make_unique<Id>(*world_.server.manager, PortSpace::Tcp, IBV_QPT_RC);
    listener_->set_consumer(&service_);
    Address any = Address::any(AF_INET);
    any.port = kPort;
    ASSERT_EQ(listener_->bind(any, nullptr), 0);
    ASSERT_EQ(listener_->listen(), 0);
  }

  std::unique_ptr<Id> resolved(std::uint16_t source_port = 40000) {
    auto id = std::make_unique<Id>(*world_.client.manager, PortSpace::Tcp, IBV_QPT_RC);
    id->set_consumer(&caller_);
    Address from = Address::any(AF_INET);
    from.port = source_port;
    EXPECT_EQ(id->bind(from, nullptr), 0);
    EXPECT_EQ(id->resolve_address(Address::of(world_.server.endpoint, kPort), world_.server.endpoint, 0), 0);
    EXPECT_EQ(id->resolve_route(), 0);
    EXPECT_THAT(caller_.take(), ElementsAre(EventType::AddrResolved, EventType::RouteResolved));
    return id;
  }

  static rdma_ucm_conn_param parameters(std::uint32_t qpn, const char* said = "") {
    rdma_ucm_conn_param parameters{};
    parameters.qp_num = qpn;
    parameters.valid = 1;
    parameters.responder_resources = 4;
    parameters.initiator_depth = 2;
    parameters.retry_count = 9;  // more than there are bits for
    parameters.rnr_retry_count = 7;
    parameters.private_data_len = static_cast<std::uint8_t>(std::strlen(said));
    std::memcpy(parameters.private_data, said, std::strlen(said));
    return parameters;
  }

  std::unique_ptr<Id> request() {
    EXPECT_THAT(service_.take(), ElementsAre(EventType::ConnectRequest));
    auto id = std::move(service_.last.request);
    if (id) id->set_consumer(&peer_);
    return id;
  }

  // One connection, established on both sides.
  void connect() {
    active_ = resolved();
    ASSERT_EQ(active_->connect(parameters(0x111), {}, world_.server.endpoint, world_.now), 0);
    world_.settle();
    passive_ = request();
    ASSERT_TRUE(passive_);
    ASSERT_EQ(passive_->accept(parameters(0x222), {}, world_.now), 0);
    world_.settle();
    ASSERT_THAT(caller_.take(), ElementsAre(EventType::ConnectResponse));
    ASSERT_EQ(active_->establish(world_.now), 0);
    world_.settle();
    ASSERT_THAT(peer_.take(), ElementsAre(EventType::Established));
  }

  World world_;
  Program service_;  // what the listener hears
  Program caller_;
  Program peer_;
  std::unique_ptr<Id> listener_;
  std::unique_ptr<Id> active_;
  std::unique_ptr<Id> passive_;
};

// ---- Making one ---------------------------------------------------------------------------------

TEST_F(Conversation, RequestReplyAndTheLastWordMakeAConnection) {
  active_ = resolved();
  ASSERT_EQ(active_->connect(parameters(0x111, "hello"), {.vendor = 0x15b3, .options = 3},
                             world_.server.endpoint, world_.now),
            0);
  world_.settle();

  passive_ = request();
  const Event& asked = service_.last;
  EXPECT_EQ(std::memcmp(asked.conn.private_data, "hello", 5), 0);
  EXPECT_EQ(asked.conn.private_data_len, 56) << "all that the message has room for";
  EXPECT_EQ(asked.conn.qp_num, 0x111U);
  EXPECT_EQ(asked.conn.responder_resources, 2) << "as many as the other side begins";
  EXPECT_EQ(asked.conn.initiator_depth, 4);
  EXPECT_EQ(asked.conn.retry_count, 7);
  EXPECT_EQ(asked.ece.vendor, 0x15b3U);
  EXPECT_EQ(passive_->source().port, kPort);
  EXPECT_EQ(passive_->source().bytes, test::bytes_of("127.71.0.2"));
  EXPECT_EQ(passive_->destination().port, 40000);
  EXPECT_EQ(passive_->destination().bytes, test::bytes_of("127.71.0.1"));

  ASSERT_EQ(passive_->accept(parameters(0x222, "welcome"), {.vendor = 0x15b3, .options = 1}, world_.now), 0);
  world_.settle();
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::ConnectResponse));
  EXPECT_EQ(std::memcmp(caller_.last.conn.private_data, "welcome", 7), 0);
  EXPECT_EQ(caller_.last.conn.qp_num, 0x222U);
  EXPECT_EQ(caller_.last.ece.options, 1U);

  ASSERT_EQ(active_->establish(world_.now), 0);
  world_.settle();
  EXPECT_THAT(peer_.take(), ElementsAre(EventType::Established));
  EXPECT_THAT(world_.sent, ElementsAre(Attribute::Req, Attribute::Rep, Attribute::Rtu));
}

TEST_F(Conversation, BothQueuePairsAreToldTheSameSequenceNumbers) {
  connect();
  ib_uverbs_qp_attr ready[2] = {};
  ib_uverbs_qp_attr sending[2] = {};
  const Id* const ids[2] = {active_.get(), passive_.get()};
  for (int side = 0; side < 2; ++side) {
    ib_uverbs_qp_attr initial{};
    initial.qp_state = IBV_QPS_INIT;
    ASSERT_EQ(ids[side]->init_qp_attr(initial), 0);
    EXPECT_EQ(initial.qp_attr_mask,
              unsigned{IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT});
    EXPECT_EQ(initial.qp_access_flags,
              unsigned{IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC});
    ready[side].qp_state = IBV_QPS_RTR;
    sending[side].qp_state = IBV_QPS_RTS;
    ASSERT_EQ(ids[side]->init_qp_attr(ready[side]), 0);
    ASSERT_EQ(ids[side]->init_qp_attr(sending[side]), 0);
  }
  EXPECT_EQ(ready[0].dest_qp_num, 0x222U);
  EXPECT_EQ(ready[1].dest_qp_num, 0x111U);
  EXPECT_EQ(ready[0].rq_psn, sending[1].sq_psn);
  EXPECT_EQ(ready[1].rq_psn, sending[0].sq_psn);
  EXPECT_NE(ready[0].rq_psn, ready[1].rq_psn);
  EXPECT_EQ(sending[0].max_rd_atomic, ready[1].max_dest_rd_atomic) << "what one begins the other serves";
  EXPECT_EQ(ready[0].ah_attr.grh.sgid_index, 3);
  EXPECT_EQ(std::memcmp(ready[0].ah_attr.grh.dgid, test::bytes_of("127.71.0.2").data(), 16), 0);
  EXPECT_EQ(std::memcmp(ready[1].ah_attr.grh.dgid, test::bytes_of("127.71.0.1").data(), 16), 0);
  EXPECT_EQ(ready[0].ah_attr.is_global, 1);
  EXPECT_EQ(ready[0].path_mtu, 5U);
  EXPECT_EQ(sending[0].retry_cnt, 7);
}

TEST_F(Conversation, ATimeoutThatTheProgramSetIsTheQueuePairs) {
  active_ = resolved();
  active_->set_ack_timeout(21);
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  passive_ = request();
  ASSERT_EQ(passive_->accept(parameters(2), {}, world_.now), 0);
  world_.settle();
  ib_uverbs_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(active_->init_qp_attr(attributes), 0);
  EXPECT_EQ(attributes.timeout, 21);
}

TEST_F(Conversation, NothingIsReadyBeforeTheReply) {
  active_ = resolved();
  ib_uverbs_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  EXPECT_EQ(active_->init_qp_attr(attributes), 0) << "librdmacm makes the queue pair before it connects";
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  attributes.qp_state = IBV_QPS_RTR;
  EXPECT_EQ(active_->init_qp_attr(attributes), EINVAL);
}

TEST_F(Conversation, MoreThanTheMessageHasRoomForIsRefused) {
  active_ = resolved();
  const std::string long_words(57, 'x');
  EXPECT_EQ(active_->connect(parameters(1, long_words.c_str()), {}, world_.server.endpoint, world_.now),
            EINVAL);
  EXPECT_THAT(world_.sent, IsEmpty());
}

// ---- Loss and repetition ------------------------------------------------------------------------

TEST_F(Conversation, EveryMessageMayBeLostOnce) {
  for (const Attribute lost : {Attribute::Req, Attribute::Rep, Attribute::Rtu}) {
    bool already = false;
    world_.loses = [&](Attribute attribute) { return attribute == lost && !std::exchange(already, true); };
    active_ = resolved();
    ASSERT_EQ(active_->connect(parameters(0x111), {}, world_.server.endpoint, world_.now), 0);
    world_.settle();
    if (lost == Attribute::Req) world_.pass(5s);
    passive_ = request();
    ASSERT_TRUE(passive_);
    ASSERT_EQ(passive_->accept(parameters(0x222), {}, world_.now), 0);
    world_.settle();
    if (lost == Attribute::Rep) world_.pass(5s);
    ASSERT_THAT(caller_.take(), ElementsAre(EventType::ConnectResponse));
    ASSERT_EQ(active_->establish(world_.now), 0);
    world_.settle();
    if (lost == Attribute::Rtu) world_.pass(5s);
    EXPECT_THAT(peer_.take(), ElementsAre(EventType::Established));
    EXPECT_THAT(service_.take(), IsEmpty()) << "a message that came twice is one request";
    EXPECT_TRUE(already);
    active_.reset();
    world_.settle();
    peer_.take();
    passive_.reset();
    world_.settle();
  }
}

TEST_F(Conversation, ARequestThatComesTwiceAsksForPatience) {
  active_ = resolved();
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  const auto first = world_.on_the_way.front();
  world_.settle();
  world_.deliver(first);
  passive_ = request();
  EXPECT_THAT(world_.sent, ElementsAre(Attribute::Req, Attribute::Mra));
  world_.settle();
  world_.pass(60s);  // longer than the caller would have waited without
  EXPECT_EQ(world_.count(Attribute::Req), 1U);
  ASSERT_EQ(passive_->accept(parameters(2), {}, world_.now), 0);
  world_.settle();
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::ConnectResponse));
}

TEST_F(Conversation, WhoNeverAnswersIsUnreachable) {
  world_.loses = [](Attribute) { return true; };
  active_ = resolved();
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  world_.pass(70s);
  EXPECT_THAT(caller_.take(), IsEmpty());
  world_.pass(10s);
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Unreachable));
  EXPECT_EQ(caller_.last.status, -ETIMEDOUT);
  EXPECT_EQ(world_.count(Attribute::Req), 16U) << "once and fifteen times again";
}

TEST_F(Conversation, AnAcceptedCallerThatIsGoneIsUnreachable) {
  active_ = resolved();
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  passive_ = request();
  world_.loses = [](Attribute) { return true; };
  ASSERT_EQ(passive_->accept(parameters(2), {}, world_.now), 0);
  world_.pass(100s);
  EXPECT_THAT(peer_.take(), ElementsAre(EventType::Unreachable));
}

TEST_F(Conversation, AFirstMessageEstablishesWithoutTheLastWord) {
  active_ = resolved();
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  passive_ = request();
  ASSERT_EQ(passive_->accept(parameters(2), {}, world_.now), 0);
  EXPECT_EQ(passive_->notify(IBV_EVENT_COMM_EST, world_.now), 0);
  EXPECT_THAT(peer_.take(), ElementsAre(EventType::Established));
  EXPECT_EQ(passive_->notify(IBV_EVENT_COMM_EST, world_.now), EISCONN);
}

// ---- Refusals -----------------------------------------------------------------------------------

TEST_F(Conversation, WhereNobodyListensTheServiceIsInvalid) {
  listener_.reset();
  active_ = resolved();
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Rejected));
  EXPECT_EQ(caller_.last.status, 8);
}

TEST_F(Conversation, AListenerAtAnotherAddressIsNotAsked) {
  listener_ = std::make_unique<Id>(*world_.server.manager, PortSpace::Tcp, IBV_QPT_RC);
  Address elsewhere = Address::loopback(AF_INET);
  elsewhere.port = kPort;
  ASSERT_EQ(listener_->bind(elsewhere, nullptr), 0);
  ASSERT_EQ(listener_->listen(), 0);
  active_ = resolved();
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Rejected));
  EXPECT_EQ(caller_.last.status, 28);
}

TEST_F(Conversation, ARejectionBringsItsReasonAndWords) {
  active_ = resolved();
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  passive_ = request();
  const std::array<std::uint8_t, 4> words{'b', 'u', 's', 'y'};
  ASSERT_EQ(passive_->reject(28, words, world_.now), 0);
  world_.settle();
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Rejected));
  EXPECT_EQ(caller_.last.status, 28);
  EXPECT_EQ(std::memcmp(caller_.last.conn.private_data, words.data(), words.size()), 0);
  EXPECT_EQ(passive_->accept(parameters(2), {}, world_.now), EINVAL) << "it is over";
}

TEST_F(Conversation, AFullBacklogStaysSilentAndTheCallerAsksAgain) {
  service_.room = false;
  active_ = resolved();
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  EXPECT_THAT(service_.take(), IsEmpty());
  EXPECT_THAT(caller_.take(), IsEmpty());
  service_.room = true;
  world_.pass(5s);
  EXPECT_THAT(service_.take(), ElementsAre(EventType::ConnectRequest));
}

TEST_F(Conversation, ARequestThatIsDestroyedUnansweredIsRejected) {
  active_ = resolved();
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  passive_ = request();
  passive_.reset();
  world_.settle();
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Rejected));
}

TEST_F(Conversation, ACallerThatGivesUpTakesItsRequestBack) {
  active_ = resolved();
  ASSERT_EQ(active_->connect(parameters(1), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  passive_ = request();
  active_.reset();
  world_.settle();
  EXPECT_THAT(peer_.take(), ElementsAre(EventType::Rejected));
  EXPECT_EQ(passive_->accept(parameters(2), {}, world_.now), EINVAL);
}

// ---- The end ------------------------------------------------------------------------------------

TEST_F(Conversation, BothSidesHearOfTheEndAndThenOfTheEndOfTheWait) {
  connect();
  ASSERT_EQ(active_->disconnect(world_.now), 0);
  world_.settle();
  EXPECT_THAT(peer_.take(), ElementsAre(EventType::Disconnected));
  EXPECT_THAT(caller_.take(), IsEmpty()) << "the other program has not agreed yet";
  ASSERT_EQ(passive_->disconnect(world_.now), 0);
  world_.settle();
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Disconnected));
  world_.pass(5s);
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::TimewaitExit));
  EXPECT_THAT(peer_.take(), ElementsAre(EventType::TimewaitExit));
}

TEST_F(Conversation, BothMayEndItAtOnce) {
  connect();
  ASSERT_EQ(active_->disconnect(world_.now), 0);
  ASSERT_EQ(passive_->disconnect(world_.now), 0);
  world_.settle();
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Disconnected));
  EXPECT_THAT(peer_.take(), ElementsAre(EventType::Disconnected));
}

TEST_F(Conversation, AGoodbyeThatGetsLostIsSaidAgain) {
  connect();
  bool lost = false;
  world_.loses = [&](Attribute attribute) {
    return attribute == Attribute::Dreq && !std::exchange(lost, true);
  };
  ASSERT_EQ(active_->disconnect(world_.now), 0);
  world_.settle();
  EXPECT_THAT(peer_.take(), IsEmpty());
  world_.pass(5s);
  EXPECT_THAT(peer_.take(), ElementsAre(EventType::Disconnected));
}

TEST_F(Conversation, ALostAnswerToAGoodbyeIsSaidAgainEvenByWhoHasForgotten) {
  connect();
  world_.loses = [](Attribute attribute) { return attribute == Attribute::Drep; };
  ASSERT_EQ(active_->disconnect(world_.now), 0);
  world_.settle();
  ASSERT_EQ(passive_->disconnect(world_.now), 0);
  world_.settle();
  passive_.reset();
  EXPECT_THAT(caller_.take(), IsEmpty());
  world_.loses = [](Attribute) { return false; };
  world_.pass(5s);
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Disconnected));
}

TEST_F(Conversation, AGoodbyeThatNobodyAnswersIsGoodbye) {
  connect();
  world_.loses = [](Attribute) { return true; };
  ASSERT_EQ(active_->disconnect(world_.now), 0);
  world_.pass(90s);
  const auto heard = caller_.take();
  ASSERT_FALSE(heard.empty());
  EXPECT_EQ(heard.front(), EventType::Disconnected);
}

TEST_F(Conversation, AnIdentifierThatIsDestroyedSaysGoodbye) {
  connect();
  active_.reset();
  world_.settle();
  EXPECT_THAT(peer_.take(), ElementsAre(EventType::Disconnected));
}

TEST_F(Conversation, ANewLifeOfThePeersQueuePairEndsTheOldOne) {
  connect();
  // The peer's program was killed; another one has the same queue pair number by chance.
  auto again = resolved(40001);
  ASSERT_EQ(again->connect(parameters(0x111), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  EXPECT_THAT(service_.take(), IsEmpty());
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Rejected, EventType::Disconnected));
}

// ---- Strangers ----------------------------------------------------------------------------------

TEST_F(Conversation, NobodyElseCanSpeakInIt) {
  connect();
  const std::uint32_t id = passive_->conversation()->local_id();
  const std::uint32_t from = active_->conversation()->local_id();
  const Dreq forged{.local_id = from, .remote_id = id, .remote_qpn = 0x222};
  world_.server.manager->receive(forged.emit(1), *wire::parse_address("127.71.0.9"), world_.now);
  EXPECT_THAT(peer_.take(), IsEmpty()) << "from another address";
  const Dreq guessed{.local_id = from + 1, .remote_id = id, .remote_qpn = 0x222};
  world_.server.manager->receive(guessed.emit(1), world_.client.endpoint, world_.now);
  EXPECT_THAT(peer_.take(), IsEmpty()) << "with another identifier";
  const Dreq stale{.local_id = from, .remote_id = id, .remote_qpn = 0x333};
  world_.server.manager->receive(stale.emit(1), world_.client.endpoint, world_.now);
  EXPECT_THAT(peer_.take(), IsEmpty()) << "for another queue pair";
}

TEST_F(Conversation, MessagesThatFitNoStateChangeNothing) {
  connect();
  const std::uint32_t here = passive_->conversation()->local_id();
  const std::uint32_t there = active_->conversation()->local_id();
  for (unsigned attribute = 0; attribute < 0x20; ++attribute) {
    if (attribute == static_cast<unsigned>(Attribute::Dreq) ||
        attribute == static_cast<unsigned>(Attribute::Rej))
      continue;
    const Note note{.local_id = there, .remote_id = here};
    world_.server.manager->receive(note.emit(static_cast<Attribute>(attribute), 1), world_.client.endpoint,
                                   world_.now);
  }
  EXPECT_THAT(peer_.take(), IsEmpty());
  EXPECT_EQ(passive_->conversation()->state(), State::Established);
}

// ---- Datagrams ----------------------------------------------------------------------------------

class Datagrams : public Conversation {
 protected:
  Datagrams() {
    listener_ = std::make_unique<Id>(*world_.server.manager, PortSpace::Udp, IBV_QPT_UD);
    listener_->set_consumer(&service_);
    Address any = Address::any(AF_INET);
    any.port = kPort;
    EXPECT_EQ(listener_->bind(any, nullptr), 0);
    EXPECT_EQ(listener_->listen(), 0);
    active_ = std::make_unique<Id>(*world_.client.manager, PortSpace::Udp, IBV_QPT_UD);
    active_->set_consumer(&caller_);
    EXPECT_EQ(active_->bind(Address::any(AF_INET), nullptr), 0);
    EXPECT_EQ(active_->resolve_address(Address::of(world_.server.endpoint, kPort), world_.server.endpoint, 0),
              0);
    EXPECT_EQ(active_->resolve_route(), 0);
    caller_.take();
  }
};

TEST_F(Datagrams, AServiceIsResolvedToAQueuePair) {
  ASSERT_EQ(active_->connect(parameters(0, "who"), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  passive_ = request();
  EXPECT_EQ(std::memcmp(service_.last.ud.private_data, "who", 3), 0);
  EXPECT_EQ(service_.last.ud.private_data_len, 180);
  ASSERT_EQ(passive_->accept(parameters(0x222, "me"), {}, world_.now), 0);
  world_.settle();
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Established));
  EXPECT_EQ(caller_.last.ud.qp_num, 0x222U);
  EXPECT_EQ(caller_.last.ud.qkey, 0x0123'4567U);
  EXPECT_EQ(std::memcmp(caller_.last.ud.private_data, "me", 2), 0);
  EXPECT_EQ(std::memcmp(caller_.last.ud.ah_attr.grh.dgid, test::bytes_of("127.71.0.2").data(), 16), 0);
  EXPECT_EQ(caller_.last.ud.ah_attr.port_num, 1);
}

TEST_F(Datagrams, AQuestionThatComesTwiceIsOne) {
  ASSERT_EQ(active_->connect(parameters(0), {}, world_.server.endpoint, world_.now), 0);
  const auto first = world_.on_the_way.front();
  world_.settle();
  world_.deliver(first);
  EXPECT_THAT(service_.take(), ElementsAre(EventType::ConnectRequest));
}

TEST_F(Datagrams, ALostAnswerIsAskedForAgain) {
  bool lost = false;
  world_.loses = [&](Attribute attribute) {
    return attribute == Attribute::SidrRep && !std::exchange(lost, true);
  };
  ASSERT_EQ(active_->connect(parameters(0), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  passive_ = request();
  ASSERT_EQ(passive_->accept(parameters(0x222), {}, world_.now), 0);
  world_.pass(5s);
  auto again = request();
  ASSERT_TRUE(again);
  ASSERT_EQ(again->accept(parameters(0x222), {}, world_.now), 0);
  world_.settle();
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Established));
}

TEST_F(Datagrams, WhereNobodyListensTheServiceIsUnreachable) {
  listener_.reset();
  ASSERT_EQ(active_->connect(parameters(0), {}, world_.server.endpoint, world_.now), 0);
  world_.settle();
  EXPECT_THAT(caller_.take(), ElementsAre(EventType::Unreachable));
  EXPECT_EQ(caller_.last.status, 1);
}

TEST_F(Datagrams, AGroupIsReachedByItsOwnAddress) {
  Id member(*world_.client.manager, PortSpace::Udp, IBV_QPT_UD);
  const Address group{.family = AF_INET, .bytes = test::bytes_of("230.0.0.1"), .port = 0};
  Event event;
  EXPECT_EQ(member.join(group, event), EINVAL) << "on which device?";
  ASSERT_EQ(member.bind(Address::of(world_.client.endpoint, 0), nullptr), 0);
  ASSERT_EQ(member.join(group, event), 0);
  EXPECT_EQ(event.type, EventType::MulticastJoin);
  EXPECT_EQ(event.ud.qp_num, 0xff'ffffU);
  EXPECT_EQ(event.ud.qkey, 0x0123'4567U);
  EXPECT_EQ(std::memcmp(event.ud.ah_attr.grh.dgid, group.bytes.data(), 16), 0);
  EXPECT_EQ(event.ud.ah_attr.dlid, 0xc000);
  EXPECT_EQ(member.join(Address::any(AF_INET), event), EINVAL);
  Id connected(*world_.client.manager, PortSpace::Tcp, IBV_QPT_RC);
  ASSERT_EQ(connected.bind(Address::of(world_.client.endpoint, 0), nullptr), 0);
  EXPECT_EQ(connected.join(group, event), EINVAL) << "connections have no groups";
}

TEST_F(Datagrams, AQueuePairIsMadeWithTheCommonKey) {
  ib_uverbs_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  ASSERT_EQ(active_->init_qp_attr(attributes), 0);
  EXPECT_EQ(attributes.qp_attr_mask, unsigned{IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY});
  EXPECT_EQ(attributes.qkey, 0x0123'4567U);
}

}  // namespace
}  // namespace qpair::softnic::cm
