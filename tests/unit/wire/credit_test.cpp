// Flow control between the NICs of one host: the two sides alone, and links whose receiver is late.

#include "softnic/wire/credit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>

#include "softnic/wire/loopback_link.hpp"
#include "softnic/wire/udp_link.hpp"
#include "tests/unit/wire/links.hpp"

namespace qpair::softnic::wire {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart{1h};

// ---- The packets

TEST(CreditPacket, SurvivesTheWire) {
  for (const CreditPacket& sent :
       {CreditPacket{kCreditRequestOpcode, 0xabcdef, 0}, CreditPacket{kCreditGrantOpcode, 7, 0x12345678}}) {
    Bytes bytes(sent.size());
    sent.write(bytes);
    const auto found = CreditPacket::parse(bytes);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->opcode, sent.opcode);
    EXPECT_EQ(found->number, sent.number);
    EXPECT_EQ(found->bytes, sent.bytes);
    bytes.resize(bytes.size() + 4);
    EXPECT_FALSE(CreditPacket::parse(bytes)) << "longer than it should be";
  }
}

// ---- The sender

TEST(SendCredit, CoversWhatWasGrantedAndNotWhatWasSentSinceTheRequest) {
  SendCredit credit;
  EXPECT_FALSE(credit.covers(1, kStart));
  credit.request(1, kStart);
  credit.spend(100);
  EXPECT_TRUE(credit.grant(1, 1000, kStart));
  EXPECT_TRUE(credit.covers(900, kStart));
  EXPECT_FALSE(credit.covers(901, kStart));
}

TEST(SendCredit, AnswersToOldRequestsSayNothing) {
  SendCredit credit;
  credit.request(1, kStart);
  credit.request(2, kStart);
  EXPECT_FALSE(credit.grant(1, 1000, kStart));
  EXPECT_FALSE(credit.covers(1, kStart));
  EXPECT_TRUE(credit.grant(2, 1000, kStart));
  EXPECT_FALSE(credit.grant(2, 5000, kStart)) << "answered twice";
  EXPECT_FALSE(credit.covers(1001, kStart));
}

TEST(SendCredit, NumbersAreThe24BitsOnTheWire) {
  SendCredit credit;
  credit.request(0x5000001, kStart);
  EXPECT_TRUE(credit.grant(1, 1000, kStart));
}

TEST(SendCredit, IsLowWhenHalfIsSpent) {
  SendCredit credit;
  credit.request(1, kStart);
  credit.grant(1, 1000, kStart);
  credit.spend(499);
  EXPECT_FALSE(credit.is_low());
  credit.spend(1);
  EXPECT_TRUE(credit.is_low());
}

TEST(SendCredit, ExpiresCountedFromTheRequest) {
  SendCredit credit;
  credit.request(1, kStart);
  credit.grant(1, 1000, kStart + 5ms);
  EXPECT_TRUE(credit.covers(1, kStart + SendCredit::kValid - 1ns));
  EXPECT_FALSE(credit.covers(1, kStart + SendCredit::kValid));
}

TEST(SendCredit, MoreThanFourGigabytesWithoutAskingAreNoCredit) {  // a reliable connection's
  SendCredit credit;
  credit.request(1, kStart);
  credit.grant(1, 1000, kStart);
  for (int i = 0; i < 8; ++i) credit.spend(1LL << 30);
  EXPECT_FALSE(credit.covers(1, kStart));
}

TEST(SendCredit, AsksAgainThenAssumesThatThePeerCannotAnswer) {
  SendCredit credit;
  credit.request(1, kStart);
  credit.starve(kStart);
  EXPECT_EQ(credit.deadline(), kStart + SendCredit::kAskAgain);
  EXPECT_FALSE(credit.expire(kStart + 1ms));
  TimePoint now = kStart;
  std::uint32_t asked = 1;
  while (credit.is_starved()) {
    now = credit.deadline();
    if (credit.expire(now)) credit.request(++asked, now);
  }
  EXPECT_EQ(now, kStart + SendCredit::kSilence);
  EXPECT_EQ(asked, SendCredit::kSilence / SendCredit::kAskAgain);
  EXPECT_TRUE(credit.covers(SendCredit::kAssumed, now));
  EXPECT_FALSE(credit.covers(SendCredit::kAssumed + 1, now));
}

