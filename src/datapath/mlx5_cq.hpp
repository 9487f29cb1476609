#pragma once
// A completion queue of an mlx5 device: finding the next CQE, giving it back, asking for an event.
// Facts: rdma-core providers/mlx5/cq.c (get_sw_cqe, mlx5_get_next_cqe, update_cons_index, mlx5_arm_cq).

#include <cstddef>
#include <cstdint>

#include "qpair/completion.hpp"
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

class Mlx5Cq {
 public:
  explicit Mlx5Cq(const Mlx5CqRing& ring)
      : ring_(ring.ring + ring.entry_size - sizeof(mlx5::Cqe64)),
        entry_size_(ring.entry_size),
        mask_(ring.entries - 1),
        record_(ring.record),
        uar_(ring.uar),
        number_(ring.number) {}

  // The next CQE, if the NIC has written it. Valid until done().
  const mlx5::Cqe64* next() const {
    const auto* cqe =
        reinterpret_cast<const mlx5::Cqe64*>(ring_ + static_cast<std::size_t>(index_ & mask_) * entry_size_);
    const std::uint8_t op_own = __atomic_load_n(&cqe->op_own, __ATOMIC_ACQUIRE);
    const bool owner = (op_own & mlx5::kCqeOwnerMask) != 0;
    const bool lap = (index_ & (std::uint64_t{mask_} + 1)) != 0;
    if (mlx5::cqe_opcode(op_own) == mlx5::CqeOpcode::Invalid || owner != lap) return nullptr;
    mlx5::from_device_barrier();
    return cqe;
  }

  // Consumed; the NIC may write there again.
  void done() {
    ++index_;
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
    while (next() != nullptr) done();
  }

 private:
  const std::byte* ring_;  // of the first CQE proper
  std::uint32_t entry_size_;
  std::uint32_t mask_;
  mlx5::be32* record_;
  std::byte* uar_;
  std::uint32_t number_;
  std::uint64_t index_ = 0;
  std::uint32_t sequence_ = 0;
};

ibv_wc_status status_of(mlx5::Syndrome syndrome);

}  // namespace qpair::detail
