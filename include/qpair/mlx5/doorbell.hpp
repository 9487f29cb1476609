#pragma once
// Doorbell records and registers of mlx5 NICs, and how to ring them. C++17, header-only; compiles under nvcc.
// Facts: rdma-core providers/mlx5/qp.c (post_send_db), providers/mlx5/cq.c (mlx5_arm_cq, update_cons_index),
// util/udma_barrier.h.

#include <cstddef>
#include <cstdint>

#include "qpair/mlx5/endian.hpp"
#include "qpair/mlx5/wqe.hpp"

namespace qpair::mlx5 {

// Entries of a queue pair's doorbell record.
inline constexpr std::size_t kReceiveRecord = 0;
inline constexpr std::size_t kSendRecord = 1;
// Entries of a completion queue's doorbell record.
inline constexpr std::size_t kConsumerIndexRecord = 0;
inline constexpr std::size_t kArmRecord = 1;

// Offsets within a 4 KiB UAR page.
inline constexpr std::size_t kUarPageSize = 4096;
inline constexpr std::size_t kCqDoorbellOffset = 0x20;
inline constexpr std::size_t kBlueFlameOffset = 0x800;

// CQ arm record and doorbell: sequence number 29:28, command 24, consumer index 23:0.
inline constexpr std::uint32_t kArmNext = 0U << 24;
inline constexpr std::uint32_t kArmSolicited = 1U << 24;

inline constexpr std::uint32_t kIndexMask = 0xffff;            // doorbell records of queues hold 16 bits
inline constexpr std::uint32_t kConsumerIndexMask = 0xffffff;  // those of completion queues 24

// --- Barriers
// ------------------------------------------------------------------------------------------------------- The
// names say what rdma-core's util/udma_barrier.h says at length. On x86 ordinary stores reach a device in
// order, so the first is for the compiler only; on Arm nothing is in order unless said so.

// What was written to memory before is seen by the device before what is written after.
QPAIR_HOST_DEVICE inline void to_device_barrier() {
#if defined(__CUDA_ARCH__)
  __threadfence_system();
#elif defined(__x86_64__)
  asm volatile("" ::: "memory");
#elif defined(__aarch64__)
  asm volatile("dsb st" ::: "memory");
#else
#error "qpair knows the barriers of x86-64 and AArch64 only"
#endif
}

// What the device wrote before the flag that was just read is read after it. On x86-64 that is so anyway for
// ordinary memory, where completion queues are: loads are not reordered with loads (Intel SDM vol. 3, 9.2.2;
// AMD APM vol. 2, 7.2), and the kernel's dma_rmb() too is for the compiler only. (rdma-core has an lfence
// here, which orders loads from write-combining memory as well, and stops the processor for a few
// nanoseconds.)
QPAIR_HOST_DEVICE inline void from_device_barrier() {
#if defined(__CUDA_ARCH__)
  __threadfence_system();
#elif defined(__x86_64__)
  asm volatile("" ::: "memory");
#elif defined(__aarch64__)
  asm volatile("dsb ld" ::: "memory");
#endif
}

// Sends what lies in the processor's write-combining buffers on its way, and lets nothing after it combine
// with it.
QPAIR_HOST_DEVICE inline void flush_write_combining() {
#if defined(__CUDA_ARCH__)
  __threadfence_system();
#elif defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#elif defined(__aarch64__)
  asm volatile("dsb st" ::: "memory");
#endif
}

// --- Loads and stores that the device takes part in
// ---------------------------------------------------------------- Single accesses that the compiler neither
// splits nor repeats. On the host they are atomic as well, so that thread sanitizer understands an emulated
// device that runs in the same process.

QPAIR_HOST_DEVICE inline void store_record(be32* record, std::uint32_t value) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<volatile std::uint32_t*>(&record->raw) = byte_swap(value);
#else
  __atomic_store_n(&record->raw, byte_swap(value), __ATOMIC_RELEASE);
#endif
}

QPAIR_HOST_DEVICE inline std::uint32_t load_record(const be32* record) {
#if defined(__CUDA_ARCH__)
  return byte_swap(*reinterpret_cast<const volatile std::uint32_t*>(&record->raw));
#else
  return byte_swap(__atomic_load_n(&record->raw, __ATOMIC_RELAXED));
#endif
}

