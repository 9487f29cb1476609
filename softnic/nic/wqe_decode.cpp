#include "softnic/nic/wqe_decode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/nic.hpp"

namespace qpair::softnic::nic {
namespace {

using mlx5::Opcode;
constexpr std::size_t kMaxWqeBytes = std::size_t{mlx5::kMaxSegments} * mlx5::kSegmentSize;
constexpr std::uint32_t kSegmentCountMask = 0x3f;

template <typename Segment>
Segment segment_at(std::span<const std::byte> wqe, std::size_t offset) {
  Segment segment;
  std::memcpy(&segment, wqe.data() + offset, sizeof segment);
  return segment;
}

const void* program(std::uint64_t address) {
  return reinterpret_cast<const void*>(address);
}

WqeHead parse_head(const mlx5::ControlSegment& control) {
  const std::uint32_t first = control.opmod_idx_opcode;
  const std::uint32_t second = control.qpn_ds;
  WqeHead head;
  head.opcode = static_cast<Opcode>(first & 0xff);
  head.opcode_modifier = static_cast<std::uint8_t>(first >> 24);
  head.index = static_cast<std::uint16_t>(first >> 8);
  head.qpn = second >> 8;
  head.segments = second & kSegmentCountMask;
  head.blocks = std::max(1U, (head.segments + 3) / 4);
  head.flags = control.fm_ce_se;
  head.immediate = control.imm.raw;
  return head;
}

std::optional<DecodeError> malformed(std::string reason) {
  return DecodeError{DecodeError::Kind::Malformed, std::move(reason)};
}

// The fixed segments of a WQE, in the order in which they follow the control segment.
struct FixedSegments {
  bool exists = false;  // the service has this opcode
  bool datagram = false;
  bool xrc = false;
  bool remote_address = false;
  bool atomic = false;

  std::size_t remote_address_at() const {
    return sizeof(mlx5::ControlSegment) + (datagram ? sizeof(mlx5::DatagramSegment) : 0) +
           (xrc ? sizeof(mlx5::XrcSegment) : 0);
  }
  std::size_t atomic_at() const { return remote_address_at() + sizeof(mlx5::RemoteAddressSegment); }
  std::size_t size() const {
    return remote_address_at() + (remote_address ? sizeof(mlx5::RemoteAddressSegment) : 0) +
           (atomic ? sizeof(mlx5::AtomicSegment) : 0);
  }
};
constexpr std::size_t kDatagramSegmentAt = sizeof(mlx5::ControlSegment);
constexpr std::size_t kXrcSegmentAt = sizeof(mlx5::ControlSegment);

// IBTA vol. 1 10.7.2.2: which operations which service has.
FixedSegments fixed_segments(ibv_qp_type service, Opcode opcode) {
  const bool dc = service == kDcInitiator;
  const bool datagram = service == IBV_QPT_UD || dc;
  const bool xrc = service == IBV_QPT_XRC_SEND;
  const bool reliable = service == IBV_QPT_RC || xrc || dc;
  switch (opcode) {
    case Opcode::Send:
    case Opcode::SendImm:
      return {.exists = true, .datagram = datagram, .xrc = xrc};
    case Opcode::SendInvalidate:
      return {.exists = reliable, .datagram = datagram, .xrc = xrc};
    case Opcode::RdmaWrite:
    case Opcode::RdmaWriteImm:
      return {.exists = service != IBV_QPT_UD, .datagram = datagram, .xrc = xrc, .remote_address = true};
    case Opcode::RdmaRead:
      return {.exists = reliable, .datagram = datagram, .xrc = xrc, .remote_address = true};
    case Opcode::AtomicCompareSwap:
    case Opcode::AtomicFetchAdd:
      return {.exists = reliable, .datagram = datagram, .xrc = xrc, .remote_address = true, .atomic = true};
    default:
      return {};
  }
}

const char* service_name(ibv_qp_type service) {
  if (service == kDcInitiator) return "a dynamic connection";
  switch (service) {
    case IBV_QPT_UC:
      return "an unreliable connection";
    case IBV_QPT_UD:
      return "datagrams";
    case IBV_QPT_XRC_SEND:
      return "an extended reliable connection";
    default:
      return "a reliable connection";
  }
}

roce::Operation operation_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::SendImm:
      return roce::Operation::SendImm;
    case Opcode::SendInvalidate:
      return roce::Operation::SendInvalidate;
    case Opcode::RdmaWrite:
      return roce::Operation::Write;
    case Opcode::RdmaWriteImm:
      return roce::Operation::WriteImm;
    case Opcode::RdmaRead:
      return roce::Operation::Read;
    case Opcode::AtomicCompareSwap:
      return roce::Operation::CompareSwap;
    case Opcode::AtomicFetchAdd:
      return roce::Operation::FetchAdd;
    default:
      return roce::Operation::Send;
  }
}

