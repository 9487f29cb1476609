#include "softnic/nic/key_update.hpp"

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "qpair/mlx5/umr.hpp"

namespace qpair::softnic::nic {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{mlx5::kMaxSegments} * mlx5::kSegmentSize;
constexpr std::size_t kContextAt = sizeof(mlx5::ControlSegment) + sizeof(mlx5::UmrControlSegment);
constexpr std::size_t kEntriesAt = kContextAt + sizeof(mlx5::MkeyContextSegment);
constexpr std::size_t kCopySegments = 4;
// More than any device takes; a longer list would keep the NIC busy with one WQE.
constexpr std::uint64_t kMaxEntryBytes = 0xffffU * mlx5::kSegmentSize;

constexpr std::uint64_t kKnownMask = mlx5::kMkeyLength | mlx5::kMkeyStart | mlx5::kMkeyVariant |
                                     mlx5::kMkeyQpn | mlx5::kMkeyLocalWrite | mlx5::kMkeyRemoteRead |
                                     mlx5::kMkeyRemoteWrite | mlx5::kMkeyAtomic | mlx5::kMkeyFree;

template <typename Segment>
Segment segment_at(std::span<const std::byte> wqe, std::size_t offset) {
  Segment segment;
  std::memcpy(&segment, wqe.data() + offset, sizeof segment);
  return segment;
}

std::optional<DecodeError> malformed(std::string reason) {
  return DecodeError{DecodeError::Kind::Malformed, std::move(reason)};
}

std::optional<DecodeError> unreadable() {
  return DecodeError{DecodeError::Kind::Unreadable, "the send ring is not mapped"};
}

// Pairs of a context's access flag (or a mask bit) and the right of ibv_access_flags.
template <typename Bits>
int rights_of(Bits bits, Bits local_write, Bits remote_read, Bits remote_write, Bits atomic) {
  int access = 0;
  if ((bits & local_write) != 0) access |= IBV_ACCESS_LOCAL_WRITE;
  if ((bits & remote_read) != 0) access |= IBV_ACCESS_REMOTE_READ;
  if ((bits & remote_write) != 0) access |= IBV_ACCESS_REMOTE_WRITE;
  if ((bits & atomic) != 0) access |= IBV_ACCESS_REMOTE_ATOMIC;
  return access;
}

void fill_fields(const mlx5::MkeyContextSegment& context, std::uint64_t mask, KeyUpdate& update) {
  update.sets_free = (mask & mlx5::kMkeyFree) != 0;
  update.sets_variant = (mask & mlx5::kMkeyVariant) != 0;
  update.sets_qpn = (mask & mlx5::kMkeyQpn) != 0;
  update.sets_start = (mask & mlx5::kMkeyStart) != 0;
  update.sets_length = (mask & mlx5::kMkeyLength) != 0;
  update.sets_access = rights_of(mask, mlx5::kMkeyLocalWrite, mlx5::kMkeyRemoteRead, mlx5::kMkeyRemoteWrite,
                                 mlx5::kMkeyAtomic);
  update.free = (context.free & mlx5::kContextFree) != 0;
  update.variant = static_cast<std::uint8_t>(context.qpn_mkey & 0xff);
  update.qpn = context.qpn_mkey >> 8;
  update.start = context.start_address;
  update.length = context.length;
  update.access = rights_of(context.access_flags, mlx5::kContextLocalWrite, mlx5::kContextRemoteRead,
                            mlx5::kContextRemoteWrite, mlx5::kContextAtomic);
}

std::optional<DecodeError> interleaved(std::span<const std::byte> entries, KeyLayout& layout) {
  const auto block = segment_at<mlx5::RepeatBlockSegment>(entries, 0);
  const std::size_t count = block.entries;
  if (count == 0 || (count + 1) * mlx5::kSegmentSize > entries.size()) {
    return malformed(fmt::format("its repeat block announces {} entries, and {} bytes of entries are there",
                                 count, entries.size()));
  }
  for (std::size_t i = 1; i <= count; ++i) {
    const auto entry = segment_at<mlx5::RepeatEntrySegment>(entries, i * mlx5::kSegmentSize);
    layout.add(
        {.key = entry.mkey, .address = entry.address, .length = entry.byte_count, .stride = entry.stride});
  }
  layout.repetitions = block.repeat_count;
  if (block.byte_count != layout.round) {
    return malformed(
        fmt::format("its repeat block announces {} bytes for each repetition, its {} entries have {}",
                    static_cast<std::uint32_t>(block.byte_count), count, layout.round));
  }
  return std::nullopt;
}

}  // namespace

