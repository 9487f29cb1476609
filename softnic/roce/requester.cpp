#include "softnic/roce/requester.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "softnic/wire/address.hpp"

namespace qpair::softnic::roce {
namespace {

// A message of 1 GiB, the most a ConnectX sends at once, at the smallest path MTU. Two of them fit the PSN
// circle.
constexpr std::uint64_t kMaxPackets = 1U << 22;

Opcode send_opcode(Operation operation, bool first, bool last) {
  if (first && last) {
    if (operation == Operation::SendImm) return Opcode::SendOnlyImm;
    return operation == Operation::SendInvalidate ? Opcode::SendOnlyInvalidate : Opcode::SendOnly;
  }
  if (first) return Opcode::SendFirst;
  if (!last) return Opcode::SendMiddle;
  if (operation == Operation::SendImm) return Opcode::SendLastImm;
  return operation == Operation::SendInvalidate ? Opcode::SendLastInvalidate : Opcode::SendLast;
}

Opcode write_opcode(Operation operation, bool first, bool last) {
  const bool immediate = operation == Operation::WriteImm;
  if (first && last) return immediate ? Opcode::WriteOnlyImm : Opcode::WriteOnly;
  if (first) return Opcode::WriteFirst;
  if (!last) return Opcode::WriteMiddle;
  return immediate ? Opcode::WriteLastImm : Opcode::WriteLast;
}

bool is_write(Operation operation) {
  return operation == Operation::Write || operation == Operation::WriteImm;
}

}  // namespace

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
  rnr_waiting_ = went_back_ = starved_ = measuring_ = false;
  stop_timers();
  blocked_.reset();
  reason_.reset();
}

// ---- Sending
// ----------------------------------------------------------------------------------------------------

Sent Requester::transmit(unsigned budget, TimePoint now) {
  Sent result;
  while (connection_.requests()) {
    if (rnr_waiting_ && now < rnr_until_) break;
    rnr_waiting_ = false;
    if (cursor_ == ring_.tail() && !take_next()) break;
    if (blocked_) {
      if (cursor_ == ring_.head()) fail_front(std::move(*blocked_));
      break;
    }
    if (!may_send(ring_.at(cursor_))) break;
    if (result.packets == budget) {
      result.more = true;
      break;
    }
    if (send_at_cursor(now)) ++result.packets;
  }
  return result;
}

bool Requester::has_work(TimePoint now) const {
  if (!connection_.requests() || (rnr_waiting_ && now < rnr_until_)) return false;
  if (blocked_) return cursor_ == ring_.head();
  if (cursor_ != ring_.tail()) return may_send(ring_.at(cursor_));
  return starved_ && !ring_.full() && in_flight() < window_;
}

bool Requester::take_next() {
  if (connection_.state != IBV_QPS_RTS) return false;
  starved_ = ring_.full() || in_flight() >= window_;
  if (starved_) return false;
  SendRequest request;
  if (!host_.next_send(request) || connection_.state != IBV_QPS_RTS) return false;
  Outstanding& next = ring_.push();
  next.request = request;
  next.first = next_psn_;
  const std::uint64_t packets = next.is_atomic() ? 1 : connection_.packets_for(request.length);
  next.packets = static_cast<std::uint32_t>(std::min(packets, kMaxPackets));
  next_psn_ += next.packets;
  if (packets > kMaxPackets) {
    block_on({mlx5::Syndrome::LocalLength, vendor_error::kUnknown,
              fmt::format("a message of {} bytes takes more than {} packets of {} bytes", request.length,
                          kMaxPackets, connection_.mtu)});
  } else if (next.awaits_data() && max_reads_ == 0) {
    block_on({mlx5::Syndrome::LocalQpOperation, vendor_error::kUnknown,
              "max_rd_atomic is 0: this queue pair was connected without room for reads and atomics"});
  }
  return true;
}

bool Requester::may_send(const Outstanding& next) const {
  if (((next.end().value() - una_.value()) & Psn::kMask) > static_cast<std::uint32_t>(Psn::kMaxSpan))
    return false;
  if (cursor_packet_ == 0 && next.request.fence && reads_count_ != 0) return false;
  if (next.awaits_data() && reads_count_ >= max_reads_) return false;
  const std::uint32_t flying = in_flight();
  if (flying == 0) return true;
  if (next.is_read()) return flying + read_chunk(next) <= window_;
  return flying < window_;
}

// How many packets the READ request at the cursor asks for. The boundaries within a request never move: a
// responder knows a repeated request by the one that it repeats a part of (IBTA vol. 1 9.7.4.4).
std::uint32_t Requester::read_chunk(const Outstanding& read) const {
  std::uint32_t chunk = read.chunk;
  if (chunk == 0) {
    chunk = std::max(window_ / std::min<std::uint32_t>(max_reads_, kReadsPerWindow), kSmallestReadPackets);
  }
  const std::uint32_t end = std::min(read.packets, (cursor_packet_ / chunk + 1) * chunk);
  return end - cursor_packet_;
}

bool Requester::send_at_cursor(TimePoint now) {
  Outstanding& next = ring_.at(cursor_);
  const Psn psn = cursor_psn();
  std::uint32_t packets = 1;
  if (next.is_read()) {
    packets = read_chunk(next);
    if (next.chunk == 0) next.chunk = packets;  // the first one is always whole
    send_read_request(next, cursor_packet_, packets);
  } else if (next.is_atomic()) {
    send_atomic(next);
  } else if (!send_data_packet(next, cursor_packet_, false)) {
    return false;
  }
  if (psn.is_before(sent_)) ++connection_.counters.retransmitted_packets;
  if (next.awaits_data()) {
    reads_[(reads_head_ + reads_count_) % kMaxReadsAtomics] = psn + packets;
    ++reads_count_;
  }
  cursor_packet_ += packets;
  if (cursor_packet_ == next.packets) {
    ++cursor_;
    cursor_packet_ = 0;
  }
  sent_up_to(psn + packets, now);
  return true;
}

