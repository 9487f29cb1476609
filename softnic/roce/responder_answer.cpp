// Responder: the answers that wait, and how they leave.

#include <algorithm>

#include "softnic/roce/responder.hpp"

namespace qpair::softnic::roce {

// More may be allowed while some wait (SQD to SQD): those come to lie at the beginning.
void Responder::make_room_for_responses() {
  if (responses_.size() >= 2U * max_reads_) return;
  std::rotate(responses_.begin(), responses_.begin() + response_head_, responses_.end());
  response_head_ = 0;
  responses_.resize(2U * max_reads_);
}

// Half of the ring is for new answers, of which there are at most max_reads_, so there is room.
Responder::Response* Responder::push_response() {
  make_room_for_responses();
  Response& added = response(response_count_++);
  added = {};
  ++new_responses_;
  return &added;
}

// Repeated answers go before newer ones, in the order of their PSNs: whatever comes too early is of no use to
// the requester. Half of the ring is theirs.
Responder::Response* Responder::insert_response(Psn psn) {
  make_room_for_responses();
  if (response_count_ - new_responses_ >= max_reads_) return nullptr;
  std::uint32_t place = response_count_++;
  for (; place > 0 && psn.is_before(response(place - 1).first); --place)
    response(place) = response(place - 1);
  Response& added = response(place);
  added = {};
  added.first = psn;
  added.is_duplicate = true;
  return &added;
}

void Responder::pop_response() {
  if (!response(0).is_duplicate) --new_responses_;
  response_head_ = (response_head_ + 1) % static_cast<std::uint32_t>(responses_.size());
  --response_count_;
}

Sent Responder::transmit(unsigned budget) {
  Sent result;
  if (repeat_refusal_ && budget != 0) {
    repeat_refusal_ = false;
    send_refusal_packets(*refused_);
    result.packets = 1;
    return result;
  }
  while (connection_.responds() && has_work() && !connection_.is_blocked()) {
    if (result.packets == budget) {
      result.more = true;
      break;
    }
    ++result.packets;
    if (response_count_ != 0) {
      Response& next = response(0);
      if (!send_response(next) || next.sent == next.packets) pop_response();
    } else if (refusal_) {
      send_refusal();
    } else {
      send_reply();
    }
  }
  return result;
}

// False: there is nothing more to send of it.
bool Responder::send_response(Response& next) {
  const std::uint32_t packet = next.sent++;
  PacketHeader header;
  header.psn = next.first + packet;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  if (next.is_atomic) {
    header.opcode = Opcode::AtomicAcknowledge;
  } else {
    const bool last = next.sent == next.packets;
    header.opcode = packet == 0 ? (last ? Opcode::ReadResponseOnly : Opcode::ReadResponseFirst)
                                : (last ? Opcode::ReadResponseLast : Opcode::ReadResponseMiddle);
    offset = std::uint64_t{packet} * connection_.mtu;
    size = std::min<std::uint64_t>(connection_.mtu, next.value - offset);
  }
  auto out = Outgoing::begin(connection_, header, size);
  if (!out) return true;
  out->writer().set_aeth({Aeth::kAck, next.msn});
  out->writer().set_atomic_original(next.value);
  if (size != 0) {
    if (Check done = read(next, offset, out->writer().payload()); !done) {
      // A repeated read may come after its memory is gone for good reason: then nobody waits for the answer.
      if (next.is_duplicate) return false;
      refuse(header.psn, nak_for(done.error()), std::move(done.error()));
      response_count_ = new_responses_ = 1;  // what comes after it is not answered
      return false;
    }
  }
  out->finish();
  return true;
}

Check Responder::read(const Response& from, std::uint64_t offset, std::span<std::byte> to) {
  if (connection_.is_xrc()) {
    if (Check usable = host_.select_srq(from.srqn); !usable) return usable;
  }
  return host_.read(from.rkey, from.address + offset, to);
}

void Responder::send_reply() {
  PacketHeader header;
  header.opcode = Opcode::Acknowledge;
  Aeth aeth{Aeth::kAck, msn_};
  switch (reply_) {
    case Reply::None:
      return;
    case Reply::Ack:
      header.psn = expected_ - 1;
      break;
    case Reply::SequenceNak:
      header.psn = expected_;
      aeth.syndrome = Aeth::nak(NakCode::SequenceError);
      break;
    case Reply::RnrNak:
      header.psn = expected_;
      aeth.syndrome = Aeth::rnr(min_rnr_timer_);
      break;
  }
  reply_ = Reply::None;
  auto out = Outgoing::begin(connection_, header, 0);
  if (!out) return;
  out->writer().set_aeth(aeth);
  out->finish();
}

void Responder::send_refusal() {
  refused_ = std::move(refusal_);
  send_refusal_packets(*refused_);
  clear();
  connection_.state = IBV_QPS_ERR;
  const Fatal end = *refused_;  // a copy: the host may reset this queue pair
  if (end.lost) host_.receive_lost(end.lost->receive, end.lost->why);
  if (end.receive) return host_.receive_failed(*end.receive, end.why);
  host_.responder_failed(end.code == NakCode::RemoteAccess ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR,
                         end.why);
}

// The reason first, so that the requester has it when the NAK ends the connection.
void Responder::send_refusal_packets(const Fatal& end) {
  PacketHeader header;
  header.psn = end.psn;
  header.opcode = Opcode::Reason;
  std::string_view text = end.why.reason;
  if (text.size() > kMaxReasonBytes) {
    std::size_t size = kMaxReasonBytes;
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80)
      --size;  // not within a character
    text = text.substr(0, size);
  }
  if (!text.empty()) {
    if (auto out = Outgoing::begin(connection_, header, text.size())) {
      std::ranges::copy(std::as_bytes(std::span(text)), out->writer().payload().begin());
      out->finish();
    }
  }
  header.opcode = Opcode::Acknowledge;
  if (auto out = Outgoing::begin(connection_, header, 0)) {
    out->writer().set_aeth({Aeth::nak(end.code), msn_});
    out->finish();
  }
}

}  // namespace qpair::softnic::roce
