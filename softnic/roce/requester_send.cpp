// Requester: which packet goes next, and how it is filled.

#include <fmt/format.h>

#include <algorithm>

#include "softnic/roce/message.hpp"
#include "softnic/roce/requester.hpp"

namespace qpair::softnic::roce {

namespace {

// A message of 1 GiB, the most a ConnectX sends at once, at the smallest path MTU. Two of them fit the PSN
// circle.
constexpr std::uint64_t kMaxPackets = 1U << 22;

}  // namespace

Sent Requester::transmit(unsigned budget, TimePoint now) {
  Sent result;
  while (connection_.requests()) {
    if (rnr_waiting_ && now < rnr_until_) break;
    rnr_waiting_ = false;
    if (cursor_ == ring_.tail() && !copying_ && !take_next()) break;
    if (peer_is_gone_ && !ring_.empty()) {
      fail_departed();
      break;
    }
    if (copying_ && ring_.empty()) {
      const Copied copied = result.packets == budget ? Copied::Part : copy_on();
      result.more = copied == Copied::Part;
      if (result.more) break;
      if (copied == Copied::Whole) ++result.packets;
      continue;
    }
    if (cursor_ == ring_.tail()) break;  // a copy waits for the answers to what came before it
    if (blocked_) {
      if (cursor_ == ring_.head()) fail_front(std::move(*blocked_));
      break;
    }
    if (is_impossible(ring_.at(cursor_))) {
      block_on({mlx5::Syndrome::LocalQpOperation, vendor_error::kUnknown,
                "max_rd_atomic is 0: this queue pair was connected without room for reads and atomics"});
      continue;
    }
    if (!may_send(ring_.at(cursor_)) || connection_.is_blocked()) break;
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
  // Of a copy: transmit() said that there is more, or an acknowledgment will lead to it.
  if (copying_ && cursor_ == ring_.tail()) return false;
  if (blocked_) return cursor_ == ring_.head();
  if (cursor_ != ring_.tail()) {
    const Outstanding& next = ring_.at(cursor_);
    return is_impossible(next) || (may_send(next) && !connection_.is_blocked());
  }
  return connection_.state == IBV_QPS_RTS && starved_ && !ring_.full() && in_flight() < window_;
}

bool Requester::waits_for_room() const {
  return connection_.requests() && !rnr_waiting_ && !blocked_ && cursor_ != ring_.tail() &&
         may_send(ring_.at(cursor_)) && connection_.is_blocked();
}

bool Requester::take_next() {
  if (connection_.state != IBV_QPS_RTS) return false;
  starved_ = ring_.full() || in_flight() >= window_;
  if (starved_) return false;
  SendRequest request;
  if (!host_.next_send(request) || connection_.state != IBV_QPS_RTS) return false;
  // A long one that can be copied waits until what came before it is complete. In a stream of them that is
  // how packets end: more may always be on their way since the first ones, which nobody knew how to copy yet.
  copying_ = may_be_copied(request) &&
             (ring_.empty() || (request.length >= kWorthWaiting && host_.can_copy(request, kCopyPiece)));
  if (copying_) {
    copied_request_ = request;
    copied_ = 0;
  } else {
    enter(request);
  }
  return true;
}

bool Requester::may_be_copied(const SendRequest& request) const {
  if (request.length == 0 || peer_is_gone_) return false;
  return request.operation == Operation::Write || (request.operation == Operation::Read && max_reads_ != 0);
}

// Some more of the request that is being copied.
Requester::Copied Requester::copy_on() {
  const auto moved = host_.copy(copied_request_, copied_, kCopyPiece);
  if (moved && copied_ + *moved < copied_request_.length) {
    copied_ += *moved;
    return Copied::Part;
  }
  copying_ = false;
  if (!moved) {
    enter(copied_request_);
    return Copied::Nothing;
  }
  host_.send_done(copied_request_);
  return Copied::Whole;
}

// Its PSNs are the next ones.
void Requester::enter(const SendRequest& request) {
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
  }
}

bool Requester::is_impossible(const Outstanding& next) const {
  return next.awaits_data() && max_reads_ == 0;
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
  host_.transmitting(request);
  const std::uint64_t offset = std::uint64_t{packet} * connection_.mtu;
  const bool first = packet == 0;
  const bool last = packet + 1 == outstanding.packets;
  const std::size_t size = last ? request.length - offset : connection_.mtu;
  PacketHeader header;
  header.opcode = message_opcode(request.operation, first, last);
  header.psn = outstanding.first + packet;
  header.solicited = last && request.solicited && request.operation != Operation::Write;
  header.ack_request =
      last || probe || unrequested_acks_ + 1 >= window_ / kAckRequestsPerWindow || in_flight() + 1 >= window_;
  auto out = Outgoing::begin(connection_, header, size);
  if (!out) return true;
  PacketWriter& writer = out->writer();
  writer.set_xrc_srqn(request.xrc_srqn);
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
  host_.transmitting(read.request);
  const std::uint64_t offset = std::uint64_t{packet} * connection_.mtu;
  const std::uint64_t length =
      std::min(std::uint64_t{packets} * connection_.mtu, read.request.length - offset);
  PacketHeader header;
  header.opcode = Opcode::ReadRequest;
  header.psn = read.first + packet;
  header.ack_request = true;
  auto out = Outgoing::begin(connection_, header, 0);
  if (!out) return;
  out->writer().set_xrc_srqn(read.request.xrc_srqn);
  out->writer().set_reth(
      {read.request.remote_address + offset, read.request.rkey, static_cast<std::uint32_t>(length)});
  out->finish();
}

void Requester::send_atomic(const Outstanding& atomic) {
  const SendRequest& request = atomic.request;
  host_.transmitting(request);
  const bool swap = request.operation == Operation::CompareSwap;
  PacketHeader header;
  header.opcode = swap ? Opcode::CompareSwap : Opcode::FetchAdd;
  header.psn = atomic.first;
  header.ack_request = true;
  auto out = Outgoing::begin(connection_, header, 0);
  if (!out) return;
  out->writer().set_xrc_srqn(request.xrc_srqn);
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

}  // namespace qpair::softnic::roce