bool Requester::send_data_packet(const Outstanding& outstanding, std::uint32_t packet, bool probe) {
  const SendRequest& request = outstanding.request;
  const std::uint64_t offset = std::uint64_t{packet} * connection_.mtu;
  const bool first = packet == 0;
  const bool last = packet + 1 == outstanding.packets;
  const std::size_t size = last ? request.length - offset : connection_.mtu;
  PacketHeader header;
  header.opcode = is_write(request.operation) ? write_opcode(request.operation, first, last)
                                              : send_opcode(request.operation, first, last);
  header.psn = outstanding.first + packet;
  header.solicited = last && request.solicited && request.operation != Operation::Write;
  header.ack_request =
      last || probe || unrequested_acks_ + 1 >= window_ / kAckRequestsPerWindow || in_flight() + 1 >= window_;
  auto out = Outgoing::begin(connection_, header, size);
  if (!out) return true;
  PacketWriter& writer = out->writer();
  if (first) {
    writer.set_reth({request.remote_address, request.rkey, static_cast<std::uint32_t>(request.length)});
  }
  if (last) {
    writer.set_immediate(request.immediate);
    writer.set_invalidated_key(request.immediate);
  }
  if (size != 0) {
    if (Check read = host_.gather(request, offset, writer.payload()); !read) {
      if (!probe) block_on(std::move(read.error()));
      return false;
    }
  }
  out->finish();
  if (!probe) unrequested_acks_ = header.ack_request ? 0 : unrequested_acks_ + 1;
  return true;
}

void Requester::send_read_request(const Outstanding& read, std::uint32_t packet, std::uint32_t packets) {
  const std::uint64_t offset = std::uint64_t{packet} * connection_.mtu;
  const std::uint64_t length =
      std::min(std::uint64_t{packets} * connection_.mtu, read.request.length - offset);
  PacketHeader header;
  header.opcode = Opcode::ReadRequest;
  header.psn = read.first + packet;
  header.ack_request = true;
  auto out = Outgoing::begin(connection_, header, 0);
  if (!out) return;
  out->writer().set_reth(
      {read.request.remote_address + offset, read.request.rkey, static_cast<std::uint32_t>(length)});
  out->finish();
}

void Requester::send_atomic(const Outstanding& atomic) {
  const SendRequest& request = atomic.request;
  const bool swap = request.operation == Operation::CompareSwap;
  PacketHeader header;
  header.opcode = swap ? Opcode::CompareSwap : Opcode::FetchAdd;
  header.psn = atomic.first;
  header.ack_request = true;
  auto out = Outgoing::begin(connection_, header, 0);
  if (!out) return;
  out->writer().set_atomic(
      {request.remote_address, request.rkey, request.swap_add, swap ? request.compare : 0});
  out->finish();
}

// A read or atomic that is waited for is asked for again. Otherwise the last packet that was sent goes out
// once more: if it was lost, that repairs it; if one before it was lost, it draws the NAK; if the
// acknowledgment was lost, another.
void Requester::send_probe() {
  if (in_flight() == 0) return;  // transmit() will send
  ++connection_.counters.retransmitted_packets;
  const Outstanding& front = ring_.front();
  if (front.is_atomic()) return send_atomic(front);
  if (front.is_read()) {
    const std::uint32_t start = (una_.value() - front.first.value()) & Psn::kMask;
    const std::uint32_t end = std::min(front.packets, (start / front.chunk + 1) * front.chunk);
    return send_read_request(front, start, end - start);
  }
  std::uint64_t position = cursor_;
  std::uint32_t packet = cursor_packet_;
  while (packet == 0) packet = ring_.at(--position).packets;
  const Outstanding& last = ring_.at(position);
  if (last.is_atomic()) return send_atomic(last);
  if (!last.is_read()) return static_cast<void>(send_data_packet(last, packet - 1, true));
  const std::uint32_t start = (packet - 1) / last.chunk * last.chunk;
  send_read_request(last, start, packet - start);
}

void Requester::block_on(Refusal why) {
  blocked_ = std::make_unique<Refusal>(std::move(why));
}

void Requester::sent_up_to(Psn end, TimePoint now) {
  if (sent_.is_before(end)) sent_ = end;
  if (!timers_run_) restart_timers(now);
  if (!measuring_ && end == sent_) {
    measuring_ = true;
    measured_ = end;
    measured_since_ = now;
  }
}

// ---- Positions
// --------------------------------------------------------------------------------------------------

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

// ---- Acknowledgments
// --------------------------------------------------------------------------------------------

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

void Requester::read_response(const Packet& packet, TimePoint now) {
  const Psn psn = packet.sequence();
  if (!is_outstanding(psn)) return;
  switch (settle(psn, now)) {
    case Settled::Yes:
      break;
    case Settled::ResponseMissing:
      if (una_ != psn) return response_missing(psn, true, now);
      break;
    case Settled::Gone:
      return;
  }
  if (una_ != psn || !ring_.front().is_read()) return;
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
  const Psn psn = packet.sequence();
  if (!is_outstanding(psn)) return;
  switch (settle(psn, now)) {
    case Settled::Yes:
      break;
    case Settled::ResponseMissing:
      if (una_ != psn) return response_missing(psn, true, now);
      break;
    case Settled::Gone:
      return;
  }
  if (una_ != psn || !ring_.front().is_atomic()) return;
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
  went_back_ = false;  // nothing was lost
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

// ---- Timers
// -----------------------------------------------------------------------------------------------------

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