bool stores_locally(Opcode opcode) {
  return opcode == Opcode::RdmaRead || opcode == Opcode::AtomicCompareSwap ||
         opcode == Opcode::AtomicFetchAdd;
}

// Inline data begins 4 bytes into its first segment and may run around the ring's end.
void add_inline(const SendRing& ring, std::uint16_t index, std::size_t offset_in_wqe, std::uint32_t length,
                ScatterList& list) {
  const std::size_t bytes = std::size_t{ring.basic_blocks} * mlx5::kBasicBlockSize;
  const std::size_t start =
      ((index & (ring.basic_blocks - 1)) * std::size_t{mlx5::kBasicBlockSize} + offset_in_wqe) % bytes;
  const auto first = static_cast<std::uint32_t>(std::min<std::size_t>(length, bytes - start));
  list.add({ring.base + start, first, 0, true});
  if (first != length) list.add({ring.base, length - first, 0, true});
}

std::optional<DecodeError> decode_data(const SendRing& ring, const WqeHead& head, std::uint16_t index,
                                       std::span<const std::byte> wqe, std::size_t offset,
                                       ScatterList& list) {
  while (offset < wqe.size()) {
    const std::uint32_t count = segment_at<mlx5::InlineSegment>(wqe, offset).byte_count;
    if ((count & mlx5::kInlineFlag) == 0) {
      const auto data = segment_at<mlx5::DataSegment>(wqe, offset);
      list.add({data.address, count == 0 ? 0x8000'0000U : count, data.lkey, false});
      offset += sizeof data;
      continue;
    }
    const std::uint32_t length = count & ~mlx5::kInlineFlag;
    if (length > wqe.size() - offset - sizeof(mlx5::InlineSegment)) {
      return malformed(
          fmt::format("its inline segment at byte {} has {} bytes, but the WQE ends after {} bytes", offset,
                      length, wqe.size()));
    }
    if (stores_locally(head.opcode)) {
      return malformed(
          fmt::format("{} with inline data: it needs memory to store to", opcode_name(head.opcode)));
    }
    if (length != 0) add_inline(ring, index, offset + sizeof(mlx5::InlineSegment), length, list);
    offset += (sizeof(mlx5::InlineSegment) + length + mlx5::kSegmentSize - 1) &
              ~std::size_t{mlx5::kSegmentSize - 1};
  }
  return std::nullopt;
}

DecodeError no_such_operation(ibv_qp_type service, Opcode opcode) {
  switch (opcode) {
    case Opcode::LocalInvalidate:  // libmlx5 frees a key by UMR
    case Opcode::MaskedCompareSwap:
    case Opcode::MaskedFetchAdd:
      if (service != IBV_QPT_RC && service != IBV_QPT_XRC_SEND) break;
      return {DecodeError::Kind::Unsupported,
              fmt::format("{} is not supported by this device", opcode_name(opcode))};
    default:
      break;
  }
  return {DecodeError::Kind::Malformed,
          fmt::format("opcode {:#x} ({}) does not exist for {}", static_cast<unsigned>(opcode),
                      opcode_name(opcode), service_name(service))};
}

std::optional<DecodeError> check_head(const SendRing& ring, const WqeHead& head, std::uint32_t qpn,
                                      std::uint16_t index, std::uint32_t available) {
  if (head.qpn != qpn) {
    return malformed(fmt::format("its control segment names queue pair {:#x}", head.qpn));
  }
  if (head.index != index) {
    return malformed(fmt::format(
        "its control segment says index {}: it was skipped, or overwritten before it completed", head.index));
  }
  if (head.segments == 0)
    return malformed("its control segment says ds 0, less than the control segment itself");
  if (head.blocks > available) {
    return malformed(
        fmt::format("it has {} segments, {} basic blocks, but the doorbell record ends {} blocks after its "
                    "start",
                    head.segments, head.blocks, available));
  }
  if (head.blocks > ring.basic_blocks) {
    return malformed(
        fmt::format("it has {} basic blocks, the whole ring {}", head.blocks, ring.basic_blocks));
  }
  return std::nullopt;
}

}  // namespace

bool is_local(Opcode opcode) {
  return opcode == Opcode::Umr || opcode == Opcode::Mmo;
}

bool copy_out(const SendRing& ring, std::uint16_t index, std::span<std::byte> to) {
  const std::size_t bytes = std::size_t{ring.basic_blocks} * mlx5::kBasicBlockSize;
  const std::size_t start = (index & (ring.basic_blocks - 1)) * std::size_t{mlx5::kBasicBlockSize};
  const std::size_t first = std::min(to.size(), bytes - start);
  return guarded_copy(to.data(), program(ring.base + start), first) &&
         (first == to.size() || guarded_copy(to.data() + first, program(ring.base), to.size() - first));
}

std::optional<WqeHead> read_head(const SendRing& ring, std::uint16_t index) {
  mlx5::ControlSegment control;
  if (!copy_out(ring, index, std::as_writable_bytes(std::span{&control, 1}))) return std::nullopt;
  return parse_head(control);
}

std::optional<mlx5::DatagramSegment> read_datagram_segment(const SendRing& ring, std::uint16_t index) {
  static_assert(kDatagramSegmentAt + sizeof(mlx5::DatagramSegment) == mlx5::kBasicBlockSize,
                "it never runs around the ring's end");
  std::array<std::byte, mlx5::kBasicBlockSize> block;
  if (!copy_out(ring, index, block)) return std::nullopt;
  return segment_at<mlx5::DatagramSegment>(block, kDatagramSegmentAt);
}

std::optional<DecodeError> decode_send(const SendRing& ring, std::uint32_t qpn, std::uint16_t index,
                                       std::uint32_t available, std::uint64_t max_message, WqeHead& head,
                                       roce::SendRequest& request, ScatterList& list) {
  list.clear();
  // Most WQEs are one basic block: one copy for those.
  std::array<std::byte, kMaxWqeBytes> bytes;
  if (!copy_out(ring, index, std::span{bytes}.first(mlx5::kBasicBlockSize))) {
    return DecodeError{DecodeError::Kind::Unreadable, "the send ring is not mapped"};
  }
  head = parse_head(segment_at<mlx5::ControlSegment>(bytes, 0));
  if (auto error = check_head(ring, head, qpn, index, available)) return error;
  const std::span<const std::byte> wqe =
      std::span{bytes}.first(std::size_t{head.segments} * mlx5::kSegmentSize);
  if (wqe.size() > mlx5::kBasicBlockSize &&
      !copy_out(ring, static_cast<std::uint16_t>(index + 1),
                std::span{bytes}.subspan(mlx5::kBasicBlockSize, wqe.size() - mlx5::kBasicBlockSize))) {
    return DecodeError{DecodeError::Kind::Unreadable, "the send ring is not mapped"};
  }

  request = roce::SendRequest{};
  request.wqe_index = index;
  request.fence = head.fenced();
  request.solicited = head.solicited();
  if (head.opcode == Opcode::Nop) return std::nullopt;
  if (is_local(head.opcode) && ring.service != IBV_QPT_UD) return std::nullopt;

  const FixedSegments fixed = fixed_segments(ring.service, head.opcode);
  if (!fixed.exists) return no_such_operation(ring.service, head.opcode);
  if (wqe.size() < fixed.size()) {
    return malformed(fmt::format("{} with {} segments: its fixed segments alone are {}",
                                 opcode_name(head.opcode), head.segments, fixed.size() / mlx5::kSegmentSize));
  }
  request.operation = operation_of(head.opcode);
  // A key is a number, an immediate the program's own bytes.
  request.immediate =
      head.opcode == Opcode::SendInvalidate ? mlx5::byte_swap(head.immediate) : head.immediate;
  if (fixed.datagram) {
    const auto datagram = segment_at<mlx5::DatagramSegment>(wqe, kDatagramSegmentAt);
    if ((datagram.dqp_dct & mlx5::kExtendedAddressVector) == 0) {
      return malformed(
          "its address vector is the short one, with a LID; RoCE needs the extended one, with a GID");
    }
  }
  if (fixed.xrc) request.xrc_srqn = segment_at<mlx5::XrcSegment>(wqe, kXrcSegmentAt).srqn & 0xff'ffff;
  if (fixed.remote_address) {
    const auto remote = segment_at<mlx5::RemoteAddressSegment>(wqe, fixed.remote_address_at());
    request.remote_address = remote.address;
    request.rkey = remote.rkey;
  }
  if (fixed.atomic) {
    const auto operands = segment_at<mlx5::AtomicSegment>(wqe, fixed.atomic_at());
    request.swap_add = operands.swap_add;
    request.compare = operands.compare;
  }
  if (auto error = decode_data(ring, head, index, wqe, fixed.size(), list)) return error;
  if (fixed.atomic && list.length < 8) {
    return malformed(fmt::format("{} has room for {} bytes of the original value, which is 8 bytes",
                                 opcode_name(head.opcode), list.length));
  }
  if (list.length > max_message) {
    return DecodeError{DecodeError::Kind::TooLong,
                       fmt::format("{} of {} bytes; the port's limit is {}", opcode_name(head.opcode),
                                   list.length, max_message)};
  }
  request.length = fixed.atomic ? 8 : list.length;
  return std::nullopt;
}

std::optional<DecodeError> decode_receive(const ReceiveRing& ring, std::uint16_t index, ScatterList& list) {
  list.clear();
  const std::size_t slots = (std::size_t{1} << ring.shift) / mlx5::kSegmentSize;
  const std::uint64_t start = ring.base + (std::uint64_t{index & (ring.count - 1)} << ring.shift);
  for (std::size_t slot = ring.headed ? 1 : 0; slot < slots && list.count < mlx5::kMaxSegments; ++slot) {
    mlx5::DataSegment data;
    if (!guarded_copy(&data, program(start + slot * sizeof data), sizeof data)) {
      return DecodeError{DecodeError::Kind::Unreadable, "the receive ring is not mapped"};
    }
    if (data.lkey == mlx5::kInvalidLkey) break;
    const std::uint32_t count = data.byte_count;
    if ((count & mlx5::kInlineFlag) != 0) {
      return malformed(
          fmt::format("its segment {} has byte count {:#x}, of which bit 31 must be clear", slot, count));
    }
    list.add({data.address, count == 0 ? 0x8000'0000U : count, data.lkey, false});
  }
  return std::nullopt;
}

const char* opcode_name(mlx5::Opcode opcode) {
  switch (opcode) {
    case Opcode::Nop:
      return "NOP";
    case Opcode::SendInvalidate:
      return "SEND with invalidate";
    case Opcode::RdmaWrite:
      return "RDMA WRITE";
    case Opcode::RdmaWriteImm:
      return "RDMA WRITE with immediate";
    case Opcode::Send:
      return "SEND";
    case Opcode::SendImm:
      return "SEND with immediate";
    case Opcode::RdmaRead:
      return "RDMA READ";
    case Opcode::AtomicCompareSwap:
      return "COMPARE_SWAP";
    case Opcode::AtomicFetchAdd:
      return "FETCH_ADD";
    case Opcode::MaskedCompareSwap:
      return "masked COMPARE_SWAP";
    case Opcode::MaskedFetchAdd:
      return "masked FETCH_ADD";
    case Opcode::LocalInvalidate:
      return "local invalidate";
    case Opcode::Umr:
      return "memory key update (UMR)";
    case Opcode::Mmo:
      return "memory copy (MMO)";
  }
  return "unknown opcode";
}

}  // namespace qpair::softnic::nic
