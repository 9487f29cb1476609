#pragma once
// Send WQEs of every kind and service as the input wants them: like a program's, except where it says
// otherwise.

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <vector>

#include "qpair/mlx5/umr.hpp"
#include "qpair/mlx5/wqe.hpp"
#include "softnic/nic/nic.hpp"
#include "tests/fuzz/input.hpp"

namespace qpair::fuzz {

enum class SendService : std::uint8_t { Rc, Uc, Ud, Xrc, Dc };
inline constexpr unsigned kSendServices = 5;

// What there is to name.
struct Surroundings {
  SendService service{};
  std::uint32_t qpn = 0;
  std::uint32_t peer = 0;
  std::uint32_t srqn = 0;
  ibv_gid gid{};
  std::uint32_t qkey = 0;
  std::uint64_t access_key = 0;
  std::array<std::uint32_t, 5> keys{};  // a region, windows of both types, keys of pieces
  std::uint64_t registered = 0;         // the region's address
  std::uint32_t registered_size = 0;
};

class SendWqes {
 public:
  explicit SendWqes(Input& input) : input_(input) {}
  void set(const Surroundings& about) { about_ = about; }

  // A key that exists, mostly the region's, with the variant that it was made with or another; seldom any
  // number.
  std::uint32_t key() {
    const std::uint8_t which = input_.byte();
    if (which < 128) return about_.keys[0];
    if (which >= 252) return input_.word() << 8 | which;
    if (which >= 248) return softnic::nic::kNullKey;
    const std::uint32_t number = about_.keys[which % about_.keys.size()];
    return which < 216 ? number : (number & 0xffff'ff00U) | input_.byte();
  }
  std::uint64_t place() { return about_.registered + input_.word() % about_.registered_size; }

  // One WQE, to be stored at `index`; the next is made in the same place.
  std::span<const std::byte> make(std::uint16_t index) {
    const std::uint8_t kind = input_.byte();
    const auto opcode =
        kind >= 240 ? static_cast<mlx5::Opcode>(input_.byte()) : kOpcodes[kind % kOpcodes.size()];
    wqe_.clear();
    mlx5::ControlSegment control{};
    control.fm_ce_se = input_.byte();
    const std::size_t changed = 1 + input_.byte() % (about_.keys.size() - 1);
    if (opcode == mlx5::Opcode::SendInvalidate || opcode == mlx5::Opcode::Umr)
      control.imm = input_.byte() < 224 ? about_.keys[changed] : key();
    append(control);
    const std::uint32_t modifier = append_rest(kind < 240 ? opcode : mlx5::Opcode::Nop, changed);
    const auto segments = static_cast<std::uint32_t>(wqe_.size() / mlx5::kSegmentSize);
    control.opmod_idx_opcode = mlx5::opmod_idx_opcode(index, opcode) | modifier << 24;
    control.qpn_ds = mlx5::qpn_ds(about_.qpn, input_.byte() < 250 ? segments : input_.byte() % 64U);
    std::memcpy(wqe_.data(), &control, sizeof control);
    return wqe_;
  }

  // One entry of a key's layout.
  mlx5::KlmSegment entry() {
    mlx5::KlmSegment klm{};
    const std::uint8_t what = input_.byte();
    if (what < 160) {
      klm = {std::uint32_t{input_.byte()} << (what % 2 * 4), key(), what < 120 ? place() : input_.word()};
    } else if (what < 200) {
      mlx5::RepeatBlockSegment block{};
      block.byte_count = input_.word();
      block.op = mlx5::kRepeatBlock;
      block.repeat_count = input_.word() << (what % 2 * 16);
      block.entries = static_cast<std::uint16_t>(input_.byte() % 8);
      std::memcpy(&klm, &block, sizeof klm);
    } else if (what < 240) {
      mlx5::RepeatEntrySegment repeated{};
      repeated.stride = static_cast<std::uint16_t>(input_.word());
      repeated.byte_count = static_cast<std::uint16_t>(input_.word());
      repeated.mkey = key();
      repeated.address = place();
      std::memcpy(&klm, &repeated, sizeof klm);
    } else {
      input_.bytes(reinterpret_cast<std::byte*>(&klm), sizeof klm);
    }
    return klm;
  }

 private:
  static constexpr std::array kOpcodes{mlx5::Opcode::Nop,
                                       mlx5::Opcode::Send,
                                       mlx5::Opcode::SendImm,
                                       mlx5::Opcode::RdmaWrite,
                                       mlx5::Opcode::RdmaWriteImm,
                                       mlx5::Opcode::RdmaRead,
                                       mlx5::Opcode::AtomicFetchAdd,
                                       mlx5::Opcode::AtomicCompareSwap,
                                       mlx5::Opcode::SendInvalidate,
                                       mlx5::Opcode::LocalInvalidate,
                                       mlx5::Opcode::Umr,
                                       mlx5::Opcode::Mmo};

  static constexpr std::size_t kWindow2 = 2;  // in Surroundings::keys

  // What follows the control segment; the opcode modifier.
  std::uint32_t append_rest(mlx5::Opcode opcode, std::size_t changed) {
    switch (opcode) {
      case mlx5::Opcode::Umr:
        append_key_update(changed);
        return 0;
      case mlx5::Opcode::Mmo:
        append(mlx5::MmoSegment{});
        append_segments(input_.byte() < 240 ? 2 : input_.byte() % 4);
        return input_.byte() < 240 ? mlx5::kMmoDma : input_.byte();
      case mlx5::Opcode::Nop:
        append_address();
        append_segments(input_.byte() % 12);
        return 0;
      default:
        append_address();
        append_operands(opcode);
        return 0;
    }
  }

  // Where and what, as the operation has it, and seldom something more or less.
  void append_operands(mlx5::Opcode opcode) {
    const bool atomic = opcode == mlx5::Opcode::AtomicFetchAdd || opcode == mlx5::Opcode::AtomicCompareSwap;
    const bool remote = atomic || opcode == mlx5::Opcode::RdmaRead || opcode == mlx5::Opcode::RdmaWrite ||
                        opcode == mlx5::Opcode::RdmaWriteImm;
    const std::uint8_t what = input_.byte();
    if (remote)
      append(mlx5::RemoteAddressSegment{atomic ? place() & ~7ULL : place(), key(), std::uint32_t{0}});
    if (atomic) append(mlx5::AtomicSegment{std::uint64_t{input_.byte()}, std::uint64_t{input_.byte()}});
    if (what >= 224) return append_segments(what % 8);
    if (atomic) return append(mlx5::DataSegment{std::uint32_t{8}, key(), place()});
    for (unsigned i = 0; i < what % 3U; ++i) {
      const std::uint32_t length = input_.byte();
      append(mlx5::DataSegment{length << (what % 4), key(), place()});
    }
  }

  template <typename Segment>
  void append(const Segment& segment) {
    const std::size_t at = wqe_.size();
    wqe_.resize(at + sizeof segment);
    std::memcpy(wqe_.data() + at, &segment, sizeof segment);
  }

  // What comes before the data where the service has it.
  void append_address() {
    if (about_.service == SendService::Xrc) {
      mlx5::XrcSegment segment{};
      segment.srqn = input_.byte() < 240 ? about_.srqn : input_.word();
      append(segment);
    }
    if (about_.service != SendService::Ud && about_.service != SendService::Dc) return;
    mlx5::DatagramSegment segment{};
    segment.key = about_.service == SendService::Dc ? about_.access_key : std::uint64_t{about_.qkey} << 32;
    segment.dqp_dct = mlx5::kExtendedAddressVector | about_.peer;
    std::memcpy(segment.rgid, about_.gid.raw, sizeof segment.rgid);
    segment.grh_gid_fl = 1U << 30 | 3U << 20;
    const std::uint8_t wrong = input_.byte();
    if (wrong >= 200)
      reinterpret_cast<std::byte*>(&segment)[wrong % sizeof segment] = std::byte{input_.byte()};
    append(segment);
  }

  void append_segments(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      mlx5::DataSegment segment{};
      switch (input_.byte() % 5) {
        case 0:
          input_.bytes(reinterpret_cast<std::byte*>(&segment), sizeof segment);
          break;
        case 1:
        case 2:
          segment = {input_.word() % about_.registered_size, key(), place()};
          break;
        case 3: {
          const mlx5::RemoteAddressSegment remote{place(), key(), std::uint32_t{0}};
          std::memcpy(&segment, &remote, sizeof segment);
          break;
        }
        default:
          segment.byte_count = mlx5::kInlineFlag | input_.byte();
          break;
      }
      append(segment);
    }
  }

