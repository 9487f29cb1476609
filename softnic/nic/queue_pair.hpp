#pragma once
// One queue pair: its two rings, its state, and what the transport asks of its host. Engine lock held
// throughout.
//
// Send ring, in basic blocks counted without end, 16 bits of which are visible:
//   retired_ ≤ fetched_ ≤ doorbell record.  [retired_, fetched_) is with the transport, in order, in
//   inflight_.
// Receive ring: receive_retired_ ≤ receive_taken_ ≤ doorbell record; at most one is taken and not retired.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "softnic/nic/completion_queue.hpp"
#include "softnic/nic/decode_cache.hpp"
#include "softnic/nic/memory_keys.hpp"
#include "softnic/nic/nic.hpp"
#include "softnic/nic/wqe_decode.hpp"
#include "softnic/roce/rc_queue_pair.hpp"

namespace qpair::softnic::nic {

class QueuePair;

// What all queue pairs of a device share.
struct Device {
  const std::vector<GidEntry>& gids;
  const DeviceLimits& limits;
  const ibv_port_attr& port;
  wire::Link& link;
  MemoryKeys& keys;
  DecodeCache& decoded;
  // Failures found inside a call of the transport, which must not see the queue pair change under it: the
  // engine deals with them when the call is over.
  std::vector<Qpn> failed_qps;
  std::vector<Cqn> failed_cqs;
  unsigned watched_qps = 0;  // those that need looking
};

class QueuePair final : public roce::RcHost {
 public:
  QueuePair(Qpn number, const QpParameters& parameters, CompletionQueue& send_cq, CompletionQueue& receive_cq,
            Device& device);
  ~QueuePair() override;

  Qpn number() const { return number_; }
  const QpParameters& parameters() const { return parameters_; }
  ibv_qp_state state() const { return transport_->state(); }
  bool completes_on(Cqn cq) const { return send_cq_.number() == cq || receive_cq_.number() == cq; }
  roce::RcQueuePair& transport() { return *transport_; }

  // Checked against the state table and the device's limits; 0, or the errno, the reason said.
  Errno modify(const ibv_qp_attr& attributes, int mask, wire::TimePoint now);
  void query(ibv_qp_attr& attributes, ibv_qp_init_attr& initial) const;

  // A doorbell with this first word of a WQE was rung. True: the record has moved, transmit() has something
  // new.
  bool rung(std::uint32_t opmod_idx_opcode);
  // Looks at the doorbell record without a doorbell having been seen. True: it has moved since it was last
  // looked at. In ERR, flushes what was posted meanwhile.
  bool look();
  // In ERR with a receive ring: receives have no doorbell, so somebody has to look.
  bool needs_looking() const { return watched_; }

  // The queue pair cannot go on: IBV_EVENT_QP_FATAL, ERR, both queues flushed.
  void fatal();

  // Scheduling, kept by the engine.
  bool scheduled = false;
  wire::TimePoint timer = wire::TimePoint::max();  // earliest entry in the timer heap
  std::size_t place = 0;                           // in the engine's list of queue pairs

  // ---- roce::RcHost -------------------------------------------------------------------------------
  bool next_send(roce::SendRequest& out) override;
  roce::Check gather(const roce::SendRequest& request, std::uint64_t offset,
                     std::span<std::byte> to) override;
  roce::Check scatter(const roce::SendRequest& request, std::uint64_t offset,
                      std::span<const std::byte> from) override;
  void send_done(const roce::SendRequest& request) override;
  void send_failed(const roce::SendRequest& request, const roce::Refusal& why) override;
  bool next_receive(roce::ReceiveRequest& out) override;
  roce::Check scatter_receive(const roce::ReceiveRequest& request, std::uint64_t offset,
                              std::span<const std::byte> from) override;
  void receive_done(const roce::ReceiveRequest& request, const roce::Received& what) override;
  void receive_failed(const roce::ReceiveRequest& request, const roce::Refusal& why) override;
  roce::Check check_remote(roce::RemoteAccess access, std::uint32_t rkey, std::uint64_t address,
                           std::uint64_t length) override;
  roce::Check write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> from) override;
  roce::Check read(std::uint32_t rkey, std::uint64_t address, std::span<std::byte> to) override;
  roce::Check compare_swap(std::uint32_t rkey, std::uint64_t address, std::uint64_t compare,
                           std::uint64_t swap, std::uint64_t& original) override;
  roce::Check fetch_add(std::uint32_t rkey, std::uint64_t address, std::uint64_t add,
                        std::uint64_t& original) override;
  roce::Check invalidate(std::uint32_t rkey) override;
  void responder_failed(ibv_event_type event, const roce::Refusal& why) override;
  void raise(ibv_event_type event) override;

