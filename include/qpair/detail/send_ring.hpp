#pragma once
// The send ring of an mlx5 queue pair, as far as the common operations are inlined: work queue entries of one
// basic block for a put or get of one piece, or of a few bytes inline; the doorbell; successful completions.
// docs/data-path.md shows what the compiler makes of it.
//
// Whatever does not fit fails a comparison, with nothing written, and goes through DataPath's virtual
// functions.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "qpair/completion.hpp"
#include "qpair/detail/completion_ring.hpp"
#include "qpair/memory.hpp"
#include "qpair/mlx5/doorbell.hpp"
#include "qpair/mlx5/wqe.hpp"

namespace qpair::detail {

// Bytes of data that a one-block WQE can carry inline.
inline constexpr std::uint64_t kShortInline =
    mlx5::kBasicBlockSize - 2 * mlx5::kSegmentSize - sizeof(mlx5::InlineSegment);

inline constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

// Positions count basic blocks since creation, in 64 bits; what the hardware sees of them is their low 16.
struct SendRing {
  // Posting. A ring that never has room (limit 0) is closed to the functions here.
  std::byte* ring = nullptr;
  std::uint64_t position = 0;     // where the next WQE goes
  std::uint64_t limit = 0;        // where it must not reach
  std::uint64_t byte_mask = 0;    // bytes of the ring - 1
  std::uint64_t max_message = 0;  // bytes in one WQE
  std::uint64_t max_inline = 0;   // bytes inline, in a WQE of one block
  // The first 8 bytes of a WQE of three segments as they lie in memory, for index 0: opcode; QPN, 3.
  std::uint64_t put_word = 0;
  std::uint64_t get_word = 0;
  std::uint64_t surplus = 0;  // position - surplus is the number of WQEs: most take one block, some more
  // An unsignaled WQE that ends at a multiple of this + 1, or beyond one, is signaled after all, so that a
  // completion makes room at least twice in each round of the ring.
  std::uint64_t silence_mask = 0;

  // Completing.
  std::uint64_t retired = 0;            // position up to which room was given back
  std::uint64_t room = 0;               // limit - retired; 0 while the queue pair is not connected
  std::uint64_t retired_surplus = 0;    // at `retired`
  std::uint64_t first_note = kNowhere;  // position of the first outstanding WQE that is not plain
  std::uint32_t qp_num = 0;

  // Ringing.
  mlx5::be32* record = nullptr;       // entry kSendRecord of the queue pair's doorbell record
  std::byte* reg = nullptr;           // doorbell register
  std::uint32_t reg_offset = 0;       // alternates between 0 and blue_flame
  std::uint32_t blue_flame = 0;       // bytes of a BlueFlame buffer; 0: doorbells are 8-byte stores
  std::uint64_t long_begin = 0;       // the last WQE of more than one block…
  std::uint64_t long_end = kNowhere;  // …and where it ends

  [[nodiscard]] std::uint64_t index() const { return position - surplus; }
  [[nodiscard]] std::byte* block(std::uint64_t at) const {
    return ring + ((at << mlx5::kBasicBlockShift) & byte_mask);
  }
  [[nodiscard]] std::uint64_t last_begin() const { return position == long_end ? long_begin : position - 1; }
  // Where the doorbell record says that the NIC may run to: the truth about what was rung, whoever rang.
  [[nodiscard]] std::uint64_t rung() const {
    return position - ((position - mlx5::load_record(record)) & mlx5::kIndexMask);
  }

