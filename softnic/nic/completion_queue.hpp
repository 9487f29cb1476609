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

namespace qpair::softnic::nic {

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
  void moderate(std::uint16_t count, std::uint16_t period_us);

  unsigned users = 0;  // queue pairs that complete here

 private:
  bool store(mlx5::Cqe64& cqe, const Payload* payload);
  bool has_room();
  void fail(const std::string& reason);
  void notify(Notice notice);

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
};

}  // namespace qpair::softnic::nic
