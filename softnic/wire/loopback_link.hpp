#pragma once
// Packets from a NIC to itself: a bounded queue in memory, delivered by poll() in order. No system call.

#include <cstdint>

#include "softnic/wire/link.hpp"
#include "softnic/wire/pages.hpp"

namespace qpair::softnic::wire {

class LoopbackLink final : public Link {
 public:
  static constexpr std::size_t kDefaultCapacity = 4U << 20;

  explicit LoopbackLink(const Endpoint& local, std::size_t capacity = kDefaultCapacity);

  Endpoint local() const override { return local_; }
  std::span<std::byte> reserve(const Endpoint& destination, std::size_t size) override;
  void commit() override;
  void flush() override {}
  bool has_room(const Endpoint& destination, std::size_t size) override;
  std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint now) override;
  bool ready() const override { return queued_ > 0; }

  std::uint64_t dropped() const { return dropped_; }  // the queue was full

 private:
  // Before each packet in the ring. Packets never wrap: one that does not fit before the end starts at the
  // beginning.
  struct Record {
    std::uint32_t size;
    std::uint32_t stride;  // bytes from this record to the next, or to the end of the ring
  };

  // Where a record of `stride` bytes would go; empty when the queue is full.
  std::optional<std::size_t> place_for(std::size_t stride) const;

  Endpoint local_;
  Pages ring_;
  Pages scratch_;         // where a packet that finds the queue full is written
  std::size_t head_ = 0;  // oldest record
  std::size_t tail_ = 0;  // where the next one goes
  std::size_t last_ = 0;  // newest record, to lengthen its stride at the end of the ring
  std::size_t queued_ = 0;
  std::size_t reserved_at_ = 0;
  std::size_t reserved_size_ = 0;
  bool reserved_fits_ = false;
  std::uint64_t dropped_ = 0;
};

}  // namespace qpair::softnic::wire
