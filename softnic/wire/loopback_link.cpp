#include "softnic/wire/loopback_link.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace qpair::softnic::wire {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHeader = kAlignment;  // the packet itself starts on a cache line

std::size_t stride_of(std::size_t size) {
  return kHeader + (size + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

LoopbackLink::LoopbackLink(const Endpoint& local, std::size_t capacity)
    : local_(local), ring_(capacity), scratch_(kLongestPacket) {}

std::optional<std::size_t> LoopbackLink::place_for(std::size_t stride) const {
  if (queued_ > 0 && tail_ <= head_) {  // wrapped around
    return stride <= head_ - tail_ ? std::optional(tail_) : std::nullopt;
  }
  if (stride <= ring_.size() - tail_) return tail_;
  return stride <= head_ ? std::optional<std::size_t>(0) : std::nullopt;
}

bool LoopbackLink::has_room(const Endpoint& /*destination*/, std::size_t size) {
  return queued_ == 0 || place_for(stride_of(size)).has_value();
}

std::span<std::byte> LoopbackLink::reserve(const Endpoint& destination, std::size_t size) {
  assert(destination.address == local_.address && size <= kLongestPacket);
  static_cast<void>(destination);
  if (queued_ == 0) {  // back to where the cache is warm
    head_ = tail_ = 0;
  }
  const std::optional place = place_for(stride_of(size));
  reserved_size_ = size;
  reserved_fits_ = place.has_value();
  reserved_at_ = place.value_or(tail_);
  return reserved_fits_ ? ring_.bytes().subspan(reserved_at_ + kHeader, size) : scratch_.bytes().first(size);
}

void LoopbackLink::commit() {
  if (reserved_size_ == 0) {
    return;
  }
  if (!reserved_fits_) {
    ++dropped_;
    reserved_size_ = 0;
    return;
  }
  if (queued_ > 0 && reserved_at_ != tail_) {  // the rest of the ring is skipped
    Record last;
    std::memcpy(&last, ring_.data() + last_, sizeof(last));
    last.stride = static_cast<std::uint32_t>(ring_.size() - last_);
    std::memcpy(ring_.data() + last_, &last, sizeof(last));
  }
  const std::size_t stride = stride_of(reserved_size_);
  const Record record{static_cast<std::uint32_t>(reserved_size_), static_cast<std::uint32_t>(stride)};
  std::memcpy(ring_.data() + reserved_at_, &record, sizeof(record));
  last_ = reserved_at_;
  tail_ = reserved_at_ + stride;
  if (tail_ == ring_.size()) {
    tail_ = 0;
  }
  ++queued_;
  reserved_size_ = 0;
}

std::size_t LoopbackLink::poll(const Receiver& receiver, std::size_t limit, TimePoint /*now*/) {
  std::size_t delivered = 0;
  while (queued_ > 0 && delivered < limit) {
    Record record;
    std::memcpy(&record, ring_.data() + head_, sizeof(record));
    // Still counted as queued while the receiver looks at it, so that what it sends does not overwrite it.
    receiver({local_, local_, ring_.bytes().subspan(head_ + kHeader, record.size)});
    std::memcpy(&record, ring_.data() + head_, sizeof(record));
    head_ += record.stride;
    if (head_ == ring_.size()) {
      head_ = 0;
    }
    --queued_;
    ++delivered;
  }
  return delivered;
}

}  // namespace qpair::softnic::wire
