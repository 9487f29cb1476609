#pragma once
// A receive queue for many queue pairs. Engine lock held.
//
// Its WQEs are a linked list through the ring: each names the index of the one after it, and the doorbell
// record counts how many were posted in all (rdma-core providers/mlx5/srq.c, mlx5_post_srq_recv). The program
// links a WQE in again when its completion was polled, so the order is the program's and has gaps: queue
// pairs finish in another order than they started.
//
//      head_ ─▶ WQE 5 ─▶ WQE 2 ─▶ WQE 7 ─▶ …          posted and not taken: record − taken_
//      busy_: WQEs that queue pairs have taken and not completed
//
// One for XRC has a completion queue of its own and belongs to a domain; no queue pair is attached to it:
// the messages of all targets of the domain may name it (IBTA vol. 1 annex A14).

#include <vector>

#include "softnic/nic/decode_cache.hpp"
#include "softnic/nic/receive_queue.hpp"

namespace qpair::softnic::nic {

class SharedReceiveQueue final : public ReceiveQueue {
 public:
  // `decoded` and `cq` outlive it; without XRC there is no `cq`.
  SharedReceiveQueue(Srqn number, const SrqParameters& parameters, CompletionQueue* cq, DecodeCache& decoded);
  ~SharedReceiveQueue() override;

  Srqn number() const { return number_; }
  const SrqParameters& parameters() const { return parameters_; }
  bool broken() const { return broken_; }

  // IBV_EVENT_SRQ_LIMIT_REACHED once fewer than `limit` WQEs are left, at once if that is so already; 0:
  // never (IBTA vol. 1 11.2.3.3).
  void arm(std::uint32_t limit);
  // 0 after the event.
  std::uint32_t limit() const { return limit_; }

  // For the queue pair that is attached to it, whose state does not concern the others.
  Taken take(roce::ReceiveRequest& out, std::string& why) override;
  const ScatterList* list(std::uint16_t index, std::string& why) override;
  void retire(std::uint16_t index) override;
  void flush(const std::function<void(std::uint16_t)>& /*each*/) override {}
  void reset() override {}
  Pdn pd() const override { return parameters_.pd; }
  std::optional<Completes> completes() const override;

  // It cannot go on: IBV_EVENT_SRQ_ERR, and whoever wants a receive fails too.
  void fail(const std::string& reason);

  unsigned users = 0;  // queue pairs attached to it

 private:
  std::uint32_t srqn() const { return static_cast<std::uint32_t>(number_); }
  // The ring as receive WQEs, whose first segment is the link.
  ReceiveRing ring() const {
    return {parameters_.buffer, parameters_.wqe_count, parameters_.wqe_shift, true};
  }
  Taken take_next(roce::ReceiveRequest& out);
  bool read_record(std::uint16_t& value) const;
  bool read_link(std::uint16_t index, std::uint16_t& next) const;
  bool check(std::uint16_t posted, std::uint16_t available);
  void check_limit(std::uint32_t left);
  void violated(const std::string& how);

  Srqn number_;
  SrqParameters parameters_;
  CompletionQueue* cq_;
  DecodeCache& decoded_;
  std::uint16_t head_ = 0;  // the ring starts out as a list in the order of its indices
  std::uint16_t taken_ = 0;
  std::vector<bool> busy_;
  std::uint32_t limit_ = 0;
  bool broken_ = false;
};

}  // namespace qpair::softnic::nic
