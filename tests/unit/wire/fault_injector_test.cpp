#include "softnic/wire/fault_injector.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "tests/unit/wire/links.hpp"

namespace qpair::softnic::wire {
namespace {

using namespace std::chrono_literals;

const Endpoint kSelf = endpoint("127.71.1.1");
const Endpoint kPeer = endpoint("127.71.2.2");
const Endpoint kOther = endpoint("127.71.3.3");

// A fault injector over a network that records, and a clock that stands still until told otherwise.
struct World {
  explicit World(const Faults& faults) {
    auto recording = std::make_unique<RecordingLink>(kSelf);
    wire = recording.get();
    link = std::make_unique<FaultInjector>(std::move(recording), faults, [this] { return now; });
  }
  void send_numbers(std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t number = first; number < first + count; ++number) {
      send(*link, kPeer, pattern(256, number));
    }
    link->flush();
  }
  void let_pass(std::chrono::nanoseconds time) {
    now += time;
    receive_all(*link, now);
  }
  std::vector<std::uint32_t> numbers() const {
    std::vector<std::uint32_t> result;
    for (const Packet& packet : wire->sent) {
      result.push_back(number_of(packet.bytes));
    }
    return result;
  }

  RecordingLink* wire = nullptr;
  TimePoint now{};
  std::unique_ptr<FaultInjector> link;
};

TEST(FaultInjector, WithoutFaultsEverythingPassesUntouched) {
  World world({});
  world.send_numbers(0, 100);
  ASSERT_EQ(world.wire->sent.size(), 100U);
  for (std::uint32_t number = 0; number < 100; ++number) {
    EXPECT_EQ(world.wire->sent[number].bytes, pattern(256, number));
  }
}

TEST(FaultInjector, OneSeedGivesOneHistory) {
  const Faults faults{.drop = 0.1, .duplicate = 0.1, .reorder = 0.1, .corrupt = 0.1, .seed = 42};
  World first(faults);
  World second(faults);
  first.send_numbers(0, 5000);
  second.send_numbers(0, 5000);
  ASSERT_EQ(first.wire->sent.size(), second.wire->sent.size());
  for (std::size_t i = 0; i < first.wire->sent.size(); ++i) {
    ASSERT_EQ(first.wire->sent[i].bytes, second.wire->sent[i].bytes) << i;
  }
  Faults other = faults;
  other.seed = 43;
  World third(other);
  third.send_numbers(0, 5000);
  EXPECT_NE(first.numbers(), third.numbers());
}

TEST(FaultInjector, OneProbabilityLeavesTheOthersDecisionsAlone) {
  World lossy({.drop = 0.05, .seed = 9});
  World lossy_and_doubling({.drop = 0.05, .duplicate = 0.2, .seed = 9});
  lossy.send_numbers(0, 2000);
  lossy_and_doubling.send_numbers(0, 2000);
  const auto one = lossy.numbers();
  const auto two = lossy_and_doubling.numbers();
  EXPECT_EQ(std::set(one.begin(), one.end()), std::set(two.begin(), two.end()));
}

TEST(FaultInjector, RatesAreThoseAskedFor) {
  constexpr std::uint32_t kPackets = 100000;
  World world({.drop = 0.01, .duplicate = 0.02, .reorder = 0.03, .corrupt = 0.04, .seed = 1});
  world.send_numbers(0, kPackets);
  world.let_pass(1s);
  const FaultCounters& counters = world.link->counters();
  // Five standard deviations of a binomial distribution.
  const auto within = [](std::uint64_t count, double probability, double of) {
    const double deviation = std::sqrt(of * probability * (1 - probability));
    EXPECT_NEAR(static_cast<double>(count), of * probability, 5 * deviation);
  };
  within(counters.dropped, 0.01, kPackets);
  const auto survivors = static_cast<double>(kPackets - counters.dropped);
  within(counters.duplicated, 0.02, survivors);
  within(counters.reordered, 0.03, survivors);
  within(counters.corrupted, 0.04, survivors);
  EXPECT_EQ(world.wire->sent.size(), kPackets - counters.dropped + counters.duplicated);
}

TEST(FaultInjector, AReorderedPacketIsOvertakenByAFewAndNeverLost) {
  World world({.reorder = 0.05, .seed = 5});
  world.send_numbers(0, 10000);
  world.let_pass(1ms);
  const auto numbers = world.numbers();
  ASSERT_EQ(numbers.size(), 10000U);
  std::uint32_t newest = 0;
  std::uint64_t late = 0;
  for (const std::uint32_t number : numbers) {
    if (number < newest) {
      ++late;
      EXPECT_LE(newest - number, 5U);
    }
    newest = std::max(newest, number);
  }
  EXPECT_EQ(std::set(numbers.begin(), numbers.end()).size(), 10000U);
  EXPECT_GT(late, 400U);
  EXPECT_LE(late, world.link->counters().reordered);
}

TEST(FaultInjector, AHeldBackPacketThatNobodyOvertakesGoesWhenItsMomentHasPassed) {
  World world({.reorder = 1, .seed = 5});
  world.send_numbers(0, 1);
  EXPECT_EQ(world.wire->sent.size(), 0U);
  ASSERT_TRUE(world.link->deadline());
  const auto wait = *world.link->deadline() - world.now;
  EXPECT_LE(wait, 1ms);
  world.let_pass(wait);
  EXPECT_EQ(world.wire->sent.size(), 1U);
  EXPECT_FALSE(world.link->deadline());
}

TEST(FaultInjector, ACorruptPacketDiffersInExactlyOneBit) {
  World world({.corrupt = 1, .seed = 5});
  world.send_numbers(0, 500);
  for (std::uint32_t number = 0; number < 500; ++number) {
    const Bytes& got = world.wire->sent[number].bytes;
    const Bytes want = pattern(256, number);
    int bits = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      bits += std::popcount(std::to_integer<unsigned>(got[i] ^ want[i]));
    }
    EXPECT_EQ(bits, 1);
  }
}

