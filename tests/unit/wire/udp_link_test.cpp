#include "softnic/wire/udp_link.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "tests/unit/wire/links.hpp"

namespace qpair::softnic::wire {
namespace {

std::unique_ptr<UdpLink> open_link(std::uint64_t hint, bool offload = true) {
  static std::uint64_t serial = 0;
  UdpOptions options;
  options.offload = offload;
  auto link =
      UdpLink::open_anywhere(static_cast<std::uint64_t>(::getpid()) * 1000 + hint + ++serial * 50, options);
  EXPECT_TRUE(link) << link.error();
  return *std::move(link);
}

UdpOptions at(const char* address) {
  UdpOptions options;
  options.local = find_local(endpoint(address)).value();
  return options;
}

// A socket of some other program on this machine.
class OtherProgram {
 public:
  explicit OtherProgram(const Endpoint& from) : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage address{};
    const socklen_t length = to_sockaddr(from, 0, address);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), length), 0);
  }
  ~OtherProgram() { ::close(fd_); }
  OtherProgram(const OtherProgram&) = delete;
  OtherProgram& operator=(const OtherProgram&) = delete;
  void send(const Endpoint& to, const Bytes& bytes) const {
    sockaddr_storage address{};
    const socklen_t length = to_sockaddr(to, 0, address);
    EXPECT_EQ(
        ::sendto(fd_, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&address), length),
        static_cast<ssize_t>(bytes.size()));
  }

 private:
  int fd_;
};

// Every test of the data path runs with and without the kernel's segmentation offload.
class UdpLinkTest : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<UdpLink> one_ = open_link(1, GetParam());
  std::unique_ptr<UdpLink> two_ = open_link(2, GetParam());
};
INSTANTIATE_TEST_SUITE_P(Offload, UdpLinkTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "on" : "off"; });

TEST_P(UdpLinkTest, PacketsOfEverySizeArriveWholeAndInOrder) {
  for (std::uint32_t size = 16; size <= 4200; ++size) {
    send(*one_, two_->local(), pattern(size, size));
    one_->flush();
    const auto packets = receive_all(*two_);
    ASSERT_EQ(packets.size(), 1U) << size;
    EXPECT_EQ(packets[0].bytes, pattern(size, size)) << size;
    EXPECT_EQ(packets[0].source, one_->local());
    EXPECT_EQ(packets[0].destination, two_->local());
  }
}

TEST_P(UdpLinkTest, ANeighbourThatUsesThePeersAddressIsNotHeard) {
  Endpoint beside = one_->local();
  beside.port = 0;  // whichever is free: the peer has the one that counts
  const OtherProgram impostor(beside);
  for (std::uint32_t number = 0; number < 100; ++number) impostor.send(two_->local(), pattern(64, number));
  send(*one_, two_->local(), pattern(64, 100));
  one_->flush();
  const auto packets = receive_all(*two_);
  ASSERT_EQ(packets.size(), 1U);
  EXPECT_EQ(number_of(packets[0].bytes), 100U);
  EXPECT_EQ(two_->counters().dropped_impostor, 100U);
}

TEST_P(UdpLinkTest, ARunOfEqualPacketsIsCutUpAgainAtTheSameBoundaries) {
  for (std::uint32_t number = 0; number < 40; ++number) {
    send(*one_, two_->local(), pattern(4120, number));
  }
  send(*one_, two_->local(), pattern(100, 40));  // a message's short last packet rides along
  one_->flush();
  const auto packets = receive_all(*two_);
  ASSERT_EQ(packets.size(), 41U);
  for (std::uint32_t number = 0; number < 41; ++number) {
    EXPECT_EQ(packets[number].bytes, pattern(number < 40 ? 4120 : 100, number));
  }
  if (one_->uses_offload()) {
    EXPECT_EQ(one_->counters().sent_messages, 3U);  // 15 + 15 + 11 packets, as many as a datagram holds
  } else {
    EXPECT_EQ(one_->counters().sent_messages, 41U);
  }
  EXPECT_EQ(one_->counters().send_calls, 1U);
}

TEST_P(UdpLinkTest, APacketLongerThanTheRunStartsANewOne) {
  const std::vector<std::size_t> sizes{64, 64, 128, 128, 32, 32, 4096, 16, 16, 64};
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    send(*one_, two_->local(), pattern(sizes[i], i));
  }
  one_->flush();
  const auto packets = receive_all(*two_);
  ASSERT_EQ(packets.size(), sizes.size());
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(packets[i].bytes, pattern(sizes[i], i)) << i;
  }
}

