#pragma once
// What both data paths check and count before they write anything.

#include <cstdint>
#include <optional>

#include "qpair/detail/data_path.hpp"

namespace qpair::detail {

struct WorkLimits {
  std::uint32_t max_message = 0;  // bytes in one work queue entry
  std::uint32_t max_send_sge = 1;
  std::uint32_t max_recv_sge = 1;
  std::uint32_t max_inline = 0;
};

// A put, get or put with immediate.
Work transfer(mlx5::Opcode opcode, std::span<const RdmaBuffer> local, const RdmaBuffer& remote, Signal signal,
              std::uint32_t imm = 0);

Work put_work(const Put& put, Signal signal);

// How an operation is laid out.
struct WorkPlan {
  std::uint64_t bytes = 0;
  std::uint64_t entries = 1;  // work queue entries; more than one when it is longer than max_message
};

// Refuses what can never be done.
Result<WorkPlan> plan(const Work& work, const WorkLimits& limits);
// The work queue entries of all of them together; more than `capacity` can never be done.
Result<std::uint64_t> entries_of(std::span<const Put> puts, Signal signal, const WorkLimits& limits,
                                 std::uint64_t capacity);
std::optional<Error> check_receive(std::span<const RdmaBuffer> pieces, const WorkLimits& limits);

Error not_connected();
Error queue_full(std::uint64_t outstanding, std::uint64_t capacity);
Error never_fits(std::uint64_t needed, std::uint64_t capacity);
Error receive_queue_full(std::uint64_t capacity);
Error cannot_receive_yet();

constexpr bool is_atomic(mlx5::Opcode opcode) {
  return opcode == mlx5::Opcode::AtomicFetchAdd || opcode == mlx5::Opcode::AtomicCompareSwap;
}
constexpr bool is_send(mlx5::Opcode opcode) {
  return opcode == mlx5::Opcode::Send || opcode == mlx5::Opcode::SendImm;
}
constexpr bool has_imm(mlx5::Opcode opcode) {
  return opcode == mlx5::Opcode::RdmaWriteImm || opcode == mlx5::Opcode::SendImm;
}

// Walks over the pieces of a scatter/gather list, a message at a time.
class PieceWalker {
 public:
  explicit PieceWalker(std::span<const RdmaBuffer> pieces) : pieces_(pieces) {}

  // Calls `use(lkey, address, length)` for each piece of the next `bytes` bytes; empty pieces are left out.
  // The caller never asks for more than there is. Returns how many pieces there were.
  template <typename Use>
  std::uint32_t take(std::uint64_t bytes, Use&& use) {
    std::uint32_t count = 0;
    while (bytes != 0) {
      const RdmaBuffer& piece = pieces_[index_];
      const std::uint64_t left = piece.size - offset_;
      const std::uint64_t length = left < bytes ? left : bytes;
      if (length != 0) {
        use(piece.lkey, piece.addr + offset_, static_cast<std::uint32_t>(length));
        ++count;
        bytes -= length;
        offset_ += length;
      }
      if (offset_ == piece.size) {
        ++index_;
        offset_ = 0;
      }
    }
    return count;
  }

 private:
  std::span<const RdmaBuffer> pieces_;
  std::size_t index_ = 0;
  std::uint64_t offset_ = 0;
};

// When unsignaled work has to be signaled after all, so that a completion makes room: at the latest after
// half a queue of it.
class SilentSignals {
 public:
  explicit SilentSignals(std::uint64_t capacity) : half_(capacity > 1 ? capacity / 2 : 1) {}
  // Unsignaled work from `begin` to `end`: whether its last entry must ask for a completion.
  bool must_signal(std::uint64_t begin, std::uint64_t end) {
    if (begin != run_end_) run_begin_ = begin;  // something signaled came in between
    run_end_ = end;
    if (run_end_ - run_begin_ < half_) return false;
    run_begin_ = end;
    return true;
  }

 private:
  std::uint64_t half_;
  std::uint64_t run_begin_ = 0;
  std::uint64_t run_end_ = 0;
};

}  // namespace qpair::detail
