#include "softnic/roce/responder.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace qpair::softnic::roce {
void Responder::configure(const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) min_rnr_timer_ = attributes.min_rnr_timer;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) {
    max_reads_ = std::min<std::uint8_t>(attributes.max_dest_rd_atomic, kMaxReadsAtomics);
  }
}

void Responder::start(Psn first) {
  reset();
  expected_ = first;
  msn_ = 0;
}

void Responder::clear() {
  reply_ = Reply::None;
  out_of_sequence_ = false;
  message_ = Message::None;
  has_receive_ = false;
  responses_.clear();
  response_head_ = response_count_ = new_responses_ = 0;
  atomics_.clear();
  atomics_next_ = 0;
  refusal_.reset();
}

void Responder::reset() {
  clear();
  refused_.reset();
  repeat_refusal_ = false;
}

void Responder::request_after_refusal(Psn psn) {
  if (!refused_) return;
  const std::int32_t ahead = Psn::distance(refused_->psn, psn);
  repeat_refusal_ = ahead >= 0 && ahead < static_cast<std::int32_t>(kLargestWindowPackets);
}

// ---- Requests -----------------------------------------------------------------------------------

void Responder::request(const Packet& packet) {
  if (refusal_) return;  // the connection is about to end
  const std::int32_t ahead = Psn::distance(expected_, packet.sequence());
  if (ahead > 0) return out_of_order(packet.sequence());
  if (ahead < 0) return duplicate(packet);
  out_of_sequence_ = false;
  if (reply_ == Reply::SequenceNak || reply_ == Reply::RnrNak) reply_ = Reply::Ack;  // it was not sent yet
  if (connection_.is_xrc() && !select_srq(packet)) return;
  const OpcodeInfo& info = packet.info();
  if (info.has(OpcodeInfo::kSend)) return send_packet(packet);
  if (info.has(OpcodeInfo::kWrite)) return write_packet(packet);
  if (info.has(OpcodeInfo::kRead)) return read_request(packet);
  atomic_request(packet);
}

// One NAK until the expected packet comes (IBTA vol. 1 9.7.5.1.3); another when the requester has visibly
// gone back and the expected packet was lost again.
void Responder::out_of_order(Psn psn) {
  ++connection_.counters.out_of_sequence;
  const bool starts_over = out_of_sequence_ && !last_out_of_order_.is_before(psn);
  if (!out_of_sequence_ || starts_over) reply_ = Reply::SequenceNak;
  out_of_sequence_ = true;
  last_out_of_order_ = psn;
}

void Responder::duplicate(const Packet& packet) {
  ++connection_.counters.duplicate_request;
  const OpcodeInfo& info = packet.info();
  if (info.has(OpcodeInfo::kRead)) return duplicate_read(packet);
  if (info.has(OpcodeInfo::kAtomic)) return duplicate_atomic(packet.sequence());
  if (reply_ == Reply::None)
    reply_ = Reply::Ack;  // for everything so far; a pending NAK says the same and more
}

// Reads are carried out again (IBTA vol. 1 9.7.4.4), from wherever the requester asks.
void Responder::duplicate_read(const Packet& packet) {
  const Reth reth = packet.reth();
  const std::uint64_t packets = connection_.packets_for(reth.length);
  const Psn psn = packet.sequence();
  if (packets > static_cast<std::uint64_t>(-Psn::distance(expected_, psn)))
    return;  // more than was asked for
  if (connection_.is_xrc() && !host_.select_srq(packet.xrc_srqn())) return;
  if (reth.length != 0 && !host_.check_remote(RemoteAccess::Read, reth.rkey, reth.address, reth.length))
    return;
  Response* target = nullptr;
  for (std::uint32_t i = 0; i < response_count_; ++i) {
    Response& pending = response(i);
    if (!psn.is_within(pending.first, pending.end())) continue;
    if (pending.is_atomic || !psn.is_before(pending.first + pending.sent))
      return;  // it will be answered anyway
    target = &pending;
    break;
  }
  if (target == nullptr) {
    target = insert_response(psn);
    if (target == nullptr) return;  // the requester will ask again
    target->msn = msn_;
  }
  target->first = psn;
  target->packets = static_cast<std::uint32_t>(packets);
  target->sent = 0;
  target->srqn = packet.xrc_srqn();
  target->rkey = reth.rkey;
  target->address = reth.address;
  target->value = reth.length;
}

