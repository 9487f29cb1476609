#pragma once
// Opcodes of the base transport header and what follows it in a packet (IBTA vol. 1 9.2.1 table 38, and 9.3
// for the order of the extended headers).

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "softnic/wire/credit.hpp"
#include "softnic/wire/icrc.hpp"

namespace qpair::softnic::roce {

enum class Opcode : std::uint8_t {
  SendFirst = 0x00,
  SendMiddle = 0x01,
  SendLast = 0x02,
  SendLastImm = 0x03,
  SendOnly = 0x04,
  SendOnlyImm = 0x05,
  WriteFirst = 0x06,
  WriteMiddle = 0x07,
  WriteLast = 0x08,
  WriteLastImm = 0x09,
  WriteOnly = 0x0a,
  WriteOnlyImm = 0x0b,
  ReadRequest = 0x0c,
  ReadResponseFirst = 0x0d,
  ReadResponseMiddle = 0x0e,
  ReadResponseLast = 0x0f,
  ReadResponseOnly = 0x10,
  Acknowledge = 0x11,
  AtomicAcknowledge = 0x12,
  CompareSwap = 0x13,
  FetchAdd = 0x14,
  SendLastInvalidate = 0x16,
  SendOnlyInvalidate = 0x17,
  // Unreliable connection: the same messages without answers. Each is that of RC plus 0x20 (on_service()).
  UcSendFirst = 0x20,
  UcSendMiddle = 0x21,
  UcSendLast = 0x22,
  UcSendLastImm = 0x23,
  UcSendOnly = 0x24,
  UcSendOnlyImm = 0x25,
  UcWriteFirst = 0x26,
  UcWriteMiddle = 0x27,
  UcWriteLast = 0x28,
  UcWriteLastImm = 0x29,
  UcWriteOnly = 0x2a,
  UcWriteOnlyImm = 0x2b,
  // Unreliable datagram.
  UdSendOnly = 0x64,
  UdSendOnlyImm = 0x65,
  // Extended reliable connection (annex A14): 0xa0 to 0xb7, those of RC plus 0xa0 (on_service()), with the
  // XRCETH in every request.
  //
  // 0xC0 to 0xFF are the manufacturers'. One of ours carries a sentence: why the packet with the same PSN is
  // about to be refused. Two are the links' own, for their flow control (wire/credit.hpp): no transport sees
  // them. The others, 0xe0 to 0xf7, are those of a dynamically connected service, as for XRC. Whoever does
  // not know them drops them.
  Reason = 0xc0,
  CreditRequest = wire::kCreditRequestOpcode,
  CreditGrant = wire::kCreditGrantOpcode,
};

// The upper three bits of an opcode.
enum class Service : std::uint8_t {
  ReliableConnection = 0,
  UnreliableConnection = 1,
  ReliableDatagram = 2,
  UnreliableDatagram = 3,
  ExtendedReliableConnection = 5,
  Manufacturer = 6,
  DynamicallyConnected = 7,  // a manufacturer's, too
};
constexpr Service service_of(std::uint8_t opcode) {
  return static_cast<Service>(opcode >> 5);
}
// The opcode as a reliable connection has it.
constexpr Opcode without_service(std::uint8_t opcode) {
  return static_cast<Opcode>(opcode & 0x1f);
}
// The opcode of a reliable connection as another service has it.
constexpr Opcode on_service(Service service, Opcode opcode) {
  return static_cast<Opcode>((static_cast<unsigned>(service) << 5) | static_cast<unsigned>(opcode));
}

using wire::kBthSize;
inline constexpr std::size_t kDethSize = 8;
inline constexpr std::size_t kXrcEthSize = 4;
inline constexpr std::size_t kDcEthSize = 24;
inline constexpr std::size_t kRethSize = 16;
inline constexpr std::size_t kAethSize = 4;
inline constexpr std::size_t kAtomicEthSize = 28;
inline constexpr std::size_t kAtomicAckEthSize = 8;
inline constexpr std::size_t kImmediateSize = 4;
inline constexpr std::size_t kInvalidateSize = 4;
using wire::kIcrcSize;

struct OpcodeInfo {
  enum Trait : std::uint32_t {
    kKnown = 1 << 0,
    kRequest = 1 << 1,  // from requester to responder; otherwise the other way
    kStart = 1 << 2,    // first packet of its message
    kEnd = 1 << 3,      // last packet of its message
    kPayload = 1 << 4,
    kSend = 1 << 5,
    kWrite = 1 << 6,
    kRead = 1 << 7,
    kAtomic = 1 << 8,
    kReth = 1 << 9,
    kAeth = 1 << 10,
    kAtomicEth = 1 << 11,
    kAtomicAckEth = 1 << 12,
    kImmediate = 1 << 13,
    kInvalidate = 1 << 14,
    kDeth = 1 << 15,
    kXrcEth = 1 << 16,
    kDcEth = 1 << 17,
  };
  std::uint32_t traits = 0;
  std::uint8_t header_size = 0;  // base header and all extended ones
  std::string_view name;

