#include "softnic/roce/packet.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/unit/roce/support.hpp"

namespace qpair::softnic::roce {
namespace {

std::vector<std::byte> make_packet(Opcode opcode, std::size_t payload) {
  std::vector<std::byte> bytes(PacketWriter::size(opcode, payload), std::byte{0xaa});
  PacketHeader header;
  header.opcode = opcode;
  PacketWriter(bytes, header, payload);
  return bytes;
}

TEST(Packet, TooShortForItsHeadersIsRefused) {
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    if (!opcode_info(static_cast<std::uint8_t>(opcode)).has(OpcodeInfo::kKnown)) continue;
    auto bytes = make_packet(static_cast<Opcode>(opcode), 0);
    EXPECT_TRUE(Packet::parse(bytes).has_value());
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(Packet::parse(std::span(bytes).first(size)).has_value()) << opcode << " " << size;
    }
  }
}

TEST(Packet, UnknownOpcodesAndVersionsAreRefused) {
  auto bytes = make_packet(Opcode::SendOnly, 0);
  bytes[1] |= std::byte{1};
  EXPECT_EQ(Packet::parse(bytes).error(), ParseError::BadVersion);
  bytes[1] = std::byte{0};
  bytes[0] = std::byte{0x15};
  EXPECT_EQ(Packet::parse(bytes).error(), ParseError::UnknownOpcode);
  bytes[0] = std::byte{0x81};
  EXPECT_EQ(Packet::parse(bytes).error(), ParseError::UnknownOpcode);
}

TEST(Packet, PadIsNoPayload) {
  for (std::size_t size = 0; size < 10; ++size) {
    auto bytes = make_packet(Opcode::SendOnly, size);
    EXPECT_EQ(bytes.size() % 4, 0U);
    const auto packet = Packet::parse(bytes);
    ASSERT_TRUE(packet.has_value());
    EXPECT_EQ(packet->payload().size(), size);
    for (std::size_t i = kBthSize + size; i < bytes.size() - kIcrcSize; ++i)
      EXPECT_EQ(bytes[i], std::byte{0});
  }
}

TEST(Packet, PadBeyondThePayloadIsRefused) {
  auto bytes = make_packet(Opcode::SendOnly, 0);
  bytes[1] = std::byte{0x30};
  EXPECT_EQ(Packet::parse(bytes).error(), ParseError::BadPad);
}

TEST(Packet, PayloadWhereNoneBelongsIsRefused) {
  auto bytes = make_packet(Opcode::ReadRequest, 0);
  bytes.resize(bytes.size() + 4);
  EXPECT_EQ(Packet::parse(bytes).error(), ParseError::BadLength);
  auto send = make_packet(Opcode::SendOnly, 4);
  send.resize(send.size() + 1);
  EXPECT_EQ(Packet::parse(send).error(), ParseError::BadLength);
}

TEST(Packet, HeadersThatAnOpcodeLacksReadAsZero) {
  auto bytes = make_packet(Opcode::SendMiddle, 256);
  const auto packet = Packet::parse(bytes);
  ASSERT_TRUE(packet.has_value());
  EXPECT_EQ(packet->reth().length, 0U);
  EXPECT_EQ(packet->atomic().address, 0U);
  EXPECT_EQ(packet->immediate(), 0U);
  EXPECT_EQ(packet->invalidated_key(), 0U);
  EXPECT_EQ(packet->atomic_original(), 0U);
}

TEST(Packet, AnyBytesAreParsedOrRefused) {
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    std::vector<std::byte> bytes(random() % 80);
    for (auto& b : bytes) b = static_cast<std::byte>(random());
    if (bytes.size() > 1 && i % 2 == 0) bytes[1] &= std::byte{0xf0};
    const auto packet = Packet::parse(bytes);
    if (!packet) continue;
    const auto payload = packet->payload();
    EXPECT_GE(payload.data(), bytes.data());
    EXPECT_LE(payload.data() + payload.size() + kIcrcSize, bytes.data() + bytes.size());
    static_cast<void>(packet->reth().length + packet->atomic().compare + packet->immediate() +
                      packet->aeth().msn + packet->atomic_original() + packet->invalidated_key());
  }
}

