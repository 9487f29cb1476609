#pragma once
// Stands in for the completion queues that a queue pair does not have, such as those of an XRC target:
// nothing completes there. The kernel's mlx5 driver has one for the same purpose (devr.c0).

#include <array>
#include <cstddef>
#include <cstdint>

#include "softnic/nic/completion_queue.hpp"

namespace qpair::softnic::nic {

class NoCompletions {
 public:
  CompletionQueue& queue() { return queue_; }

 private:
  class Nobody final : public EventSink {
    void completion(Cqn) override {}
    void cq_event(Cqn, ibv_event_type) override {}
    void qp_event(Qpn, ibv_event_type) override {}
    void srq_event(Srqn, ibv_event_type) override {}
  };

  Nobody nobody_;
  std::array<std::byte, sizeof(mlx5::Cqe64)> ring_{};
  alignas(8) std::array<std::uint32_t, 2> record_{};
  CompletionQueue queue_{Cqn{0},
                         {.buffer = reinterpret_cast<std::uint64_t>(ring_.data()),
                          .doorbell_record = reinterpret_cast<std::uint64_t>(record_.data()),
                          .entries = 1,
                          .cqe_size = sizeof(mlx5::Cqe64),
                          .uar = UarId{0},
                          .sink = &nobody_}};
};

}  // namespace qpair::softnic::nic