 private:
  struct Inflight {
    std::uint16_t index;
    std::uint8_t blocks;
    mlx5::Opcode opcode;
    bool signaled;
  };
  // A first-in-first-out of those; grows up to the ring's size and no further.
  class InflightQueue {
   public:
    bool empty() const { return size_ == 0; }
    const Inflight& front() const { return slots_[head_]; }
    void push(const Inflight& entry);
    void pop();
    void clear() { head_ = size_ = 0; }

   private:
    std::vector<Inflight> slots_;
    std::size_t head_ = 0;
    std::size_t size_ = 0;
  };

  struct Payload {  // data on its way into a CQE
    std::uint16_t index = 0;
    bool valid = false;
    CompletionQueue::Payload bytes{};
    void keep(std::uint16_t of, std::uint64_t offset, std::span<const std::byte> from);
  };

  std::uint32_t qpn() const { return static_cast<std::uint32_t>(number_); }
  SendRing send_ring() const { return {parameters_.sq_buffer, parameters_.sq_basic_blocks}; }
  ReceiveRing receive_ring() const;
  bool read_record(std::size_t entry, std::uint16_t& value);
  void fail_later(const std::string& reason);

  std::string validate(const ibv_qp_attr& attributes, int mask) const;
  std::string validate_path(const ibv_qp_attr& attributes) const;
  void remember(const ibv_qp_attr& attributes, int mask);
  void restart();

  // Into the program's memory that a list names.
  roce::Check store(const ScatterList& list, std::uint64_t offset, std::span<const std::byte> from);
  const ScatterList* send_list(std::uint16_t index, roce::Refusal& why);
  const ScatterList* receive_list(std::uint16_t index, roce::Refusal& why);
  bool decode_failed(const DecodeError& error, std::uint16_t index, const WqeHead& head);
  void retire(const Inflight& entry, std::uint64_t bytes, const CompletionQueue::Payload* payload);
  void retire_nops();

  void complete_send_error(std::uint16_t index, mlx5::Opcode opcode, mlx5::Syndrome syndrome,
                           std::uint8_t vendor_err);
  void complete_receive_error(std::uint16_t index, mlx5::Syndrome syndrome, std::uint8_t vendor_err);
  void enter_error();
  void set_watched(bool watched);
  void flush_sends();
  void flush_receives();
  void completed(CompletionQueue& cq, bool pushed);

  Qpn number_;
  QpParameters parameters_;
  CompletionQueue& send_cq_;
  CompletionQueue& receive_cq_;
  Device& device_;
  ibv_qp_attr attributes_{};  // as modify_qp set them
  bool notify_drained_ = false;
  bool watched_ = false;  // counted in device_.watched_qps
  bool failing_ = false;  // fail_later() was called

  std::uint16_t fetched_ = 0;
  std::uint16_t rung_ = 0;  // send doorbell record as last read
  InflightQueue inflight_;
  std::uint16_t receive_taken_ = 0;
  std::uint16_t receive_retired_ = 0;
  Payload send_payload_;
  Payload receive_payload_;

  std::unique_ptr<roce::RcQueuePair> transport_;
};

}  // namespace qpair::softnic::nic
