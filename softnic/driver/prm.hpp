#pragma once
// Mailboxes of the device's own commands (DEVX): fields are so many bits at a bit offset, most significant
// bit first, as in rdma-core providers/mlx5/mlx5_ifc.h, where names and offsets are from.

#include <cstddef>
#include <cstdint>
#include <span>

namespace qpair::softnic::driver::prm {

struct Field {
  std::size_t offset;  // bits
  std::size_t width;   // bits, at most 64
  constexpr Field in(std::size_t structure) const { return {structure + offset, width}; }
};

// What lies beyond the mailbox reads as 0 and is not written.
constexpr std::uint64_t get(std::span<const std::byte> mailbox, Field field) {
  std::uint64_t value = 0;
  for (std::size_t bit = field.offset; bit != field.offset + field.width; ++bit) {
    const std::byte byte = bit / 8 < mailbox.size() ? mailbox[bit / 8] : std::byte{0};
    value = value << 1 | (std::to_integer<std::uint64_t>(byte) >> (7 - bit % 8) & 1);
  }
  return value;
}

constexpr void set(std::span<std::byte> mailbox, Field field, std::uint64_t value) {
  for (std::size_t i = 0; i != field.width; ++i) {
    const std::size_t bit = field.offset + field.width - 1 - i;
    if (bit / 8 >= mailbox.size()) continue;
    const std::byte mask = std::byte{1} << (7 - bit % 8);
    mailbox[bit / 8] = (mailbox[bit / 8] & ~mask) | ((value >> i & 1) != 0 ? mask : std::byte{0});
  }
}

// Every command and every answer.
inline constexpr Field kOpcode{0, 16};
inline constexpr Field kOpMod{48, 16};
inline constexpr Field kStatus{0, 8};
inline constexpr Field kSyndrome{32, 32};

enum class Opcode : std::uint16_t {
  QueryHcaCap = 0x100,
  CreateMkey = 0x200,
  Init2InitQp = 0x50e,
  Nop = 0x80d,
};

enum class Status : std::uint8_t {
  Ok = 0x00,
  BadOperation = 0x02,
  BadParameter = 0x03,
  BadResource = 0x05,
  Limit = 0x08
};

namespace hca_cap {
inline constexpr std::size_t kAt = 128;  // in the answer
inline constexpr Field kLogDmaMmoMaxSize{107, 5};
inline constexpr Field kLogMaxQp{155, 5};
inline constexpr Field kLogMaxCq{219, 5};
inline constexpr Field kLogMaxMkey{234, 6};
inline constexpr Field kQpcExtension{290, 1};
inline constexpr Field kLogMaxReadsOut{330, 6};
inline constexpr Field kLogMaxReadsIn{346, 6};
inline constexpr Field kPortType{438, 2};
inline constexpr Field kNumPorts{440, 8};
inline constexpr Field kLogMaxMessage{451, 5};
inline constexpr Field kCqeVersion{508, 4};
inline constexpr Field kAtomic{542, 1};
inline constexpr Field kWindows{561, 1};  // imaicl
inline constexpr Field kDmaMmoQp{1864, 1};
}  // namespace hca_cap

namespace create_mkey {
inline constexpr std::size_t kContextAt = 128;
inline constexpr Field kMkeyIndex{72, 24};  // in the answer
}  // namespace create_mkey

namespace mkey_context {
inline constexpr Field kAccessModeHigh{3, 3};
inline constexpr Field kUmrEnabled{16, 1};
inline constexpr Field kAtomic{17, 1};
inline constexpr Field kRemoteWrite{18, 1};
inline constexpr Field kRemoteRead{19, 1};
inline constexpr Field kLocalWrite{20, 1};
inline constexpr Field kAccessMode{22, 2};
inline constexpr Field kVariant{56, 8};
inline constexpr Field kSignature{97, 1};  // bsf_en
inline constexpr Field kPeerMayInvalidate{103, 1};
inline constexpr Field kPd{104, 24};
inline constexpr Field kTranslationOctowords{416, 32};
inline constexpr Field kEncryption{483, 2};
inline constexpr std::uint64_t kListMode = 2;  // MLX5_MKC_ACCESS_MODE_KLMS
}  // namespace mkey_context

namespace modify_qp {
inline constexpr Field kHasExtension{64, 1};
inline constexpr Field kQpn{72, 24};
inline constexpr Field kExtensionMask{2112, 64};
inline constexpr std::uint64_t kMaskMmo = 1ULL << 3;  // MLX5_QPC_OPT_MASK_32_INIT2INIT_MMO
}  // namespace modify_qp

}  // namespace qpair::softnic::driver::prm
