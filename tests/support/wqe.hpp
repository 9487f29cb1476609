#pragma once
// A send WQE written by hand, rightly or wrongly.

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "qpair/mlx5/wqe.hpp"

namespace qpair::by_hand {

// One send WQE, segment by segment.
class Wqe {
 public:
  Wqe(mlx5::Opcode opcode, std::uint8_t flags = mlx5::kCqUpdate, std::uint32_t immediate = 0)
      : opcode_(opcode) {
    mlx5::ControlSegment control{};
    control.fm_ce_se = flags;
    control.imm = immediate;
    append(control);
  }
  Wqe& remote(std::uint64_t address, std::uint32_t rkey) {
    return append(mlx5::RemoteAddressSegment{address, rkey, std::uint32_t{0}});
  }
  // As libmlx5's set_datagram_seg().
  Wqe& datagram(const ibv_gid& to, std::uint32_t qpn, std::uint32_t qkey, std::uint8_t sgid_index = 3) {
    mlx5::DatagramSegment segment{};
    segment.key = std::uint64_t{qkey} << 32;
    segment.dqp_dct = qpn | mlx5::kExtendedAddressVector;
    segment.grh_gid_fl = std::uint32_t{sgid_index} << 20;
    std::memcpy(segment.rgid, to.raw, sizeof segment.rgid);
    return append(segment);
  }
  Wqe& datagram(const mlx5::DatagramSegment& segment) { return append(segment); }
  Wqe& atomic(std::uint64_t swap_add, std::uint64_t compare) {
    return append(mlx5::AtomicSegment{swap_add, compare});
  }
  template <typename Key>
  Wqe& data(std::uint64_t address, std::uint32_t length, Key lkey) {
    return append(mlx5::DataSegment{length, static_cast<std::uint32_t>(lkey), address});
  }
  Wqe& inline_data(std::string_view text) {
    append(mlx5::InlineSegment{static_cast<std::uint32_t>(text.size()) | mlx5::kInlineFlag});
    const std::size_t at = bytes_.size();
    bytes_.resize((at + text.size() + 15) & ~std::size_t{15});
    std::memcpy(bytes_.data() + at, text.data(), text.size());
    return *this;
  }
  // A segment that has no method here.
  template <typename Segment>
  Wqe& with(const Segment& segment) {
    return append(segment);
  }
  Wqe& modifier(std::uint8_t modifier) { return modifier_ = modifier, *this; }
  // Lies that a test wants to tell.
  Wqe& claim_index(std::uint16_t index) { return claimed_index_ = index, *this; }
  Wqe& claim_qpn(std::uint32_t qpn) { return claimed_qpn_ = qpn, *this; }
  Wqe& claim_segments(std::uint32_t segments) { return claimed_segments_ = segments, *this; }

  std::size_t size() const { return bytes_.size(); }
  std::vector<std::byte> bytes(std::uint16_t index, std::uint32_t qpn) const {
    std::vector<std::byte> out = bytes_;
    const auto segments = static_cast<std::uint32_t>((out.size() + 15) / 16);
    auto* const control = reinterpret_cast<mlx5::ControlSegment*>(out.data());
    control->opmod_idx_opcode = mlx5::opmod_idx_opcode(claimed_index_.value_or(index), opcode_) |
                                (static_cast<std::uint32_t>(modifier_) << 24);
    control->qpn_ds = mlx5::qpn_ds(claimed_qpn_.value_or(qpn), claimed_segments_.value_or(segments));
    return out;
  }

 private:
  template <typename Segment>
  Wqe& append(const Segment& segment) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof segment);
    std::memcpy(bytes_.data() + at, &segment, sizeof segment);
    return *this;
  }
  mlx5::Opcode opcode_;
  std::uint8_t modifier_ = 0;
  std::vector<std::byte> bytes_;
  std::optional<std::uint16_t> claimed_index_;
  std::optional<std::uint32_t> claimed_qpn_;
  std::optional<std::uint32_t> claimed_segments_;
};

}  // namespace qpair::by_hand
