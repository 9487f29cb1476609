#pragma once
// One queue pair: its two rings, its state, and what the transport asks of its host. Engine lock held
// throughout.
//
// Send ring, in basic blocks counted without end, 16 bits of which are visible:
//   retired_ ≤ fetched_ ≤ doorbell record.  [retired_, fetched_) is with the transport, in order, in
//   inflight_.
// Receives come from a ReceiveQueue, its own or a shared one.

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "softnic/nic/completion_queue.hpp"
#include "softnic/nic/decode_cache.hpp"
#include "softnic/nic/failures.hpp"
#include "softnic/nic/host_memory.hpp"
#include "softnic/nic/key_update.hpp"
#include "softnic/nic/listeners.hpp"
#include "softnic/nic/memory_keys.hpp"
#include "softnic/nic/nic.hpp"
#include "softnic/nic/own_receive_queue.hpp"
#include "softnic/nic/shared_receive_queue.hpp"
#include "softnic/nic/wqe_decode.hpp"
#include "softnic/observe/counter_page.hpp"
#include "softnic/roce/transport.hpp"
#include "softnic/wire/shared_memory_link.hpp"

namespace qpair::softnic::nic {

class QueuePair;
class Tracer;

// What all queue pairs of a device share.
struct Device {
  const std::vector<GidEntry>& gids;
  const DeviceLimits& limits;
  const ibv_port_attr& port;
  wire::Link& link;
  MemoryKeys& keys;
  DecodeCache& decoded;
  const IdTable<SharedReceiveQueue>& srqs;
  const IdTable<QueuePair>& qps;
  // Failures found inside a call of the transport, which must not see the queue pair change under it: the
  // engine deals with them when the call is over.
  std::vector<Qpn> failed_qps;
  std::vector<Cqn> failed_cqs;
  unsigned watched_qps = 0;  // those that need looking
  Failures failures{};
  Tracer* tracer = nullptr;    // if there is one
  HostMemory* host = nullptr;  // if data may travel without packets
};

class QueuePair final : public roce::Host {
 public:
  QueuePair(Qpn number, const QpParameters& parameters, CompletionQueue& send_cq, CompletionQueue& receive_cq,
            SharedReceiveQueue* srq, Device& device);
  ~QueuePair() override;

  Qpn number() const { return number_; }
  const QpParameters& parameters() const { return parameters_; }
  ibv_qp_state state() const { return transport_->state(); }
  bool completes_on(Cqn cq) const { return send_cq_.number() == cq || receive_cq_.number() == cq; }
  roce::Transport& transport() { return *transport_; }
  std::uint32_t peer() const { return attributes_.dest_qp_num; }
  // What the transport counted, and what the queues did.
  observe::Counters counters() const { return transport_->counters() + counters_; }
  Listeners& listeners() { return listeners_; }
  // An XRC shared receive queue goes: a message that is halfway into one of its receives cannot end well.
  void let_go_of(const SharedReceiveQueue& srq);

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

  // A copy is under way that goes on in the next round.
  bool has_local_work() const { return copied_ != 0 && state() == IBV_QPS_RTS; }

  // The queue pair cannot go on: IBV_EVENT_QP_FATAL, ERR, both queues flushed.
  void fatal();
  // The same because of something else, which is told as the reason.
  void fatal_because(const std::string& reason);

  // Scheduling, kept by the engine.
  bool scheduled = false;
  bool waiting = false;                            // for room on the link
  wire::TimePoint timer = wire::TimePoint::max();  // earliest entry in the timer heap
  std::size_t place = 0;                           // in the engine's list of queue pairs

  // Kept by the counter board.
  bool uncounted = false;     // it may have counted something since
  observe::Counters counted;  // counters() as last taken over
  int counter_slot = observe::CounterPage::kNoSlot;

  // ---- roce::Host -------------------------------------------------------------------------------
  bool next_send(roce::SendRequest& out) override;
  tl::expected<roce::AddressVector, roce::Refusal> address(const roce::SendRequest& request) override;
  void transmitting(const roce::SendRequest& request) override;
  bool can_copy(const roce::SendRequest& request, std::uint64_t limit) override;
  std::optional<std::uint64_t> copy(const roce::SendRequest& request, std::uint64_t offset,
                                    std::uint64_t limit) override;
  roce::Check gather(const roce::SendRequest& request, std::uint64_t offset,
                     std::span<std::byte> to) override;
  roce::Check scatter(const roce::SendRequest& request, std::uint64_t offset,
                      std::span<const std::byte> from) override;
  void send_done(const roce::SendRequest& request) override;
  void send_failed(const roce::SendRequest& request, const roce::Refusal& why) override;
  roce::Check select_srq(std::uint32_t srqn) override;
  bool next_receive(roce::ReceiveRequest& out) override;
  roce::Check scatter_receive(const roce::ReceiveRequest& request, std::uint64_t offset,
                              std::span<const std::byte> from) override;
  void receive_done(const roce::ReceiveRequest& request, const roce::Received& what) override;
  void receive_failed(const roce::ReceiveRequest& request, const roce::Refusal& why) override;
  void receive_lost(const roce::ReceiveRequest& request, const roce::Refusal& why) override;
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
  void dropped(const std::string& sentence) override;

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

  struct Receiving {
    ReceiveQueue* from;
    std::uint16_t index;
  };

  std::uint32_t qpn() const { return static_cast<std::uint32_t>(number_); }
  SendRing send_ring() const {
    return {parameters_.sq_buffer, parameters_.sq_basic_blocks, parameters_.type};
  }
  bool read_record(std::size_t entry, std::uint16_t& value);
  void fail_later(const std::string& reason);

