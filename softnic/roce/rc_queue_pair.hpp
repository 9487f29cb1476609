#pragma once
// Reliable connected transport of one queue pair: requester and responder, IBTA vol. 1 chapter 9.7 and annex
// A17. A pure state machine: packets, time and memory come in through the calls below and Host; it owns no
// thread, no clock and no socket, so a test can narrate every step. Engine thread only. Nothing throws.
//
//      next_send() gather()             read() write() check_remote() …
//              │                                   │
//        Requester ── requests ──▶ … ──▶ Responder of the peer
//              ◀── acknowledgments, responses, NAKs ──┘
//
// Both halves share a Connection (connection.hpp). Other transports are beside this class, not in it: UC
// sends the same messages without acknowledgments (uc_queue_pair.hpp), UD has neither order nor a peer
// (ud_queue_pair.hpp).

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "softnic/roce/host.hpp"
#include "softnic/roce/transport.hpp"

namespace qpair::softnic::roce {

class RcQueuePair final : public Transport {
 public:
  // Which side of an extended reliable connection it is: the initiator only sends requests, the target only
  // carries them out, for the shared receive queue that each names.
  enum class Xrc : std::uint8_t { None, Initiator, Target };

  RcQueuePair(std::uint32_t qpn, Host& host, wire::Link& link, Xrc side = Xrc::None);
  ~RcQueuePair() override;

  void modify(const ibv_qp_attr& attributes, int mask, TimePoint now) override;
  void set_state(ibv_qp_state state) override;
  ibv_qp_state state() const override;
  void query(ibv_qp_attr& attributes) const override;
  bool transmit(unsigned budget, TimePoint now) override;
  bool has_work(TimePoint now) const override;
  bool waits_for_room() const override;
  void receive(const Packet& packet, const wire::Endpoint& source, TimePoint now) override;
  TimePoint deadline() const override;
  void expire(TimePoint now) override;
  void peer_departed(const wire::Endpoint& peer) override;
  const Counters& counters() const override;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace qpair::softnic::roce
