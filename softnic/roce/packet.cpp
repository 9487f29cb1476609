#include "softnic/roce/packet.hpp"

#include <algorithm>

#include "softnic/wire/bytes.hpp"

namespace qpair::softnic::roce {

using wire::load_be;
using wire::store_be;

namespace {

// Where the headers behind the base header start. XRCETH or DCETH, if there is one, is the first of them; at
// most one of DETH, RETH, AtomicETH and AETH follows; AtomicAckETH follows an AETH; immediate data and the
// key to invalidate come last (IBTA vol. 1 9.2, annex A14).
constexpr std::size_t kXrcEthAt = kBthSize;
constexpr std::size_t kDcEthAt = kBthSize;
constexpr std::size_t first_extended(const OpcodeInfo& info) {
  return kBthSize + (info.has(OpcodeInfo::kXrcEth) ? kXrcEthSize : 0) +
         (info.has(OpcodeInfo::kDcEth) ? kDcEthSize : 0);
}
constexpr std::size_t kAtomicAckAt = kBthSize + kAethSize;

std::size_t last_word_at(const OpcodeInfo& info) {
  return info.header_size - kImmediateSize;
}

}  // namespace

tl::expected<Packet, ParseError> Packet::parse(std::span<std::byte> bytes) {
  if (bytes.size() < kBthSize + kIcrcSize) return tl::unexpected(ParseError::TooShort);
  const OpcodeInfo& info = opcode_info(static_cast<std::uint8_t>(bytes[0]));
  const auto flags = static_cast<std::uint8_t>(bytes[1]);
  if ((flags & 0x0f) != 0) return tl::unexpected(ParseError::BadVersion);
  if (!info.has(OpcodeInfo::kKnown)) return tl::unexpected(ParseError::UnknownOpcode);
  if (bytes.size() < info.header_size + kIcrcSize) return tl::unexpected(ParseError::TooShort);
  const std::size_t padded = bytes.size() - info.header_size - kIcrcSize;
  const std::size_t pad = (flags >> 4) & 3U;
  if (padded % 4 != 0) return tl::unexpected(ParseError::BadLength);
  if (pad > padded) return tl::unexpected(ParseError::BadPad);
  if (padded != 0 && !info.has(OpcodeInfo::kPayload)) return tl::unexpected(ParseError::BadLength);
  return Packet(bytes, info, padded - pad);
}

std::uint16_t Packet::partition_key() const {
  return load_be<std::uint16_t>(&bytes_[2]);
}
std::uint32_t Packet::destination_qpn() const {
  return load_be<std::uint32_t>(&bytes_[4]) & 0xffffff;
}
Psn Packet::sequence() const {
  return Psn(load_be<std::uint32_t>(&bytes_[8]));
}

Deth Packet::deth() const {
  if (!info_->has(OpcodeInfo::kDeth)) return {};
  const std::byte* at = &bytes_[first_extended(*info_)];
  return {load_be<std::uint32_t>(at), load_be<std::uint32_t>(at + 4) & 0xffffff};
}

std::uint32_t Packet::xrc_srqn() const {
  if (!info_->has(OpcodeInfo::kXrcEth)) return 0;
  return load_be<std::uint32_t>(&bytes_[kXrcEthAt]) & 0xffffff;
}

DcEth Packet::dc() const {
  if (!info_->has(OpcodeInfo::kDcEth)) return {};
  const std::byte* at = &bytes_[kDcEthAt];
  return {load_be<std::uint32_t>(at) & 0xffffff, load_be<std::uint64_t>(at + 4),
          load_be<std::uint32_t>(at + 12) & 0xffffff, load_be<std::uint64_t>(at + 16)};
}

Reth Packet::reth() const {
  if (!info_->has(OpcodeInfo::kReth)) return {};
  const std::byte* at = &bytes_[first_extended(*info_)];
  return {load_be<std::uint64_t>(at), load_be<std::uint32_t>(at + 8), load_be<std::uint32_t>(at + 12)};
}

AtomicEth Packet::atomic() const {
  if (!info_->has(OpcodeInfo::kAtomicEth)) return {};
  const std::byte* at = &bytes_[first_extended(*info_)];
  return {load_be<std::uint64_t>(at), load_be<std::uint32_t>(at + 8), load_be<std::uint64_t>(at + 12),
          load_be<std::uint64_t>(at + 20)};
}

Aeth Packet::aeth() const {
  if (!info_->has(OpcodeInfo::kAeth)) return {};
  const auto word = load_be<std::uint32_t>(&bytes_[first_extended(*info_)]);
  return {static_cast<std::uint8_t>(word >> 24), word & 0xffffff};
}

std::uint64_t Packet::atomic_original() const {
  if (!info_->has(OpcodeInfo::kAtomicAckEth)) return 0;
  return load_be<std::uint64_t>(&bytes_[kAtomicAckAt]);
}

std::uint32_t Packet::immediate() const {
  if (!info_->has(OpcodeInfo::kImmediate)) return 0;
  std::uint32_t value;
  std::memcpy(&value, &bytes_[last_word_at(*info_)], sizeof value);
  return value;
}

std::uint32_t Packet::invalidated_key() const {
  if (!info_->has(OpcodeInfo::kInvalidate)) return 0;
  return load_be<std::uint32_t>(&bytes_[last_word_at(*info_)]);
}

std::size_t PacketWriter::size(Opcode opcode, std::size_t payload) {
  return opcode_info(opcode).header_size + ((payload + 3) & ~std::size_t{3}) + kIcrcSize;
}

PacketWriter::PacketWriter(std::span<std::byte> room, const PacketHeader& header, std::size_t payload)
    : room_(room), info_(&opcode_info(header.opcode)), payload_size_(payload) {
  const std::size_t pad = (4 - payload % 4) % 4;
  room_[0] = static_cast<std::byte>(header.opcode);
  room_[1] =
      static_cast<std::byte>((header.solicited ? 0x80U : 0U) | (header.migrated ? 0x40U : 0U) | (pad << 4));
  store_be(&room_[2], header.partition_key);
  store_be(&room_[4], header.destination_qpn & 0xffffff);
  store_be(&room_[8], header.psn.value() | (header.ack_request ? 0x80000000U : 0U));
  std::fill_n(room_.begin() + static_cast<std::ptrdiff_t>(info_->header_size + payload), pad, std::byte{0});
}

void PacketWriter::set_deth(const Deth& deth) {
  if (!info_->has(OpcodeInfo::kDeth)) return;
  std::byte* at = &room_[first_extended(*info_)];
  store_be(at, deth.qkey);
  store_be(at + 4, deth.source_qpn & 0xffffff);
}

void PacketWriter::set_xrc_srqn(std::uint32_t srqn) {
  if (info_->has(OpcodeInfo::kXrcEth)) store_be(&room_[kXrcEthAt], srqn & 0xffffff);
}

void PacketWriter::set_dc(const DcEth& header) {
  if (!info_->has(OpcodeInfo::kDcEth)) return;
  std::byte* at = &room_[kDcEthAt];
  store_be(at, header.source_qpn & 0xffffff);
  store_be(at + 4, header.connection);
  store_be(at + 12, header.first_psn & 0xffffff);
  store_be(at + 16, header.access_key);
}

void PacketWriter::set_reth(const Reth& reth) {
  if (!info_->has(OpcodeInfo::kReth)) return;
  std::byte* at = &room_[first_extended(*info_)];
  store_be(at, reth.address);
  store_be(at + 8, reth.rkey);
  store_be(at + 12, reth.length);
}

void PacketWriter::set_atomic(const AtomicEth& atomic) {
  if (!info_->has(OpcodeInfo::kAtomicEth)) return;
  std::byte* at = &room_[first_extended(*info_)];
  store_be(at, atomic.address);
  store_be(at + 8, atomic.rkey);
  store_be(at + 12, atomic.swap_add);
  store_be(at + 20, atomic.compare);
}

void PacketWriter::set_aeth(const Aeth& aeth) {
  if (!info_->has(OpcodeInfo::kAeth)) return;
  store_be(&room_[first_extended(*info_)], (std::uint32_t{aeth.syndrome} << 24) | (aeth.msn & 0xffffff));
}

void PacketWriter::set_atomic_original(std::uint64_t value) {
  if (info_->has(OpcodeInfo::kAtomicAckEth)) store_be(&room_[kAtomicAckAt], value);
}

void PacketWriter::set_immediate(std::uint32_t network_bytes) {
  if (info_->has(OpcodeInfo::kImmediate))
    std::memcpy(&room_[last_word_at(*info_)], &network_bytes, sizeof network_bytes);
}

void PacketWriter::set_invalidated_key(std::uint32_t key) {
  if (info_->has(OpcodeInfo::kInvalidate)) store_be(&room_[last_word_at(*info_)], key);
}

}  // namespace qpair::softnic::roce