TEST(SendCredit, APeerThatOnceAnsweredIsGivenMoreTime) {
  SendCredit credit;
  credit.request(1, kStart);
  credit.grant(1, 1000, kStart);
  credit.request(2, kStart);
  credit.starve(kStart);
  TimePoint now = kStart;
  std::uint32_t asked = 2;
  while (credit.is_starved()) {
    now = credit.deadline();
    if (credit.expire(now)) credit.request(++asked, now);
  }
  EXPECT_EQ(now, kStart + SendCredit::kLongSilence);
}

TEST(SendCredit, ARefusalIsAnAnswerAfterWhichItAsksAgainSoon) {
  SendCredit credit;
  TimePoint now = kStart;
  credit.request(1, now);
  credit.starve(now);
  for (std::uint32_t number = 1; number < 1000; ++number) {
    ASSERT_TRUE(credit.grant(number, 0, now));
    ASSERT_TRUE(credit.is_starved()) << "nothing is assumed of who answers";
    now = credit.deadline();
    ASSERT_TRUE(credit.expire(now));
    credit.request(number + 1, now);
  }
  EXPECT_EQ(now, kStart + 999 * SendCredit::kRefused);
}

// ---- The receiver

Endpoint sender(unsigned number) {
  Endpoint endpoint = parse_address("127.71.0.0").value();
  endpoint.port = kRoceUdpPort;
  endpoint.address[14] = static_cast<std::uint8_t>(number >> 8);
  endpoint.address[15] = static_cast<std::uint8_t>(number);
  return endpoint;
}

