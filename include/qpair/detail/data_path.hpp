#pragma once
// How a queue pair posts and polls; not for programs, but public so that the common operations can be
// inlined.
//
// A data path is one of three: mlx5 (src/datapath/mlx5.*), which writes WQEs itself; the same for many
// threads (src/datapath/mlx5_many.*); and verbs (src/datapath/verbs.*) for every other device. The functions
// here try the inlined path of send_ring.hpp first, and go through the virtual functions when that declines.
// It is open for the first data path only: the others leave `send_.limit` at 0 and `send_cq_` without a
// completion.

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "qpair/completion.hpp"
#include "qpair/detail/completion_ring.hpp"
#include "qpair/detail/send_ring.hpp"
#include "qpair/memory.hpp"
#include "qpair/mlx5/wqe.hpp"
#include "qpair/result.hpp"

namespace qpair::detail {

// An operation in general form.
struct Work {
  mlx5::Opcode opcode = mlx5::Opcode::Nop;
  std::span<const RdmaBuffer> local;
  const RdmaBuffer* remote = nullptr;      // nothing for send
  std::span<const std::byte> inline_data;  // instead of `local`
  bool is_inline = false;
  std::uint32_t imm = 0;       // host order
  std::uint64_t swap_add = 0;  // atomics
  std::uint64_t compare = 0;
  Signal signal = Signal::Yes;
};

struct Counters {
  std::uint64_t wqe = 0;  // written
  std::uint64_t db = 0;   // made visible to the NIC
  std::uint64_t cq = 0;   // completed
};

class alignas(64) DataPath {
 public:
  virtual ~DataPath() = default;
  DataPath(const DataPath&) = delete;
  DataPath& operator=(const DataPath&) = delete;

  // One put or get of one piece. `enqueue` only writes; `post` also rings.
  Result<WrId> enqueue_put(const RdmaBuffer& local, const RdmaBuffer& remote, Signal signal) {
    if (send_.write_plain(send_.put_word, local, remote, signal)) [[likely]]
      return last();
    return enqueue_one(mlx5::Opcode::RdmaWrite, local, remote, signal);
  }
  Result<WrId> enqueue_get(const RdmaBuffer& local, const RdmaBuffer& remote, Signal signal) {
    if (send_.write_plain(send_.get_word, local, remote, signal)) [[likely]]
      return last();
    return enqueue_one(mlx5::Opcode::RdmaRead, local, remote, signal);
  }
  Result<WrId> enqueue_inline(std::span<const std::byte> data, const RdmaBuffer& remote, Signal signal) {
    if (send_.write_inline(data, remote, signal)) [[likely]]
      return last();
    return enqueue_bytes(data, remote, signal);
  }
  Result<WrId> post_put(const RdmaBuffer& local, const RdmaBuffer& remote, Signal signal) {
    if (send_.write_plain(send_.put_word, local, remote, signal)) [[likely]] {
      send_.ring_doorbell();
      return last();
    }
    return post_one(mlx5::Opcode::RdmaWrite, local, remote, signal);
  }
  Result<WrId> post_get(const RdmaBuffer& local, const RdmaBuffer& remote, Signal signal) {
    if (send_.write_plain(send_.get_word, local, remote, signal)) [[likely]] {
      send_.ring_doorbell();
      return last();
    }
    return post_one(mlx5::Opcode::RdmaRead, local, remote, signal);
  }
  Result<WrId> post_inline(std::span<const std::byte> data, const RdmaBuffer& remote, Signal signal) {
    if (send_.write_inline(data, remote, signal)) [[likely]] {
      send_.ring_doorbell();
      return last();
    }
    return post_bytes(data, remote, signal);
  }

