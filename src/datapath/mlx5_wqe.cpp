#include "src/datapath/mlx5_wqe.hpp"

#include <algorithm>
#include <cstring>

namespace qpair::detail {

namespace {

using mlx5::be32;
using mlx5::Opcode;

// Writes the segments of a WQE one after the other, going on at the ring's start when it comes to its end.
class SegmentWriter {
 public:
  SegmentWriter(std::byte* at, std::byte* begin, std::byte* end) : at_(at), begin_(begin), end_(end) {}

  template <typename Segment>
  void add(const Segment& segment) {
    static_assert(sizeof(Segment) == mlx5::kSegmentSize);
    std::memcpy(at_, &segment, sizeof segment);
    at_ += sizeof segment;
    if (at_ == end_) at_ = begin_;
    ++segments_;
  }

  void add_inline(std::span<const std::byte> data) {
    const mlx5::InlineSegment header{be32(static_cast<std::uint32_t>(data.size()) | mlx5::kInlineFlag)};
    std::memcpy(at_, &header, sizeof header);
    std::byte* to = at_ + sizeof header;  // a segment never straddles the end, so neither does its header
    const auto room = static_cast<std::size_t>(end_ - to);
    const std::size_t first = std::min(room, data.size());
    std::memcpy(to, data.data(), first);
    std::memcpy(begin_, data.data() + first, data.size() - first);
    segments_ += static_cast<std::uint32_t>((data.size() + sizeof header + mlx5::kSegmentSize - 1) /
                                            mlx5::kSegmentSize);
  }

  [[nodiscard]] std::uint32_t segments() const { return segments_; }

 private:
  std::byte* at_;
  std::byte* begin_;
  std::byte* end_;
  std::uint32_t segments_ = 0;
};

std::uint32_t fixed_segments(Opcode opcode) {
  if (is_send(opcode)) return 1;     // control
  return is_atomic(opcode) ? 3 : 2;  // control, remote address, and the operands
}

}  // namespace

std::uint64_t first_word(Opcode opcode, std::uint32_t qp_num) {
  const mlx5::ControlSegment control{mlx5::opmod_idx_opcode(0, opcode), mlx5::qpn_ds(qp_num, 3), 0, {}, 0, 0};
  std::uint64_t first = 0;
  std::memcpy(&first, &control, sizeof first);
  return first;
}

std::uint64_t blocks_needed(const Work& work, const WorkPlan& planned, const WorkLimits& limits) {
  const std::uint32_t fixed = fixed_segments(work.opcode);
  if (work.is_inline) {
    const std::uint64_t data =
        planned.bytes == 0 ? 0 : (planned.bytes + sizeof(mlx5::InlineSegment) + 15) / 16;
    return mlx5::blocks_of(fixed + static_cast<std::uint32_t>(data));
  }
  if (is_atomic(work.opcode)) return mlx5::blocks_of(fixed + 1);
  if (work.local.size() == 1) return planned.entries * mlx5::blocks_of(fixed + 1);
  PieceWalker walker(work.local);
  std::uint64_t blocks = 0;
  for (std::uint64_t done = 0, entry = 0; entry != planned.entries; ++entry) {
    const std::uint64_t bytes = std::min<std::uint64_t>(planned.bytes - done, limits.max_message);
    blocks += mlx5::blocks_of(fixed + walker.take(bytes, [](auto...) {}));
    done += bytes;
  }
  return blocks;
}

std::uint32_t write_entry(const WqeRing& ring, std::uint64_t position, const Work& work, Opcode opcode,
                          std::uint64_t remote_offset, std::uint64_t bytes, PieceWalker& walker,
                          std::uint8_t flags) {
  std::byte* const control_at = ring.block(position);
  SegmentWriter writer(control_at, ring.ring, ring.ring + ring.byte_mask + 1);
  mlx5::ControlSegment control{};
  writer.add(control);  // its place; filled in when the number of segments is known
  if (work.remote != nullptr) {
    writer.add(mlx5::RemoteAddressSegment{work.remote->addr + remote_offset, work.remote->rkey, 0});
  }
  if (is_atomic(opcode)) {
    writer.add(mlx5::AtomicSegment{work.swap_add, work.compare});
    writer.add(mlx5::DataSegment{8, work.local[0].lkey, work.local[0].addr});
  } else if (work.is_inline) {
    if (bytes != 0) writer.add_inline(work.inline_data);
  } else {
    walker.take(bytes, [&](std::uint32_t lkey, std::uint64_t address, std::uint32_t length) {
      writer.add(mlx5::DataSegment{length, lkey, address});
    });
  }
  control.opmod_idx_opcode = mlx5::opmod_idx_opcode(static_cast<std::uint16_t>(position), opcode);
  control.qpn_ds = mlx5::qpn_ds(ring.qp_num, writer.segments());
  control.fm_ce_se = flags;
  control.imm = has_imm(opcode) ? work.imm : 0;
  std::memcpy(control_at, &control, sizeof control);
  return mlx5::blocks_of(writer.segments());
}

void write_receive(std::byte* at, std::uint32_t slots, std::span<const RdmaBuffer> pieces) {
  auto* segment = reinterpret_cast<mlx5::DataSegment*>(at);
  std::uint32_t used = 0;
  for (const RdmaBuffer& piece : pieces) {
    if (piece.size == 0) continue;
    segment[used++] = mlx5::DataSegment{static_cast<std::uint32_t>(piece.size), piece.lkey, piece.addr};
  }
  if (used < slots) segment[used] = mlx5::DataSegment{0, mlx5::kInvalidLkey, 0};
}

}  // namespace qpair::detail
