#pragma once
// The data path of an mlx5 queue pair that many threads use at the same time (Threads::Many). What a thread
// does alone in mlx5.hpp is here done in places that it reserved (shared_ring.hpp). Work is numbered by the
// position of its last entry, so that a number needs no counting of what other threads are writing.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/datapath/mlx5.hpp"
#include "src/datapath/shared_ring.hpp"

namespace qpair::detail {

class Mlx5ManyDataPath final : public DataPath {
 public:
  Mlx5ManyDataPath(const Mlx5Rings& rings, const WorkLimits& limits, StartIndices start = {});

  Result<WrId> enqueue(const Work& work) override;
  Result<WrId> post(const Work& work) override;
  Result<WrId> enqueue_puts(std::span<const Put> puts, Signal signal) override;
  Result<void> ring_doorbell() override;
  Result<DoorBell> doorbell() const override;
  Result<WrId> receive(std::span<const RdmaBuffer> pieces) override;
  // 0 also when another thread is polling.
  int take_send(std::span<IbvWc> wcs) override;
  int take_receive(std::span<IbvWc> wcs) override;
  [[nodiscard]] Counters send_counters() const override;
  [[nodiscard]] Counters receive_counters() const override;
  Result<void> arm(PollTarget side, bool solicited_only) override;
  void event_taken(PollTarget side) override;
  void open_receive() override;
  void open_send() override;
  void reset() override;

 private:
  // Of an entry that takes more than one block, is part of a split operation, or is signaled only to make
  // room. It lies where the entry begins, and is valid if it has that position.
  struct Note {
    std::uint64_t position = kNowhere;
    std::uint64_t operation = 0;  // number of its operation
    std::uint64_t bytes = 0;      // of the whole operation
    std::uint32_t blocks = 1;
    bool part = false;
    bool silent = false;
  };
  // Where an operation was written.
  struct Place {
    std::uint64_t at = 0;
    std::uint64_t blocks = 0;
    std::uint32_t last = 0;  // blocks of its last entry

    [[nodiscard]] WrId id() const { return WrId{at + blocks - last}; }
  };

  Result<Place> write(const Work& work);
  Place write_at(std::uint64_t at, const Work& work, const WorkPlan& planned, std::uint64_t blocks);
  Result<Place> write_puts(std::span<const Put> puts, Signal signal);
  Result<Place> write_one_by_one(std::span<const Put> puts, Signal signal);
  void make_room_at(std::uint64_t begin, std::uint64_t blocks);
  Result<std::uint64_t> reserve(std::uint64_t blocks);
  void ring();
  Note& note_at(std::uint64_t position) {
    return notes_[static_cast<std::size_t>(position & (notes_.size() - 1))];
  }
  bool finish_send(const mlx5::Cqe64& cqe, std::uint64_t& retired, IbvWc& wc);
  void finish_receive(const mlx5::Cqe64& cqe, std::uint64_t& received, IbvWc& wc);

  const WorkLimits limits_;
  const WqeRing wqes_;
  const PutWriter put_writer_ = put_writer();
  const std::uint64_t capacity_;
  const std::uint64_t silence_mask_;  // as in SendRing
  const std::uint64_t put_word_;
  std::atomic<bool> send_open_{false};
  std::atomic<bool> receive_open_{false};
  SharedRing sends_;
  SendRing bell_;            // only for ringing: whoever rings has it
  std::vector<Note> notes_;  // one for each block

  // What belongs to the thread that polls; the counters are read by others too.
  alignas(64) std::atomic<bool> send_turn_{false};
  CompletionRing send_completions_;
  std::atomic<std::uint64_t> retired_;
  std::uint64_t failed_part_ = kNowhere;

  const std::uint32_t receive_stride_;
  const std::uint32_t receive_slots_;  // data segments in a WQE
  std::byte* const receive_ring_;
  const std::uint32_t receive_mask_;
  const std::uint64_t receive_capacity_;
  mlx5::be32* const receive_record_;
  SharedRing receives_;
  alignas(64) std::atomic<bool> receive_turn_{false};
  CompletionRing receive_completions_;
  std::atomic<std::uint64_t> received_;
};

}  // namespace qpair::detail
