#pragma once
// The data path of mlx5 devices: WQEs into the send and receive rings, doorbells to the register, CQEs out of
// the completion rings. It knows memory only, so tests run it on plain arrays.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "qpair/detail/data_path.hpp"
#include "qpair/mlx5/cqe.hpp"
#include "src/datapath/mlx5_wqe.hpp"
#include "src/datapath/work.hpp"

namespace qpair::detail {

// The hardware's indices have 16 bits.
inline constexpr std::uint64_t kHardwareIndices = 65536;

// `position`, or the next one at which the hardware's index is 0.
constexpr std::uint64_t next_lap_of_hardware(std::uint64_t position) {
  return (position + kHardwareIndices - 1) / kHardwareIndices * kHardwareIndices;
}

// Where the hardware's structures are: what mlx5dv_init_obj() says of a queue pair and its completion queues.
struct Mlx5Rings {
  std::uint32_t qp_num = 0;
  std::byte* send_ring = nullptr;
  std::uint32_t send_blocks = 0;  // power of two
  std::byte* receive_ring = nullptr;
  std::uint32_t receive_count = 0;   // power of two
  std::uint32_t receive_stride = 0;  // bytes
  mlx5::be32* record = nullptr;      // two entries
  std::byte* reg = nullptr;          // doorbell register
  std::uint32_t blue_flame =
      0;  // bytes of one of its two buffers; 0: none, or shared with another queue pair
  Mlx5CqRing send_cq;
  Mlx5CqRing receive_cq;
};

// Where the counters start; for tests of what happens when they wrap. On a device a multiple of 65,536, as
// the hardware starts at 0.
struct StartIndices {
  std::uint64_t send = 0;
  std::uint64_t receive = 0;
};

class Mlx5DataPath final : public DataPath {
 public:
  Mlx5DataPath(const Mlx5Rings& rings, const WorkLimits& limits, StartIndices start = {});

  Result<WrId> enqueue(const Work& work) override;
  Result<WrId> post(const Work& work) override;
  Result<WrId> enqueue_puts(std::span<const Put> puts, Signal signal) override;
  Result<void> ring_doorbell() override;
  Result<DoorBell> doorbell() const override;
  Result<WrId> receive(std::span<const RdmaBuffer> pieces) override;
  int take_send(std::span<IbvWc> wcs) override;
  int take_receive(std::span<IbvWc> wcs) override;
  [[nodiscard]] Counters send_counters() const override;
  [[nodiscard]] Counters receive_counters() const override;
  Result<void> arm(PollTarget side, bool solicited_only) override;
  void event_taken(PollTarget side) override;
  void open_receive() override;
  void open_send() override;
  void reset() override;

  // Basic blocks that may be outstanding.
  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }

 private:
  // What is to be known of a WQE that is not plain: that takes more than one block, is part of a split
  // operation, or is signaled only to make room. Of the others, position and surplus say everything.
  struct Note {
    std::uint64_t position = 0;
    std::uint64_t surplus = 0;    // after it
    std::uint64_t operation = 0;  // number of the last WQE of its operation
    std::uint64_t bytes = 0;      // of the whole operation
    bool part = false;
    bool silent = false;
  };

  Result<std::uint64_t> place_for(const Work& work, WorkPlan& planned) const;
  bool write_puts(std::span<const Put> puts, Signal signal) const;
  Result<WrId> enqueue_one_by_one(std::span<const Put> puts, Signal signal);
  void write(const Work& work, const WorkPlan& planned, std::uint64_t blocks);
  void advance(const Entry& entry, Note note);
  Note& note_at(std::uint64_t index) { return notes_[static_cast<std::size_t>(index & (notes_.size() - 1))]; }
  const Note& note_at(std::uint64_t index) const {
    return notes_[static_cast<std::size_t>(index & (notes_.size() - 1))];
  }
  bool finish_send(const mlx5::Cqe64& cqe, std::uint64_t rung, IbvWc& wc);
  void finish_receive(const mlx5::Cqe64& cqe, IbvWc& wc);
  Note retire(std::uint64_t begin);

  const WorkLimits limits_;
  const WqeRing wqes_;
  const PutWriter put_writer_ = put_writer();
  CompletionRing receive_cq_;

  // Send side, beside send_.
  std::vector<Note> notes_;  // a queue, oldest first; as many as there are blocks
  std::uint64_t first_note_ = 0;
  std::uint64_t end_note_ = 0;
  std::uint64_t capacity_;
  std::uint64_t failed_part_ = ~std::uint64_t{0};  // split operation whose failure was reported

  // Receive side. Positions are like those of the send ring: their low 16 bits are the hardware's.
  std::byte* const receive_ring_;
  const std::uint32_t receive_mask_;
  const std::uint32_t receive_stride_;
  const std::uint32_t receive_slots_;  // data segments in a WQE
  const std::uint64_t receive_capacity_;
  mlx5::be32* const receive_record_;
  std::uint64_t receive_position_;
  std::uint64_t receive_surplus_ = 0;  // position - surplus is the number of WQEs
  std::uint64_t receive_completed_;
  bool receive_open_ = false;
};

}  // namespace qpair::detail