std::optional<DecodeError> decode_key_entries(std::span<const std::byte> entries, KeyLayout& layout) {
  layout = {};
  if (entries.size() < sizeof(mlx5::KlmSegment)) return std::nullopt;
  if (segment_at<mlx5::KlmSegment>(entries, 0).mkey == mlx5::kRepeatBlock)
    return interleaved(entries, layout);
  std::size_t count = entries.size() / sizeof(mlx5::KlmSegment);
  const auto at = [&](std::size_t i) {
    return segment_at<mlx5::KlmSegment>(entries, i * sizeof(mlx5::KlmSegment));
  };
  while (count != 0 && at(count - 1).mkey == 0U && at(count - 1).byte_count == 0U) --count;  // padding
  layout.parts.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto entry = at(i);
    layout.add({.key = entry.mkey, .address = entry.address, .length = entry.byte_count});
  }
  return std::nullopt;
}

std::optional<DecodeError> decode_key_update(const SendRing& ring, std::uint16_t index, const WqeHead& head,
                                             KeyUpdate& update, KeyEntriesElsewhere& elsewhere) {
  std::array<std::byte, kMaxBytes> bytes;
  const std::span<std::byte> wqe = std::span{bytes}.first(std::size_t{head.segments} * mlx5::kSegmentSize);
  if (wqe.size() < kEntriesAt) {
    return malformed(fmt::format("a memory key update (UMR) of {} segments: its fixed segments alone are {}",
                                 head.segments, kEntriesAt / mlx5::kSegmentSize));
  }
  if (!copy_out(ring, index, wqe)) return unreadable();
  const auto control = segment_at<mlx5::UmrControlSegment>(wqe, sizeof(mlx5::ControlSegment));
  const std::uint64_t mask = control.mkey_mask;
  if ((mask & ~kKnownMask) != 0) {
    return DecodeError{
        DecodeError::Kind::Unsupported,
        fmt::format("its memory key update has mask {:#x}, of which this device does not change {:#x} "
                    "(signatures, encryption, page sizes and protection domains)",
                    mask, mask & ~kKnownMask)};
  }
  update.key = mlx5::byte_swap(head.immediate);
  update.check_free = (control.flags & mlx5::kUmrCheckFree) != 0;
  update.check_qpn = (control.flags & mlx5::kUmrCheckQpn) != 0;
  fill_fields(segment_at<mlx5::MkeyContextSegment>(wqe, kContextAt), mask, update);
  const std::size_t size = std::size_t{control.klm_octowords} * mlx5::kSegmentSize;
  update.sets_layout = size != 0 && !update.free;
  if (!update.sets_layout) return std::nullopt;
  if ((control.flags & mlx5::kUmrInline) == 0) {
    if (wqe.size() < kEntriesAt + sizeof(mlx5::DataSegment)) {
      return malformed("its memory key update has neither entries nor a segment that says where they are");
    }
    const auto data = segment_at<mlx5::DataSegment>(wqe, kEntriesAt);
    elsewhere = {
        .lkey = data.lkey, .address = data.address, .bytes = std::min<std::uint64_t>(size, kMaxEntryBytes)};
    return std::nullopt;
  }
  const std::span<const std::byte> rest = wqe.subspan(kEntriesAt);
  if (size > rest.size()) {
    return malformed(fmt::format(
        "its memory key update announces {} bytes of entries, and the WQE ends after {}", size, rest.size()));
  }
  return decode_key_entries(rest.first(size), update.layout);
}

std::optional<DecodeError> decode_memory_copy(const SendRing& ring, std::uint16_t index, const WqeHead& head,
                                              MemoryCopy& copy) {
  if (head.opcode_modifier != mlx5::kMmoDma) {
    return DecodeError{
        DecodeError::Kind::Unsupported,
        fmt::format("memory operation {:#x} is not supported by this device; {:#x}, a copy, is",
                    head.opcode_modifier, mlx5::kMmoDma)};
  }
  if (head.segments != kCopySegments) {
    return malformed(fmt::format("a memory copy of {} segments; it has {}", head.segments, kCopySegments));
  }
  std::array<std::byte, kCopySegments * mlx5::kSegmentSize> bytes;
  if (!copy_out(ring, index, bytes)) return unreadable();
  const auto entry = [&](std::size_t segment) {
    const auto data = segment_at<mlx5::DataSegment>(bytes, segment * mlx5::kSegmentSize);
    const std::uint32_t count = data.byte_count;
    return ScatterEntry{data.address, count == 0 ? 0x8000'0000U : count, data.lkey, false};
  };
  copy = {.from = entry(2), .to = entry(3)};
  if (copy.from.length == copy.to.length) return std::nullopt;
  return malformed(fmt::format("a memory copy of {} bytes into {} bytes", copy.from.length, copy.to.length));
}

}  // namespace qpair::softnic::nic