void Responder::duplicate_atomic(Psn psn) {
  for (std::uint32_t i = 0; i < response_count_; ++i) {
    if (response(i).is_atomic && response(i).first == psn) return;  // not answered yet
  }
  for (const AtomicResult& result : atomics_) {
    if (!result.valid || result.psn != psn) continue;
    Response* again = insert_response(psn);
    if (again == nullptr) return;
    again->packets = 1;
    again->msn = msn_;
    again->is_atomic = true;
    again->value = result.original;
    return;
  }
}

// XRC: whose receives and whose memory the request is for; one message has one of them (annex A14).
bool Responder::select_srq(const Packet& packet) {
  const std::uint32_t srqn = packet.xrc_srqn();
  if (message_ != Message::None && !packet.info().has(OpcodeInfo::kStart) && srqn != srqn_) {
    refuse_request(packet.sequence(),
                   fmt::format("{} names XRC shared receive queue {:#x}, but its message began with {:#x}",
                               packet.info().name, srqn, srqn_));
    return false;
  }
  if (Check usable = host_.select_srq(srqn); !usable) {
    refuse(packet.sequence(), nak_for(usable.error()), std::move(usable.error()));
    return false;
  }
  srqn_ = srqn;
  return true;
}

bool Responder::in_sequence(const Packet& packet, Message kind) {
  const bool starts = packet.info().has(OpcodeInfo::kStart);
  if (starts ? message_ == Message::None : message_ == kind) return true;
  refuse_request(
      packet.sequence(),
      fmt::format("{} came {}", packet.info().name,
                  message_ == Message::None ? "outside of a message" : "in the middle of another message"));
  return false;
}

// Every packet but the last is exactly one path MTU long; the last of several is not empty (IBTA vol.
// 1 9.7.4.1.5).
bool Responder::payload_fits_path(const Packet& packet) {
  const std::size_t size = packet.payload().size();
  const bool last = packet.info().has(OpcodeInfo::kEnd);
  const bool only = last && packet.info().has(OpcodeInfo::kStart);
  const bool fits = last ? size <= connection_.mtu && (only || size != 0) : size == connection_.mtu;
  if (!fits) {
    refuse_request(packet.sequence(), fmt::format("{} carries {} bytes, but this side's path MTU is {}",
                                                  packet.info().name, size, connection_.mtu));
  }
  return fits;
}

bool Responder::take_receive(Psn psn) {
  has_receive_ = host_.next_receive(receive_);
  if (has_receive_ || !connection_.responds()) return has_receive_;
  ++connection_.counters.out_of_buffer;
  reply_ = Reply::RnrNak;
  out_of_sequence_ = true;  // what follows it is dropped, without another NAK
  last_out_of_order_ = psn;
  return false;
}

void Responder::send_packet(const Packet& packet) {
  if (!in_sequence(packet, Message::Send) || !payload_fits_path(packet)) return;
  if (packet.info().has(OpcodeInfo::kStart)) {
    if (!take_receive(packet.sequence())) return;
    message_ = Message::Send;
    offset_ = 0;
  }
  if (!deliver(packet)) return;
  if (packet.info().has(OpcodeInfo::kInvalidate)) {
    if (Check gone = host_.invalidate(packet.invalidated_key()); !gone) {
      return refuse(packet.sequence(), NakCode::RemoteAccess, std::move(gone.error()));
    }
  }
  accept(packet, 1);
  if (packet.info().has(OpcodeInfo::kEnd)) complete_receive(packet);
}

bool Responder::deliver(const Packet& packet) {
  const std::span<std::byte> data = packet.payload();
  if (offset_ + data.size() > receive_.length) {
    refuse(packet.sequence(), NakCode::InvalidRequest,
           {mlx5::Syndrome::LocalLength, vendor_error::kReceiveTooShort,
            fmt::format("a message of {}{} bytes came for a receive of {}",
                        packet.info().has(OpcodeInfo::kEnd) ? "" : "at least ", offset_ + data.size(),
                        receive_.length)});
    return false;
  }
  if (!data.empty()) {
    if (Check stored = host_.scatter_receive(receive_, offset_, data); !stored) {
      refuse(packet.sequence(), NakCode::RemoteOperation, std::move(stored.error()));
      return false;
    }
  }
  offset_ += data.size();
  return true;
}

