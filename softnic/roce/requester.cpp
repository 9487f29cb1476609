#include "softnic/roce/requester.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "softnic/wire/address.hpp"

namespace qpair::softnic::roce {

void Requester::configure(const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_TIMEOUT) != 0) timeout_ = attributes.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) retry_limit_ = retries_left_ = attributes.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) rnr_limit_ = rnr_left_ = attributes.rnr_retry;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0)
    max_reads_ = std::min<std::uint8_t>(attributes.max_rd_atomic, kMaxReadsAtomics);
}

void Requester::start(Psn first) {
  clear();
  una_ = next_psn_ = sent_ = first;
  first_window_ =
      std::clamp(kFirstWindowBytes / connection_.mtu, kSmallestWindowPackets, kFirstWindowPackets);
  largest_window_ = std::min(kLargestWindowBytes / connection_.mtu, kLargestWindowPackets);
  window_ = first_window_;
  lost_before_ = false;
  peer_is_gone_ = false;
  round_trip_ = round_trip_deviation_ = {};
  window_credit_ = 0;
  retries_left_ = retry_limit_;
  rnr_left_ = rnr_limit_;
}

void Requester::clear() {
  ring_.clear();
  una_ = next_psn_ = sent_;
  cursor_ = ring_.tail();
  cursor_packet_ = 0;
  reads_head_ = reads_count_ = 0;
  unrequested_acks_ = 0;
  copying_ = false;
  rnr_waiting_ = went_back_ = starved_ = measuring_ = false;
  stop_timers();
  blocked_.reset();
  reason_.reset();
}

// ---- Positions ----------------------------------------------------------------------------------

Psn Requester::cursor_psn() const {
  return cursor_ == ring_.tail() ? next_psn_ : ring_.at(cursor_).first + cursor_packet_;
}

std::uint32_t Requester::in_flight() const {
  return (cursor_psn().value() - una_.value()) & Psn::kMask;
}

// Go back to the oldest packet that is not acknowledged. READ and atomic requests count as not sent;
// responses to them that are still on their way are taken all the same.
void Requester::rewind() {
  cursor_ = ring_.head();
  cursor_packet_ = ring_.empty() ? 0 : (una_.value() - ring_.front().first.value()) & Psn::kMask;
  reads_head_ = reads_count_ = 0;
  unrequested_acks_ = 0;
  measuring_ = false;  // an answer could be to either copy
  blocked_.reset();
  went_back_ = true;
  went_back_to_ = missing_seen_ = una_;
}

// ---- Timers -------------------------------------------------------------------------------------

void Requester::restart_timers(TimePoint now) {
  timers_run_ = true;
  probe_interval_ = std::clamp(round_trip_ + 4 * round_trip_deviation_, kFirstProbe, kLongestProbe);
  probe_at_ = now + probe_interval_;
  ack_deadline_ =
      timeout_ == 0 ? TimePoint::max() : now + std::max(ack_timeout(timeout_), kShortestAckTimeout);
}

// Smoothed as in RFC 6298: a peer on a busy machine answers late, and probing it would only keep it busier.
void Requester::measured(std::chrono::nanoseconds round_trip) {
  measuring_ = false;
  const auto off = round_trip > round_trip_ ? round_trip - round_trip_ : round_trip_ - round_trip;
  round_trip_deviation_ += (off - round_trip_deviation_) / 4;
  round_trip_ += (round_trip - round_trip_) / 8;
}

TimePoint Requester::deadline() const {
  if (!connection_.requests()) return TimePoint::max();
  if (rnr_waiting_) return rnr_until_;
  return timers_run_ ? std::min(probe_at_, ack_deadline_) : TimePoint::max();
}

void Requester::peer_departed() {
  if (!connection_.requests()) return;
  peer_is_gone_ = true;
  if (!ring_.empty()) fail_departed();
}

void Requester::fail_departed() {
  fail_front(
      {mlx5::Syndrome::TransportRetryExceeded, vendor_error::kRetryExceeded,
       fmt::format("{} (queue pair {:#x}) does not answer PSN {:#x} and never will: its process has ended",
                   wire::to_string(connection_.peer), connection_.peer_qpn, una_.value())});
}

void Requester::expire(TimePoint now) {
  if (!connection_.requests()) return;
  if (rnr_waiting_) {
    if (now >= rnr_until_) rnr_waiting_ = false;
    return;
  }
  if (!timers_run_ || ring_.empty()) return;
  if (now >= ack_deadline_) {
    ++connection_.counters.local_ack_timeout_err;
    if (retries_left_ == 0) {
      const auto wait =
          std::chrono::duration<double, std::milli>(std::max(ack_timeout(timeout_), kShortestAckTimeout));
      return fail_front(
          {mlx5::Syndrome::TransportRetryExceeded, vendor_error::kRetryExceeded,
           fmt::format("{} (queue pair {:#x}) did not answer PSN {:#x}: {} retries of {:.1f} ms each",
                       wire::to_string(connection_.peer), connection_.peer_qpn, una_.value(), retry_limit_,
                       wait.count())});
    }
    --retries_left_;
    lost_something();
    rewind();
    restart_timers(now);
  } else if (now >= probe_at_) {
    send_probe();
    probe_interval_ = std::min(probe_interval_ * 2, kLongestProbe);
    probe_at_ = now + probe_interval_;
  }
}

}  // namespace qpair::softnic::roce
