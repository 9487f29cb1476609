#pragma once
// RdmaQueuePair: a reliable connected queue pair.

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "qpair/completion.hpp"
#include "qpair/config.hpp"
#include "qpair/detail/data_path.hpp"
#include "qpair/domain.hpp"
#include "qpair/memory.hpp"
#include "qpair/mlx5/doorbell.hpp"
#include "qpair/print.hpp"
#include "qpair/result.hpp"

namespace qpair {

namespace detail {
class QueuePairState;
}

// What a peer needs to connect to a queue pair. Travels as JSON or CBOR (serialize.hpp, exchange.hpp).
struct RdmaQpInfo {
  std::uint32_t qp_num = 0;  // 24 bits
  std::uint16_t lid = 0;
  std::optional<Gid> gid;               // RoCE always has one; InfiniBand within a subnet has none
  std::uint32_t psn = 0;                // 24 bits: the first packet sequence number that this side sends
  ibv_mtu path_mtu = IBV_MTU_1024;      // the largest that this side takes
  std::uint8_t max_dest_rd_atomic = 0;  // reads and atomics that this side can serve at once
  std::uint32_t generation = 0;         // how often the queue pair was reset

  friend bool operator==(const RdmaQpInfo&, const RdmaQpInfo&) = default;
};

// A queue pair with its two completion queues.
//
// Life: create() → get_qp_info(), exchanged with the peer by whatever means (exchange_qp_info() is one) →
// connect() → put(), get(), recv()… and poll_*() → after a failure reset(), and connect() again.
//
// A handle: a copy is another handle to the same queue pair, counters and completions included; the last one
// destroys it. Everything it was made from is kept alive when it came from an RdmaDomain; with a raw context
// and protection domain, those must outlive it.
//
// Threads: a queue pair, with all its handles, belongs to one thread at a time, unless it was made for many
// (IbverbsConfig::threads). Then any number of them post, ring and poll at the same time; a doorbell is for
// everything that was enqueued by any of them; a poll finds nothing while another thread polls the same side;
// WrIds and counters go by 64-byte basic blocks, of which most operations take one; get_doorbell() is
// unsupported. Two queue pairs never share state that needs a lock. Posting, ringing and polling never
// allocate, throw, log, lock or, on mlx5 devices, enter the kernel.
//
// On an mlx5 device qpair writes the NIC's rings itself. The raw handles are then for queries and for
// connecting by other means; never give them to ibv_post_send(), ibv_post_recv(), ibv_poll_cq() or
// ibv_req_notify_cq().
//
// Sizes: an operation moves l.size bytes between l and r; l.size > r.size is invalid_argument before anything
// is posted; zero is valid. An operation longer than the port's max_msg_sz is split into several work queue
// entries that complete as one. When the queue has no room for all of them the error is queue_full and
// nothing was written.
class RdmaQueuePair {
 public:
  // Makes the completion queues and the queue pair, in state RESET. On failure everything made so far is
  // undone.
  static Result<RdmaQueuePair> create(ibv_context* context, ibv_pd* pd, const IbverbsConfig& config = {});
  static Result<RdmaQueuePair> create(const RdmaDomain& domain, const IbverbsConfig& config = {});

  // Copies share; there is no moving, so that no handle is ever empty.
  RdmaQueuePair(const RdmaQueuePair&) = default;
  RdmaQueuePair& operator=(const RdmaQueuePair&) = default;
  ~RdmaQueuePair() = default;

  // --- Raw handles; owned by the queue pair. dv_*: null where the device is not an mlx5. ---
  [[nodiscard]] ibv_cq* send_cq() const;
  [[nodiscard]] ibv_cq* recv_cq() const;
  [[nodiscard]] ibv_qp* qp() const;
  [[nodiscard]] const mlx5dv_qp* dv_qp() const;
  [[nodiscard]] const mlx5dv_cq* dv_send_cq() const;
  [[nodiscard]] const mlx5dv_cq* dv_recv_cq() const;
  [[nodiscard]] ibv_context* context() const;
  // As asked for at creation, with the automatic fields filled in.
  [[nodiscard]] const IbverbsConfig& config() const;