void Responder::complete_receive(const Packet& packet) {
  const OpcodeInfo& info = packet.info();
  Received what;
  what.opcode = info.has(OpcodeInfo::kWrite)        ? mlx5::CqeOpcode::ResponderWriteImm
                : info.has(OpcodeInfo::kImmediate)  ? mlx5::CqeOpcode::ResponderSendImm
                : info.has(OpcodeInfo::kInvalidate) ? mlx5::CqeOpcode::ResponderSendInvalidate
                                                    : mlx5::CqeOpcode::ResponderSend;
  what.byte_count = offset_;
  what.immediate = info.has(OpcodeInfo::kInvalidate) ? packet.invalidated_key() : packet.immediate();
  what.source_qpn = connection_.peer_qpn;
  what.solicited = packet.solicited();
  has_receive_ = false;
  host_.receive_done(receive_, what);
}

void Responder::write_packet(const Packet& packet) {
  if (!in_sequence(packet, Message::Write) || !payload_fits_path(packet)) return;
  const OpcodeInfo& info = packet.info();
  const std::span<std::byte> data = packet.payload();
  const bool last = info.has(OpcodeInfo::kEnd);
  if (info.has(OpcodeInfo::kStart)) {
    const Reth reth = packet.reth();
    if (reth.length > kMaxMessage) {
      return refuse_request(packet.sequence(),
                            fmt::format("a write of {} bytes is longer than 2 GiB", reth.length));
    }
    if (reth.length != 0) {
      if (Check allowed = host_.check_remote(RemoteAccess::Write, reth.rkey, reth.address, reth.length);
          !allowed) {
        return refuse(packet.sequence(), nak_for(allowed.error()), std::move(allowed.error()));
      }
    }
    rkey_ = reth.rkey;
    address_ = reth.address;
    length_ = reth.length;
    offset_ = 0;
  }
  const std::uint64_t end = offset_ + data.size();
  if (last ? end != length_ : end >= length_) {
    return refuse_request(packet.sequence(), fmt::format("{} brings byte {} of a write that announced {}",
                                                         info.name, end, length_));
  }
  message_ = Message::Write;
  if (info.has(OpcodeInfo::kImmediate) && !take_receive(packet.sequence())) {
    if (info.has(OpcodeInfo::kStart)) message_ = Message::None;  // it will be repeated whole
    return;
  }
  if (!data.empty()) {
    if (Check stored = host_.write(rkey_, address_ + offset_, data); !stored) {
      return refuse(packet.sequence(), nak_for(stored.error()), std::move(stored.error()));
    }
  }
  offset_ = end;
  accept(packet, 1);
  if (info.has(OpcodeInfo::kImmediate)) complete_receive(packet);
}

void Responder::read_request(const Packet& packet) {
  const Psn psn = packet.sequence();
  if (!in_sequence(packet, Message::None) || !has_resource(psn)) return;
  const Reth reth = packet.reth();
  const std::uint64_t packets = connection_.packets_for(reth.length);
  if (reth.length > kMaxMessage || packets > static_cast<std::uint64_t>(Psn::kMaxSpan)) {
    return refuse_request(
        psn, fmt::format("a read of {} bytes takes more packets than can be numbered", reth.length));
  }
  if (reth.length != 0) {
    if (Check allowed = host_.check_remote(RemoteAccess::Read, reth.rkey, reth.address, reth.length);
        !allowed) {
      return refuse(psn, nak_for(allowed.error()), std::move(allowed.error()));
    }
  }
  accept(packet, static_cast<std::uint32_t>(packets));
  Response* answer = push_response();
  answer->first = psn;
  answer->packets = static_cast<std::uint32_t>(packets);
  answer->msn = msn_;
  answer->srqn = packet.xrc_srqn();
  answer->rkey = reth.rkey;
  answer->address = reth.address;
  answer->value = reth.length;
}

