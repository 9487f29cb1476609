// Requester: what acknowledgments, NAKs and responses mean for what is outstanding.

#include <fmt/format.h>

#include <algorithm>

#include "softnic/roce/requester.hpp"

namespace qpair::softnic::roce {

void Requester::acknowledged(const Packet& packet, TimePoint now) {
  const Psn psn = packet.sequence();
  if (!is_outstanding(psn)) return;  // about something that is complete, or was never sent
  const Aeth aeth = packet.aeth();
  switch (aeth.kind()) {
    case AckKind::Ack:
      if (settle(psn + 1, now) == Settled::ResponseMissing) response_missing(una_, false, now);
      return;
    case AckKind::Rnr:
      return rnr_nak(psn, aeth.value(), now);
    case AckKind::Reserved:
      return;
    case AckKind::Nak:
      break;
  }
  if (aeth.value() > static_cast<std::uint8_t>(NakCode::RemoteOperation)) return;
  const auto code = static_cast<NakCode>(aeth.value());
  if (code == NakCode::SequenceError) return sequence_nak(psn, now);
  switch (settle(psn, now)) {
    case Settled::Yes:
      return fail_front(refusal_of(code, refused_text(code, psn)));
    case Settled::ResponseMissing:
      return response_missing(una_, false, now);
    case Settled::Gone:
      return;
  }
}

// Everything before `end` was carried out by the responder. Sends and writes among it are complete; a read or
// atomic is only when its response is here.
Requester::Settled Requester::settle(Psn end, TimePoint now) {
  while (!ring_.empty() && una_.is_before(end)) {
    const Outstanding& front = ring_.front();
    if (front.awaits_data()) return Settled::ResponseMissing;
    const auto acknowledged =
        static_cast<std::uint32_t>(std::min(Psn::distance(una_, end), Psn::distance(una_, front.end())));
    if (!advance(acknowledged, now)) return Settled::Gone;
  }
  return Settled::Yes;
}

// False: the host ended the connection meanwhile.
bool Requester::advance(std::uint32_t packets, TimePoint now) {
  una_ += packets;
  if (measuring_ && !una_.is_before(measured_)) measured(now - measured_since_);
  retries_left_ = retry_limit_;
  rnr_left_ = rnr_limit_;
  went_back_ = false;
  rnr_waiting_ = false;  // a copy of what was refused has been accepted
  window_credit_ += packets;
  if (window_credit_ >= window_) {
    window_credit_ = 0;
    const std::uint32_t growth =
        lost_before_ ? std::max(1U, first_window_ / kWindowGrowthShare) : window_ / 2;
    window_ = std::min(largest_window_, window_ + growth);
  }
  while (reads_count_ != 0 && !una_.is_before(reads_[reads_head_])) {
    reads_head_ = static_cast<std::uint8_t>((reads_head_ + 1) % kMaxReadsAtomics);
    --reads_count_;
  }
  if (una_ == sent_) {
    stop_timers();
  } else {
    restart_timers(now);
  }
  const Outstanding& front = ring_.front();
  const std::uint32_t settled = (una_.value() - front.first.value()) & Psn::kMask;
  if (cursor_ == ring_.head() && cursor_packet_ < settled) cursor_packet_ = settled;
  if (una_ != front.end()) return true;
  if (cursor_ == ring_.head()) {
    ++cursor_;
    cursor_packet_ = 0;
  }
  const SendRequest done = front.request;
  ring_.pop();
  host_.send_done(done);
  return connection_.requests();
}

// A response acknowledges everything before it. Whether it is the one that is awaited now, for the request at
// the front.
bool Requester::is_awaited(Psn psn, TimePoint now) {
  if (!is_outstanding(psn)) return false;
  switch (settle(psn, now)) {
    case Settled::Yes:
      return una_ == psn;
    case Settled::ResponseMissing:
      if (una_ == psn) return true;
      response_missing(psn, true, now);
      return false;
    case Settled::Gone:
      break;
  }
  return false;
}

void Requester::read_response(const Packet& packet, TimePoint now) {
  const Psn psn = packet.sequence();
  if (!is_awaited(psn, now) || !ring_.front().is_read()) return;
  const Outstanding& read = ring_.front();
  const std::uint64_t offset =
      std::uint64_t{(psn.value() - read.first.value()) & Psn::kMask} * connection_.mtu;
  const std::uint64_t expected = std::min<std::uint64_t>(connection_.mtu, read.request.length - offset);
  const std::span<std::byte> data = packet.payload();
  if (data.size() != expected) {
    return fail_front(
        {mlx5::Syndrome::BadResponse, vendor_error::kUnknown,
         fmt::format("a read response of {} bytes came where {} were due (bytes {} to {} of {})", data.size(),
                     expected, offset, offset + expected, read.request.length)});
  }
  if (!data.empty()) {
    if (Check stored = host_.scatter(read.request, offset, data); !stored)
      return fail_front(std::move(stored.error()));
  }
  static_cast<void>(advance(1, now));
}

void Requester::atomic_response(const Packet& packet, TimePoint now) {
  if (!is_awaited(packet.sequence(), now) || !ring_.front().is_atomic()) return;
  const std::uint64_t original = packet.atomic_original();
  const auto bytes = std::as_bytes(std::span(&original, 1));
  if (Check stored = host_.scatter(ring_.front().request, 0, bytes); !stored) {
    return fail_front(std::move(stored.error()));
  }
  static_cast<void>(advance(1, now));
}

// Something later was answered, so the response that is awaited was lost: an implied NAK (IBTA vol.
// 1 9.7.5.1.1). The request is repeated from the first missing packet. Other late answers say the same thing
// again and are ignored, unless they start over, which shows that the repeated response was lost too.
void Requester::response_missing(Psn seen, bool by_response, TimePoint now) {
  const bool known = went_back_ && went_back_to_ == una_;
  if (known && (!by_response || missing_seen_.is_before(seen))) {
    if (by_response) missing_seen_ = seen;
    return;
  }
  if (!known) {
    ++connection_.counters.implied_nak_seq_err;
    if (!consume_retry("a read or atomic response was lost")) return;
    lost_something();
    restart_timers(now);
  }
  rewind();
  missing_seen_ = seen;
}

void Requester::sequence_nak(Psn expected, TimePoint now) {
  switch (settle(expected, now)) {
    case Settled::Yes:
      break;
    case Settled::ResponseMissing:
      return response_missing(una_, false, now);
    case Settled::Gone:
      return;
  }
  ++connection_.counters.packet_seq_err;
  if (in_flight() == 0) return;  // already back there
  // The same packet lost again is no new retry; the local ACK timeout limits how often that can happen.
  if (!(went_back_ && went_back_to_ == una_)) {
    if (!consume_retry("the remote side reports a lost packet")) return;
    lost_something();
  }
  rewind();
}

void Requester::rnr_nak(Psn psn, std::uint8_t timer, TimePoint now) {
  switch (settle(psn, now)) {
    case Settled::Yes:
      break;
    case Settled::ResponseMissing:
      return response_missing(una_, false, now);
    case Settled::Gone:
      return;
  }
  if (in_flight() == 0) return;  // the same NAK again, while waiting
  ++connection_.counters.rnr_nak_retry_err;
  if (rnr_limit_ != 7) {  // 7 means for ever (IBTA vol. 1 9.7.5.2.8)
    if (rnr_left_ == 0) {
      return fail_front(
          {mlx5::Syndrome::RnrRetryExceeded, vendor_error::kRnrRetryExceeded,
           fmt::format("the remote side had no receive posted and said so {} times (rnr_retry {})",
                       rnr_limit_ + 1, rnr_limit_)});
    }
    --rnr_left_;
  }
  rewind();
  // The packet arrived, so nothing is lost: what the wait costs in losses is counted from here.
  went_back_ = false;
  retries_left_ = retry_limit_;
  rnr_waiting_ = true;
  rnr_until_ = now + rnr_delay(timer);
  stop_timers();
}

bool Requester::consume_retry(std::string_view what) {
  if (retries_left_ == 0) {
    fail_front({mlx5::Syndrome::TransportRetryExceeded, vendor_error::kRetryExceeded,
                fmt::format("{}, and {} retries are used up (PSN {:#x})", what, retry_limit_, una_.value())});
    return false;
  }
  --retries_left_;
  return true;
}

void Requester::lost_something() {
  window_ = std::max(kSmallestWindowPackets, window_ / 2);
  lost_before_ = true;
  window_credit_ = 0;
}

void Requester::fail_front(Refusal why) {
  const SendRequest request = ring_.front().request;
  const Refusal reason = std::move(why);
  connection_.state = IBV_QPS_ERR;
  clear();
  host_.send_failed(request, reason);
}

void Requester::reason(const Packet& packet) {
  if (!is_outstanding(packet.sequence())) return;
  const std::span<std::byte> payload = packet.payload();
  std::string text(reinterpret_cast<const char*>(payload.data()), std::min(payload.size(), kMaxReasonBytes));
  // It ends up on a terminal: no control characters, of either kind.
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1 = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c1) text[i + 1] = ' ';
    if (c < 0x20 || c == 0x7f || c1) text[i] = ' ';
  }
  reason_psn_ = packet.sequence();
  reason_ = std::make_unique<std::string>(std::move(text));
}

std::string Requester::refused_text(NakCode code, Psn psn) const {
  if (reason_ && reason_psn_ == psn && !reason_->empty())
    return fmt::format("remote side refused: {}", *reason_);
  return fmt::format("remote side refused: {} (it did not say more)", name(code));
}

}  // namespace qpair::softnic::roce