TEST(Icrc, CoversEverythingButWhatRoutersChange) {
  auto bytes = make_packet(Opcode::SendOnly, 64);
  const wire::Frame frame{test::endpoint(1), test::endpoint(2), bytes};
  set_icrc(frame);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{0x40};
    EXPECT_EQ(check_icrc(frame), i == 4) << "byte " << i;  // byte 4 has the congestion marks
    bytes[i] ^= std::byte{0x40};
  }
  EXPECT_TRUE(check_icrc(frame));
  EXPECT_FALSE(check_icrc({test::endpoint(3), test::endpoint(2), bytes})) << "another source";
  EXPECT_FALSE(check_icrc({test::endpoint(1), test::endpoint(2, 4792), bytes})) << "another port";
}

TEST(Icrc, IsTheSameFromACachedPrefix) {
  Icrc cached(test::endpoint(1), test::endpoint(2));
  for (const std::size_t size : {64U, 64U, 8U, 4096U, 4096U, 64U}) {
    auto bytes = make_packet(Opcode::WriteMiddle, size);
    cached.seal(bytes);
    EXPECT_TRUE(check_icrc({test::endpoint(1), test::endpoint(2), bytes}));
    EXPECT_TRUE(cached.check(bytes));
  }
}

TEST(Icrc, KnowsIpv6) {
  auto bytes = make_packet(Opcode::SendOnly, 8);
  wire::Endpoint a, b;
  a.address = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  b.address = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
  a.port = b.port = wire::kRoceUdpPort;
  set_icrc({a, b, bytes});
  EXPECT_TRUE(check_icrc({a, b, bytes}));
  EXPECT_FALSE(check_icrc({b, a, bytes}));
}

TEST(Icrc, FindsEveryIdentification) {
  for (const std::size_t size : {kBthSize + kIcrcSize, std::size_t{1040}, std::size_t{4124}}) {
    std::vector<std::byte> bytes(size, std::byte{0x5a});
    Icrc unnumbered(test::endpoint(1), test::endpoint(2));
    for (unsigned number = 0; number < 65536; number += 13) {
      Icrc(test::endpoint(1), test::endpoint(2), static_cast<std::uint16_t>(number)).seal(bytes);
      ASSERT_EQ(unnumbered.identification(bytes), std::optional(static_cast<std::uint16_t>(number))) << size;
    }
  }
}

TEST(Icrc, HasNoIdentificationToFindInIpv6) {
  std::vector<std::byte> bytes(40, std::byte{0x5a});
  wire::Endpoint a = test::endpoint(1);
  wire::Endpoint b = test::endpoint(2);
  a.address[0] = b.address[0] = 0xfd;
  set_icrc({a, b, bytes});
  EXPECT_TRUE(check_icrc({a, b, bytes, {}}));
  bytes[20] ^= std::byte{1};
  EXPECT_FALSE(check_icrc({a, b, bytes, {}}));
}

TEST(Icrc, OfATooShortPacketIsWrong) {
  std::vector<std::byte> bytes(kBthSize + kIcrcSize - 1);
  const wire::Frame frame{test::endpoint(1), test::endpoint(2), bytes};
  set_icrc(frame);
  EXPECT_FALSE(check_icrc(frame));
}

TEST(Syndrome, RnrTimersAreThoseOfTheSpecification) {
  using namespace std::chrono_literals;
  EXPECT_EQ(rnr_delay(0), 655360us);
  EXPECT_EQ(rnr_delay(1), 10us);
  EXPECT_EQ(rnr_delay(12), 640us);
  EXPECT_EQ(rnr_delay(31), 491520us);
  for (std::uint8_t i = 2; i < 32; ++i) EXPECT_GT(rnr_delay(i), rnr_delay(static_cast<std::uint8_t>(i - 1)));
  EXPECT_EQ(ack_timeout(1), 8192ns);
  EXPECT_EQ(ack_timeout(14), 67108864ns);
}

}  // namespace
}  // namespace qpair::softnic::roce