// Atomics are carried out when they arrive, and remembered: the answer may have to be repeated.
void Responder::atomic_request(const Packet& packet) {
  const Psn psn = packet.sequence();
  if (!in_sequence(packet, Message::None) || !has_resource(psn)) return;
  const AtomicEth atomic = packet.atomic();
  if (atomic.address % 8 != 0) {
    return refuse_request(psn,
                          fmt::format("an atomic at {:#x}, which is not a multiple of 8", atomic.address));
  }
  if (Check allowed = host_.check_remote(RemoteAccess::Atomic, atomic.rkey, atomic.address, 8); !allowed) {
    return refuse(psn, nak_for(allowed.error()), std::move(allowed.error()));
  }
  std::uint64_t original = 0;
  const bool swap = without_service(packet.opcode()) == Opcode::CompareSwap;
  Check done =
      swap ? host_.compare_swap(atomic.rkey, atomic.address, atomic.compare, atomic.swap_add, original)
           : host_.fetch_add(atomic.rkey, atomic.address, atomic.swap_add, original);
  if (!done) return refuse(psn, nak_for(done.error()), std::move(done.error()));
  accept(packet, 1);
  if (atomics_.size() < max_reads_) atomics_.resize(max_reads_);
  atomics_[atomics_next_] = {psn, true, original};
  atomics_next_ = (atomics_next_ + 1) % static_cast<std::uint32_t>(atomics_.size());
  Response* answer = push_response();
  answer->first = psn;
  answer->packets = 1;
  answer->msn = msn_;
  answer->is_atomic = true;
  answer->value = original;
}

// Whether one more read or atomic may be outstanding (IBTA vol. 1 9.7.4.1.4: otherwise an invalid request).
bool Responder::has_resource(Psn psn) {
  if (new_responses_ < max_reads_) return true;
  refuse_request(psn, fmt::format("{} reads and atomics are outstanding and max_dest_rd_atomic is {}",
                                  new_responses_ + 1, max_reads_));
  return false;
}

void Responder::accept(const Packet& packet, std::uint32_t packets) {
  if (packet.info().has(OpcodeInfo::kStart)) count_request(packet.info());
  expected_ += packets;
  if (packet.info().has(OpcodeInfo::kEnd)) {
    message_ = Message::None;
    msn_ = (msn_ + 1) & Psn::kMask;
  }
  // The responses to reads and atomics acknowledge them.
  if (packet.ack_request() && !packet.info().has(OpcodeInfo::kRead | OpcodeInfo::kAtomic))
    reply_ = Reply::Ack;
}

void Responder::count_request(const OpcodeInfo& info) {
  Counters& counters = connection_.counters;
  if (info.has(OpcodeInfo::kWrite)) ++counters.rx_write_requests;
  if (info.has(OpcodeInfo::kRead)) ++counters.rx_read_requests;
  if (info.has(OpcodeInfo::kAtomic)) ++counters.rx_atomic_requests;
}

void Responder::refuse(Psn psn, NakCode code, Refusal why) {
  // An answer that cannot be given comes before a request that was refused: that one gets no answer, but its
  // receive is used up.
  std::optional<Lost> lost;
  if (refusal_ && refusal_->receive) lost = Lost{*refusal_->receive, std::move(refusal_->why)};
  if (refusal_ && !lost) lost = std::move(refusal_->lost);
  refusal_ = std::make_unique<Fatal>(Fatal{psn, code, std::move(why), std::nullopt, std::move(lost)});
  if (!has_receive_) return;
  has_receive_ = false;
  refusal_->receive = receive_;
  // Seen from the receive nothing is remote: it is this side's memory that could not be used (IBTA vol.
  // 1 11.6.2).
  switch (refusal_->why.syndrome) {
    case mlx5::Syndrome::RemoteAccess:
    case mlx5::Syndrome::RemoteOperation:
      refusal_->why.syndrome = mlx5::Syndrome::LocalAccess;
      break;
    case mlx5::Syndrome::RemoteInvalidRequest:
      refusal_->why.syndrome = mlx5::Syndrome::LocalQpOperation;
      refusal_->why.vendor_err = vendor_error::kUnknown;
      break;
    default:
      break;
  }
}

void Responder::refuse_request(Psn psn, std::string reason) {
  refuse(psn, NakCode::InvalidRequest,
         {mlx5::Syndrome::RemoteInvalidRequest, vendor_error::kRemoteInvalidRequest, std::move(reason)});
}

}  // namespace qpair::softnic::roce