  constexpr bool has(unsigned wanted) const { return (traits & wanted) != 0; }
};

namespace detail {

constexpr std::array<OpcodeInfo, 256> make_opcode_table() {
  using T = OpcodeInfo;
  std::array<OpcodeInfo, 256> table{};
  const auto add = [&table](Opcode opcode, std::string_view name, unsigned traits) {
    std::size_t size = kBthSize;
    size += (traits & T::kDeth) != 0 ? kDethSize : 0;
    size += (traits & T::kXrcEth) != 0 ? kXrcEthSize : 0;
    size += (traits & T::kDcEth) != 0 ? kDcEthSize : 0;
    size += (traits & T::kReth) != 0 ? kRethSize : 0;
    size += (traits & T::kAeth) != 0 ? kAethSize : 0;
    size += (traits & T::kAtomicEth) != 0 ? kAtomicEthSize : 0;
    size += (traits & T::kAtomicAckEth) != 0 ? kAtomicAckEthSize : 0;
    size += (traits & T::kImmediate) != 0 ? kImmediateSize : 0;
    size += (traits & T::kInvalidate) != 0 ? kInvalidateSize : 0;
    table[static_cast<std::size_t>(opcode)] = {traits | T::kKnown, static_cast<std::uint8_t>(size), name};
  };
  constexpr unsigned kSend = T::kRequest | T::kSend | T::kPayload;
  constexpr unsigned kWrite = T::kRequest | T::kWrite | T::kPayload;
  constexpr unsigned kResponse = T::kRead | T::kPayload;
  constexpr unsigned kOnly = T::kStart | T::kEnd;
  add(Opcode::SendFirst, "SEND First", kSend | T::kStart);
  add(Opcode::SendMiddle, "SEND Middle", kSend);
  add(Opcode::SendLast, "SEND Last", kSend | T::kEnd);
  add(Opcode::SendLastImm, "SEND Last with Immediate", kSend | T::kEnd | T::kImmediate);
  add(Opcode::SendOnly, "SEND Only", kSend | kOnly);
  add(Opcode::SendOnlyImm, "SEND Only with Immediate", kSend | kOnly | T::kImmediate);
  add(Opcode::SendLastInvalidate, "SEND Last with Invalidate", kSend | T::kEnd | T::kInvalidate);
  add(Opcode::SendOnlyInvalidate, "SEND Only with Invalidate", kSend | kOnly | T::kInvalidate);
  add(Opcode::WriteFirst, "RDMA WRITE First", kWrite | T::kStart | T::kReth);
  add(Opcode::WriteMiddle, "RDMA WRITE Middle", kWrite);
  add(Opcode::WriteLast, "RDMA WRITE Last", kWrite | T::kEnd);
  add(Opcode::WriteLastImm, "RDMA WRITE Last with Immediate", kWrite | T::kEnd | T::kImmediate);
  add(Opcode::WriteOnly, "RDMA WRITE Only", kWrite | kOnly | T::kReth);
  add(Opcode::WriteOnlyImm, "RDMA WRITE Only with Immediate", kWrite | kOnly | T::kReth | T::kImmediate);
  add(Opcode::ReadRequest, "RDMA READ Request", T::kRequest | T::kRead | kOnly | T::kReth);
  add(Opcode::ReadResponseFirst, "RDMA READ Response First", kResponse | T::kStart | T::kAeth);
  add(Opcode::ReadResponseMiddle, "RDMA READ Response Middle", kResponse);
  add(Opcode::ReadResponseLast, "RDMA READ Response Last", kResponse | T::kEnd | T::kAeth);
  add(Opcode::ReadResponseOnly, "RDMA READ Response Only", kResponse | kOnly | T::kAeth);
  add(Opcode::Acknowledge, "Acknowledge", kOnly | T::kAeth);
  add(Opcode::AtomicAcknowledge, "ATOMIC Acknowledge", kOnly | T::kAtomic | T::kAeth | T::kAtomicAckEth);
  add(Opcode::CompareSwap, "CmpSwap", T::kRequest | T::kAtomic | kOnly | T::kAtomicEth);
  add(Opcode::FetchAdd, "FetchAdd", T::kRequest | T::kAtomic | kOnly | T::kAtomicEth);
  add(Opcode::UcSendFirst, "UC SEND First", kSend | T::kStart);
  add(Opcode::UcSendMiddle, "UC SEND Middle", kSend);
  add(Opcode::UcSendLast, "UC SEND Last", kSend | T::kEnd);
  add(Opcode::UcSendLastImm, "UC SEND Last with Immediate", kSend | T::kEnd | T::kImmediate);
  add(Opcode::UcSendOnly, "UC SEND Only", kSend | kOnly);
  add(Opcode::UcSendOnlyImm, "UC SEND Only with Immediate", kSend | kOnly | T::kImmediate);
  add(Opcode::UcWriteFirst, "UC RDMA WRITE First", kWrite | T::kStart | T::kReth);
  add(Opcode::UcWriteMiddle, "UC RDMA WRITE Middle", kWrite);
  add(Opcode::UcWriteLast, "UC RDMA WRITE Last", kWrite | T::kEnd);
  add(Opcode::UcWriteLastImm, "UC RDMA WRITE Last with Immediate", kWrite | T::kEnd | T::kImmediate);
  add(Opcode::UcWriteOnly, "UC RDMA WRITE Only", kWrite | kOnly | T::kReth);
  add(Opcode::UcWriteOnlyImm, "UC RDMA WRITE Only with Immediate", kWrite | kOnly | T::kReth | T::kImmediate);
  add(Opcode::UdSendOnly, "UD SEND Only", kSend | kOnly | T::kDeth);
  add(Opcode::UdSendOnlyImm, "UD SEND Only with Immediate", kSend | kOnly | T::kDeth | T::kImmediate);
  add(Opcode::Reason, "Reason", kOnly | T::kPayload);
  add(Opcode::CreditRequest, "Credit Request", kOnly);
  add(Opcode::CreditGrant, "Credit Grant", kOnly | T::kPayload);
  for (unsigned i = 0; i <= static_cast<unsigned>(Opcode::SendOnlyInvalidate); ++i) {
    const OpcodeInfo rc = table[i];
    if (!rc.has(T::kKnown)) continue;
    add(on_service(Service::ExtendedReliableConnection, static_cast<Opcode>(i)), rc.name,
        rc.traits | (rc.has(T::kRequest) ? T::kXrcEth : 0U));
    add(on_service(Service::DynamicallyConnected, static_cast<Opcode>(i)), rc.name,
        rc.traits | (rc.has(T::kRequest) ? T::kDcEth : 0U));
  }
  return table;
}

inline constexpr std::array<OpcodeInfo, 256> kOpcodeTable = make_opcode_table();

}  // namespace detail

constexpr const OpcodeInfo& opcode_info(std::uint8_t opcode) {
  return detail::kOpcodeTable[opcode];
}
constexpr const OpcodeInfo& opcode_info(Opcode opcode) {
  return opcode_info(static_cast<std::uint8_t>(opcode));
}

static_assert(opcode_info(Opcode::WriteOnlyImm).header_size == kBthSize + kRethSize + kImmediateSize);
static_assert(opcode_info(Opcode::AtomicAcknowledge).header_size == kBthSize + kAethSize + kAtomicAckEthSize);
static_assert(opcode_info(Opcode::UdSendOnlyImm).header_size == kBthSize + kDethSize + kImmediateSize);
static_assert(on_service(Service::UnreliableConnection, Opcode::WriteOnlyImm) == Opcode::UcWriteOnlyImm);
static_assert(opcode_info(0xab).header_size == kBthSize + kXrcEthSize + kRethSize + kImmediateSize);
static_assert(opcode_info(0xb1).header_size == kBthSize + kAethSize, "answers have no XRCETH");
static_assert(!opcode_info(0x81).has(OpcodeInfo::kKnown), "congestion notifications are dropped");

}  // namespace qpair::softnic::roce