  // Bind, local invalidate, a list of keys or an interleaved layout.
  void append_key_update(std::size_t changed) {
    static constexpr std::uint64_t kRights =
        mlx5::kMkeyLocalWrite | mlx5::kMkeyRemoteRead | mlx5::kMkeyRemoteWrite | mlx5::kMkeyAtomic;
    const std::uint8_t flags = input_.byte();
    const bool elsewhere = flags % 8 == 7;
    const bool ends = flags % 8 == 6;
    const bool tied = (changed == kWindow2) != (flags >= 0xf0);
    const std::uint8_t entries = input_.byte();
    const std::uint32_t count = changed <= kWindow2 && entries < 192 ? 1 : entries % 8U;
    mlx5::UmrControlSegment control{};
    control.flags = static_cast<std::uint8_t>(elsewhere ? 0 : mlx5::kUmrInline);
    if ((flags & 8) != 0) control.flags |= mlx5::kUmrCheckFree;
    if ((flags & 16) != 0) control.flags |= mlx5::kUmrCheckQpn;
    std::uint64_t mask =
        mlx5::kMkeyFree | mlx5::kMkeyVariant | mlx5::kMkeyLength | mlx5::kMkeyStart | kRights;
    if (tied) mask |= mlx5::kMkeyQpn;
    if (entries >= 250) mask = std::uint64_t{input_.word()} << (input_.byte() % 48);
    control.mkey_mask = mask;
    control.klm_octowords = static_cast<std::uint16_t>(entries < 240 ? count : input_.word());
    append(control);

    const std::uint64_t start = place();
    const std::uint32_t length = input_.word() % about_.registered_size;
    const std::uint8_t variant = input_.byte();
    mlx5::MkeyContextSegment context{};
    if (ends) context.free = mlx5::kContextFree;
    context.access_flags = input_.byte();
    context.qpn_mkey = (tied ? about_.qpn << 8 : 0xffff'ff00U) |
                       (variant < 192 ? about_.keys[changed] & 0xffU : std::uint32_t{variant});
    context.start_address = (flags & 32) != 0 ? 0 : start;
    context.length = std::uint64_t{length};
    append(context);
    if (ends) return;
    if (elsewhere) return append(mlx5::DataSegment{length, about_.keys[0], start});
    for (std::uint32_t i = 0; i < count; ++i) {
      append((flags & 64) != 0 ? entry() : mlx5::KlmSegment{length, about_.keys[0], start});
    }
  }

  Input& input_;
  Surroundings about_;
  std::vector<std::byte> wqe_;
};

}  // namespace qpair::fuzz
