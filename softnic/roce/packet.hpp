#pragma once
// RoCEv2 packets: base transport header, extended headers, payload, pad and invariant CRC.
// Packet reads: parse() proves that every later access is in bounds, so reading a parsed packet cannot fail.
// PacketWriter fills room that a link reserved. Neither owns the bytes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <tl/expected.hpp>

#include "softnic/roce/opcode.hpp"
#include "softnic/roce/psn.hpp"
#include "softnic/roce/syndrome.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::roce {

enum class ParseError : std::uint8_t { TooShort, BadVersion, UnknownOpcode, BadPad, BadLength };

// The RDMA extended transport header: where to write or what to read (IBTA vol. 1 9.3.3).
struct Reth {
  std::uint64_t address = 0;
  std::uint32_t rkey = 0;
  std::uint32_t length = 0;
};

// The atomic extended transport header (IBTA vol. 1 9.3.5).
struct AtomicEth {
  std::uint64_t address = 0;
  std::uint32_t rkey = 0;
  std::uint64_t swap_add = 0;
  std::uint64_t compare = 0;
};

// The datagram extended transport header (IBTA vol. 1 9.3.1).
struct Deth {
  std::uint32_t qkey = 0;
  std::uint32_t source_qpn = 0;
};

// The header in every request of a dynamically connected service; ours, big-endian.
struct DcEth {
  std::uint32_t source_qpn = 0;
  std::uint64_t connection = 0;  // counts up with every connection that the initiator makes
  std::uint32_t first_psn = 0;   // of this connection's first request
  std::uint64_t access_key = 0;
};

class Packet {
 public:
  // `bytes` are the UDP payload, CRC included; they must outlive the packet.
  static tl::expected<Packet, ParseError> parse(std::span<std::byte> bytes);

  std::uint8_t opcode() const { return static_cast<std::uint8_t>(bytes_[0]); }
  const OpcodeInfo& info() const { return *info_; }
  bool solicited() const { return (flags() & 0x80) != 0; }
  bool migrated() const { return (flags() & 0x40) != 0; }
  std::uint8_t pad() const { return static_cast<std::uint8_t>((flags() >> 4) & 3); }
  std::uint16_t partition_key() const;
  std::uint32_t destination_qpn() const;
  bool ack_request() const { return (static_cast<std::uint8_t>(bytes_[8]) & 0x80) != 0; }
  std::uint32_t psn() const { return sequence().value(); }
  Psn sequence() const;
  std::size_t size() const { return bytes_.size(); }  // all of it, CRC included
  std::span<std::byte> payload() const { return bytes_.subspan(info_->header_size, payload_size_); }

  // Defined for opcodes whose info() has the header; for others the value is zero.
  Deth deth() const;
  std::uint32_t xrc_srqn() const;
  DcEth dc() const;
  Reth reth() const;
  AtomicEth atomic() const;
  Aeth aeth() const;
  std::uint64_t atomic_original() const;
  std::uint32_t immediate() const;        // its 4 network-order bytes read natively
  std::uint32_t invalidated_key() const;  // host order

 private:
  Packet(std::span<std::byte> bytes, const OpcodeInfo& info, std::size_t payload_size)
      : bytes_(bytes), info_(&info), payload_size_(payload_size) {}
  std::uint8_t flags() const { return static_cast<std::uint8_t>(bytes_[1]); }

  std::span<std::byte> bytes_;
  const OpcodeInfo* info_;
  std::size_t payload_size_;
};

struct PacketHeader {
  Opcode opcode{};
  bool solicited = false;
  bool migrated = true;  // no alternate path exists, which is the state Migrated (IBTA vol. 1 17.2.8)
  bool ack_request = false;
  std::uint16_t partition_key = 0xffff;
  std::uint32_t destination_qpn = 0;
  Psn psn;
};

class PacketWriter {
 public:
  static std::size_t size(Opcode opcode, std::size_t payload);

  // `room` has exactly size() bytes. Writes the base header and the pad; the rest is the caller's.
  PacketWriter(std::span<std::byte> room, const PacketHeader& header, std::size_t payload);

  // For opcodes that have the header; ignored otherwise.
  void set_deth(const Deth& deth);
  void set_xrc_srqn(std::uint32_t srqn);
  void set_dc(const DcEth& header);
  void set_reth(const Reth& reth);
  void set_atomic(const AtomicEth& atomic);
  void set_aeth(const Aeth& aeth);
  void set_atomic_original(std::uint64_t value);
  void set_immediate(std::uint32_t network_bytes);
  void set_invalidated_key(std::uint32_t key);
  std::span<std::byte> payload() const { return room_.subspan(info_->header_size, payload_size_); }

 private:
  std::span<std::byte> room_;
  const OpcodeInfo* info_;
  std::size_t payload_size_;
};

using wire::check_icrc;
using wire::Icrc;
using wire::set_icrc;

}  // namespace qpair::softnic::roce
