#include "softnic/wire/fault_injector.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace qpair::softnic::wire {
namespace {

constexpr std::uint64_t kFarthestOvertake = 4;              // packets
constexpr std::chrono::microseconds kLongestHoldBack{300};  // when no later packet comes

// [0, 1), the same on every standard library, which std::uniform_real_distribution is not.
double unit(std::uint64_t random) {
  return static_cast<double>(random >> 11) * 0x1p-53;
}

}  // namespace

FaultInjector::FaultInjector(std::unique_ptr<Link> inner, const Faults& faults, Clock clock)
    : ForwardingLink(std::move(inner)),
      clock_(std::move(clock)),
      scratch_(kLongestPacket),
      slots_(kSlots * kSlotSize) {
  free_.reserve(kSlots);
  for (std::size_t slot = kSlots; slot-- > 0;) {
    free_.push_back(static_cast<std::uint16_t>(slot));
  }
  delayed_.reserve(kSlots);
  held_back_.reserve(kSlots);
  stopped_.reserve(kSlots);
  set_faults(faults);
}

void FaultInjector::set_faults(const Faults& faults) {
  faults_ = faults;
  random_.seed(faults.seed);
}

void FaultInjector::partition(const Endpoint& peer) {
  if (!is_partitioned(peer)) {
    partitioned_.push_back(peer);
  }
}

void FaultInjector::heal(const Endpoint& peer) {
  std::erase_if(partitioned_, [&](const Endpoint& other) { return other.address == peer.address; });
}

bool FaultInjector::is_partitioned(const Endpoint& peer) const {
  return std::any_of(partitioned_.begin(), partitioned_.end(),
                     [&](const Endpoint& other) { return other.address == peer.address; });
}

void FaultInjector::pause() {
  paused_ = true;
}

void FaultInjector::resume() {
  paused_ = false;
  for (const Waiting& waiting : stopped_) {
    release(waiting);
  }
  stopped_.clear();
  flush();
}

// Always the same number of draws for a packet, so that one probability's change leaves the others' decisions
// alone.
FaultInjector::Draw FaultInjector::draw() {
  Draw result{};
  result.drop = unit(random_());
  result.duplicate = unit(random_());
  result.reorder = unit(random_());
  result.corrupt = unit(random_());
  result.bit = random_();
  result.distance = random_();
  return result;
}

std::span<std::byte> FaultInjector::reserve(const Endpoint& destination, std::size_t size) {
  assert(size <= kLongestPacket);
  destination_ = destination;
  reserved_ = size;
  straight_ = passes_through();
  return straight_ ? inner_->reserve(destination, size) : scratch_.bytes().first(size);
}

