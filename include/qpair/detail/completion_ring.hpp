#pragma once
// A completion queue of an mlx5 device: finding the next CQEs, giving them back, asking for an event.
// Facts: rdma-core providers/mlx5/cq.c (get_sw_cqe, mlx5_get_next_cqe, update_cons_index, mlx5_arm_cq).

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "qpair/mlx5/cqe.hpp"
#include "qpair/mlx5/doorbell.hpp"

namespace qpair::detail {

// Where it is.
struct Mlx5CqRing {
  std::byte* ring = nullptr;
  std::uint32_t entries = 0;      // power of two
  std::uint32_t entry_size = 64;  // 64, or 128 with the CQE in the second half
  mlx5::be32* record = nullptr;   // two entries
  std::byte* uar = nullptr;       // page with the arm doorbell
  std::uint32_t number = 0;
};

class CompletionRing {
 public:
  explicit CompletionRing(const Mlx5CqRing& ring)
      : first_(ring.ring + ring.entry_size - sizeof(mlx5::Cqe64)),
        entries_(ring.entries),
        entry_size_(ring.entry_size),
        byte_mask_(std::uint64_t{ring.entries} * ring.entry_size - 1),
        record_(ring.record),
        uar_(ring.uar),
        number_(ring.number) {}

  // The next CQE, whoever owns it. A barrier belongs between looking at who does and reading the rest of it.
  [[nodiscard]] const mlx5::Cqe64* at() const { return reinterpret_cast<const mlx5::Cqe64*>(at_); }
  // What its last byte is when it is ours, reports a success of a send queue (opcode Request, which is 0, of
  // no solicited event) and holds no data.
  [[nodiscard]] std::uint8_t success() const {
    static_assert(mlx5::CqeOpcode::Request == mlx5::CqeOpcode{0});
    return owner_;
  }
  // Whether it is ours, of whatever kind.
  [[nodiscard]] bool is_written() const {
    const std::uint8_t op_own = mlx5::load_op_own(*at());
    return mlx5::cqe_opcode(op_own) != mlx5::CqeOpcode::Invalid && (op_own & mlx5::kCqeOwnerMask) == owner_;
  }
  // How many lie in a row from the next on, of at most `most`: the ring may end in between.
  [[nodiscard]] std::size_t in_a_row(std::size_t most) const {
    return std::min<std::size_t>(most, entries_ - (index_ & (entries_ - 1)));
  }
  [[nodiscard]] std::size_t entry_size() const { return entry_size_; }

  // `taken` were consumed; the NIC may write there again.
  void done(std::size_t taken = 1) {
    index_ += taken;
    at_ = first_ + ((index_ * entry_size_) & byte_mask_);
    owner_ = (index_ & entries_) != 0 ? mlx5::kCqeOwnerMask : std::uint8_t{0};
    mlx5::store_record(record_ + mlx5::kConsumerIndexRecord,
                       static_cast<std::uint32_t>(index_) & mlx5::kConsumerIndexMask);
  }

  void arm(bool solicited_only) {
    const std::uint32_t command = (sequence_ & 3) << 28 |
                                  (solicited_only ? mlx5::kArmSolicited : mlx5::kArmNext) |
                                  (static_cast<std::uint32_t>(index_) & mlx5::kConsumerIndexMask);
    mlx5::store_record(record_ + mlx5::kArmRecord, command);
    mlx5::flush_write_combining();
    mlx5::store_register(uar_ + mlx5::kCqDoorbellOffset,
                         mlx5::byte_swap((static_cast<std::uint64_t>(command) << 32) | number_));
    mlx5::flush_write_combining();
  }
  // The event that arm() asked for has come: the next one has another number.
  void event_taken() { ++sequence_; }

  // Forgets everything that is there. Only while no queue pair writes to it.
  void drain() {
    while (is_written()) done();
  }

 private:
  const std::byte* first_;        // CQE proper
  const std::byte* at_ = first_;  // the one of `index_`
  std::uint64_t index_ = 0;
  std::uint8_t owner_ = 0;  // of `index_`: in each round of the ring the other one
  std::uint64_t entries_;
  std::size_t entry_size_;
  std::uint64_t byte_mask_;
  mlx5::be32* record_;
  std::byte* uar_;
  std::uint32_t number_;
  std::uint32_t sequence_ = 0;
};

}  // namespace qpair::detail