  // --- Counters: work queue entries written, made visible to the NIC, and completed. They never wrap or go
  // back, and cq_idx <= db_idx <= wqe_idx always holds. Splitting counts: they are entries, not operations.
  // After reset() all three are equal: what was not completed never will be. ---
  [[nodiscard]] std::uint64_t send_wqe_idx() const { return path_->send_counters().wqe; }
  [[nodiscard]] std::uint64_t send_db_idx() const { return path_->send_counters().db; }
  [[nodiscard]] std::uint64_t send_cq_idx() const { return path_->send_counters().cq; }
  [[nodiscard]] std::uint64_t recv_wqe_idx() const { return path_->receive_counters().wqe; }
  [[nodiscard]] std::uint64_t recv_db_idx() const { return path_->receive_counters().db; }
  [[nodiscard]] std::uint64_t recv_cq_idx() const { return path_->receive_counters().cq; }

  // --- Connection ---
  [[nodiscard]] Result<RdmaQpInfo> get_qp_info() const;
  [[nodiscard]] Result<ibv_qp_state> state() const;
  // RESET → INIT → RTR → RTS. The path MTU is the smaller of both sides'; LID routing when there is no GID.
  // An error names the step and, as far as the kernel lets one know, the attribute, and leaves the queue pair
  // in RESET. A second connect to the same peer does nothing; to another one it is invalid_argument.
  Result<void> connect(const RdmaQpInfo& peer);
  // Back to RESET from any state, with a fresh PSN and the next generation number. Completions not yet polled
  // and operations under way are gone; enqueued work that was not rung is forgotten. Exchange get_qp_info()
  // again, then connect(). What the peer still sends to the old connection is dropped by the NIC.
  Result<void> reset();

  // --- Operations, posted and rung. The id is that of the completion. ---
  // Writes l into r.
  Result<WrId> put(const RdmaBuffer& l, const RdmaBuffer& r, Signal signal = Signal::Yes) {
    return path_->post_put(l, r, signal);
  }
  // Reads r into l.
  Result<WrId> get(const RdmaBuffer& l, const RdmaBuffer& r, Signal signal = Signal::Yes) {
    return path_->post_get(l, r, signal);
  }
  // A put that takes a receive at the other side and completes it, with the immediate value.
  Result<WrId> put_with_recv(const RdmaBuffer& l, const RdmaBuffer& r, std::uint32_t imm = 0,
                             Signal signal = Signal::Yes);
  // Gather and scatter: the pieces of l, one after the other. At most config().max_send_sge pieces.
  Result<WrId> put(std::span<const RdmaBuffer> l, const RdmaBuffer& r, Signal signal = Signal::Yes);
  Result<WrId> get(std::span<const RdmaBuffer> l, const RdmaBuffer& r, Signal signal = Signal::Yes);
  Result<WrId> put_with_recv(std::span<const RdmaBuffer> l, const RdmaBuffer& r, std::uint32_t imm = 0,
                             Signal signal = Signal::Yes);
  // The bytes travel in the work queue entry: any memory, free again on return. At most
  // config().max_inline_data.
  Result<WrId> put_inline(std::span<const std::byte> data, const RdmaBuffer& r, Signal signal = Signal::Yes) {
    return path_->post_inline(data, r, signal);
  }
  // A message into the receive that the peer posted; with `imm`, carrying an immediate value.
  Result<WrId> send(const RdmaBuffer& l, std::optional<std::uint32_t> imm = {}, Signal signal = Signal::Yes);
  // The 8 bytes at r, which must be aligned, change as said; what was there before arrives in l, in host
  // order.
  Result<WrId> fetch_add(const RdmaBuffer& l, const RdmaBuffer& r, std::uint64_t add,
                         Signal signal = Signal::Yes);
  Result<WrId> compare_swap(const RdmaBuffer& l, const RdmaBuffer& r, std::uint64_t compare,
                            std::uint64_t swap, Signal signal = Signal::Yes);

