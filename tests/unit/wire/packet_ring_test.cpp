#include "softnic/wire/packet_ring.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <new>
#include <random>
#include <thread>
#include <vector>

namespace qpair::softnic::wire {
namespace {

constexpr std::size_t kCapacity = 4096;

class PacketRingTest : public testing::Test {
 protected:
  PacketRingTest() { new (memory.data()) PacketRingHeader; }

  static void fill(std::span<std::byte> packet, std::uint32_t number) {
    std::memset(packet.data(), static_cast<int>(number % 251), packet.size());
  }
  static bool is_filled(std::span<const std::byte> packet, std::uint32_t number) {
    for (const std::byte byte : packet) {
      if (byte != static_cast<std::byte>(number % 251)) return false;
    }
    return true;
  }
  bool send(std::size_t size, std::uint32_t number) {
    const auto packet = producer.reserve(size);
    if (packet.size() != size || size == 0) return false;
    fill(packet, number);
    producer.publish();
    return true;
  }
  // The record before the packet at the front, as the producer wrote it.
  std::uint32_t* front_record() {
    return reinterpret_cast<std::uint32_t*>(memory.data() + sizeof(PacketRingHeader));
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> storage{PacketRing::size_for(kCapacity) / sizeof(Line)};
  std::span<std::byte> memory{storage.front().bytes, PacketRing::size_for(kCapacity)};
  PacketRing producer{memory};
  PacketRing consumer{memory};
};

TEST_F(PacketRingTest, NothingIsSeenBeforeItIsPublished) {
  EXPECT_TRUE(consumer.front().empty());
  fill(producer.reserve(100), 1);
  EXPECT_TRUE(consumer.front().empty());
  EXPECT_TRUE(consumer.empty());
  producer.publish();
  EXPECT_FALSE(consumer.empty());
  EXPECT_EQ(consumer.front().size(), 100U);
  EXPECT_TRUE(is_filled(consumer.front(), 1));
  consumer.pop();
  EXPECT_TRUE(consumer.front().empty());
}

TEST_F(PacketRingTest, KeepsOrderAndBytesAroundItsEnd) {
  std::mt19937 random(7);
  std::deque<std::pair<std::size_t, std::uint32_t>> sent;
  std::uint32_t number = 0;
  for (int step = 0; step < 100'000; ++step) {
    if (random() % 2 == 0) {
      const std::size_t size = 1 + random() % 1500;
      if (send(size, number)) sent.emplace_back(size, number++);
    } else if (!sent.empty()) {
      const auto packet = consumer.front();
      ASSERT_EQ(packet.size(), sent.front().first);
      ASSERT_TRUE(is_filled(packet, sent.front().second));
      consumer.pop();
      sent.pop_front();
    }
  }
  EXPECT_GT(number, 10'000U);
  EXPECT_FALSE(consumer.broken());
}

TEST_F(PacketRingTest, HasRoomExactlyWhenAPacketCanBeReserved) {
  std::mt19937 random(11);
  for (int step = 0; step < 20'000; ++step) {
    const std::size_t size = 1 + random() % 2500;
    const bool room = producer.has_room(size);
    ASSERT_EQ(send(size, 0), room);
    if (random() % 3 == 0 && !consumer.front().empty()) consumer.pop();
  }
}

TEST_F(PacketRingTest, WhatIsLongerThanTheRingNeverFits) {
  EXPECT_FALSE(producer.has_room(kCapacity));
  EXPECT_TRUE(producer.has_room(kCapacity - PacketRing::kAlignment));
}

TEST_F(PacketRingTest, CarriesPacketsBetweenThreads) {
  constexpr std::uint32_t kPackets = 20'000;
  std::jthread other([this] {
    for (std::uint32_t number = 0; number < kPackets;) {
      if (send(1 + number % 700, number)) {
        ++number;
      } else {
        std::this_thread::yield();
      }
    }
  });
  for (std::uint32_t number = 0; number < kPackets;) {
    const auto packet = consumer.front();
    if (packet.empty()) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(packet.size(), 1 + number % 700);
    ASSERT_TRUE(is_filled(packet, number));
    consumer.pop();
    ++number;
  }
}

// ---- What another process may have written ------------------------------------------------------

TEST_F(PacketRingTest, APacketThatLeavesTheRingBreaksIt) {
  ASSERT_TRUE(send(100, 1));
  front_record()[0] = 1U << 30;
  EXPECT_TRUE(consumer.front().empty());
  EXPECT_TRUE(consumer.broken());
}

TEST_F(PacketRingTest, AStrideThatLeavesTheRingBreaksIt) {
  ASSERT_TRUE(send(100, 1));
  front_record()[1] = 1U << 20;
  EXPECT_TRUE(consumer.front().empty());
  EXPECT_TRUE(consumer.broken());
}

TEST_F(PacketRingTest, AStrideOfNothingDoesNotKeepTheConsumerForever) {
  ASSERT_TRUE(send(100, 1));
  front_record()[0] = 0xffff'ffff;
  front_record()[1] = 0;
  EXPECT_TRUE(consumer.front().empty());
  EXPECT_TRUE(consumer.broken());
}

TEST_F(PacketRingTest, APacketOfNothingBreaksIt) {
  ASSERT_TRUE(send(100, 1));
  front_record()[0] = 0;
  front_record()[1] = 64;
  EXPECT_TRUE(consumer.front().empty());
  EXPECT_TRUE(consumer.broken());
}

TEST_F(PacketRingTest, MoreBytesThanTheRingHoldsBreakIt) {
  ASSERT_TRUE(send(100, 1));
  producer.header().tail.store(kCapacity + 64);
  EXPECT_TRUE(consumer.front().empty());
  EXPECT_TRUE(consumer.broken());
}

TEST_F(PacketRingTest, AHeadThatCannotBeLeavesTheProducerWithoutRoomAndNoMore) {
  producer.header().head.store(std::uint64_t{1} << 60);
  while (send(500, 1)) {
  }
  EXPECT_FALSE(producer.has_room(500));
}

}  // namespace
}  // namespace qpair::softnic::wire
