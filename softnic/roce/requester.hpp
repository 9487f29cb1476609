#pragma once
// The side that sends requests (IBTA vol. 1 9.7.2 to 9.7.6): gives each request its PSNs, sends what the
// window, the fence and the read limit allow, matches acknowledgments and responses, and goes back to the
// oldest unacknowledged packet when something was lost.
//
// A request lives in a ring from the time it is taken from the send queue until it is complete:
//
//      front            una_ (oldest unacknowledged PSN)      cursor (next to send)        back
//        [ request ........|....... request ........ request ....|..... request ]  next_psn_
//
// Where the host can reach the other side's memory by itself, a WRITE or READ that finds the ring empty is
// carried out by copying: it has no PSNs and never enters the ring. Whatever is wrong with it is found by the
// other side, from packets.
//
// Reads longer than a share of the window travel as several READ requests, each a message of its own on the
// wire, so that the side that receives the data sets the pace. Data is gathered again from memory for every
// retransmission.

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "softnic/roce/connection.hpp"
#include "softnic/roce/host.hpp"
#include "softnic/roce/request_ring.hpp"
#include "softnic/roce/tunables.hpp"

namespace qpair::softnic::roce {

class Requester {
 public:
  Requester(Connection& connection, Host& host) : connection_(connection), host_(host) {}

  void configure(const ibv_qp_attr& attributes, int mask);
  // RTR to RTS: the first request gets this PSN.
  void start(Psn first);
  // Forgets everything that was outstanding; completes nothing.
  void clear();

  Sent transmit(unsigned budget, TimePoint now);
  // Something has to be sent again, or is still to be sent, that no doorbell will announce.
  bool has_work(TimePoint now) const;
  // …and there is no room for it on the link.
  bool waits_for_room() const;
  bool is_idle() const { return ring_.empty() && !copying_; }
  Psn next_psn() const { return next_psn_; }

  void acknowledged(const Packet& packet, TimePoint now);
  void read_response(const Packet& packet, TimePoint now);
  void atomic_response(const Packet& packet, TimePoint now);
  void reason(const Packet& packet);

  TimePoint deadline() const;
  void expire(TimePoint now);
  // The other side does not exist any more: what is outstanding, or comes to be, has exceeded its retries.
  void peer_departed();
  // From now on the requests are for another side.
  void peer_changed() { peer_is_gone_ = false; }

 private:
  enum class Settled : std::uint8_t { Yes, ResponseMissing, Gone };

  // ---- sending
  bool take_next();
  void enter(const SendRequest& request);
  bool may_be_copied(const SendRequest& request) const;
  enum class Copied : std::uint8_t { Part, Whole, Nothing };  // Nothing: it has entered the ring
  Copied copy_on();
  void fail_departed();
  bool is_impossible(const Outstanding& next) const;
  bool may_send(const Outstanding& next) const;
  std::uint32_t read_chunk(const Outstanding& read) const;
  bool send_at_cursor(TimePoint now);
  bool send_data_packet(const Outstanding& request, std::uint32_t packet, bool probe);
  void send_read_request(const Outstanding& request, std::uint32_t packet, std::uint32_t packets);
  void send_atomic(const Outstanding& request);
  void send_probe();
  void block_on(Refusal why);
  void sent_up_to(Psn end, TimePoint now);

  // ---- positions
  Psn cursor_psn() const;
  std::uint32_t in_flight() const;
  void rewind();

  // ---- acknowledgments
  bool is_outstanding(Psn psn) const { return psn.is_within(una_, sent_); }
  Settled settle(Psn end, TimePoint now);
  bool is_awaited(Psn psn, TimePoint now);
  bool advance(std::uint32_t packets, TimePoint now);
  void response_missing(Psn seen, bool by_response, TimePoint now);
  void sequence_nak(Psn expected, TimePoint now);
  void rnr_nak(Psn psn, std::uint8_t timer, TimePoint now);
  bool consume_retry(std::string_view what);
  void lost_something();
  void fail_front(Refusal why);
  std::string refused_text(NakCode code, Psn psn) const;

  // ---- timers
  void restart_timers(TimePoint now);
  void measured(std::chrono::nanoseconds round_trip);
  void stop_timers() { timers_run_ = false; }

  Connection& connection_;
  Host& host_;
  RequestRing ring_;

  Psn una_;                          // oldest PSN that is not acknowledged
  Psn next_psn_;                     // for the next request
  Psn sent_;                         // one after the highest PSN ever sent (or, for reads, asked for)
  std::uint64_t cursor_ = 0;         // ring position of the request that is being sent
  std::uint32_t cursor_packet_ = 0;  // …and which of its packets is next

  // Ends of the READ and atomic requests in flight, oldest first.
  std::array<Psn, kMaxReadsAtomics> reads_{};
  std::uint8_t reads_head_ = 0, reads_count_ = 0;
  std::uint8_t max_reads_ = 0;

  std::uint32_t window_ = 0, first_window_ = 0, largest_window_ = 0, window_credit_ = 0;
  std::uint32_t unrequested_acks_ = 0;  // packets since the last one with AckReq

  std::uint8_t timeout_ = 0, retry_limit_ = 0, rnr_limit_ = 0;
  std::uint8_t retries_left_ = 0, rnr_left_ = 0;
  bool timers_run_ = false;
  bool rnr_waiting_ = false;
  bool lost_before_ = false;  // since the connection was made
  bool starved_ = false;      // the window or the ring was full when a new request was wanted
  bool went_back_ = false;    // for went_back_to_, and nothing was acknowledged since
  Psn went_back_to_;
  Psn missing_seen_;  // the last response that came although an earlier one is missing
  TimePoint ack_deadline_{}, probe_at_{}, rnr_until_{};
  std::chrono::nanoseconds probe_interval_{};

  // How long answers take, sampled on one packet at a time.
  bool measuring_ = false;
  Psn measured_;
  TimePoint measured_since_{};
  std::chrono::nanoseconds round_trip_{}, round_trip_deviation_{};

  // copied_ bytes of copied_request_ are where they belong, or it waits until the ring is empty.
  bool copying_ = false;
  std::uint64_t copied_ = 0;
  SendRequest copied_request_;

  bool peer_is_gone_ = false;

  std::unique_ptr<Refusal>
      blocked_;  // the request at the cursor cannot be sent; it fails once it is the oldest
  Psn reason_psn_;
  std::unique_ptr<std::string> reason_;  // what the remote side said about reason_psn_
};

}  // namespace qpair::softnic::roce
