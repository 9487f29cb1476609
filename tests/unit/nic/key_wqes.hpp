#pragma once
// WQEs that change memory keys, filled as libmlx5 fills them (providers/mlx5/qp.c, set_bind_wr and
// mlx5_send_wr_mkey_configure).

#include <vector>

#include "qpair/mlx5/umr.hpp"
#include "tests/unit/nic/harness.hpp"

namespace qpair::softnic::nic::testing_support {

struct Binding {
  std::uint32_t rkey = 0;    // of the window
  std::uint8_t variant = 0;  // of its next key
  Mkey region{};
  std::uint64_t address = 0;
  std::uint32_t length = 0;
  int access = Machine::kAllAccess;
  bool zero_based = false;
};

inline std::uint8_t context_access(int access) {
  std::uint8_t flags = 0;
  if ((access & IBV_ACCESS_LOCAL_WRITE) != 0) flags |= mlx5::kContextLocalWrite;
  if ((access & IBV_ACCESS_REMOTE_WRITE) != 0) flags |= mlx5::kContextRemoteWrite;
  if ((access & IBV_ACCESS_REMOTE_READ) != 0) flags |= mlx5::kContextRemoteRead;
  if ((access & IBV_ACCESS_REMOTE_ATOMIC) != 0) flags |= mlx5::kContextAtomic;
  return flags;
}

inline constexpr std::uint64_t kAccessMask =
    mlx5::kMkeyLocalWrite | mlx5::kMkeyRemoteRead | mlx5::kMkeyRemoteWrite | mlx5::kMkeyAtomic;

inline Wqe bind(ibv_mw_type type, std::uint32_t qpn, const Binding& is) {
  mlx5::UmrControlSegment control{};
  control.flags = mlx5::kUmrTranslationOffset | mlx5::kUmrInline;
  std::uint64_t mask =
      mlx5::kMkeyFree | mlx5::kMkeyVariant | mlx5::kMkeyLength | mlx5::kMkeyStart | kAccessMask;
  if (type == IBV_MW_TYPE_2) {
    control.flags |= mlx5::kUmrCheckFree;
    mask |= mlx5::kMkeyQpn;
  }
  control.mkey_mask = mask;
  control.klm_octowords = std::uint16_t{4};
  mlx5::MkeyContextSegment context{};
  context.qpn_mkey = is.variant | (type == IBV_MW_TYPE_1 ? 0xffff'ff00U : qpn << 8);
  context.access_flags = context_access(is.access);
  context.start_address = is.zero_based ? 0 : is.address;
  context.length = std::uint64_t{is.length};
  const mlx5::KlmSegment none{};
  return Wqe(mlx5::Opcode::Umr, mlx5::kCqUpdate, is.rkey)
      .with(control)
      .with(context)
      .with(mlx5::KlmSegment{is.length, key(is.region), is.address})
      .with(none)
      .with(none)
      .with(none);
}

// Local invalidate; of a type 1 window, a bind to 0 bytes.
inline Wqe unbind(ibv_mw_type type, std::uint32_t rkey) {
  mlx5::UmrControlSegment control{};
  control.flags = mlx5::kUmrTranslationOffset | mlx5::kUmrInline;
  std::uint64_t mask = mlx5::kMkeyFree | mlx5::kMkeyVariant;
  if (type == IBV_MW_TYPE_2) {
    control.flags |= mlx5::kUmrCheckQpn;
    mask |= mlx5::kMkeyQpn;
  }
  control.mkey_mask = mask;
  mlx5::MkeyContextSegment context{};
  context.free = mlx5::kContextFree;
  context.qpn_mkey = std::uint32_t{0xffff'ff00};
  return Wqe(mlx5::Opcode::Umr, mlx5::kCqUpdate, rkey).with(control).with(context);
}

// mlx5dv_wr_mr_list() and mlx5dv_wr_mr_interleaved(): `entries` are KlmSegments, or a block and its entries.
inline Wqe lay_out(Mkey mkey, int access, std::uint64_t length, std::vector<mlx5::KlmSegment> entries) {
  mlx5::UmrControlSegment control{};
  control.flags = mlx5::kUmrInline;
  control.mkey_mask = mlx5::kMkeyFree | mlx5::kMkeyVariant | mlx5::kMkeyLength | kAccessMask;
  while (entries.size() % 4 != 0) entries.push_back({});
  control.klm_octowords = static_cast<std::uint16_t>(entries.size());
  mlx5::MkeyContextSegment context{};
  context.qpn_mkey = 0xffff'ff00U | (key(mkey) & 0xff);
  context.access_flags = context_access(access);
  context.length = length;
  Wqe wqe(mlx5::Opcode::Umr, mlx5::kCqUpdate, key(mkey));
  wqe.with(control).with(context);
  for (const auto& entry : entries) wqe.with(entry);
  return wqe;
}

}  // namespace qpair::softnic::nic::testing_support
