#pragma once
// Work queue entries of mlx5 NICs: segments, opcodes and flags. C++17, header-only; compiles under nvcc.
// Facts: rdma-core providers/mlx5/mlx5dv.h ("WQE related part") and providers/mlx5/wqe.h.

#include <cstddef>
#include <cstdint>

#include "qpair/mlx5/endian.hpp"

namespace qpair::mlx5 {

inline constexpr std::uint32_t kBasicBlockSize = 64;  // a send WQE takes whole basic blocks of the ring
inline constexpr std::uint32_t kBasicBlockShift = 6;
inline constexpr std::uint32_t kSegmentSize = 16;          // the unit of the control segment's ds field
inline constexpr std::uint32_t kMaxSegments = 63;          // ds is 6 bits
inline constexpr std::uint32_t kInvalidLkey = 0x100;       // ends a receive WQE's scatter list early
inline constexpr std::uint32_t kInlineFlag = 0x80000000U;  // top bit of an inline segment's byte count

enum class Opcode : std::uint8_t {
  Nop = 0x00,
  SendInvalidate = 0x01,
  RdmaWrite = 0x08,
  RdmaWriteImm = 0x09,
  Send = 0x0a,
  SendImm = 0x0b,
  RdmaRead = 0x10,
  AtomicCompareSwap = 0x11,
  AtomicFetchAdd = 0x12,
  MaskedCompareSwap = 0x14,
  MaskedFetchAdd = 0x15,
  LocalInvalidate = 0x1b,
  Umr = 0x25,
  Mmo = 0x2f,
};

// Bits of ControlSegment::fm_ce_se.
inline constexpr std::uint8_t kSolicited = 1U << 1;
inline constexpr std::uint8_t kCqUpdate = 2U << 2;  // write a CQE on success
inline constexpr std::uint8_t kSmallFence = 1U << 5;
inline constexpr std::uint8_t kFence = 4U << 5;  // wait for earlier reads and atomics

struct ControlSegment {
  be32 opmod_idx_opcode;  // opmod 31:24, WQE index 23:8, opcode 7:0
  be32 qpn_ds;            // QPN 31:8, number of 16-byte segments 5:0
  std::uint8_t signature;
  std::uint8_t dci_stream[2];
  std::uint8_t fm_ce_se;
  be32 imm;  // immediate (as the program gave it: already in network order) or key to invalidate
};
static_assert(sizeof(ControlSegment) == 16 && offsetof(ControlSegment, fm_ce_se) == 11);

// XRC: the shared receive queue at the target.
struct XrcSegment {
  be32 srqn;
  std::uint8_t reserved[12];
};
static_assert(sizeof(XrcSegment) == 16);

struct RemoteAddressSegment {
  be64 address;
  be32 rkey;
  be32 reserved;
};
static_assert(sizeof(RemoteAddressSegment) == 16);

struct AtomicSegment {
  be64 swap_add;  // value to add, or to swap in
  be64 compare;
};
static_assert(sizeof(AtomicSegment) == 16);

// Where a datagram goes: the address vector that an address handle holds, completed by the work request
// (struct mlx5_wqe_av). Without kExtendedAddressVector it ends after rlid, and names a LID in place of a GID.
struct DatagramSegment {
  be64 key;      // Q_Key in the upper half, or a DC access key
  be32 dqp_dct;  // kExtendedAddressVector, and the remote queue pair's or DCT's number in 23:0
  std::uint8_t stat_rate_sl;
  std::uint8_t fl_mlid;
  be16 rlid;  // RoCE v2: UDP source port
  std::uint8_t reserved[4];
  std::uint8_t rmac[6];
  std::uint8_t tclass;
  std::uint8_t hop_limit;
  be32 grh_gid_fl;  // has GRH 30, index of the source GID 27:20, flow label 19:0
  std::uint8_t rgid[16];
};
static_assert(sizeof(DatagramSegment) == 48 && offsetof(DatagramSegment, grh_gid_fl) == 28);
inline constexpr std::uint32_t kExtendedAddressVector = 0x80000000U;
inline constexpr std::uint32_t kShortAddressVectorSize = 16;

struct DataSegment {
  be32 byte_count;  // 31 bits; 0 means 2 GiB
  be32 lkey;
  be64 address;
};
static_assert(sizeof(DataSegment) == 16);

struct InlineSegment {
  be32 byte_count;  // with kInlineFlag; the bytes follow
};
static_assert(sizeof(InlineSegment) == 4);

// What a WQE of a shared receive queue begins with; its data segments follow.
struct SharedReceiveLink {
  std::uint8_t reserved0[2];
  be16 next_wqe_index;
  std::uint8_t signature;
  std::uint8_t reserved5[11];
};
static_assert(sizeof(SharedReceiveLink) == 16 && offsetof(SharedReceiveLink, next_wqe_index) == 2);

QPAIR_HOST_DEVICE constexpr std::uint32_t opmod_idx_opcode(std::uint16_t wqe_index, Opcode opcode) {
  return (static_cast<std::uint32_t>(wqe_index) << 8) | static_cast<std::uint32_t>(opcode);
}
QPAIR_HOST_DEVICE constexpr std::uint32_t qpn_ds(std::uint32_t qpn, std::uint32_t segments) {
  return (qpn << 8) | segments;
}

}  // namespace qpair::mlx5