  // --- The same, without ringing: the NIC does not see them until ring_doorbell(), or the next of the
  // operations above, which rings for everything before it as well. ---
  Result<WrId> enqueue_put(const RdmaBuffer& l, const RdmaBuffer& r, Signal signal = Signal::Yes) {
    return path_->enqueue_put(l, r, signal);
  }
  Result<WrId> enqueue_get(const RdmaBuffer& l, const RdmaBuffer& r, Signal signal = Signal::Yes) {
    return path_->enqueue_get(l, r, signal);
  }
  Result<WrId> enqueue_put_with_recv(const RdmaBuffer& l, const RdmaBuffer& r, std::uint32_t imm = 0,
                                     Signal signal = Signal::Yes);
  Result<WrId> enqueue_put(std::span<const RdmaBuffer> l, const RdmaBuffer& r, Signal signal = Signal::Yes);
  Result<WrId> enqueue_get(std::span<const RdmaBuffer> l, const RdmaBuffer& r, Signal signal = Signal::Yes);
  Result<WrId> enqueue_put_inline(std::span<const std::byte> data, const RdmaBuffer& r,
                                  Signal signal = Signal::Yes) {
    return path_->enqueue_inline(data, r, signal);
  }
  // Many puts at once, which costs less for each than enqueue_put() does; the id is that of the last, the
  // others' are those before it. All or nothing: when one of them is wrong, or the queue has no room for all,
  // none is enqueued. None at all is invalid_argument.
  Result<WrId> enqueue_puts(std::span<const Put> puts, Signal signal = Signal::Yes);
  Result<WrId> enqueue_send(const RdmaBuffer& l, std::optional<std::uint32_t> imm = {},
                            Signal signal = Signal::Yes);
  Result<WrId> enqueue_fetch_add(const RdmaBuffer& l, const RdmaBuffer& r, std::uint64_t add,
                                 Signal signal = Signal::Yes);
  Result<WrId> enqueue_compare_swap(const RdmaBuffer& l, const RdmaBuffer& r, std::uint64_t compare,
                                    std::uint64_t swap, Signal signal = Signal::Yes);

  // One doorbell for everything enqueued since the last. Nothing enqueued: nothing happens.
  Result<void> ring_doorbell() { return path_->ring(); }
  // The doorbell for everything enqueued so far, for someone else to ring: see DoorBell. unsupported where
  // the device is not an mlx5.
  [[nodiscard]] Result<DoorBell> get_doorbell() const { return path_->doorbell(); }

  // --- Receiving. Posted and visible at once; possible as soon as connect() was called. ---
  // Room for one incoming message. A zero-size l receives an immediate value without data.
  Result<WrId> recv(const RdmaBuffer& l) { return path_->receive({&l, 1}); }
  // As the specification has it; where the data comes from is the sender's business, so r is not looked at.
  Result<WrId> recv(const RdmaBuffer& l, [[maybe_unused]] const RdmaBuffer& r) {
    return path_->receive({&l, 1});
  }
  Result<WrId> recv(std::span<const RdmaBuffer> l) { return path_->receive(l); }

  // --- Completions ---
  // Nothing yet is an empty optional. A failed work request is an Error whose wc() tells which one; it counts
  // as polled.
  Result<std::optional<IbvWc>> poll_completion_target(PollTarget target);
  Result<std::optional<IbvWc>> poll_send_completion() {
    IbvWc wc;
    if (path_->take_plain(wc)) [[likely]]
      return wc;
    return poll_completion_target(PollTarget::Send);
  }
  Result<std::optional<IbvWc>> poll_recv_completion() { return poll_completion_target(PollTarget::Recv); }
  // As many as there are and fit; returns how many. Failures are values with IbvWc::is_valid() false.
  Result<std::size_t> poll_completions(PollTarget target, std::span<IbvWc> completions) {
    std::size_t puts = 0;
    if (target == PollTarget::Send) [[likely]] {
      puts = path_->take_puts(completions);
      if (puts == completions.size()) [[likely]]
        return puts;
    }
    return poll_more(target, completions, puts);
  }

  // --- Waiting without polling; config().completion_events must be set. To wait: arm(), poll once more (a
  // completion may have come in between), then wait until the descriptor is readable, then take_events(),
  // then poll until empty. --- A descriptor for poll() or epoll; non-blocking, owned by the queue pair.
  [[nodiscard]] Result<int> completion_fd() const;
  Result<void> arm(PollTarget target, bool solicited_only = false);
  // Takes and acknowledges the events that made the descriptor readable; returns how many. Never blocks.
  Result<std::size_t> take_events();

  // Two handles to the same queue pair are equal.
  friend bool operator==(const RdmaQueuePair& a, const RdmaQueuePair& b) { return a.state_ == b.state_; }

 private:
  friend class detail::QueuePairState;
  explicit RdmaQueuePair(std::shared_ptr<detail::QueuePairState> state);
  // Behind the first `taken` of `completions`; returns how many there are then.
  Result<std::size_t> poll_more(PollTarget target, std::span<IbvWc> completions, std::size_t taken);

  std::shared_ptr<detail::QueuePairState> state_;
  detail::DataPath* path_;  // of *state_
};

[[nodiscard]] std::string to_string(const RdmaQpInfo& info);
[[nodiscard]] std::string to_string(const DoorBell& doorbell);
[[nodiscard]] std::string to_string(const RdmaQueuePair& queue_pair);

}  // namespace qpair
