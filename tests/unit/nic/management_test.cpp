// Queue pair 1: what its packets look like, and which ones it takes.

#include "softnic/nic/management.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "softnic/roce/packet.hpp"
#include "softnic/wire/bytes.hpp"
#include "softnic/wire/loopback_link.hpp"

namespace qpair::softnic::nic {
namespace {

constexpr std::size_t kPacketSize = 280;  // as those of kernel rxe devices: headers, 256 bytes, CRC

struct Heard {
  std::vector<Mad> mads;
  std::vector<wire::Endpoint> sources;
  wire::TimePoint expired{};
};

class Agent final : public ManagementAgent {
 public:
  explicit Agent(Heard& heard) : heard_(heard) {}
  void receive(MadView mad, const wire::Endpoint& source, wire::TimePoint) override {
    std::ranges::copy(mad, heard_.mads.emplace_back().begin());
    heard_.sources.push_back(source);
  }
  wire::TimePoint deadline() const override { return due_; }
  void expire(wire::TimePoint now) override {
    heard_.expired = now;
    due_ = wire::TimePoint::max();
  }

 private:
  Heard& heard_;
  wire::TimePoint due_{std::chrono::seconds(5)};
};

class ManagementTest : public ::testing::Test {
 protected:
  ManagementTest() {
    mad_[0] = std::byte{1};
    mad_[255] = std::byte{0xee};
    port_.attach(std::make_unique<Agent>(heard_));
  }
  static wire::Endpoint here() {
    wire::Endpoint endpoint{.address = {}, .port = wire::kRoceUdpPort};
    endpoint.address[10] = endpoint.address[11] = 0xff;
    endpoint.address[12] = 127;
    endpoint.address[15] = 9;
    return endpoint;
  }
  // The packet that was sent, after `change` was made to it.
  template <typename Change>
  bool takes(const Change& change) {
    port_.send(here(), mad_);
    bool taken = false;
    link_.poll(
        [&](const wire::Frame& frame) {
          bytes_.assign(frame.bytes.begin(), frame.bytes.end());
          correct_ = roce::check_icrc(frame);
          change(frame.bytes);
          const auto packet = roce::Packet::parse(frame.bytes);
          taken = packet && port_.receive(*packet, frame.source, {});
        },
        1, {});
    return taken;
  }

  Heard heard_;
  Mad mad_{};
  wire::LoopbackLink link_{here()};
  ManagementPort port_{link_};
  std::vector<std::byte> bytes_;
  bool correct_ = false;
};

TEST_F(ManagementTest, ADatagramIsAPacketAsTheKernelSendsIt) {
  ASSERT_TRUE(takes([](std::span<std::byte>) {}));
  ASSERT_EQ(bytes_.size(), kPacketSize);
  EXPECT_TRUE(correct_);
  EXPECT_EQ(bytes_[0], std::byte{0x64}) << "UD SEND Only";
  EXPECT_EQ(wire::load_be<std::uint16_t>(&bytes_[2]), 0xffff);
  EXPECT_EQ(wire::load_be<std::uint32_t>(&bytes_[4]), 1U) << "to queue pair 1";
  EXPECT_EQ(wire::load_be<std::uint32_t>(&bytes_[12]), 0x8001'0000U);
  EXPECT_EQ(wire::load_be<std::uint32_t>(&bytes_[16]), 1U) << "from queue pair 1";
  ASSERT_EQ(heard_.mads.size(), 1U);
  EXPECT_EQ(heard_.mads[0], mad_);
  EXPECT_EQ(heard_.sources[0].address, here().address);
}

TEST_F(ManagementTest, EveryDatagramHasASequenceNumberOfItsOwn) {
  ASSERT_TRUE(takes([](std::span<std::byte>) {}));
  const auto first = wire::load_be<std::uint32_t>(&bytes_[8]) & 0xff'ffff;
  ASSERT_TRUE(takes([](std::span<std::byte>) {}));
  EXPECT_EQ(wire::load_be<std::uint32_t>(&bytes_[8]) & 0xff'ffff, first + 1);
}

TEST_F(ManagementTest, WhatIsNoManagementDatagramIsNotTaken) {
  EXPECT_FALSE(takes([](std::span<std::byte> bytes) { bytes[15] = std::byte{1}; })) << "another Q_Key";
  EXPECT_FALSE(takes([](std::span<std::byte> bytes) { bytes[0] = std::byte{0x65}; })) << "an immediate";
  EXPECT_FALSE(takes([](std::span<std::byte> bytes) { bytes[0] = std::byte{0x04}; })) << "of a connection";
  EXPECT_FALSE(takes([](std::span<std::byte> bytes) { bytes[1] |= std::byte{0x30}; })) << "shorter by a pad";
  EXPECT_TRUE(heard_.mads.empty());
}

TEST_F(ManagementTest, WithoutAnAgentNothingIsTakenAndNothingIsDue) {
  port_.attach(nullptr);
  EXPECT_FALSE(takes([](std::span<std::byte>) {}));
  EXPECT_EQ(port_.deadline(), wire::TimePoint::max());
  EXPECT_FALSE(port_.expire(wire::TimePoint::max()));
}

TEST_F(ManagementTest, TheAgentIsCalledWhenItsTimeHasCome) {
  const wire::TimePoint due = port_.deadline();
  EXPECT_FALSE(port_.expire(due - std::chrono::nanoseconds(1)));
  EXPECT_TRUE(port_.expire(due));
  EXPECT_EQ(heard_.expired, due);
  EXPECT_EQ(port_.deadline(), wire::TimePoint::max());
}

}  // namespace
}  // namespace qpair::softnic::nic
