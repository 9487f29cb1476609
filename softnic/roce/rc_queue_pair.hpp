#pragma once
// Reliable connected transport of one queue pair: requester and responder, IBTA vol. 1 chapter 9.7 and annex
// A17. A pure state machine: packets, time and memory come in through the calls below and RcHost; it owns no
// thread, no clock and no socket, so a test can narrate every step. Engine thread only. Nothing throws.
//
//      next_send() gather()             read() write() check_remote() …
//              │                                   │
//        Requester ── requests ──▶ … ──▶ Responder of the peer
//              ◀── acknowledgments, responses, NAKs ──┘
//
// Both halves share a Connection (connection.hpp). Other transports go beside this class, not into it: UC is
// the requester and responder without acknowledgments (uc_queue_pair.hpp), UD has neither order nor a peer
// (ud_queue_pair.hpp); both use packet.hpp, whose opcode table has places for them.
//
// An engine calls transmit() after every doorbell, after every batch of receive(), and after expire():
// receive() and expire() note what is to be sent, and transmit() sends it, so that one acknowledgment answers
// a whole batch. deadline() is in the past while such work waits, and expire() does some of it, so nothing is
// lost if a call is left out.

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "softnic/roce/host.hpp"
#include "softnic/roce/packet.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::roce {

using wire::TimePoint;

struct RcCounters {  // names as in a ConnectX's hw_counters directory where there is one
  std::uint64_t packets_sent = 0, packets_received = 0, bytes_sent = 0, bytes_received = 0;
  std::uint64_t duplicate_request = 0, out_of_sequence = 0, packet_seq_err = 0, rnr_nak_retry_err = 0;
  std::uint64_t local_ack_timeout_err = 0, retransmitted_packets = 0;
};

class RcQueuePair {
 public:
  RcQueuePair(std::uint32_t qpn, RcHost& host, wire::Link& link);
  ~RcQueuePair();
  RcQueuePair(const RcQueuePair&) = delete;
  RcQueuePair& operator=(const RcQueuePair&) = delete;

  // Takes over what modify_qp set: `mask` is of enum ibv_qp_attr_mask; attributes are already validated. Peer
  // address from ah_attr.grh.dgid. Includes the state change when the mask has IBV_QP_STATE.
  void modify(const ibv_qp_attr& attributes, int mask, TimePoint now);
  // RESET drops everything; ERR stops sending, answers nothing, and drops what was outstanding without
  // completing it (the host flushes).
  void set_state(ibv_qp_state state);
  ibv_qp_state state() const;
  // Fills what the transport knows: PSNs (sq_psn: next to send; rq_psn: next expected), sq_draining.
  void query(ibv_qp_attr& attributes) const;

  // Sends what may be sent now, at most `budget` packets. True: more could be sent at once.
  bool transmit(unsigned budget, TimePoint now);
  // True: transmit() has something to send even if no doorbell was rung.
  bool has_work(TimePoint now) const;
  // One packet for this queue pair; its CRC and partition key were checked. `source` is checked here against
  // the peer.
  void receive(const Packet& packet, const wire::Endpoint& source, TimePoint now);
  // When expire() has to be called next; TimePoint::max() when never.
  TimePoint deadline() const;
  void expire(TimePoint now);

  const RcCounters& counters() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace qpair::softnic::roce
