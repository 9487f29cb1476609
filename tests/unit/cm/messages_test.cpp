// Messages against those of the kernel: what it sent is understood, and said again comes out the same.

#include "softnic/cm/messages.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "golden.hpp"
#include "softnic/cm/address.hpp"
#include "softnic/cm/tunables.hpp"
#include "softnic/wire/address.hpp"

namespace qpair::softnic::cm {
namespace {

std::uint64_t transaction_of(const Mad& mad) {
  return Header::parse(mad)->transaction;
}

AddressBytes bytes_of(const char* address) {
  return wire::parse_address(address)->address;
}

TEST(Messages, HeaderOfTheKernels) {
  const auto header = Header::parse(test::from_hex(test::kReq));
  ASSERT_TRUE(header);
  EXPECT_EQ(header->attribute, Attribute::Req);
  EXPECT_EQ(header->transaction, 0x2'2607'ea29U);
}

TEST(Messages, OtherClassesAndVersionsAreNotLookedAt) {
  for (const std::size_t at : {0U, 1U, 2U, 3U}) {
    Mad mad = test::from_hex(test::kReq);
    mad[at] ^= std::byte{0x10};
    EXPECT_FALSE(Header::parse(mad)) << "byte " << at;
  }
}

TEST(Messages, RequestOfTheKernels) {
  const Mad golden = test::from_hex(test::kReq);
  const Req req = Req::parse(golden);
  EXPECT_EQ(req.local_id, 0x29ea'0726U);
  EXPECT_EQ(req.service_id, service_id(PortSpace::Tcp, 7174));
  EXPECT_EQ(req.ca_guid, 0xdcf4'39ff'fe46'f746U);
  EXPECT_EQ(req.qpn, 0x1cU);
  EXPECT_EQ(req.responder_resources, 1);
  EXPECT_EQ(req.initiator_depth, 1);
  EXPECT_EQ(req.remote_response_timeout, 20);
  EXPECT_EQ(req.local_response_timeout, 20);
  EXPECT_EQ(req.starting_psn, 0x2a'd2abU);
  EXPECT_EQ(req.retry_count, 7);
  EXPECT_EQ(req.rnr_retry_count, 7);
  EXPECT_EQ(req.mtu, 3);
  EXPECT_EQ(req.max_cm_retries, 15);
  EXPECT_EQ(req.local_gid, bytes_of("10.78.0.1"));
  EXPECT_EQ(req.remote_gid, bytes_of("10.78.0.2"));
  EXPECT_EQ(req.hop_limit, 64);
  EXPECT_EQ(req.ack_timeout, 19);
  EXPECT_EQ(req.emit(transaction_of(golden)), golden);
}

TEST(Messages, AddressesBeforeTheConsumersDataOfTheKernels) {
  const Req req = Req::parse(test::from_hex(test::kReq));
  const auto bytes = std::span(req.private_data).first<IpHeader::kSize>();
  const auto header = IpHeader::parse(bytes);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->family, AF_INET);
  EXPECT_EQ(header->source_port, 0xa0db);
  EXPECT_EQ(header->source, bytes_of("10.78.0.1"));
  EXPECT_EQ(header->destination, bytes_of("10.78.0.2"));
  std::array<std::uint8_t, IpHeader::kSize> again{};
  header->emit(again);
  EXPECT_TRUE(std::ranges::equal(again, bytes));
  // The kernel's own flow label of that connection.
  EXPECT_EQ(req.flow_label, (0xa0dbU * 31 + 7174U) & 0xf'ffffU);
}

TEST(Messages, Ipv6AddressesKeepAllTheirBytes) {
  const IpHeader header{.family = AF_INET6,
                        .source_port = 4000,
                        .source = bytes_of("fd00::1"),
                        .destination = bytes_of("fd00::2")};
  std::array<std::uint8_t, IpHeader::kSize> bytes{};
  header.emit(bytes);
  const auto again = IpHeader::parse(bytes);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->source, header.source);
  EXPECT_EQ(again->destination, header.destination);
  bytes[1] = 5 << 4;
  EXPECT_FALSE(IpHeader::parse(bytes)) << "there is no IP version 5";
}

TEST(Messages, ReplyOfTheKernels) {
  const Mad golden = test::from_hex(test::kRep);
  const Rep rep = Rep::parse(golden);
  EXPECT_EQ(rep.local_id, 0x2aea'0726U);
  EXPECT_EQ(rep.remote_id, 0x29ea'0726U);
  EXPECT_EQ(rep.qpn, 0x1cU);
  EXPECT_EQ(rep.starting_psn, 0xaa'1334U);
  EXPECT_EQ(rep.target_ack_delay, 15);
  EXPECT_EQ(rep.rnr_retry_count, 7);
  EXPECT_EQ(rep.ca_guid, 0x600a'63ff'fe66'd253U);
  EXPECT_EQ(rep.emit(transaction_of(golden)), golden);
}

TEST(Messages, LastWordsOfTheKernels) {
  const Mad rtu = test::from_hex(test::kRtu);
  EXPECT_EQ(Note::parse(rtu).emit(Attribute::Rtu, transaction_of(rtu)), rtu);
  const Mad dreq = test::from_hex(test::kDreq);
  EXPECT_EQ(Dreq::parse(dreq).remote_qpn, 0x1cU);
  EXPECT_EQ(Dreq::parse(dreq).emit(transaction_of(dreq)), dreq);
  const Mad drep = test::from_hex(test::kDrep);
  EXPECT_EQ(Note::parse(drep).emit(Attribute::Drep, transaction_of(drep)), drep);
}

TEST(Messages, DatagramServiceOfTheKernels) {
  const Mad asked = test::from_hex(test::kSidrReq);
  const SidrReq req = SidrReq::parse(asked);
  EXPECT_EQ(req.request_id, 0x2cea'0726U);
  EXPECT_EQ(req.service_id, service_id(PortSpace::Udp, 7174));
  EXPECT_EQ(req.emit(transaction_of(asked)), asked);
  const Mad answered = test::from_hex(test::kSidrRep);
  const SidrRep rep = SidrRep::parse(answered);
  EXPECT_EQ(rep.status, 0);
  EXPECT_EQ(rep.qpn, 0x1dU);
  EXPECT_EQ(rep.qkey, 0x0123'4567U);
  EXPECT_EQ(rep.emit(transaction_of(answered)), answered);
}

TEST(Messages, EveryFieldOfThoseThatTheKernelDidNotSendComesBack) {
  Rej rej{.local_id = 1, .remote_id = 2, .message = Message::Rep, .reason = 28, .info_length = 8};
  rej.info[7] = 9;
  rej.private_data[147] = 7;
  const Rej rejected = Rej::parse(rej.emit(5));
  EXPECT_EQ(rejected.emit(5), rej.emit(5));
  EXPECT_EQ(rejected.message, Message::Rep);
  EXPECT_EQ(rejected.reason, 28);
  EXPECT_EQ(rejected.info_length, 8);
  EXPECT_EQ(rejected.private_data[147], 7);

  const Mra mra{.local_id = 1, .remote_id = 2, .message = Message::Other, .service_timeout = 24};
  EXPECT_EQ(Mra::parse(mra.emit(5)).service_timeout, 24);
  EXPECT_EQ(Mra::parse(mra.emit(5)).emit(5), mra.emit(5));
}

TEST(Messages, OptionsOfTheVendorTravelInTheReservedBytes) {
  Req req;
  req.ece = {.vendor = 0x0015'b3, .options = 0x1000'0001};
  Rep rep;
  rep.ece = req.ece;
  rep.qpn = 0xff'ffff;
  rep.starting_psn = 0xff'ffff;
  SidrRep resolved;
  resolved.ece = req.ece;
  EXPECT_EQ(Req::parse(req.emit(1)).ece.vendor, 0x15b3U);
  EXPECT_EQ(Req::parse(req.emit(1)).ece.options, 0x1000'0001U);
  EXPECT_EQ(Rep::parse(rep.emit(1)).ece.vendor, 0x15b3U);
  EXPECT_EQ(Rep::parse(rep.emit(1)).qpn, 0xff'ffffU);
  EXPECT_EQ(Rep::parse(rep.emit(1)).starting_psn, 0xff'ffffU);
  EXPECT_EQ(SidrRep::parse(resolved.emit(1)).ece.vendor, 0x15b3U);
}

TEST(Messages, TimesAreTheKernels) {
  EXPECT_EQ(to_milliseconds(20), std::chrono::milliseconds(4096));
  EXPECT_EQ(to_milliseconds(0), std::chrono::milliseconds(1));
  EXPECT_EQ(ack_timeout(15, 18), 19) << "what rxe put into its request above";
  EXPECT_EQ(ack_timeout(16, 16), 18);
  EXPECT_EQ(ack_timeout(31, 31), 31);
}

}  // namespace
}  // namespace qpair::softnic::cm
