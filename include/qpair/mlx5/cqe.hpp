#pragma once
// Completion queue entries of mlx5 NICs. C++17, header-only; compiles under nvcc.
// Facts: rdma-core providers/mlx5/mlx5dv.h (struct mlx5_cqe64, struct mlx5_err_cqe) and providers/mlx5/cq.c.

#include <cstddef>
#include <cstdint>

#include "qpair/mlx5/endian.hpp"

namespace qpair::mlx5 {

enum class CqeOpcode : std::uint8_t {  // high 4 bits of op_own
  Request = 0,
  ResponderWriteImm = 1,
  ResponderSend = 2,
  ResponderSendImm = 3,
  ResponderSendInvalidate = 4,
  Resize = 5,
  RequestError = 13,
  ResponderError = 14,
  Invalid = 15,
};

inline constexpr std::uint8_t kCqeOwnerMask = 1;
inline constexpr std::uint8_t kCqeSolicited = 1U << 1;  // op_own bit 1
inline constexpr std::uint8_t kInlineScatter32 =
    0x4;  // op_own bits 3:2: data lies in the CQE's first 32 bytes
inline constexpr std::uint8_t kInlineScatter64 = 0x8;  // …in the 64 bytes before a 128-byte CQE's second half

enum class Syndrome : std::uint8_t {
  LocalLength = 0x01,
  LocalQpOperation = 0x02,
  LocalProtection = 0x04,
  WorkRequestFlushed = 0x05,
  MemoryWindowBind = 0x06,
  BadResponse = 0x10,
  LocalAccess = 0x11,
  RemoteInvalidRequest = 0x12,
  RemoteAccess = 0x13,
  RemoteOperation = 0x14,
  TransportRetryExceeded = 0x15,
  RnrRetryExceeded = 0x16,
  RemoteAborted = 0x22,
};

struct Cqe64 {
  std::uint8_t reserved0[2];
  be16 wqe_id;
  std::uint8_t reserved4[13];
  std::uint8_t ml_path;
  std::uint8_t reserved20[4];
  be16 slid;
  be32 flags_rqpn;
  std::uint8_t hds_ip_ext;
  std::uint8_t l4_hdr_type_etc;
  be16 vlan_info;
  be32 srqn_uidx;  // user index of the queue pair (CQE version 1)
  be32 imm_inval_pkey;
  std::uint8_t app;
  std::uint8_t app_op;
  be16 app_info;
  be32 byte_cnt;
  be64 timestamp;
  be32 sop_drop_qpn;  // send: opcode 31:24, QPN 23:0
  be16 wqe_counter;
  std::uint8_t signature;
  std::uint8_t op_own;  // opcode 7:4, format 3:2, solicited 1, owner 0
};
static_assert(sizeof(Cqe64) == 64);
static_assert(offsetof(Cqe64, srqn_uidx) == 32 && offsetof(Cqe64, byte_cnt) == 44);
static_assert(offsetof(Cqe64, sop_drop_qpn) == 56 && offsetof(Cqe64, wqe_counter) == 60 &&
              offsetof(Cqe64, op_own) == 63);

struct ErrorCqe {
  std::uint8_t reserved0[32];
  be32 srqn_uidx;
  std::uint8_t reserved1[18];
  std::uint8_t vendor_err;
  Syndrome syndrome;
  be32 wqe_opcode_qpn;  // opcode 31:24, QPN 23:0
  be16 wqe_counter;
  std::uint8_t signature;
  std::uint8_t op_own;
};
static_assert(sizeof(ErrorCqe) == 64 && offsetof(ErrorCqe, vendor_err) == 54 &&
              offsetof(ErrorCqe, op_own) == 63);

QPAIR_HOST_DEVICE constexpr CqeOpcode cqe_opcode(std::uint8_t op_own) {
  return static_cast<CqeOpcode>(op_own >> 4);
}

// The byte that says whether the CQE has been written: a single load, before those of the rest. The barrier
// between them (doorbell.hpp) is the caller's.
QPAIR_HOST_DEVICE inline std::uint8_t load_op_own(const Cqe64& cqe) {
#if defined(__CUDA_ARCH__)
  return *static_cast<const volatile std::uint8_t*>(&cqe.op_own);
#else
  return __atomic_load_n(&cqe.op_own, __ATOMIC_ACQUIRE);
#endif
}

// The last 8 bytes in a single load, which cannot be torn: what they say belongs together, so that nothing
// but them needs no barrier. NVSHMEM (IBGDA) and DPDK (drivers/net/mlx5/mlx5_rxtx_vec_sse.h) read them so.
QPAIR_HOST_DEVICE inline std::uint64_t load_tail(const Cqe64& cqe) {
  using Word [[gnu::may_alias]] = std::uint64_t;
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const volatile Word*>(&cqe.sop_drop_qpn);
#else
  return __atomic_load_n(reinterpret_cast<const Word*>(&cqe.sop_drop_qpn), __ATOMIC_ACQUIRE);
#endif
}
// Everything of it but what differs between successes of one opcode: op_own, and the opcode of the work
// request.
inline constexpr std::uint64_t kTailKindMask = 0xff00'0000'0000'00ff;
QPAIR_HOST_DEVICE constexpr std::uint64_t tail_kind(std::uint8_t op_own, std::uint8_t request) {
  return std::uint64_t{op_own} << 56 | request;
}
QPAIR_HOST_DEVICE constexpr std::uint16_t tail_counter(std::uint64_t tail) {
  return byte_swap(static_cast<std::uint16_t>(tail >> 32));
}

}  // namespace qpair::mlx5