  // False, with nothing written, when the operation needs more than one block and one piece, is wrong, must
  // be signaled against its wish, or finds no room.
  inline bool write_plain(std::uint64_t word, const RdmaBuffer& local, const RdmaBuffer& remote,
                          Signal signal);
  inline bool write_inline(std::span<const std::byte> data, const RdmaBuffer& remote, Signal signal);
  // Makes everything before `position` visible to the NIC.
  inline void ring_doorbell();
  // Makes everything before `end` visible; `begin` is where the last WQE of it begins, `from` where the NIC
  // may run to so far. `wqe`: that WQE, in the ring or, where others may fill its place as soon as the NIC
  // has run it, a copy in one piece.
  inline void ring_doorbell(std::uint64_t from, std::uint64_t begin, std::uint64_t end, const std::byte* wqe);
  // Whether a CQE, of which nothing but its last byte was looked at, is the success of a plain put or get;
  // then the WQE is retired, and `wc`, which is as new, filled in. `rung` as above.
  inline bool finish_plain(const mlx5::Cqe64& cqe, std::uint64_t rung, IbvWc& wc);
  // How many of the next CQEs are successes of plain puts: those are retired, and `wcs` filled in. `kind` is
  // tail_kind() of such a CQE; there are as many CQEs, `stride` bytes apart, as `wcs`.
  inline std::size_t finish_puts(const mlx5::Cqe64* cqe, std::size_t stride, std::uint64_t kind,
                                 std::span<IbvWc> wcs);

  // The WQE of a plain put or get.
  static inline void write_transfer(std::byte* at, std::uint64_t first, std::uint64_t flags,
                                    const RdmaBuffer& local, const RdmaBuffer& remote);
  // The index is the 16 bits from the second byte on, high byte first; everything else of `at` is shifted
  // out.
  static std::uint64_t with_index(std::uint64_t word, std::uint64_t at) {
    return word | (mlx5::byte_swap(at << 48) << 8);
  }
  static std::uint64_t flags_of(Signal signal) {
    return signal == Signal::Yes ? std::uint64_t{mlx5::kCqUpdate} << 24 : 0;
  }

