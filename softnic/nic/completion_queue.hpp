#pragma once
// One completion queue: the ring that the NIC writes, its consumer index and its arm record. Engine lock
// held.
//
// The program owns an entry once its opcode is not 0xf and its owner bit equals the parity of the pass
// through the ring (rdma-core providers/mlx5/cq.c, get_sw_cqe), so op_own is stored last, with release order.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "qpair/mlx5/cqe.hpp"
#include "softnic/nic/nic.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::nic {

class DoorbellPages;
class Tracer;

class CompletionQueue {
 public:
  enum class Notice : std::uint8_t { Plain, Solicited };  // errors count as solicited (IBTA vol. 1 11.4.2.2)
  using Payload = std::array<std::byte, 64>;

  CompletionQueue(Cqn number, const CqParameters& parameters);

  Cqn number() const { return number_; }
  const CqParameters& parameters() const { return parameters_; }
  bool broken() const { return broken_; }
  // How many bytes of data fit into an entry (scatter to CQE).
  std::size_t payload_capacity() const { return parameters_.cqe_size == 128 ? 64 : 32; }

  // Writes an entry; `cqe.op_own` has opcode and flags, the owner bit is set here. With `payload`, its first
  // payload_capacity() bytes lie in the entry. False: overrun, or the ring is not mapped; broken() from then
  // on, and IBV_EVENT_CQ_ERR was raised.
  bool push(mlx5::Cqe64 cqe, Notice notice, const Payload* payload = nullptr);

  // Looks at the arm record. Raises completion() when a completion that was asked for is already there.
  void check_arm();

  // The entry that ends the old ring, then the new ring. See mlx5_cq_resize_copy_cqes for what libmlx5
  // expects.
  Errno resize(std::uint64_t buffer, std::uint32_t entries, std::uint32_t cqe_size);
  // From now on an event waits for `count` completions, or for `period_us` microseconds, whichever is earlier
  // (ibv_modify_cq; the kernel's mlx5_core_modify_cq_moderation()). 0 or 1 completions, or 0 us: not at all.
  void moderate(std::uint16_t count, std::uint16_t period_us);
  bool is_moderated() const { return moderation_count_ > 1 && moderation_period_us_ != 0; }
  // When the event that is held back must be raised; max() when there is none.
  wire::TimePoint deadline() const { return held_until_; }
  void expire(wire::TimePoint now);

  unsigned users = 0;              // queue pairs that complete here
  Tracer* tracer = nullptr;        // if there is one
  DoorbellPages* pages = nullptr;  // of the program: nothing is stored there

 private:
  bool store(mlx5::Cqe64& cqe, const Payload* payload);
  bool has_room();
  void say_impossible_index(std::uint32_t index) const;
  void fail(const std::string& reason);
  void notify(Notice notice);
  bool holds_back();
  void raise();

  Cqn number_;
  CqParameters parameters_;
  bool broken_ = false;
  std::uint32_t producer_ = 0;
  std::uint32_t consumer_ = 0;         // as last read; the record is read again only when the ring looks full
  std::uint32_t after_solicited_ = 0;  // producer index after the latest solicited entry
  bool unnotified_ = false;            // there were completions since the latest event
  bool unnotified_solicited_ = false;  // …solicited ones
  std::uint32_t arm_record_ = 0;       // as last acted upon
  enum class Armed : std::uint8_t { No, Any, Solicited } armed_ = Armed::No;
  std::uint8_t armed_sequence_ = 0;
  std::uint8_t fired_sequence_ =
      0xff;  // sequence number of the arm that was last answered; 2 bits, so 0xff is none
  std::uint16_t moderation_count_ = 0;
  std::uint16_t moderation_period_us_ = 0;
  std::uint16_t held_ = 0;  // completions since the latest event
  wire::TimePoint held_until_ = wire::TimePoint::max();
};

}  // namespace qpair::softnic::nic
