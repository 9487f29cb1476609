#include "softnic/wire/loopback_link.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "softnic/wire/routing_link.hpp"
#include "tests/unit/wire/links.hpp"

namespace qpair::softnic::wire {
namespace {

const Endpoint kSelf = endpoint("127.71.1.1");
const Endpoint kOther = endpoint("127.71.2.2");

TEST(LoopbackLink, DeliversWhatWasCommittedInOrder) {
  LoopbackLink link(kSelf);
  EXPECT_FALSE(link.ready());
  for (std::uint32_t number = 0; number < 200; ++number) {
    send(link, kSelf, pattern(16 + number * 20, number));
  }
  EXPECT_TRUE(link.ready());
  const auto packets = receive_all(link);
  ASSERT_EQ(packets.size(), 200U);
  for (std::uint32_t number = 0; number < 200; ++number) {
    EXPECT_EQ(packets[number].bytes, pattern(16 + number * 20, number));
    EXPECT_EQ(packets[number].source, kSelf);
  }
  EXPECT_FALSE(link.ready());
}

TEST(LoopbackLink, AReservationThatIsNotCommittedIsForgotten) {
  LoopbackLink link(kSelf);
  static_cast<void>(link.reserve(kSelf, 100));
  send(link, kSelf, pattern(50, 1));
  const auto packets = receive_all(link);
  ASSERT_EQ(packets.size(), 1U);
  EXPECT_EQ(packets[0].bytes, pattern(50, 1));
}

TEST(LoopbackLink, AnswersSentFromInsideDoNotDisturbThePacketBeingRead) {
  LoopbackLink link(kSelf, 64U << 10);
  std::uint32_t next = 0;
  std::uint32_t expected = 0;
  send(link, kSelf, pattern(3000, next++));
  send(link, kSelf, pattern(3000, next++));
  // Every packet is answered by one more, around the ring many times.
  for (int round = 0; round < 2000; ++round) {
    ASSERT_EQ(link.poll(
                  [&](const Frame& frame) {
                    send(link, kSelf, pattern(1000 + next % 3000, next));
                    ++next;
                    const Bytes bytes(frame.bytes.begin(), frame.bytes.end());
                    ASSERT_EQ(number_of(bytes), expected);
                    ASSERT_EQ(bytes, pattern(bytes.size(), expected));
                    ++expected;
                  },
                  1, {}),
              1U);
  }
  EXPECT_EQ(link.dropped(), 0U);
}

TEST(LoopbackLink, AFullQueueLosesTheNewestAndRecovers) {
  LoopbackLink link(kSelf, 64U << 10);
  for (std::uint32_t number = 0; number < 100; ++number) {
    send(link, kSelf, pattern(4096, number));
  }
  EXPECT_GT(link.dropped(), 0U);
  const auto packets = receive_all(link);
  EXPECT_EQ(packets.size() + link.dropped(), 100U);
  for (std::uint32_t number = 0; number < packets.size(); ++number) {
    EXPECT_EQ(packets[number].bytes, pattern(4096, number));
  }
  send(link, kSelf, pattern(4096, 7));
  EXPECT_EQ(receive_all(link).size(), 1U);
}

TEST(LoopbackLink, EveryMixOfSizesGoesAroundTheRingUnharmed) {
  LoopbackLink link(kSelf, 16U << 10);
  std::uint32_t sent = 0;
  std::uint32_t received = 0;
  std::uint64_t dropped = 0;
  std::deque<std::uint32_t> expected;
  for (std::uint32_t step = 0; step < 20000; ++step) {
    if (step % 7 < 4) {
      const std::uint32_t number = sent++;
      send(link, kSelf, pattern(16 + (number * 977) % 4000, number));
      if (link.dropped() == dropped) {
        expected.push_back(number);
      }
      dropped = link.dropped();
    } else {
      link.poll(
          [&](const Frame& frame) {
            const Bytes bytes(frame.bytes.begin(), frame.bytes.end());
            ASSERT_EQ(bytes, pattern(16 + (expected.front() * 977) % 4000, expected.front()));
            expected.pop_front();
            ++received;
          },
          1 + step % 2, {});
    }
  }
  EXPECT_GT(received, 8000U);
}

TEST(RoutingLink, KeepsOurOwnPacketsInMemoryAndSendsTheOthers) {
  auto network = std::make_unique<RecordingLink>(kSelf);
  RecordingLink& wire = *network;
  RoutingLink link(std::make_unique<LoopbackLink>(kSelf), nullptr, std::move(network));
  send(link, kSelf, pattern(64, 1));
  send(link, kOther, pattern(64, 2));
  link.flush();
  ASSERT_EQ(wire.sent.size(), 1U);
  EXPECT_EQ(number_of(wire.sent[0].bytes), 2U);
  EXPECT_TRUE(link.ready());
  const auto packets = receive_all(link);
  ASSERT_EQ(packets.size(), 1U);
  EXPECT_EQ(number_of(packets[0].bytes), 1U);
}

TEST(RoutingLink, NeitherSideStarvesTheOther) {
  auto network = std::make_unique<RecordingLink>(kSelf);
  RecordingLink& wire = *network;
  RoutingLink link(std::make_unique<LoopbackLink>(kSelf), nullptr, std::move(network));
  unsigned from_self = 0;
  unsigned from_other = 0;
  for (int round = 0; round < 100; ++round) {  // both always have more than a poll takes
    for (int i = 0; i < 8; ++i) {
      send(link, kSelf, pattern(64, 1));
      wire.incoming.push_back({kOther, kSelf, pattern(64, 2)});
    }
    link.poll([&](const Frame& frame) { ++(frame.source == kSelf ? from_self : from_other); }, 4, {});
  }
  EXPECT_EQ(from_self, 200U);
  EXPECT_EQ(from_other, 200U);
}

}  // namespace
}  // namespace qpair::softnic::wire
