#pragma once
// Doorbell records and registers of mlx5 NICs. C++17, header-only; compiles under nvcc.
// Facts: rdma-core providers/mlx5/qp.c (post_send_db), providers/mlx5/cq.c (mlx5_arm_cq, update_cons_index),
// util/udma_barrier.h.

#include <cstddef>
#include <cstdint>

#include "qpair/mlx5/endian.hpp"

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

}  // namespace qpair::mlx5
