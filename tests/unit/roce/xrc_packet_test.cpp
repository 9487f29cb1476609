// The XRCETH: where it lies, and which packets have it (IBTA vol. 1 annex A14).

#include <gtest/gtest.h>

#include <vector>

#include "softnic/roce/packet.hpp"

namespace qpair::softnic::roce {
namespace {

constexpr Opcode on_xrc(Opcode opcode) {
  return on_service(Service::ExtendedReliableConnection, opcode);
}

std::vector<std::byte> packet_of(Opcode opcode, std::size_t payload) {
  std::vector<std::byte> bytes(PacketWriter::size(opcode, payload));
  PacketHeader header;
  header.opcode = opcode;
  header.destination_qpn = 0x123456;
  PacketWriter writer(bytes, header, payload);
  writer.set_xrc_srqn(0xabcdef);
  writer.set_reth({.address = 0x1122'3344'5566'7788, .rkey = 0x99aa'bbcc, .length = 7});
  writer.set_immediate(0x0403'0201);
  return bytes;
}

TEST(XrcPacket, TheHeaderFollowsTheBaseHeaderAndThenComesTheRest) {
  auto bytes = packet_of(on_xrc(Opcode::WriteOnlyImm), 8);
  ASSERT_EQ(12U + 4 + 16 + 4 + 8 + 4, bytes.size());
  EXPECT_EQ(std::byte{0xab}, bytes[0]);
  const std::vector<std::byte> xrceth(bytes.begin() + 12, bytes.begin() + 16);
  EXPECT_EQ((std::vector<std::byte>{std::byte{0}, std::byte{0xab}, std::byte{0xcd}, std::byte{0xef}}),
            xrceth);
  EXPECT_EQ(std::byte{0x11}, bytes[16]);
  EXPECT_EQ(std::byte{0x01}, bytes[32]);

  const auto packet = Packet::parse(bytes);
  ASSERT_TRUE(packet);
  EXPECT_EQ(0xabcdefU, packet->xrc_srqn());
  EXPECT_EQ(0x99aa'bbccU, packet->reth().rkey);
  EXPECT_EQ(0x0403'0201U, packet->immediate());
  EXPECT_EQ(8U, packet->payload().size());
}

TEST(XrcPacket, EveryRequestHasIt) {
  for (const Opcode opcode : {Opcode::SendFirst, Opcode::SendMiddle, Opcode::SendLastImm, Opcode::WriteMiddle,
                              Opcode::ReadRequest, Opcode::CompareSwap, Opcode::SendOnlyInvalidate}) {
    const OpcodeInfo& rc = opcode_info(opcode);
    const OpcodeInfo& xrc = opcode_info(on_xrc(opcode));
    EXPECT_TRUE(xrc.has(OpcodeInfo::kXrcEth)) << rc.name;
    EXPECT_EQ(rc.header_size + kXrcEthSize, xrc.header_size) << rc.name;
  }
}

TEST(XrcPacket, AnswersAndOtherServicesDoNot) {
  for (const Opcode opcode : {Opcode::Acknowledge, Opcode::ReadResponseFirst, Opcode::AtomicAcknowledge}) {
    EXPECT_FALSE(opcode_info(on_xrc(opcode)).has(OpcodeInfo::kXrcEth));
  }
  auto bytes = packet_of(Opcode::SendOnly, 4);
  EXPECT_EQ(0U, Packet::parse(bytes)->xrc_srqn());
  EXPECT_FALSE(opcode_info(0xb8).has(OpcodeInfo::kKnown));
}

}  // namespace
}  // namespace qpair::softnic::roce
