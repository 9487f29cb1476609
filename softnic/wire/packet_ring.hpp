#pragma once
// Packets from one process to another through memory that both have mapped: one producer, one consumer, no
// lock and no system call. Positions count bytes without end; packets never wrap, so one that does not fit
// before the end of the ring starts at its beginning.
//
// Neither side trusts what the other one writes: a position or size that cannot be is as good as an empty
// ring (broken()).

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace qpair::softnic::wire {

inline constexpr std::size_t kCopyCounters = 6;

// At the start of the shared memory; the bytes follow. Zeros are an empty ring.
struct PacketRingHeader {
  // Written by the consumer.
  alignas(64) std::atomic<std::uint64_t> head{0};
  // Written by the producer.
  alignas(64) std::atomic<std::uint64_t> tail{0};
  // The producer found no room and wants to be woken when there is some; taken back by whoever sees it.
  alignas(64) std::atomic<std::uint32_t> producer_waits{0};
  // Odd while the producer is about to use, or uses, memory that the consumer shows (shared_memory_link.hpp):
  // counted when that begins and when it ends. And what it would have been in packets, as the consumer's
  // counters have it.
  alignas(64) std::atomic<std::uint32_t> copying{0};
  std::atomic<std::uint32_t> parted{0};  // what the producer shows others: Shown::parted
  std::array<std::atomic<std::uint64_t>, kCopyCounters> copies{};
};
static_assert(sizeof(PacketRingHeader) == 256 && std::atomic<std::uint64_t>::is_always_lock_free);

class PacketRing {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t size_for(std::size_t capacity) { return sizeof(PacketRingHeader) + capacity; }

  PacketRing() = default;
  // `memory` is size_for() a power of two.
  explicit PacketRing(std::span<std::byte> memory)
      : header_(reinterpret_cast<PacketRingHeader*>(memory.data())),
        bytes_(memory.subspan(sizeof(PacketRingHeader))) {}

  PacketRingHeader& header() const { return *header_; }

  // ---- Producer
  // Room for a packet of `size` bytes; empty: none now. Nothing is seen of it before publish().
  std::span<std::byte> reserve(std::size_t size);
  void publish();
  bool has_room(std::size_t size);
  // What was published is seen by whoever does not see what is loaded (seq_cst) after this.
  void settle_published() { header_->tail.fetch_add(0, std::memory_order_seq_cst); }

  // ---- Consumer
  // The oldest packet, valid until pop(); empty: there is none.
  std::span<std::byte> front();
  void pop();
  bool empty() const { return header_->tail.load(std::memory_order_seq_cst) == position_; }
  // The same for what was popped.
  void settle_popped() { header_->head.fetch_add(0, std::memory_order_seq_cst); }
  bool broken() const { return broken_; }

 private:
  // Before each packet.
  struct Record {
    std::uint32_t size;    // of the packet; kSkip: nothing more before the end of the ring
    std::uint32_t stride;  // bytes from this record to the next
  };
  static constexpr std::uint32_t kSkip = 0xffff'ffff;
  static std::size_t stride_of(std::size_t size) {
    return kAlignment + (size + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::byte* at(std::uint64_t position) const { return bytes_.data() + (position & (bytes_.size() - 1)); }
  std::size_t to_end(std::uint64_t position) const {
    return bytes_.size() - (position & (bytes_.size() - 1));
  }

  PacketRingHeader* header_ = nullptr;
  std::span<std::byte> bytes_;
  std::uint64_t position_ = 0;  // own: of the producer its tail, of the consumer its head
  std::uint64_t other_ = 0;     // the other side's, as last read
  std::uint64_t next_ = 0;      // after the packet that is reserved, or at the front
  bool broken_ = false;
};

}  // namespace qpair::softnic::wire