TEST(FaultInjector, DelayedPacketsComeInOrderWhenTheirTimeHasCome) {
  World world({.delay = 50us, .seed = 5});
  world.send_numbers(0, 10);
  world.now += 20us;
  world.send_numbers(10, 10);
  EXPECT_EQ(world.wire->sent.size(), 0U);
  ASSERT_EQ(world.link->deadline(), TimePoint{} + 50us);
  world.let_pass(29us);
  EXPECT_EQ(world.wire->sent.size(), 0U);
  world.let_pass(1us);
  EXPECT_EQ(world.wire->sent.size(), 10U);
  EXPECT_EQ(world.link->deadline(), TimePoint{} + 70us);
  world.let_pass(20us);
  const auto numbers = world.numbers();
  ASSERT_EQ(numbers.size(), 20U);
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
}

TEST(FaultInjector, AFullWaitingRoomLosesPacketsAndSaysHowMany) {
  World world({.delay = 1ms, .seed = 5});
  world.send_numbers(0, 1500);
  EXPECT_GT(world.link->counters().overflowed, 0U);
  world.let_pass(1ms);
  EXPECT_EQ(world.wire->sent.size() + world.link->counters().overflowed, 1500U);
  world.send_numbers(0, 100);
  world.let_pass(1ms);
  EXPECT_EQ(world.wire->sent.size() + world.link->counters().overflowed, 1600U);
}

TEST(FaultInjector, APartitionCutsBothDirectionsToThatPeerAlone) {
  World world({});
  world.link->partition(kPeer);
  send(*world.link, kPeer, pattern(64, 1));
  send(*world.link, kOther, pattern(64, 2));
  EXPECT_THAT(world.numbers(), testing::ElementsAre(2));
  world.wire->incoming.push_back({kPeer, kSelf, pattern(64, 3)});
  world.wire->incoming.push_back({kOther, kSelf, pattern(64, 4)});
  const auto received = receive_all(*world.link);
  ASSERT_EQ(received.size(), 1U);
  EXPECT_EQ(number_of(received[0].bytes), 4U);
  EXPECT_EQ(world.link->counters().cut_off, 2U);

  world.link->heal(kPeer);
  send(*world.link, kPeer, pattern(64, 5));
  EXPECT_THAT(world.numbers(), testing::ElementsAre(2, 5));
}

TEST(FaultInjector, PacketsOnTheirWayWhenThePartitionBeginsAreCutOffToo) {
  World world({.delay = 10us});
  world.send_numbers(0, 3);
  world.link->partition(kPeer);
  world.let_pass(10us);
  EXPECT_EQ(world.wire->sent.size(), 0U);
}

TEST(FaultInjector, APauseHoldsBothDirectionsAndResumingLosesNothing) {
  World world({});
  world.link->pause();
  world.send_numbers(0, 5);
  world.wire->incoming.push_back({kPeer, kSelf, pattern(64, 9)});
  EXPECT_EQ(receive_all(*world.link).size(), 0U);
  EXPECT_EQ(world.wire->sent.size(), 0U);
  world.link->resume();
  EXPECT_THAT(world.numbers(), testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(receive_all(*world.link).size(), 1U);
}

}  // namespace
}  // namespace qpair::softnic::wire
