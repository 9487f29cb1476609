#pragma once
// Opcodes of the base transport header and what follows it in a packet (IBTA vol. 1 9.2.1 table 38, and 9.3
// for the order of the extended headers). UC (0x20…) and UD (0x64, 0x65) go into the same table when they
// come.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

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
  // 0xC0 to 0xFF are the manufacturers'. Ours carries a sentence: why the packet with the same PSN is about
  // to be refused. Whoever does not know it drops it.
  Reason = 0xc0,
};

inline constexpr std::size_t kBthSize = 12;
inline constexpr std::size_t kRethSize = 16;
inline constexpr std::size_t kAethSize = 4;
inline constexpr std::size_t kAtomicEthSize = 28;
inline constexpr std::size_t kAtomicAckEthSize = 8;
inline constexpr std::size_t kImmediateSize = 4;
inline constexpr std::size_t kInvalidateSize = 4;
inline constexpr std::size_t kIcrcSize = 4;

struct OpcodeInfo {
  enum Trait : std::uint16_t {
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
  };
  std::uint16_t traits = 0;
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
    size += (traits & T::kReth) != 0 ? kRethSize : 0;
    size += (traits & T::kAeth) != 0 ? kAethSize : 0;
    size += (traits & T::kAtomicEth) != 0 ? kAtomicEthSize : 0;
    size += (traits & T::kAtomicAckEth) != 0 ? kAtomicAckEthSize : 0;
    size += (traits & T::kImmediate) != 0 ? kImmediateSize : 0;
    size += (traits & T::kInvalidate) != 0 ? kInvalidateSize : 0;
    table[static_cast<std::size_t>(opcode)] = {static_cast<std::uint16_t>(traits | T::kKnown),
                                               static_cast<std::uint8_t>(size), name};
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
  add(Opcode::Reason, "Reason", kOnly | T::kPayload);
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
static_assert(!opcode_info(0x81).has(OpcodeInfo::kKnown), "congestion notifications are dropped");

}  // namespace qpair::softnic::roce
