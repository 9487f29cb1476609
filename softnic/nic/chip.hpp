#pragma once
// Everything that the device does, in rounds: doorbells, WQEs to the transport, packets out and in, timers.
// It has no thread and no clock of its own, so that tests can step it; the engine calls it under its lock.
//
//   pages ──doorbell──▶ queue pair ──schedule──▶ active ──transmit──▶ link
//   link ──packet──▶ queue pair (transport) ──▶ completion queues;  and scheduled again, as its window may
//   have opened

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "softnic/nic/completion_queue.hpp"
#include "softnic/nic/counter_board.hpp"
#include "softnic/nic/decode_cache.hpp"
#include "softnic/nic/doorbell_pages.hpp"
#include "softnic/nic/host_memory.hpp"
#include "softnic/nic/id_table.hpp"
#include "softnic/nic/management.hpp"
#include "softnic/nic/memory_keys.hpp"
#include "softnic/nic/multicast.hpp"
#include "softnic/nic/nic.hpp"
#include "softnic/nic/no_completions.hpp"
#include "softnic/nic/queue_pair.hpp"
#include "softnic/nic/shared_receive_queue.hpp"
#include "softnic/nic/timers.hpp"
#include "softnic/nic/tracer.hpp"
#include "softnic/nic/xrc_domains.hpp"
#include "softnic/roce/packet.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::nic {

class Chip {
 public:
  using TimePoint = wire::TimePoint;

  // `infiniband`: its link layer; otherwise Ethernet. `seed`: where the numbers of queue pairs, completion
  // queues and keys begin.
  Chip(std::unique_ptr<wire::Link> link, std::uint32_t mtu, const std::string& net_device, std::uint64_t seed,
       bool infiniband = false);
  ~Chip();
  Chip(const Chip&) = delete;
  Chip& operator=(const Chip&) = delete;

  // What a round found to do.
  struct Work {
    bool doorbells = false;
    bool packets = false;
    bool other = false;     // transmission that goes on, timers
    bool awaiting = false;  // requests went out whose answers are to come; no work by itself
    explicit operator bool() const { return doorbells || packets || other; }
  };
  // If there was any, another round is worth while at once.
  Work round(TimePoint now);
  // Programs blocked at closed doorbell pages go on. True: there was one.
  bool admit(TimePoint now);
  // For whoever spins: there may be something to do. Costs next to nothing, and does not see everything.
  bool glance() const { return pages_.is_rung() || link_->ready(); }
  // For whoever wants to doze: something came since the last round.
  bool anything_new();
  // Looks for doorbells that others have overwritten, at some queue pairs of many, so that packets need not
  // wait meanwhile. True: not at all of them yet, or there was one.
  bool look_further();
  // For whoever wants to sleep until a doorbell wakes it: looks everywhere.
  bool anything_left();
  // When round() has to be called though nothing happens; max() when never.
  TimePoint deadline(TimePoint now) const;

  const DeviceIdentity& identity() const { return identity_; }
  const DeviceLimits& limits() const { return limits_; }
  const std::vector<GidEntry>& gids() const { return gids_; }
  const ibv_port_attr& port() const { return port_; }
  wire::Link& link() { return *link_; }
  DoorbellPages& pages() { return pages_; }
  MemoryKeys& keys() { return keys_; }
  CounterBoard& counters() { return counters_; }
  MulticastGroups& multicast() { return multicast_; }
  // Before there are queue pairs. Its packets come from a TracedLink.
  void trace_with(std::unique_ptr<Tracer> tracer);
  // Before there are queue pairs and keys: those of other NICs of this host may reach them without packets.
  void share(wire::SharedMemoryLink& link);
  // Of the whole device, up to now.
  observe::Counters count_all();
  const Failures& failures() const { return device_.failures; }
  ManagementPort& management() { return management_; }

  Expected<Pdn> create_pd();
  Errno destroy_pd(Pdn pd);
  bool use_pd(Pdn pd);  // false: no such protection domain
  void unuse_pd(Pdn pd);