TEST_P(UdpLinkTest, AReservationThatIsNotKeptLeavesNoTrace) {
  send(*one_, two_->local(), pattern(124, 0));
  static_cast<void>(one_->reserve(two_->local(), 200));  // more than the run's
  send(*one_, two_->local(), pattern(124, 1));
  static_cast<void>(one_->reserve(two_->local(), 60));
  send(*one_, two_->local(), pattern(124, 2));
  one_->flush();
  const auto packets = receive_all(*two_);
  ASSERT_EQ(packets.size(), 3U);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(packets[i].bytes, pattern(124, i)) << i;
}

TEST_P(UdpLinkTest, PacketsToSeveralDestinationsDoNotMix) {
  const auto three = open_link(3, GetParam());
  for (std::uint32_t number = 0; number < 60; ++number) {
    send(*one_, (number / 2) % 2 == 0 ? two_->local() : three->local(), pattern(1040, number));
  }
  one_->flush();
  const auto at_two = receive_all(*two_);
  const auto at_three = receive_all(*three);
  ASSERT_EQ(at_two.size(), 30U);
  ASSERT_EQ(at_three.size(), 30U);
  for (std::uint32_t i = 0; i < 30; ++i) {
    EXPECT_EQ(number_of(at_two[i].bytes), (i / 2) * 4 + i % 2);
    EXPECT_EQ(number_of(at_three[i].bytes), (i / 2) * 4 + 2 + i % 2);
  }
}

TEST_P(UdpLinkTest, MoreDestinationsThanTheTableHoldsAreServedAllTheSame) {
  std::vector<std::unique_ptr<UdpLink>> many;
  for (std::uint64_t i = 0; i < 100; ++i) {
    many.push_back(open_link(100 + i, GetParam()));
    send(*one_, many.back()->local(), pattern(200, static_cast<std::uint32_t>(i)));
  }
  one_->flush();
  for (std::uint32_t i = 0; i < 100; ++i) {
    const auto packets = receive_all(*many[i]);
    ASSERT_EQ(packets.size(), 1U);
    EXPECT_EQ(number_of(packets[0].bytes), i);
  }
}

