#pragma once
// RoCEv2 packets: base transport header, extended headers, payload, pad and invariant CRC.
// Owned by roce/; parse() proves that every later access is in bounds, so reading a parsed packet cannot fail.
// (Interface to be completed by roce/; the NIC only needs what is here.)

#include <cstdint>
#include <span>
#include <tl/expected.hpp>

#include "softnic/wire/link.hpp"

namespace qpair::softnic::roce {

enum class ParseError : std::uint8_t { TooShort, BadVersion, UnknownOpcode, BadPad, BadLength };

class Packet {
 public:
  // `bytes` are the UDP payload, CRC included; they must outlive the packet.
  static tl::expected<Packet, ParseError> parse(std::span<std::byte> bytes);

  std::uint8_t opcode() const;
  std::uint32_t destination_qpn() const;
  std::uint16_t partition_key() const;
  std::uint32_t psn() const;
  std::span<std::byte> payload() const;

 private:
  explicit Packet(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

// The invariant CRC of a frame whose last 4 bytes are room for it (annex A17.3.3, with the IP identification 0, as an
// unconnected UDP socket with IP_PMTUDISC_DO sends). check_icrc() is false when the bytes there differ.
void set_icrc(const wire::Frame& frame);
bool check_icrc(const wire::Frame& frame);

}  // namespace qpair::softnic::roce