  // Anything. All or nothing: when it fails, not a byte was written and no counter has moved.
  virtual Result<WrId> enqueue(const Work& work) = 0;
  virtual Result<WrId> post(const Work& work) = 0;
  // Several puts, likewise all or nothing; the id is that of the last. There is at least one.
  virtual Result<WrId> enqueue_puts(std::span<const Put> puts, Signal signal) = 0;
  Result<void> ring() {
    if (send_.record == nullptr) [[unlikely]]
      return ring_doorbell();
    send_.ring_doorbell();
    return {};
  }
  virtual Result<void> ring_doorbell() = 0;
  virtual Result<DoorBell> doorbell() const = 0;
  virtual Result<WrId> receive(std::span<const RdmaBuffer> pieces) = 0;

  // One completion into `wc`: 1, none: 0, or negative errno when the completion queue itself cannot be
  // polled.
  int poll_send(IbvWc& wc) { return take_send({&wc, 1}); }
  int poll_receive(IbvWc& wc) { return take_receive({&wc, 1}); }
  // The success of a plain put or get into `wc`, which is as new, if that is what completed next.
  bool take_plain(IbvWc& wc) {
    const mlx5::Cqe64& cqe = *send_cq_.at();
    if (mlx5::load_op_own(cqe) != send_cq_.success()) return false;
    mlx5::from_device_barrier();
    if (!send_.finish_plain(cqe, send_.rung(), wc)) [[unlikely]]
      return false;
    send_cq_.done();
    return true;
  }
  // The successes of plain puts, as many as come next and fit; how many.
  std::size_t take_puts(std::span<IbvWc> wcs) {
    const std::uint8_t success = send_cq_.success();
    if (mlx5::load_op_own(*send_cq_.at()) != success) return 0;
    const std::uint64_t kind = mlx5::tail_kind(success, static_cast<std::uint8_t>(mlx5::Opcode::RdmaWrite));
    const std::size_t taken = send_.finish_puts(send_cq_.at(), send_cq_.entry_size(), kind,
                                                wcs.first(send_cq_.in_a_row(wcs.size())));
    if (taken != 0) {
      mlx5::from_device_barrier();
      send_cq_.done(taken);
    }
    return taken;
  }
  // Whether another completion, of whatever kind, has come; for a data path where the above found one.
  [[nodiscard]] bool send_completed() const { return send_cq_.is_written(); }
  // As many completions as there are and fit: how many, or negative errno as above.
  virtual int take_send(std::span<IbvWc> wcs) = 0;
  virtual int take_receive(std::span<IbvWc> wcs) = 0;

  [[nodiscard]] virtual Counters send_counters() const = 0;
  [[nodiscard]] virtual Counters receive_counters() const = 0;

  // Asks for an event at the next completion of that side.
  virtual Result<void> arm(PollTarget side, bool solicited_only) = 0;
  // Such an event was taken from the channel. `side`: Send or Recv.
  virtual void event_taken(PollTarget side) = 0;

  virtual void open_receive() = 0;  // the queue pair is in INIT or beyond
  virtual void open_send() = 0;     // …in RTS
  // The queue pair is in RESET: whatever was posted or completed is forgotten, posting is refused, and the
  // hardware's indices start again at zero. The counters go on: all three are what wqe was.
  virtual void reset() = 0;

 protected:
  explicit DataPath(const Mlx5CqRing& send_cq = no_completions()) : send_cq_(send_cq) {}

  SendRing send_;
  CompletionRing send_cq_;

 private:
  // A completion queue to which nothing ever comes.
  static const Mlx5CqRing& no_completions();

  [[nodiscard]] WrId last() const { return WrId{send_.index() - 1}; }
  Result<WrId> enqueue_one(mlx5::Opcode opcode, const RdmaBuffer& local, const RdmaBuffer& remote,
                           Signal signal);
  Result<WrId> enqueue_bytes(std::span<const std::byte> data, const RdmaBuffer& remote, Signal signal);
  Result<WrId> post_one(mlx5::Opcode opcode, const RdmaBuffer& local, const RdmaBuffer& remote,
                        Signal signal);
  Result<WrId> post_bytes(std::span<const std::byte> data, const RdmaBuffer& remote, Signal signal);
};

}  // namespace qpair::detail
