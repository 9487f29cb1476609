#pragma once
// Writes the WQEs of mlx5 send queues: any operation into any place of the ring.

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/datapath/work.hpp"

namespace qpair::detail {

struct WqeRing {
  std::byte* ring = nullptr;
  std::uint64_t byte_mask = 0;  // bytes of the ring - 1
  std::uint32_t qp_num = 0;

  [[nodiscard]] std::byte* block(std::uint64_t at) const {
    return ring + ((at << mlx5::kBasicBlockShift) & byte_mask);
  }
};

// The first 8 bytes of a WQE of three segments as they lie in memory, for index 0.
std::uint64_t first_word(mlx5::Opcode opcode, std::uint32_t qp_num);

// Basic blocks that an operation takes, with all its entries.
std::uint64_t blocks_needed(const Work& work, const WorkPlan& planned, const WorkLimits& limits);

// Called for each entry of an operation, in order, before it is written: where it begins, how many blocks it
// takes, and whether it is the last.
struct Entry {
  std::uint64_t begin = 0;
  std::uint32_t blocks = 0;
  bool is_last = false;
};

// One entry of `work` at `position`; returns the basic blocks that it takes.
std::uint32_t write_entry(const WqeRing& ring, std::uint64_t position, const Work& work, mlx5::Opcode opcode,
                          std::uint64_t remote_offset, std::uint64_t bytes, PieceWalker& walker,
                          std::uint8_t flags);

// All entries of `work` from `position` on. Of a split operation only the last is signaled, with `flags`, and
// only it takes the peer's receive. `use(Entry)` is called after each.
template <typename Use>
void write_work(const WqeRing& ring, std::uint64_t position, const Work& work, const WorkPlan& planned,
                std::uint32_t max_message, std::uint8_t flags, Use&& use) {
  const mlx5::Opcode leading =
      work.opcode == mlx5::Opcode::RdmaWriteImm ? mlx5::Opcode::RdmaWrite : work.opcode;
  PieceWalker walker(work.local);
  std::uint64_t done = 0;
  for (std::uint64_t entry = 1; entry < planned.entries; ++entry) {
    const std::uint32_t blocks = write_entry(ring, position, work, leading, done, max_message, walker, 0);
    use(Entry{position, blocks, false});
    position += blocks;
    done += max_message;
  }
  const std::uint32_t blocks =
      write_entry(ring, position, work, work.opcode, done, planned.bytes - done, walker, flags);
  use(Entry{position, blocks, true});
}

// A receive WQE of `slots` data segments at `at`. There are no more pieces than slots.
void write_receive(std::byte* at, std::uint32_t slots, std::span<const RdmaBuffer> pieces);

// A run of one-block WQEs.
struct PutRun {
  std::byte* at = nullptr;     // where the first goes; the run does not reach beyond the ring's end
  std::uint64_t position = 0;  // of the first
  std::uint64_t word = 0;      // first_word()
  std::uint64_t flags = 0;     // the control segment's next 8 bytes
  std::uint64_t max_message = 0;
};

// False when one of them is wrong or needs more than one WQE; what was written is then of no use.
using PutWriter = bool (*)(const PutRun& run, std::span<const Put> puts);
bool write_puts_portable(const PutRun& run, std::span<const Put> puts);
// The fastest one that this processor can run.
PutWriter put_writer();

}  // namespace qpair::detail