TEST(CreditPool, WhoAsksAgainGetsTwiceAsMuchUpToHalfOfWhatIsFree) {
  CreditPool pool(200'000);
  std::int64_t before = pool.grant(sender(1), kStart);
  EXPECT_EQ(before, CreditPool::kSmallest);
  for (; before * 2 < 100'000; before *= 2) EXPECT_EQ(pool.grant(sender(1), kStart), before * 2);
  EXPECT_EQ(pool.grant(sender(1), kStart), 100'000U);
  EXPECT_EQ(pool.grant(sender(1), kStart), 100'000U);
}

TEST(CreditPool, SendersShareEqually) {
  CreditPool pool(200'000);
  for (int i = 0; i < 20; ++i) pool.grant(sender(1), kStart);
  for (int i = 0; i < 20; ++i) {
    pool.grant(sender(2), kStart);
    pool.grant(sender(1), kStart);
  }
  EXPECT_NEAR(pool.grant(sender(1), kStart), 200'000 / 3, 1);
  EXPECT_NEAR(pool.grant(sender(2), kStart), 200'000 / 3, 1);
}

TEST(CreditPool, OnesThatSayLittleLeaveRoomForMany) {
  CreditPool pool(312 << 10);
  for (unsigned i = 0; i < 16; ++i) EXPECT_EQ(pool.grant(sender(i), kStart), CreditPool::kSmallest);
}

TEST(CreditPool, GrantsNeverExceedTheBufferHoweverManyAsk) {
  constexpr std::int64_t kCapacity = 312 << 10;
  CreditPool pool(kCapacity);
  std::map<unsigned, std::int64_t> granted;
  std::int64_t least = kCapacity;
  for (unsigned turn = 0; turn < 2000; ++turn) {
    const unsigned who = turn * 7 % 40;
    granted[who] = pool.grant(sender(who), kStart);
    std::int64_t sum = 0;
    for (const auto& [_, bytes] : granted) sum += bytes;
    ASSERT_LE(sum, kCapacity);
    if (granted[who] != 0) least = std::min(least, granted[who]);
  }
  EXPECT_GE(least, CreditPool::kSmallest);
}

TEST(CreditPool, ASilentHolderLosesItsShare) {
  CreditPool pool(2 * CreditPool::kSmallest);
  EXPECT_GT(pool.grant(sender(1), kStart), 0U);
  EXPECT_EQ(pool.grant(sender(2), kStart + CreditPool::kHeld - 1ns), 0U);
  EXPECT_GT(pool.grant(sender(2), kStart + CreditPool::kHeld), 0U);
}

TEST(CreditPool, ABufferThatHoldsAlmostNothingIsGrantedToOneAtATime) {
  CreditPool pool(4096);
  EXPECT_EQ(pool.grant(sender(1), kStart), CreditPool::kSmallest);
  EXPECT_EQ(pool.grant(sender(2), kStart), 0U);
  EXPECT_EQ(pool.grant(sender(2), kStart + CreditPool::kHeld), CreditPool::kSmallest);
}

TEST(CreditPool, MoreSendersThanItRemembersAreServed) {
  CreditPool pool(12 << 20);
  for (unsigned i = 0; i < 1000; ++i) {
    EXPECT_GE(pool.grant(sender(i), kStart + i * 1ns), CreditPool::kSmallest);
  }
}

// ---- Links

std::unique_ptr<UdpLink> open_link(bool offload = true, std::size_t socket_buffer = 212'992) {
  static std::uint64_t serial = 0;
  auto link = UdpLink::open_anywhere(static_cast<std::uint64_t>(::getpid()) * 1000 + ++serial * 50,
                                     {.local = {}, .socket_buffer = socket_buffer, .offload = offload});
  EXPECT_TRUE(link) << link.error();
  return *std::move(link);
}

std::int64_t charged(const UdpLink& link) {  // by the kernel, for what was not received yet
  std::array<std::uint32_t, SK_MEMINFO_VARS> info{};
  socklen_t length = sizeof info;
  EXPECT_EQ(::getsockopt(link.descriptor(), SOL_SOCKET, SO_MEMINFO, info.data(), &length), 0);
  return info[SK_MEMINFO_RMEM_ALLOC];
}

TEST(Credits, TheKernelChargesNoMoreForAPacketThanIsThought) {
  const auto from = open_link();
  const auto to = open_link();
  for (std::size_t size = 16; size <= 4200; size += 4) {
    send(*from, to->local(), pattern(size, 1));
    from->flush();
    EXPECT_GT(charged(*to), static_cast<std::int64_t>(size));
    EXPECT_LE(charged(*to), charge_alone(size)) << size;
    receive_all(*to);
  }
}

class LateReceiver : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Offload, LateReceiver, testing::Bool(),
                         [](const auto& test) { return test.param ? "on" : "off"; });

// Sends as long as there is room.
std::uint32_t fill(Link& link, const Endpoint& to, std::size_t size, std::uint32_t& next, std::uint32_t end) {
  const std::uint32_t first = next;
  while (next < end && link.has_room(to, size)) send(link, to, pattern(size, next++));
  link.flush();
  return next - first;
}

TEST_P(LateReceiver, LosesNothingOfWhatASenderHasInPlenty) {
  for (const std::size_t size : {16, 64, 512, 1084, 4156}) {
    const auto from = open_link(GetParam());
    const auto to = open_link(GetParam());
    std::uint32_t next = 0;
    std::vector<Packet> received;
    constexpr std::uint32_t kPackets = 5000;
    unsigned rounds = 0;
    while (received.size() < kPackets && rounds < 20'000) {
      fill(*from, to->local(), size, next, kPackets);
      // Only now, when the sender can do no more, the receiver has a turn.
      for (Packet& packet : receive_all(*to)) received.push_back(std::move(packet));
      receive_all(*from);
      ++rounds;
    }
    EXPECT_EQ(to->counters().overrun, 0U) << size;
    ASSERT_EQ(received.size(), kPackets) << size;
    for (std::uint32_t i = 0; i < kPackets; ++i) ASSERT_EQ(received[i].bytes, pattern(size, i));
    EXPECT_GT(rounds, 2U) << "it was held back";
  }
}

TEST_P(LateReceiver, LosesNothingOfWhatManySendersHaveInPlenty) {
  constexpr std::uint32_t kPackets = 300;
  const auto to = open_link(GetParam());
  std::vector<std::unique_ptr<UdpLink>> senders;
  std::vector<std::uint32_t> next(50);
  for (std::size_t i = 0; i < next.size(); ++i) senders.push_back(open_link(GetParam()));
  std::size_t received = 0;
  for (unsigned round = 0; received < next.size() * kPackets && round < 1'000'000; ++round) {
    for (std::size_t i = 0; i < senders.size(); ++i) {
      fill(*senders[i], to->local(), i % 2 == 0 ? 4156 : 64, next[i], kPackets);
    }
    const TimePoint now = std::chrono::steady_clock::now();
    received += receive_all(*to, now).size();
    for (const auto& sender : senders) receive_all(*sender, now);
  }
  EXPECT_EQ(to->counters().overrun, 0U);
  EXPECT_EQ(received, next.size() * kPackets);
}

TEST(Credits, WhoDoesNotAskIsCountedToo) {
  const auto from = open_link();
  const auto to = open_link();
  std::uint32_t next = 0;
  fill(*from, to->local(), 4156, next, 1);  // asks
  receive_all(*to);
  receive_all(*from);
  for (int i = 0; i < 30; ++i)
    send(*from, to->local(), pattern(4156, next++));  // a reliable connection does not
  EXPECT_LT(fill(*from, to->local(), 4156, next, 1000), 30U);
  EXPECT_EQ(receive_all(*to).size(), next);
  EXPECT_EQ(to->counters().overrun, 0U);
}

TEST(Credits, AReceiverThatNeverAnswersDelaysAndDoesNotStop) {
  const auto from = open_link();
  Endpoint nobody = from->local();
  nobody.address[14] ^= 0x40;
  EXPECT_FALSE(from->has_room(nobody, 4156));
  ASSERT_TRUE(from->deadline());
  TimePoint now = std::chrono::steady_clock::now();
  std::uint32_t sent = 0;
  for (int i = 0; i < 1000 && sent < 20; ++i) {
    fill(*from, nobody, 4156, sent, 20);
    now = from->deadline().value_or(now);
    receive_all(*from, now);
  }
  EXPECT_EQ(sent, 20U);
}

TEST(Credits, AGrantFromSomebodyElseIsNone) {
  const auto from = open_link();
  const auto to = open_link();
  const auto other = open_link();
  EXPECT_FALSE(from->has_room(to->local(), 64));
  for (std::uint32_t number = 0; number < 4; ++number) {
    const CreditPacket packet{kCreditGrantOpcode, number, 1 << 20};
    const auto room = other->reserve(from->local(), packet.size());
    packet.write(room);
    set_icrc({other->local(), from->local(), room});
    other->commit();
  }
  other->flush();
  EXPECT_EQ(receive_all(*from).size(), 0U);
  EXPECT_FALSE(from->has_room(to->local(), 64));
}

TEST(Credits, AreNotSeenAboveTheLink) {
  const auto from = open_link();
  const auto to = open_link();
  EXPECT_FALSE(from->has_room(to->local(), 64));
  from->flush();
  EXPECT_TRUE(receive_all(*to).empty());
  EXPECT_TRUE(receive_all(*from).empty());
  EXPECT_TRUE(from->has_room(to->local(), 64));
  EXPECT_FALSE(from->deadline());
}

TEST(Credits, OtherHostsAndGroupsAreNotAsked) {
  const auto from = open_link();
  EXPECT_TRUE(from->has_room(endpoint("192.0.2.1"), 4156));
  EXPECT_TRUE(from->has_room(endpoint("239.72.0.1"), 4156));
  from->flush();
  EXPECT_EQ(from->counters().sent_packets, 0U);
}

TEST(LoopbackRoom, IsThereUntilTheQueueIsFull) {
  LoopbackLink link(endpoint("127.71.0.1"), 4096);
  std::uint32_t sent = 0;
  for (int round = 0; round < 5; ++round) {
    const std::uint32_t before = sent;
    fill(link, link.local(), 500, sent, before + 100);
    EXPECT_GT(sent, before);
    EXPECT_EQ(receive_all(link).size(), sent - before);
  }
  EXPECT_EQ(link.dropped(), 0U);
}

}  // namespace
}  // namespace qpair::softnic::wire