  // The protocol checker: what the program did wrong with its rings and records. Says it, changes nothing.
  void check_doorbell(ibv_qp_state when_rung, std::uint32_t opmod_idx_opcode);
  void check_overwritten();
  void check_keys(const ScatterList& list, const char* which, std::uint16_t index);
  std::string suspect_swapped_records(std::uint16_t index);

  std::string validate(const ibv_qp_attr& attributes, int mask) const;
  std::string validate_path(const ibv_qp_attr& attributes) const;
  void remember(const ibv_qp_attr& attributes, int mask);
  void restart();
  ibv_qp_cap granted() const;

  // A local segment's bytes, run by run.
  roce::Check load(std::uint32_t lkey, std::uint64_t address, std::span<std::byte> to);
  roce::Check store(Pdn pd, std::uint32_t lkey, std::uint64_t address, std::span<const std::byte> from);
  tl::expected<std::byte*, roce::Refusal> atomic_target(std::uint32_t rkey, std::uint64_t address);
  // Into the program's memory that a list names.
  roce::Check store(Pdn pd, const ScatterList& list, std::uint64_t offset, std::span<const std::byte> from);
  const ScatterList* send_list(std::uint16_t index, roce::Refusal& why);
  // Without packets (queue_pair_copy.cpp).
  bool is_shown() const;
  void show();
  bool is_to_this_nic() const;
  QueuePair* peer_here() const;
  bool is_for_copying(const roce::SendRequest& request) const;
  std::span<std::byte> memory_of(QueuePair& peer, const roce::SendRequest& request);
  std::optional<HostMemory::Access> access_across(const roce::SendRequest& request);
  bool copy_within(const roce::SendRequest& request, std::uint64_t offset, std::uint64_t size);
  bool copy_across(const roce::SendRequest& request, std::uint64_t offset, std::uint64_t size);
  bool move(const roce::SendRequest& request, std::uint64_t offset, std::span<std::byte> remote);
  std::size_t local_pieces(const roce::SendRequest& request, std::uint64_t offset, std::uint64_t size,
                           std::span<iovec> pieces);
  std::uint32_t path_mtu() const { return 128U << static_cast<unsigned>(attributes_.path_mtu); }
  bool decode_failed(const DecodeError& error, std::uint16_t index, const WqeHead& head);
  // What the queue pair carries out by itself (queue_pair_local.cpp). False: not now, or not at all.
  bool run_local(std::uint16_t index, const WqeHead& head);
  bool update_key(std::uint16_t index, const WqeHead& head);
  bool fetch_entries(const KeyEntriesElsewhere& where, KeyUpdate& update, roce::Refusal& why);
  bool copy_memory(std::uint16_t index, const WqeHead& head);
  bool local_failed(std::uint16_t index, const WqeHead& head, const roce::Refusal& why);
  void local_done(std::uint16_t index, const WqeHead& head, std::uint64_t bytes);
  MemoryKeys::User key_user() const;
  void retire(const Inflight& entry, std::uint64_t bytes, const CompletionQueue::Payload* payload);
  void retire_nops();

  void complete_send_error(std::uint16_t index, mlx5::Opcode opcode, mlx5::Syndrome syndrome,
                           std::uint8_t vendor_err);
  void complete_receive_error(std::uint16_t index, mlx5::Syndrome syndrome, std::uint8_t vendor_err);
  void enter_error();
  void enter_send_error();
  void set_watched(bool watched);
  void flush_sends();
  void flush_receives();
  const Receiving* receiving(std::uint16_t index) const;
  void retire_receive(std::uint16_t index);
  void retire_receives();
  ReceiveQueue::Completes receive_completes(std::uint16_t index) const;
  // Whose keys the peer may use: for XRC its message says so, by the shared receive queue that it names (IBTA
  // vol. 1 annex A14).
  Pdn remote_pd() const { return xrc_srq_ != nullptr ? xrc_srq_->pd() : parameters_.pd; }
  void completed(CompletionQueue& cq, bool pushed);

  Qpn number_;
  QpParameters parameters_;
  CompletionQueue& send_cq_;
  CompletionQueue& receive_cq_;
  Listeners listeners_;
  Device& device_;
  ibv_qp_attr attributes_{};     // as modify_qp set them
  wire::Endpoint peer_address_;  // of the connection, where packets go
  bool notify_drained_ = false;
  bool watched_ = false;  // counted in device_.watched_qps
  bool failing_ = false;  // fail_later() was called

  std::uint16_t fetched_ = 0;
  std::uint64_t copied_ = 0;  // bytes of the memory copy at fetched_
  std::uint16_t rung_ = 0;    // send doorbell record as last read
  InflightQueue inflight_;
  SharedReceiveQueue* srq_;  // null: none
  std::unique_ptr<OwnReceiveQueue> own_receives_;
  ReceiveQueue* receives_ = nullptr;       // one of the two, or neither
  SharedReceiveQueue* xrc_srq_ = nullptr;  // an XRC target's: of the message that the transport is at
  std::vector<Receiving>
      receiving_;                  // taken, and neither done nor failed; more than one for a DC target only
  bool last_wqe_reached_ = false;  // …and said, since it went to ERR
  Payload send_payload_;
  Payload receive_payload_;
  observe::Counters counters_;

  std::unique_ptr<roce::Transport> transport_;
};

}  // namespace qpair::softnic::nic