// An 8-byte register, written with bytes that are already in the device's order.
QPAIR_HOST_DEVICE inline void store_register(void* reg, std::uint64_t raw) {
#if defined(__CUDA_ARCH__)
  *static_cast<volatile std::uint64_t*>(reg) = raw;
#else
  __atomic_store_n(static_cast<std::uint64_t*>(reg), raw, __ATOMIC_RELEASE);
#endif
}

// BlueFlame: a whole WQE goes to the register, so that the device need not fetch it. `blocks` basic blocks
// from `first` on; the ring ends at `ring_end` and goes on at `ring`. Stores of 8 bytes in ascending order.
inline void copy_blue_flame(void* reg, const std::byte* first, std::uint32_t blocks, const std::byte* ring,
                            const std::byte* ring_end) {
  auto* to = static_cast<std::uint64_t*>(reg);
  for (; blocks != 0; --blocks) {
    const auto* from = reinterpret_cast<const std::uint64_t*>(first);
#ifndef __CUDACC__
#pragma GCC unroll 8
#endif
    for (std::size_t i = 0; i != kBasicBlockSize / sizeof(std::uint64_t); ++i) {
      __atomic_store_n(to++, from[i], __ATOMIC_RELEASE);
    }
    first += kBasicBlockSize;
    if (first == ring_end) first = ring;
  }
}

// Basic blocks that a WQE of `segments` 16-byte segments takes.
QPAIR_HOST_DEVICE constexpr std::uint32_t blocks_of(std::uint32_t segments) {
  return (segments + 3) / 4;
}

}  // namespace qpair::mlx5

namespace qpair {

// A doorbell that something else than the queue pair can ring: another thread, or a GPU kernel. A snapshot,
// taken by RdmaQueuePair::get_doorbell(), of everything enqueued until then; trivially copyable.
//
// ring() makes those WQEs run, and everything enqueued before them:
//   1. barrier, so that the device sees the WQEs;
//   2. the send queue's doorbell record becomes the index after the WQE at src_ptr, unless it is there or
//   beyond it
//      already, in which case there is nothing to do;
//   3. barrier;
//   4. `size` bytes (8: the WQE's own first bytes) are stored from src_ptr to dst_ptr, the NIC's register, at
//   once;
//   5. the store is pushed out of write-combining buffers.
// The queue pair reads the doorbell record for its counters, so send_db_idx() follows by itself, whoever
// rang.
//
// The one who rings and the one who posts take turns: not at the same time as put(), get(), ring_doorbell()
// or another ring() of the same queue pair. A DoorBell is good until the work that it covers has completed,
// or reset(). On a GPU the three pointers must be reachable: register the UAR page
// (cudaHostRegisterIoMemory), the ring and the record (cudaHostRegister) first, and translate the pointers
// where the addresses differ.
struct DoorBell {
  const void* src_ptr = nullptr;  // first bytes of the last WQE
  void* dst_ptr = nullptr;        // the doorbell register
  std::size_t size = 0;           // bytes to store: 8, or 0 when nothing was enqueued yet
  void* record_ptr = nullptr;     // the send queue's doorbell record, big-endian

  QPAIR_HOST_DEVICE void ring() const {
    if (size == 0) return;
    const std::uint64_t first = *static_cast<const std::uint64_t*>(src_ptr);
    const std::uint32_t index = (mlx5::byte_swap(static_cast<std::uint32_t>(first)) >> 8) & mlx5::kIndexMask;
    const std::uint32_t segments =
        mlx5::byte_swap(static_cast<std::uint32_t>(first >> 32)) & mlx5::kMaxSegments;
    const std::uint32_t next = (index + mlx5::blocks_of(segments)) & mlx5::kIndexMask;
    auto* record = static_cast<mlx5::be32*>(record_ptr);
    // Indices are compared as on a circle; a ring has at most half of it.
    const std::uint32_t ahead = (next - mlx5::load_record(record)) & mlx5::kIndexMask;
    if (ahead == 0 || ahead > 0x8000) return;
    mlx5::to_device_barrier();
    mlx5::store_record(record, next);
    mlx5::flush_write_combining();
    mlx5::store_register(dst_ptr, first);
    mlx5::flush_write_combining();
  }
};
static_assert(std::is_trivially_copyable_v<DoorBell>);

}  // namespace qpair