TEST_P(UdpLinkTest, PollStopsAtItsLimitAndGoesOnWhereItStopped) {
  for (std::uint32_t number = 0; number < 10; ++number) {
    send(*one_, two_->local(), pattern(500, number));
  }
  one_->flush();
  std::vector<std::uint32_t> numbers;
  const auto note = [&](const Frame& frame) {
    numbers.push_back(number_of({frame.bytes.begin(), frame.bytes.end()}));
  };
  EXPECT_EQ(two_->poll(note, 3, {}), 3U);
  EXPECT_TRUE(two_->ready());  // the rest was already taken from the socket
  EXPECT_EQ(two_->poll(note, 4, {}), 4U);
  EXPECT_EQ(two_->poll(note, 100, {}), 3U);
  EXPECT_FALSE(two_->ready());
  EXPECT_EQ(two_->poll(note, 100, {}), 0U);
  EXPECT_THAT(numbers, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST_P(UdpLinkTest, TheReceiverMayAnswerFromInside) {
  for (std::uint32_t number = 0; number < 20; ++number) {
    send(*one_, two_->local(), pattern(4120, number));
  }
  one_->flush();
  EXPECT_EQ(two_->poll(
                [&](const Frame& frame) {
                  send(*two_, frame.source, pattern(20, number_of({frame.bytes.begin(), frame.bytes.end()})));
                },
                100, {}),
            20U);
  two_->flush();
  EXPECT_EQ(receive_all(*one_).size(), 20U);
}

TEST_P(UdpLinkTest, AnArenaFullOfPacketsIsSentWithoutBeingAsked) {
  std::size_t received = 0;
  for (std::uint32_t number = 0; number < 1000; ++number) {
    send(*one_, two_->local(), pattern(4120, number));
    if (number % 100 == 99) {  // before the kernel's buffer is full
      received += receive_all(*two_).size();
    }
  }
  one_->flush();
  received += receive_all(*two_).size();
  EXPECT_EQ(received + one_->counters().dropped_full, 1000U);
}

TEST_P(UdpLinkTest, AnEmptyDatagramFromAStrangerIsNothing) {
  const int stranger = ::socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_storage address{};
  const socklen_t length = to_sockaddr(two_->local(), 0, address);
  ASSERT_EQ(::sendto(stranger, "", 0, 0, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::sendto(stranger, "abcd", 4, 0, reinterpret_cast<sockaddr*>(&address), length), 4);
  ::close(stranger);
  const auto packets = receive_all(*two_);
  ASSERT_EQ(packets.size(), 1U);
  EXPECT_EQ(packets[0].bytes.size(), 4U);
}

TEST_P(UdpLinkTest, NobodyListeningIsNoError) {
  for (int round = 0; round < 3; ++round) {
    send(*one_, endpoint("127.71.255.254"), pattern(64, 1));
    send(*one_, two_->local(), pattern(64, 2));
    one_->flush();
    EXPECT_EQ(receive_all(*two_).size(), 1U);
    EXPECT_EQ(receive_all(*one_).size(), 0U);
  }
}

TEST(UdpLinkOpen, ADestinationBeyondThisMachineCostsOneSentenceAndItsPacketsAlone) {
  const auto one = open_link(1);
  const auto two = open_link(2);
  testing::internal::CaptureStderr();
  // Of a network that is for documentation; the kernel refuses it from a loopback address, so that nothing
  // leaves.
  for (int i = 0; i < 5; ++i) {
    send(*one, endpoint("203.0.113.9"), pattern(64, 1));
  }
  send(*one, two->local(), pattern(64, 2));
  one->flush();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(one->counters().dropped_unreachable, 5U);
  EXPECT_EQ(receive_all(*two).size(), 1U);
  EXPECT_THAT(said, testing::HasSubstr("packets to 203.0.113.9 cannot leave this machine"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

TEST(UdpLinkOpen, AnAddressInUseIsASentence) {
  const auto first = open_link(1);
  const auto second = UdpLink::open(at(to_string(first->local()).c_str()));
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error(),
              testing::HasSubstr("UDP port 4791 of " + to_string(first->local()) + " is in use"));
}

TEST(UdpLinkOpen, TheSameHintFindsTheNextFreeAddress) {
  const auto first = UdpLink::open_anywhere(7);
  const auto second = UdpLink::open_anywhere(7);
  ASSERT_TRUE(first && second);
  EXPECT_NE((*first)->local(), (*second)->local());
  for (const auto* link : {&first, &second}) {
    EXPECT_EQ((**link)->local().address[12], 127);
    EXPECT_EQ((**link)->local().address[13], 71);
    EXPECT_EQ((**link)->local().port, kRoceUdpPort);
  }
}

TEST(UdpLinkOpen, IPv6WorksAsIPv4Does) {
  auto one = UdpLink::open(at("::1"));
  if (!one) {
    GTEST_SKIP() << "no ::1 here: " << one.error();
  }
  for (std::uint32_t number = 0; number < 20; ++number) {
    send(**one, (*one)->local(), pattern(4120, number));
  }
  (*one)->flush();
  const auto packets = receive_all(**one);
  ASSERT_EQ(packets.size(), 20U);
  EXPECT_EQ(packets[19].bytes, pattern(4120, 19));
  EXPECT_EQ(packets[19].source, (*one)->local());
}

TEST(UdpLinkOpen, ASocketClosedUnderneathEndsTheLinkWithASentence) {
  const auto one = open_link(1);
  testing::internal::CaptureStderr();
  ::close(one->descriptor());
  send(*one, endpoint("127.71.0.1"), pattern(64, 1));
  one->flush();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("lost its socket"));
  EXPECT_EQ(one->descriptor(), -1);
  EXPECT_EQ(receive_all(*one).size(), 0U);
  send(*one, endpoint("127.71.0.1"), pattern(64, 1));
  one->flush();
}

TEST(UdpLinkOpen, PacketsThatTheKernelHadNoRoomForAreCountedAndExplainedOnce) {
  const auto one = open_link(1);
  auto small =
      UdpLink::open_anywhere(static_cast<std::uint64_t>(::getpid()), {.local = {}, .socket_buffer = 65536});
  ASSERT_TRUE(small) << small.error();
  std::uint32_t sent = 0;
  const auto flood = [&] {
    for (int i = 0; i < 200; ++i) {
      send(*one, (*small)->local(), pattern(4120, sent++));
    }
    one->flush();
    return receive_all(**small).size();
  };
  testing::internal::CaptureStderr();
  std::size_t received = flood();
  send(*one, (*small)->local(), pattern(64, sent++));  // brings the news
  one->flush();
  received += receive_all(**small).size();
  EXPECT_LT(received, sent);
  EXPECT_GT((*small)->counters().overrun, 0U);
  flood();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("receive buffer of 128 KiB was full"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

// The invariant CRC covers the IPv4 header: only with identification 0 and Don't Fragment do both sides know
// it.
TEST(UdpLinkOpen, PacketsCarryNoIdentificationAndMayNotBeFragmented) {
  const int raw = ::socket(AF_INET, SOCK_RAW | SOCK_NONBLOCK, IPPROTO_UDP);
  if (raw < 0) {
    GTEST_SKIP() << "raw sockets need privileges";
  }
  const auto one = open_link(1, false);
  const auto two = open_link(2, false);
  // Of all the machine's packets those from one to two (raw(7)).
  sockaddr_storage address{};
  socklen_t length = to_sockaddr(two->local(), 0, address);
  ASSERT_EQ(::bind(raw, reinterpret_cast<const sockaddr*>(&address), length), 0);
  length = to_sockaddr(one->local(), 0, address);
  ASSERT_EQ(::connect(raw, reinterpret_cast<const sockaddr*>(&address), length), 0);
  std::array<std::uint8_t, 2048> packet{};
  while (::recv(raw, packet.data(), packet.size(), 0) > 0) {  // what came before that
  }
  for (int i = 0; i < 3; ++i) {
    send(*one, two->local(), pattern(64, 1));
  }
  one->flush();
  int seen = 0;
  for (; ::recv(raw, packet.data(), packet.size(), 0) > 0; ++seen) {
    EXPECT_EQ(packet[4] << 8 | packet[5], 0);
    EXPECT_EQ(packet[6] << 8 | packet[7], 0x4000);
  }
  EXPECT_EQ(seen, 3);
  ::close(raw);
}

// ---- Multicast

Endpoint group_of_this_process(std::uint8_t last) {
  Endpoint group = endpoint("239.72.0.0");
  group.address[13] = static_cast<std::uint8_t>(::getpid() >> 8);
  group.address[14] = static_cast<std::uint8_t>(::getpid());
  group.address[15] = last;
  return group;
}

TEST(Groups, WhatIsSentToOneReachesItsMembersAndNobodyElse) {
  const auto one = open_link(1);
  const auto two = open_link(2);
  const auto three = open_link(3);
  const Endpoint group = group_of_this_process(1);
  ASSERT_EQ(one->join(group), 0);
  ASSERT_EQ(two->join(group), 0);
  ASSERT_EQ(three->join(group_of_this_process(2)), 0);
  send(*one, group, pattern(100, 1));
  one->flush();
  for (UdpLink* const link : {one.get(), two.get()}) {
    pollfd readable{link->descriptor(), POLLIN, 0};
    EXPECT_EQ(::poll(&readable, 1, 0), 1) << "it wakes the engine";
    const auto packets = receive_all(*link);
    ASSERT_EQ(packets.size(), 1U);
    EXPECT_EQ(packets[0].source, one->local());
    EXPECT_EQ(packets[0].destination, group);
    EXPECT_EQ(packets[0].bytes, pattern(100, 1));
  }
  EXPECT_TRUE(receive_all(*three).empty());
}

TEST(Groups, AMemberStillReceivesWhatIsSentToItAlone) {
  const auto one = open_link(1);
  const auto two = open_link(2);
  ASSERT_EQ(two->join(group_of_this_process(3)), 0);
  send(*one, two->local(), pattern(64, 2));
  one->flush();
  pollfd readable{two->descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&readable, 1, 0), 1);
  EXPECT_EQ(receive_all(*two).size(), 1U);
}

TEST(Groups, IsLeftAsOftenAsItWasJoined) {
  const auto one = open_link(1);
  const auto two = open_link(2);
  const Endpoint group = group_of_this_process(4);
  ASSERT_EQ(two->join(group), 0);
  ASSERT_EQ(two->join(group), 0);
  two->leave(group);
  send(*one, group, pattern(64, 3));
  one->flush();
  EXPECT_EQ(receive_all(*two).size(), 1U);
  two->leave(group);
  send(*one, group, pattern(64, 3));
  one->flush();
  EXPECT_TRUE(receive_all(*two).empty());
}

TEST(Groups, OfTheOtherFamilyAreRefused) {
  EXPECT_EQ(open_link(1)->join(endpoint("ff12::1")), EAFNOSUPPORT);
}

TEST(Groups, OfIpv6AreRefusedOnTheLoopbackWhichHasNoRouteForThem) {
  auto one = UdpLink::open(at("::1"));
  if (!one) {
    GTEST_SKIP() << "no ::1 here: " << one.error();
  }
  EXPECT_EQ((*one)->join(endpoint("ff0e::72:1:2")), ENETUNREACH);
}

}  // namespace
}  // namespace qpair::softnic::wire