 private:
  [[nodiscard]] bool must_wait_or_speak(std::uint64_t at, Signal signal) const {
    return at >= limit || (signal == Signal::No && ((at + 1) & silence_mask) == 0);
  }
};

// Control, remote address and one data segment.
inline void SendRing::write_transfer(std::byte* at, std::uint64_t first, std::uint64_t flags,
                                     const RdmaBuffer& local, const RdmaBuffer& remote) {
  const std::uint64_t address = mlx5::byte_swap(remote.addr);
  const std::uint64_t key = mlx5::byte_swap(remote.rkey);  // the four bytes after it are zero
  const std::uint64_t piece = mlx5::byte_swap((local.size << 32) | local.lkey);
  const std::uint64_t source = mlx5::byte_swap(local.addr);
  auto* const wqe = reinterpret_cast<std::uint64_t*>(at);
  wqe[0] = first;
  wqe[1] = flags;
  wqe[2] = address;
  wqe[3] = key;
  wqe[4] = piece;
  wqe[5] = source;
}

inline bool SendRing::write_plain(std::uint64_t word, const RdmaBuffer& local, const RdmaBuffer& remote,
                                  Signal signal) {
  const std::uint64_t at = position;
  const std::uint64_t size = local.size;
  // size - 1: zero takes the general path too.
  if (must_wait_or_speak(at, signal) || size - 1 >= max_message || size > remote.size) [[unlikely]] {
    return false;
  }
  write_transfer(block(at), with_index(word, at), flags_of(signal), local, remote);
  position = at + 1;
  return true;
}

// Control, remote address and an inline segment.
inline bool SendRing::write_inline(std::span<const std::byte> data, const RdmaBuffer& remote, Signal signal) {
  const std::uint64_t at = position;
  const std::uint64_t size = data.size();
  if (must_wait_or_speak(at, signal) || size - 1 >= max_inline || size > remote.size) [[unlikely]] {
    return false;
  }
  // Up to 12 bytes lie in the third segment with their count, the others reach into the fourth.
  const std::uint64_t fourth = std::uint64_t{size > 12} << 56;
  auto* const wqe = reinterpret_cast<std::uint64_t*>(block(at));
  wqe[0] = with_index(put_word + fourth, at);
  wqe[1] = flags_of(signal);
  wqe[2] = mlx5::byte_swap(remote.addr);
  wqe[3] = mlx5::byte_swap(remote.rkey);
  const mlx5::InlineSegment count{mlx5::be32(static_cast<std::uint32_t>(size) | mlx5::kInlineFlag)};
  std::memcpy(&wqe[4], &count, sizeof count);
  std::memcpy(reinterpret_cast<std::byte*>(&wqe[4]) + sizeof count, data.data(), size);
  position = at + 1;
  return true;
}

inline void SendRing::ring_doorbell() {
  const std::uint64_t from = rung();
  const std::uint64_t begin = last_begin();
  if (from != position) ring_doorbell(from, begin, position, block(begin));
}

inline void SendRing::ring_doorbell(std::uint64_t from, std::uint64_t begin, std::uint64_t end,
                                    const std::byte* wqe) {
  mlx5::to_device_barrier();
  mlx5::store_record(record, static_cast<std::uint32_t>(end) & mlx5::kIndexMask);
  mlx5::flush_write_combining();
  std::byte* const target = reg + reg_offset;
  const auto blocks = static_cast<std::uint32_t>(end - begin);
  if (begin == from && blocks * mlx5::kBasicBlockSize <= blue_flame) {
    mlx5::copy_blue_flame(target, wqe, blocks, ring, ring + byte_mask + 1);
  } else {
    std::uint64_t first = 0;
    std::memcpy(&first, wqe, sizeof first);
    mlx5::store_register(target, first);
  }
  mlx5::flush_write_combining();
  reg_offset ^= blue_flame;
}

inline bool SendRing::finish_plain(const mlx5::Cqe64& cqe, std::uint64_t rung, IbvWc& wc) {
  // The CQE names the WQE's block in 16 bits. Unless it is one of those between the last completion and the
  // doorbell, it is not about this queue's work.
  const std::uint64_t begin = retired + ((cqe.wqe_counter - retired) & mlx5::kIndexMask);
  const auto request = static_cast<mlx5::Opcode>(std::uint32_t{cqe.sop_drop_qpn} >> 24);
  if (begin >= rung || begin >= first_note) [[unlikely]]
    return false;
  if (request == mlx5::Opcode::RdmaWrite) [[likely]] {
    wc.opcode = IBV_WC_RDMA_WRITE;
  } else if (request == mlx5::Opcode::RdmaRead) {
    wc.opcode = IBV_WC_RDMA_READ;
    wc.byte_len = cqe.byte_cnt;
  } else {
    return false;
  }
  wc.wr_id = WrId{begin - retired_surplus};
  wc.qp_num = qp_num;
  retired = begin + 1;
  limit = retired + room;
  return true;
}

inline std::size_t SendRing::finish_puts(const mlx5::Cqe64* cqe, std::size_t stride, std::uint64_t kind,
                                         std::span<IbvWc> wcs) {
  // The conditions are those of finish_plain(); what these CQEs are about was rung before they were written.
  const std::uint64_t end = std::min(rung(), first_note);
  const std::uint64_t gap = retired_surplus;
  const std::uint32_t number = qp_num;
  std::uint64_t next = retired;
  auto wc = wcs.begin();
  for (; wc != wcs.end(); ++wc) {
    const std::uint64_t tail = mlx5::load_tail(*cqe);
    const std::uint64_t begin = next + ((mlx5::tail_counter(tail) - next) & mlx5::kIndexMask);
    if ((tail & mlx5::kTailKindMask) != kind || begin >= end) break;
    *wc = IbvWc{};
    wc->wr_id = WrId{begin - gap};
    wc->opcode = IBV_WC_RDMA_WRITE;
    wc->qp_num = number;
    next = begin + 1;
    cqe = reinterpret_cast<const mlx5::Cqe64*>(reinterpret_cast<const std::byte*>(cqe) + stride);
  }
  retired = next;
  limit = next + room;
  return static_cast<std::size_t>(wc - wcs.begin());
}

}  // namespace qpair::detail
