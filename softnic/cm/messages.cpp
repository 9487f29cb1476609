#include "softnic/cm/messages.hpp"

#include <algorithm>
#include <cstring>

#include "softnic/wire/bytes.hpp"

namespace qpair::softnic::cm {
namespace {

using wire::load_be;
using wire::store_be;

constexpr std::uint8_t kBaseVersion = 1;
constexpr std::uint8_t kCommunicationManagement = 0x07;
constexpr std::uint8_t kClassVersion = 2;
constexpr std::uint8_t kMethodSend = 0x03;
constexpr std::size_t kHeaderSize = 24;
constexpr std::uint32_t k24Bits = 0xff'ffff;

// The message behind the header, by the byte offsets of IBTA's tables.
class Reader {
 public:
  explicit Reader(MadView mad) : at_(mad.data() + kHeaderSize) {}
  std::uint8_t u8(std::size_t offset) const { return static_cast<std::uint8_t>(at_[offset]); }
  std::uint16_t u16(std::size_t offset) const { return load_be<std::uint16_t>(at_ + offset); }
  std::uint32_t u24(std::size_t offset) const { return u32(offset) >> 8; }
  std::uint32_t u32(std::size_t offset) const { return load_be<std::uint32_t>(at_ + offset); }
  std::uint64_t u64(std::size_t offset) const { return load_be<std::uint64_t>(at_ + offset); }
  // `width` bits of a byte, counted from its most significant one, as the tables count.
  std::uint8_t bits(std::size_t offset, unsigned first, unsigned width) const {
    return static_cast<std::uint8_t>((u8(offset) >> (8 - first - width)) & ((1U << width) - 1));
  }
  template <std::size_t size>
  void bytes(std::size_t offset, std::array<std::uint8_t, size>& to) const {
    std::memcpy(to.data(), at_ + offset, size);
  }

 private:
  const std::byte* at_;
};

class Writer {
 public:
  Writer(Attribute attribute, std::uint64_t transaction, std::uint32_t modifier = 0) {
    mad_[0] = std::byte{kBaseVersion};
    mad_[1] = std::byte{kCommunicationManagement};
    mad_[2] = std::byte{kClassVersion};
    mad_[3] = std::byte{kMethodSend};
    store_be<std::uint64_t>(mad_.data() + 8, transaction);
    store_be<std::uint16_t>(mad_.data() + 16, static_cast<std::uint16_t>(attribute));
    store_be<std::uint32_t>(mad_.data() + 20, modifier);
  }
  void u8(std::size_t offset, std::uint8_t value) { at(offset)[0] = std::byte{value}; }
  void u16(std::size_t offset, std::uint16_t value) { store_be(at(offset), value); }
  void u24(std::size_t offset, std::uint32_t value) {
    store_be<std::uint16_t>(at(offset), static_cast<std::uint16_t>(value >> 8));
    u8(offset + 2, static_cast<std::uint8_t>(value));
  }
  void u32(std::size_t offset, std::uint32_t value) { store_be(at(offset), value); }
  void u64(std::size_t offset, std::uint64_t value) { store_be(at(offset), value); }
  void bits(std::size_t offset, unsigned first, unsigned width, unsigned value) {
    const unsigned field = (value & ((1U << width) - 1)) << (8 - first - width);
    *at(offset) |= static_cast<std::byte>(field);
  }
  template <std::size_t size>
  void bytes(std::size_t offset, const std::array<std::uint8_t, size>& from) {
    std::memcpy(at(offset), from.data(), size);
  }
  const Mad& mad() const { return mad_; }

