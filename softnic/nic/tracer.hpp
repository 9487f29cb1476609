#pragma once
// The NIC's side of `qpair run --trace`: what happens to every work request, as events of a timeline. A
// process of the timeline is a process, a thread of it is a queue pair. On it are
//
//   slices    fetch, each packet sent and received, the completion entry: as long as the NIC was busy with it
//   instants  doorbell, receive taken, poll, timeout
//   a span    of each send work request, from fetch to completion
//   arrows    fetch → the packets of the work request → its completion entry; and from each packet to where
//   it arrives,
//             in whichever process
//
// When the WQE was written cannot be seen, only when the NIC learned of it. That a completion was polled is
// seen when the engine next looks at the consumer index. Engine lock held.

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "qpair/mlx5/cqe.hpp"
#include "qpair/mlx5/wqe.hpp"
#include "softnic/observe/trace_file.hpp"
#include "softnic/wire/forwarding_link.hpp"

namespace qpair::softnic::nic {

class Tracer {
 public:
  using Clock = std::chrono::steady_clock;  // the same in every process of the machine
  using TimePoint = Clock::time_point;

  Tracer(std::unique_ptr<observe::TraceFile> file, const wire::Endpoint& local);

  void queue_pair_made(std::uint32_t qpn, ibv_qp_type type);
  // The NIC sees that the send doorbell record has moved.
  void doorbell(std::uint32_t qpn, std::uint16_t before, std::uint16_t now);
  void fetched(std::uint32_t qpn, std::uint16_t wqe, mlx5::Opcode opcode, std::uint64_t bytes,
               TimePoint begin);
  void receive_taken(std::uint32_t qpn, std::uint16_t wqe);
  // Whose packets leave from now on, and of which work request the requests among them are.
  void speaks(std::uint32_t qpn);
  void transmitting(std::uint16_t wqe);
  void sent(const wire::Frame& packet, TimePoint begin);
  void received(const wire::Frame& packet, TimePoint begin);
  void timeout(std::uint32_t qpn);
  // Complete, and nobody is to be told.
  void done_unsignaled(std::uint32_t qpn, std::uint16_t wqe);

  struct Completion {
    std::uint32_t cqn;
    std::uint64_t consumer_record;  // program's address
    std::uint32_t index;            // producer index of the entry
    TimePoint begin;
  };
  void completed(const mlx5::Cqe64& cqe, const Completion& where);
  void completion_queue_gone(std::uint32_t cqn) { unpolled_.erase(cqn); }
  void look_for_polls();
  // When to look for polls though nothing else happens; max() when there is nothing to be polled.
  TimePoint deadline() const;

  // What is buffered goes to the file when it is much, or when there is time for it.
  void round_over(bool idle);
  void abandon() { file_->abandon(); }

 private:
  struct Unpolled {
    std::uint32_t qpn;
    std::uint32_t index;
    std::uint16_t wqe;
    bool receive;
    TimePoint when;
  };
  struct Queue {
    std::uint64_t consumer_record = 0;
    std::deque<Unpolled> entries;
  };
  static std::uint64_t key(std::uint32_t qpn, std::uint16_t wqe) { return (std::uint64_t{qpn} << 16U) | wqe; }

  void packet(const char* direction, const char* flow, std::uint32_t qpn, const wire::Frame& frame,
              TimePoint begin);
  void instant(const char* name, std::uint32_t qpn, std::uint16_t wqe);
  void span_ends(std::uint32_t qpn, std::uint16_t wqe);

  std::unique_ptr<observe::TraceFile> file_;
  wire::Endpoint local_;
  int pid_;
  std::uint32_t speaker_ = 0;
  std::int32_t wqe_ = -1;  // work request of the packets that leave; -1: not known
  std::unordered_set<std::uint64_t> open_spans_;
  std::unordered_map<std::uint32_t, Queue> unpolled_;  // by completion queue
  TimePoint last_completion_{};
};

// A link that shows the tracer every packet.
class TracedLink final : public wire::ForwardingLink {
 public:
  TracedLink(std::unique_ptr<wire::Link> inner, Tracer& tracer)
      : ForwardingLink(std::move(inner)), tracer_(tracer) {}

  std::span<std::byte> reserve(const wire::Endpoint& destination, std::size_t size) override;
  void commit() override;
  std::size_t poll(const Receiver& receiver, std::size_t limit, wire::TimePoint now) override;

 private:
  Tracer& tracer_;
  wire::Frame open_;  // the reservation
  Tracer::TimePoint began_;
};

}  // namespace qpair::softnic::nic
