#pragma once
// Work queue entries that change memory keys (UMR) or copy memory (MMO): segments and flags. C++17,
// header-only; compiles under nvcc. Facts: rdma-core providers/mlx5/mlx5dv.h and wqe.h, and how
// providers/mlx5/qp.c fills them (set_bind_wr, mlx5_send_wr_mkey_configure, mlx5_wr_memcpy).

#include <cstddef>
#include <cstdint>

#include "qpair/mlx5/endian.hpp"

namespace qpair::mlx5 {

// ---- Changes of memory keys (UMR): mlx5dv.h, struct mlx5_wqe_umr_ctrl_seg and what follows it -----------

inline constexpr std::uint8_t kUmrInline = 1U << 7;             // the entries lie in the WQE
inline constexpr std::uint8_t kUmrCheckFree = 1U << 5;          // fail unless the key is free
inline constexpr std::uint8_t kUmrTranslationOffset = 1U << 4;  // entries from translation_offset on
inline constexpr std::uint8_t kUmrCheckQpn = 1U << 3;           // fail unless the key is tied to this QP

// Bits of UmrControlSegment::mkey_mask.
inline constexpr std::uint64_t kMkeyLength = 1ULL << 0;
inline constexpr std::uint64_t kMkeyStart = 1ULL << 6;
inline constexpr std::uint64_t kMkeyVariant = 1ULL << 13;
inline constexpr std::uint64_t kMkeyQpn = 1ULL << 14;
inline constexpr std::uint64_t kMkeyLocalWrite = 1ULL << 18;
inline constexpr std::uint64_t kMkeyRemoteRead = 1ULL << 19;
inline constexpr std::uint64_t kMkeyRemoteWrite = 1ULL << 20;
inline constexpr std::uint64_t kMkeyAtomic = 1ULL << 21;
inline constexpr std::uint64_t kMkeyFree = 1ULL << 29;

struct UmrControlSegment {
  std::uint8_t flags;
  std::uint8_t reserved1[3];
  be16 klm_octowords;  // of entries, padding included
  be16 bsf_octowords_or_offset;
  be64 mkey_mask;  // which fields of the context change
  std::uint8_t reserved16[32];
};
static_assert(sizeof(UmrControlSegment) == 48 && offsetof(UmrControlSegment, mkey_mask) == 8);

// Bits of MkeyContextSegment::access_flags and ::free.
inline constexpr std::uint8_t kContextLocalWrite = 1U << 3;
inline constexpr std::uint8_t kContextRemoteRead = 1U << 4;
inline constexpr std::uint8_t kContextRemoteWrite = 1U << 5;
inline constexpr std::uint8_t kContextAtomic = 1U << 6;
inline constexpr std::uint8_t kContextFree = 1U << 6;

struct MkeyContextSegment {
  std::uint8_t free;
  std::uint8_t reserved1;
  std::uint8_t access_flags;
  std::uint8_t sf;
  be32 qpn_mkey;  // QPN 31:8, variant of the key 7:0
  be32 reserved8;
  be32 flags_pd;
  be64 start_address;
  be64 length;
  be32 bsf_octowords;
  be32 reserved36[4];
  be32 translation_octowords;
  std::uint8_t reserved56[3];
  std::uint8_t log_page_size;
  be32 reserved60;
};
static_assert(sizeof(MkeyContextSegment) == 64 && offsetof(MkeyContextSegment, length) == 24);

struct KlmSegment {  // one entry of a list
  be32 byte_count;
  be32 mkey;
  be64 address;
};
static_assert(sizeof(KlmSegment) == 16);

inline constexpr std::uint32_t kRepeatBlock = 0x400;  // where a list has a key: the entries interleave

struct RepeatBlockSegment {
  be32 byte_count;  // of one repetition
  be32 op;          // kRepeatBlock
  be32 repeat_count;
  be16 reserved12;
  be16 entries;
};
static_assert(sizeof(RepeatBlockSegment) == 16);

struct RepeatEntrySegment {
  be16 stride;
  be16 byte_count;
  be32 mkey;
  be64 address;
};
static_assert(sizeof(RepeatEntrySegment) == 16);

// ---- Memory to memory (MMO) -----------------------------------------------------------------------------

inline constexpr std::uint8_t kMmoDma = 0x01;  // opcode modifier: copy

struct MmoSegment {
  be32 control;
  be32 lkey;  // of a buffer for the device's own use
  be64 address;
};
static_assert(sizeof(MmoSegment) == 16);

}  // namespace qpair::mlx5
