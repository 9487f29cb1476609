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
#include "softnic/nic/decode_cache.hpp"
#include "softnic/nic/doorbell_pages.hpp"
#include "softnic/nic/id_table.hpp"
#include "softnic/nic/memory_keys.hpp"
#include "softnic/nic/nic.hpp"
#include "softnic/nic/queue_pair.hpp"
#include "softnic/nic/timers.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::nic {

class Chip {
 public:
  using TimePoint = wire::TimePoint;

  // `seed`: where the numbers of queue pairs, completion queues and keys begin.
  Chip(std::unique_ptr<wire::Link> link, std::uint32_t mtu, const std::string& net_device,
       std::uint64_t seed);
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
  // For whoever wants to doze: something came since the last round.
  bool anything_new();
  // For whoever wants to sleep until a doorbell wakes it: looks everywhere.
  bool anything_left();
  // When round() has to be called though nothing happens; max() when never.
  TimePoint deadline() const;

  const DeviceIdentity& identity() const { return identity_; }
  const DeviceLimits& limits() const { return limits_; }
  const std::vector<GidEntry>& gids() const { return gids_; }
  const ibv_port_attr& port() const { return port_; }
  wire::Link& link() { return *link_; }
  DoorbellPages& pages() { return pages_; }
  MemoryKeys& keys() { return keys_; }

  Expected<Pdn> create_pd();
  Errno destroy_pd(Pdn pd);
  bool use_pd(Pdn pd);  // false: no such protection domain
  void unuse_pd(Pdn pd);

  Expected<Cqn> create_cq(const CqParameters& parameters);
  CompletionQueue* find_cq(Cqn cq) { return cqs_.find(static_cast<std::uint32_t>(cq)); }
  Errno destroy_cq(Cqn cq);

  Expected<Qpn> create_qp(const QpParameters& parameters);
  QueuePair* find_qp(Qpn qp) { return qps_.find(static_cast<std::uint32_t>(qp)); }
  Errno modify_qp(QueuePair& qp, const ibv_qp_attr& attributes, int mask, TimePoint now);
  Errno destroy_qp(Qpn qp);

  // For sentences and tests.
  std::uint64_t packets_dropped() const { return packets_dropped_; }

 private:
  bool ring_doorbells();
  bool run_active(TimePoint now);
  bool receive(TimePoint now);
  bool run_timers(TimePoint now);
  void deliver(const wire::Frame& frame, TimePoint now);
  void look_at_some();
  void schedule(QueuePair& qp);
  void watch_deadline(QueuePair& qp);
  // Carries out failures that were found inside the transport's calls.
  void settle();
  void check_arms();

  DeviceIdentity identity_;
  DeviceLimits limits_;
  std::vector<GidEntry> gids_;
  ibv_port_attr port_;
  std::unique_ptr<wire::Link> link_;
  DoorbellPages pages_;
  MemoryKeys keys_;
  DecodeCache decoded_;
  Device device_;

  std::unordered_map<std::uint32_t, unsigned> pds_;  // and how many objects use them
  std::uint32_t next_pd_ = 1;
  IdTable<CompletionQueue> cqs_;
  std::vector<CompletionQueue*> all_cqs_;
  IdTable<QueuePair> qps_;

  std::deque<QueuePair*> active_;
  std::vector<QueuePair*> all_;
  std::size_t look_next_ = 0;
  bool records_unknown_ = false;   // a doorbell was seen since all records were last looked at
  QueuePair* awaiting_ = nullptr;  // in this round: it sent what is to be answered
  bool doorbells_seen_ = false;    // outside of a round
  Timers timers_;
  std::uint64_t packets_dropped_ = 0;
};

}  // namespace qpair::softnic::nic
