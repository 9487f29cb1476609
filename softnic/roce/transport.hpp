#pragma once
// The transport of one queue pair, whatever its service: reliable connection (rc_queue_pair.hpp), unreliable
// connection (uc_queue_pair.hpp), unreliable datagram (ud_queue_pair.hpp). Engine thread only. Nothing
// throws.
//
// An engine calls transmit() after every doorbell, after every batch of receive(), and after expire():
// receive() and expire() note what is to be sent, and transmit() sends it, so that one acknowledgment answers
// a whole batch. deadline() is in the past while such work waits, and expire() does some of it, so nothing is
// lost if a call is left out.

#include <infiniband/verbs.h>

#include <cstdint>

#include "softnic/observe/counters.hpp"
#include "softnic/roce/packet.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::roce {

using wire::TimePoint;

using observe::Counters;

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  // Takes over what modify_qp set: `mask` is of enum ibv_qp_attr_mask; attributes are already validated. Peer
  // address from ah_attr.grh.dgid. Includes the state change when the mask has IBV_QP_STATE.
  virtual void modify(const ibv_qp_attr& attributes, int mask, TimePoint now) = 0;
  // RESET drops everything; ERR stops sending, answers nothing, and drops what was outstanding without
  // completing it (the host flushes).
  virtual void set_state(ibv_qp_state state) = 0;
  virtual ibv_qp_state state() const = 0;
  // Fills what the transport knows: PSNs (sq_psn: next to send; rq_psn: next expected), sq_draining.
  virtual void query(ibv_qp_attr& attributes) const = 0;

  // Sends what may be sent now, at most `budget` packets. True: more could be sent at once.
  virtual bool transmit(unsigned budget, TimePoint now) = 0;
  // True: transmit() has something to send even if no doorbell was rung.
  virtual bool has_work(TimePoint now) const = 0;
  // True: the link has no room for what is next (Link::has_room()), though it is this queue pair's turn.
  virtual bool waits_for_room() const { return false; }
  // One packet for this queue pair; its CRC and partition key were checked. `source` is checked here against
  // the peer.
  virtual void receive(const Packet& packet, const wire::Endpoint& source, TimePoint now) = 0;
  // One packet to a multicast group that this queue pair is attached to. Only datagrams come that way.
  virtual void receive_multicast(const Packet& packet, const wire::Endpoint& source,
                                 const wire::Endpoint& group) {
    static_cast<void>(packet), static_cast<void>(source), static_cast<void>(group);
  }
  // When expire() has to be called next; TimePoint::max() when never.
  virtual TimePoint deadline() const = 0;
  virtual void expire(TimePoint now) = 0;

  // The NIC at that address is gone. Whoever waits for its answers waits no longer.
  virtual void peer_departed(const wire::Endpoint& peer) { static_cast<void>(peer); }

  virtual const Counters& counters() const = 0;
};

}  // namespace qpair::softnic::roce