 private:
  std::byte* at(std::size_t offset) { return mad_.data() + kHeaderSize + offset; }
  Mad mad_{};
};

}  // namespace

std::optional<Header> Header::parse(MadView mad) {
  if (mad[0] != std::byte{kBaseVersion} || mad[1] != std::byte{kCommunicationManagement} ||
      mad[2] != std::byte{kClassVersion} || mad[3] != std::byte{kMethodSend}) {
    return std::nullopt;
  }
  return Header{.attribute = static_cast<Attribute>(load_be<std::uint16_t>(mad.data() + 16)),
                .transaction = load_be<std::uint64_t>(mad.data() + 8),
                .modifier = load_be<std::uint32_t>(mad.data() + 20)};
}

// Table 106. The vendor's number, and the options in the header: kernel, cm.c, cm_format_req().
Req Req::parse(MadView mad) {
  const Reader from(mad);
  Req req;
  req.local_id = from.u32(0);
  req.ece = {.vendor = from.u32(4) & k24Bits, .options = load_be<std::uint32_t>(mad.data() + 20)};
  req.service_id = from.u64(8);
  req.ca_guid = from.u64(16);
  req.qpn = from.u24(32);
  req.responder_resources = from.u8(35);
  req.initiator_depth = from.u8(39);
  req.remote_response_timeout = from.bits(43, 0, 5);
  req.service_type = from.bits(43, 5, 2);
  req.flow_control = from.bits(43, 7, 1) != 0;
  req.starting_psn = from.u24(44);
  req.local_response_timeout = from.bits(47, 0, 5);
  req.retry_count = from.bits(47, 5, 3);
  req.partition_key = from.u16(48);
  req.mtu = from.bits(50, 0, 4);
  req.rnr_retry_count = from.bits(50, 5, 3);
  req.max_cm_retries = from.bits(51, 0, 4);
  req.srq = from.bits(51, 4, 1) != 0;
  req.extended_type = from.bits(51, 5, 3);
  req.local_lid = from.u16(52);
  req.remote_lid = from.u16(54);
  from.bytes(56, req.local_gid);
  from.bytes(72, req.remote_gid);
  req.flow_label = from.u32(88) >> 12;
  req.rate = from.bits(91, 2, 6);
  req.traffic_class = from.u8(92);
  req.hop_limit = from.u8(93);
  req.sl = from.bits(94, 0, 4);
  req.subnet_local = from.bits(94, 4, 1) != 0;
  req.ack_timeout = from.bits(95, 0, 5);
  from.bytes(140, req.private_data);
  return req;
}

Mad Req::emit(std::uint64_t transaction) const {
  Writer to(Attribute::Req, transaction, ece.options);
  to.u32(0, local_id);
  to.u24(5, ece.vendor);
  to.u64(8, service_id);
  to.u64(16, ca_guid);
  to.u24(32, qpn);
  to.u8(35, responder_resources);
  to.u8(39, initiator_depth);
  to.bits(43, 0, 5, remote_response_timeout);
  to.bits(43, 5, 2, service_type);
  to.bits(43, 7, 1, flow_control ? 1 : 0);
  to.u24(44, starting_psn);
  to.bits(47, 0, 5, local_response_timeout);
  to.bits(47, 5, 3, retry_count);
  to.u16(48, partition_key);
  to.bits(50, 0, 4, mtu);
  to.bits(50, 5, 3, rnr_retry_count);
  to.bits(51, 0, 4, max_cm_retries);
  to.bits(51, 4, 1, srq ? 1 : 0);
  to.bits(51, 5, 3, extended_type);
  to.u16(52, local_lid);
  to.u16(54, remote_lid);
  to.bytes(56, local_gid);
  to.bytes(72, remote_gid);
  to.u32(88, flow_label << 12);
  to.bits(91, 2, 6, rate);
  to.u8(92, traffic_class);
  to.u8(93, hop_limit);
  to.bits(94, 0, 4, sl);
  to.bits(94, 4, 1, subnet_local ? 1 : 0);
  to.bits(95, 0, 5, ack_timeout);
  to.bytes(140, private_data);
  return to.mad();
}

// Table 107.
Mra Mra::parse(MadView mad) {
  const Reader from(mad);
  return {.local_id = from.u32(0),
          .remote_id = from.u32(4),
          .message = static_cast<Message>(from.bits(8, 0, 2)),
          .service_timeout = from.bits(9, 0, 5)};
}

Mad Mra::emit(std::uint64_t transaction) const {
  Writer to(Attribute::Mra, transaction);
  to.u32(0, local_id);
  to.u32(4, remote_id);
  to.bits(8, 0, 2, static_cast<unsigned>(message));
  to.bits(9, 0, 5, service_timeout);
  return to.mad();
}

// Table 108.
Rej Rej::parse(MadView mad) {
  const Reader from(mad);
  Rej rej{.local_id = from.u32(0),
          .remote_id = from.u32(4),
          .message = static_cast<Message>(from.bits(8, 0, 2)),
          .reason = from.u16(10),
          .info_length = from.bits(9, 0, 7)};
  from.bytes(12, rej.info);
  from.bytes(84, rej.private_data);
  return rej;
}

Mad Rej::emit(std::uint64_t transaction) const {
  Writer to(Attribute::Rej, transaction);
  to.u32(0, local_id);
  to.u32(4, remote_id);
  to.bits(8, 0, 2, static_cast<unsigned>(message));
  to.bits(9, 0, 7, info_length);
  to.u16(10, reason);
  to.bytes(12, info);
  to.bytes(84, private_data);
  return to.mad();
}

// Table 110. The vendor's number lies in three places: kernel, cm.c, cm_format_rep().
Rep Rep::parse(MadView mad) {
  const Reader from(mad);
  Rep rep{.local_id = from.u32(0), .remote_id = from.u32(4)};
  rep.ece = {.vendor = (std::uint32_t{from.u8(15)} << 16) | (std::uint32_t{from.u8(19)} << 8) | from.u8(23),
             .options = load_be<std::uint32_t>(mad.data() + 20)};
  rep.qpn = from.u24(12);
  rep.starting_psn = from.u24(20);
  rep.responder_resources = from.u8(24);
  rep.initiator_depth = from.u8(25);
  rep.target_ack_delay = from.bits(26, 0, 5);
  rep.failover = from.bits(26, 5, 2);
  rep.flow_control = from.bits(26, 7, 1) != 0;
  rep.rnr_retry_count = from.bits(27, 0, 3);
  rep.srq = from.bits(27, 3, 1) != 0;
  rep.ca_guid = from.u64(28);
  from.bytes(36, rep.private_data);
  return rep;
}

Mad Rep::emit(std::uint64_t transaction) const {
  Writer to(Attribute::Rep, transaction, ece.options);
  to.u32(0, local_id);
  to.u32(4, remote_id);
  to.u24(12, qpn);
  to.u8(15, static_cast<std::uint8_t>(ece.vendor >> 16));
  to.u8(19, static_cast<std::uint8_t>(ece.vendor >> 8));
  to.u24(20, starting_psn);
  to.u8(23, static_cast<std::uint8_t>(ece.vendor));
  to.u8(24, responder_resources);
  to.u8(25, initiator_depth);
  to.bits(26, 0, 5, target_ack_delay);
  to.bits(26, 5, 2, failover);
  to.bits(26, 7, 1, flow_control ? 1 : 0);
  to.bits(27, 0, 3, rnr_retry_count);
  to.bits(27, 3, 1, srq ? 1 : 0);
  to.u64(28, ca_guid);
  to.bytes(36, private_data);
  return to.mad();
}

// Tables 111 and 113.
Note Note::parse(MadView mad) {
  const Reader from(mad);
  return {.local_id = from.u32(0), .remote_id = from.u32(4)};
}

Mad Note::emit(Attribute attribute, std::uint64_t transaction) const {
  Writer to(attribute, transaction);
  to.u32(0, local_id);
  to.u32(4, remote_id);
  return to.mad();
}

// Table 112.
Dreq Dreq::parse(MadView mad) {
  const Reader from(mad);
  return {.local_id = from.u32(0), .remote_id = from.u32(4), .remote_qpn = from.u24(8)};
}

Mad Dreq::emit(std::uint64_t transaction) const {
  Writer to(Attribute::Dreq, transaction);
  to.u32(0, local_id);
  to.u32(4, remote_id);
  to.u24(8, remote_qpn);
  return to.mad();
}

// Table 119.
SidrReq SidrReq::parse(MadView mad) {
  const Reader from(mad);
  SidrReq req{.request_id = from.u32(0), .partition_key = from.u16(4), .service_id = from.u64(8)};
  from.bytes(16, req.private_data);
  return req;
}

Mad SidrReq::emit(std::uint64_t transaction) const {
  Writer to(Attribute::SidrReq, transaction);
  to.u32(0, request_id);
  to.u16(4, partition_key);
  to.u64(8, service_id);
  to.bytes(16, private_data);
  return to.mad();
}

// Table 120. The vendor's number: kernel, ibta_vol1_c12.h, CM_SIDR_REP_VENDOR_ID_H and _L.
SidrRep SidrRep::parse(MadView mad) {
  const Reader from(mad);
  SidrRep rep{.request_id = from.u32(0), .status = from.u8(4)};
  rep.ece = {.vendor = (std::uint32_t{from.u16(6)} << 8) | from.u8(11),
             .options = load_be<std::uint32_t>(mad.data() + 20)};
  rep.qpn = from.u24(8);
  rep.service_id = from.u64(12);
  rep.qkey = from.u32(20);
  from.bytes(96, rep.private_data);
  return rep;
}

Mad SidrRep::emit(std::uint64_t transaction) const {
  Writer to(Attribute::SidrRep, transaction, ece.options);
  to.u32(0, request_id);
  to.u8(4, status);
  to.u16(6, static_cast<std::uint16_t>(ece.vendor >> 8));
  to.u24(8, qpn);
  to.u8(11, static_cast<std::uint8_t>(ece.vendor));
  to.u64(12, service_id);
  to.u32(20, qkey);
  to.bytes(96, private_data);
  return to.mad();
}

}  // namespace qpair::softnic::cm