void FaultInjector::commit() {
  ++counters_.packets;
  if (straight_) {
    inner_->commit();
    return;
  }
  const std::span<std::byte> packet = scratch_.bytes().first(reserved_);
  const Draw drawn = draw();
  if (is_partitioned(destination_)) {
    ++counters_.cut_off;
  } else if (drawn.drop < faults_.drop) {
    ++counters_.dropped;
  } else {
    if (drawn.corrupt < faults_.corrupt && !packet.empty()) {
      const std::uint64_t bit = drawn.bit % (packet.size() * 8);
      packet[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      ++counters_.corrupted;
    }
    const bool reorder = drawn.reorder < faults_.reorder;
    const unsigned copies = drawn.duplicate < faults_.duplicate ? 2 : 1;
    counters_.duplicated += copies - 1;
    counters_.reordered += reorder ? 1 : 0;
    for (unsigned copy = 0; copy < copies; ++copy) {
      // Of a duplicate the first copy alone is held back: the second then overtakes it, as networks do it.
      const bool hold = reorder && copy == 0;
      if (paused_) {
        wait(stopped_, {}, 0);
      } else if (faults_.delay.count() > 0) {
        const auto extra = std::chrono::nanoseconds(
            hold ? 1 + static_cast<std::int64_t>(drawn.distance %
                                                 static_cast<std::uint64_t>(faults_.delay.count()))
                 : 0);
        if (wait(delayed_, clock_() + faults_.delay + extra, counters_.packets)) {
          ++counters_.delayed;
          std::push_heap(delayed_.begin(), delayed_.end(), Later{});
        }
      } else if (hold) {
        wait(held_back_, clock_() + kLongestHoldBack,
             counters_.packets + 1 + drawn.distance % kFarthestOvertake);
      } else {
        send_now(destination_, packet);
      }
    }
  }
  release_overtaken();
}

void FaultInjector::send_now(const Endpoint& destination, std::span<const std::byte> packet) {
  const std::span<std::byte> room = inner_->reserve(destination, packet.size());
  std::memcpy(room.data(), packet.data(), packet.size());
  inner_->commit();
}

// Puts the packet in scratch_ into the waiting room. False: it was full.
bool FaultInjector::wait(std::vector<Waiting>& room, TimePoint due, std::uint64_t order) {
  if (free_.empty() || reserved_ > kSlotSize) {
    ++counters_.overflowed;
    return false;
  }
  const std::uint16_t slot = free_.back();
  free_.pop_back();
  std::memcpy(slots_.data() + slot * kSlotSize, scratch_.data(), reserved_);
  room.push_back({due, order, slot, static_cast<std::uint16_t>(reserved_), destination_});
  return true;
}

void FaultInjector::release(const Waiting& waiting) {
  if (is_partitioned(waiting.destination)) {
    ++counters_.cut_off;
  } else {
    send_now(waiting.destination, slots_.bytes().subspan(waiting.slot * kSlotSize, waiting.size));
  }
  free_.push_back(waiting.slot);
}

// Those that enough later packets have overtaken.
void FaultInjector::release_overtaken() {
  if (paused_) {
    return;
  }
  std::erase_if(held_back_, [this](const Waiting& waiting) {
    const bool overtaken = waiting.order <= counters_.packets;
    if (overtaken) {
      release(waiting);
    }
    return overtaken;
  });
}

bool FaultInjector::release_due(TimePoint now) {
  bool released = false;
  while (!delayed_.empty() && delayed_.front().due <= now) {
    release(delayed_.front());
    std::pop_heap(delayed_.begin(), delayed_.end(), Later{});
    delayed_.pop_back();
    released = true;
  }
  std::erase_if(held_back_, [&](const Waiting& waiting) {
    const bool due = waiting.due <= now;
    if (due) {
      release(waiting);
      released = true;
    }
    return due;
  });
  return released;
}

void FaultInjector::flush() {
  if (!paused_) {
    if (!delayed_.empty() || !held_back_.empty()) {
      release_due(clock_());
    }
    inner_->flush();
  }
}

std::size_t FaultInjector::poll(const Receiver& receiver, std::size_t limit, TimePoint now) {
  if (paused_) {
    return 0;
  }
  if (release_due(now)) {
    inner_->flush();
  }
  if (partitioned_.empty()) {
    return inner_->poll(receiver, limit, now);
  }
  return inner_->poll(
      [this, &receiver](const Frame& frame) {
        if (is_partitioned(frame.source)) {
          ++counters_.cut_off;
        } else {
          receiver(frame);
        }
      },
      limit, now);
}

std::optional<TimePoint> FaultInjector::deadline() const {
  if (paused_) {
    return std::nullopt;
  }
  std::optional<TimePoint> earliest = inner_->deadline();
  const auto consider = [&earliest](TimePoint due) { earliest = earliest ? std::min(*earliest, due) : due; };
  if (!delayed_.empty()) {
    consider(delayed_.front().due);
  }
  for (const Waiting& waiting : held_back_) {
    consider(waiting.due);
  }
  return earliest;
}

}  // namespace qpair::softnic::wire
