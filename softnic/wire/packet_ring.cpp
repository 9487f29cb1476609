#include "softnic/wire/packet_ring.hpp"

#include <cstring>

namespace qpair::softnic::wire {

// ---- Producer -----------------------------------------------------------------------------------

bool PacketRing::has_room(std::size_t size) {
  const std::size_t stride = stride_of(size);
  const std::size_t gap = to_end(position_);
  const std::size_t needed = stride <= gap ? stride : gap + stride;
  if (needed > bytes_.size()) return false;
  if (position_ - other_ <= bytes_.size() - needed) return true;
  other_ = header_->head.load(std::memory_order_seq_cst);
  return position_ - other_ <= bytes_.size() - needed;
}

std::span<std::byte> PacketRing::reserve(std::size_t size) {
  if (!has_room(size)) return {};
  const std::size_t stride = stride_of(size);
  std::uint64_t begin = position_;
  if (const std::size_t gap = to_end(begin); stride > gap) {
    const Record skip{kSkip, static_cast<std::uint32_t>(gap)};
    std::memcpy(at(begin), &skip, sizeof skip);
    begin += gap;
  }
  const Record record{static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(stride)};
  std::memcpy(at(begin), &record, sizeof record);
  next_ = begin + stride;
  return {at(begin) + kAlignment, size};
}

void PacketRing::publish() {
  position_ = next_;
  header_->tail.store(position_, std::memory_order_release);
}

// ---- Consumer -----------------------------------------------------------------------------------

std::span<std::byte> PacketRing::front() {
  for (;;) {
    if (position_ == other_) other_ = header_->tail.load(std::memory_order_acquire);
    const std::uint64_t filled = other_ - position_;
    if (filled == 0 || broken_) return {};
    Record record;
    std::memcpy(&record, at(position_), sizeof record);
    const std::size_t gap = to_end(position_);
    broken_ = filled > bytes_.size() || record.stride > filled || record.stride > gap ||
              record.stride % kAlignment != 0 || record.stride == 0 || record.size == 0 ||
              (record.size != kSkip && record.stride != stride_of(record.size));
    if (broken_) return {};
    next_ = position_ + record.stride;
    if (record.size != kSkip) return {at(position_) + kAlignment, record.size};
    pop();
  }
}

void PacketRing::pop() {
  position_ = next_;
  header_->head.store(position_, std::memory_order_release);
}

}  // namespace qpair::softnic::wire
