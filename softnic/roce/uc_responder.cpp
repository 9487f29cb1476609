// The receiving side of an unreliable connection.

#include <fmt/format.h>

#include "softnic/roce/uc_queue_pair.hpp"

namespace qpair::softnic::roce {
void UcResponder::start(Psn first) {
  reset();
  expected_ = first;
}

void UcResponder::clear() {
  message_ = Message::None;
  has_receive_ = false;
}

void UcResponder::reset() {
  clear();
  losses_.reset();
}

void UcResponder::request(const Packet& packet) {
  if (!in_sequence(packet) || !payload_fits_path(packet)) return;
  if (packet.info().has(OpcodeInfo::kSend)) return send_packet(packet);
  write_packet(packet);
}

// Whether the packet begins a message or goes on with the one in progress. Where packets are missing, what
// they belong to is lost, and reception goes on with the next message that begins (IBTA vol. 1 9.8.2.2.1).
bool UcResponder::in_sequence(const Packet& packet) {
  const OpcodeInfo& info = packet.info();
  if (packet.sequence() != expected_) {
    ++connection_.counters.out_of_sequence;
    drop();
  }
  expected_ = packet.sequence() + 1;
  if (info.has(OpcodeInfo::kStart)) {
    drop();  // the last packet of the one before did not come
    return true;
  }
  const Message kind = info.has(OpcodeInfo::kSend) ? Message::Send : Message::Write;
  if (message_ == kind) return true;
  drop();
  return false;
}

bool UcResponder::payload_fits_path(const Packet& packet) {
  const std::size_t size = packet.payload().size();
  const bool last = packet.info().has(OpcodeInfo::kEnd);
  const bool only = last && packet.info().has(OpcodeInfo::kStart);
  if (last ? size <= connection_.mtu && (only || size != 0) : size == connection_.mtu) return true;
  drop();
  losses_.note(Loss::BadLength, [&] {
    return fmt::format("a message is lost: {} carries {} bytes, but this side's path MTU is {}",
                       packet.info().name, size, connection_.mtu);
  });
  return false;
}

bool UcResponder::take_receive() {
  if (!has_receive_) has_receive_ = host_.next_receive(receive_);
  if (has_receive_) return true;
  drop();
  ++connection_.counters.out_of_buffer;
  losses_.note(Loss::NoReceive, [] { return "a message is lost: no receive is posted"; });
  return false;
}

void UcResponder::send_packet(const Packet& packet) {
  const std::span<std::byte> data = packet.payload();
  if (packet.info().has(OpcodeInfo::kStart)) {
    if (!take_receive()) return;
    message_ = Message::Send;
    offset_ = 0;
  }
  if (offset_ + data.size() > receive_.length) {
    drop();
    return losses_.note(Loss::ReceiveTooShort, [&] {
      return fmt::format("a message of at least {} bytes is lost: the receive that is posted for it has {}",
                         offset_ + data.size(), receive_.length);
    });
  }
  if (!data.empty()) {
    if (Check stored = host_.scatter_receive(receive_, offset_, data); !stored) {
      has_receive_ = false;
      return host_.receive_failed(receive_, stored.error());
    }
  }
  offset_ += data.size();
  if (packet.info().has(OpcodeInfo::kEnd)) complete_receive(packet);
}

bool UcResponder::begin_write(const Packet& packet) {
  ++connection_.counters.rx_write_requests;
  const Reth reth = packet.reth();
  if (reth.length > kMaxMessage) return false;
  if (reth.length != 0) {
    if (Check allowed = host_.check_remote(RemoteAccess::Write, reth.rkey, reth.address, reth.length);
        !allowed) {
      losses_.note(Loss::NoAccess, [&] { return "a write is lost: " + allowed.error().reason; });
      return false;
    }
  }
  message_ = Message::Write;
  rkey_ = reth.rkey;
  address_ = reth.address;
  length_ = reth.length;
  offset_ = 0;
  return true;
}

void UcResponder::write_packet(const Packet& packet) {
  const OpcodeInfo& info = packet.info();
  const std::span<std::byte> data = packet.payload();
  if (info.has(OpcodeInfo::kStart) && !begin_write(packet)) return;
  const std::uint64_t end = offset_ + data.size();
  if (info.has(OpcodeInfo::kEnd) ? end != length_ : end >= length_) return drop();
  if (info.has(OpcodeInfo::kImmediate) && !take_receive()) return;
  if (!data.empty()) {
    if (Check stored = host_.write(rkey_, address_ + offset_, data); !stored) {
      drop();
      return losses_.note(Loss::NoAccess, [&] { return "a write is lost: " + stored.error().reason; });
    }
  }
  offset_ = end;
  if (!info.has(OpcodeInfo::kEnd)) return;
  if (info.has(OpcodeInfo::kImmediate)) return complete_receive(packet);
  drop();  // it is complete; nothing more belongs to it
}

void UcResponder::complete_receive(const Packet& packet) {
  const OpcodeInfo& info = packet.info();
  Received what;
  what.opcode = info.has(OpcodeInfo::kWrite)       ? mlx5::CqeOpcode::ResponderWriteImm
                : info.has(OpcodeInfo::kImmediate) ? mlx5::CqeOpcode::ResponderSendImm
                                                   : mlx5::CqeOpcode::ResponderSend;
  what.byte_count = offset_;
  what.immediate = packet.immediate();
  what.source_qpn = connection_.peer_qpn;
  what.solicited = packet.solicited();
  has_receive_ = false;
  message_ = Message::None;
  host_.receive_done(receive_, what);
}

}  // namespace qpair::softnic::roce