  // EFAULT, as pinning it would answer, if `what` is not memory and the NIC must not store there.
  Errno check_memory(const char* what, std::uint64_t address, std::uint64_t size);

  Expected<Cqn> create_cq(const CqParameters& parameters);
  CompletionQueue* find_cq(Cqn cq) { return cqs_.find(static_cast<std::uint32_t>(cq)); }
  void moderate(CompletionQueue& cq, std::uint16_t count, std::uint16_t period_us);
  Errno destroy_cq(Cqn cq);

  XrcDomains& xrc_domains() { return xrc_domains_; }
  Expected<Srqn> create_srq(const SrqParameters& parameters);
  SharedReceiveQueue* find_srq(Srqn srq) { return srqs_.find(static_cast<std::uint32_t>(srq)); }
  Errno destroy_srq(Srqn srq);

  Expected<Qpn> create_qp(const QpParameters& parameters);
  QueuePair* find_qp(Qpn qp) { return qps_.find(static_cast<std::uint32_t>(qp)); }
  Errno modify_qp(QueuePair& qp, const ibv_qp_attr& attributes, int mask, TimePoint now);
  Errno destroy_qp(Qpn qp);

  // The program ends: queue pairs that are destroyed from now on are not by its own will.
  void end() { ends_ = true; }

  // In a child of fork(): what only the parent may use.
  void abandon();

  // For sentences and tests.
  std::uint64_t packets_dropped() const { return packets_dropped_; }

 private:
  bool ring_doorbells();
  void expire(QueuePair& qp, TimePoint now);
  bool run_active(TimePoint now);
  bool receive(TimePoint now);
  bool run_timers(TimePoint now);
  void deliver(const wire::Frame& frame, TimePoint now);
  void deliver_to_group(const roce::Packet& packet, const wire::Frame& frame);
  void look_at(std::size_t count);
  void schedule(QueuePair& qp);
  void schedule_waiting();
  void watch_deadline(QueuePair& qp);
  void count_active();
  // Carries out failures that were found inside the transport's calls.
  void settle();
  void check_arms();

  std::unique_ptr<Tracer> tracer_;
  DeviceIdentity identity_;
  DeviceLimits limits_;
  std::vector<GidEntry> gids_;
  ibv_port_attr port_;
  std::unique_ptr<wire::Link> link_;
  std::unique_ptr<HostMemory> host_;
  DoorbellPages pages_;
  ManagementPort management_;
  MemoryKeys keys_;
  DecodeCache decoded_;
  Device device_;
  bool ends_ = false;

  std::unordered_map<std::uint32_t, unsigned> pds_;  // and how many objects use them
  std::uint32_t next_pd_ = 1;
  IdTable<CompletionQueue> cqs_;
  std::vector<CompletionQueue*> all_cqs_;
  std::vector<CompletionQueue*> moderated_cqs_;
  IdTable<SharedReceiveQueue> srqs_;
  std::vector<SharedReceiveQueue*> xrc_srqs_;
  XrcDomains xrc_domains_;
  NoCompletions no_completions_;
  IdTable<QueuePair> qps_;
  MulticastGroups multicast_;

  std::deque<QueuePair*> active_;
  std::vector<QueuePair*> waiting_;  // for room on the link
  std::vector<QueuePair*> all_;
  std::size_t look_next_ = 0;
  std::size_t unlooked_ = 0;       // queue pairs still to be looked at
  bool records_unknown_ = false;   // a doorbell was seen since that began
  QueuePair* awaiting_ = nullptr;  // in this round: it sent what is to be answered
  bool doorbells_seen_ = false;    // outside of a round
  Timers timers_;
  std::vector<Timers::Entry> due_;             // in run_timers()
  TimePoint behind_since_ = TimePoint::max();  // more arrives than is looked at in a round
  std::uint64_t packets_dropped_ = 0;
  CounterBoard counters_;
  std::vector<QueuePair*> uncounted_;
  TimePoint counted_{};
};

}  // namespace qpair::softnic::nic
