#include "softnic/roce/ud_queue_pair.hpp"

#include <fmt/format.h>

#include <utility>

#include "softnic/roce/grh.hpp"
#include "softnic/roce/syndrome.hpp"
#include "softnic/roce/tunables.hpp"
#include "softnic/wire/address.hpp"

namespace qpair::softnic::roce {

UdQueuePair::UdQueuePair(std::uint32_t qpn, Host& host, wire::Link& link, std::uint32_t mtu)
    : host_(host), to_(qpn, link), losses_(host) {
  to_.mtu = mtu;
}

void UdQueuePair::modify(const ibv_qp_attr& attributes, int mask, TimePoint) {
  if ((mask & IBV_QP_QKEY) != 0) qkey_ = attributes.qkey;
  if ((mask & IBV_QP_SQ_PSN) != 0) next_psn_ = Psn(attributes.sq_psn);
  if ((mask & IBV_QP_STATE) == 0) return;
  set_state(attributes.qp_state);
  if (attributes.qp_state == IBV_QPS_SQD) {
    if ((mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0) drain_notify_ = attributes.en_sqd_async_notify != 0;
    check_drained();
  }
}

void UdQueuePair::set_state(ibv_qp_state state) {
  if (state != IBV_QPS_SQD || to_.state != IBV_QPS_SQD) drain_notify_ = false;
  to_.state = state;
  if (!to_.requests()) next_.reset();
  if (state == IBV_QPS_RESET) losses_.reset();
}

void UdQueuePair::query(ibv_qp_attr& attributes) const {
  attributes.sq_psn = next_psn_.value();
  attributes.sq_draining = to_.state == IBV_QPS_SQD && next_ ? 1 : 0;
}

void UdQueuePair::check_drained() {
  if (!drain_notify_ || to_.state != IBV_QPS_SQD || next_) return;
  drain_notify_ = false;
  host_.raise(IBV_EVENT_SQ_DRAINED);
}

// ---- Sending ------------------------------------------------------------------------------------

bool UdQueuePair::transmit(unsigned budget, TimePoint) {
  bool more = false;
  for (unsigned sent = 0; to_.requests() && !more; ++sent) {
    more = sent == budget;
    if (!more && !send_next()) break;
  }
  check_drained();
  return more;
}

// False: there is nothing to send, or no room for it.
bool UdQueuePair::send_next() {
  if (!next_) {
    SendRequest request;
    if (to_.state != IBV_QPS_RTS || !host_.next_send(request) || to_.state != IBV_QPS_RTS) return false;
    next_ = request;
  }
  const auto vector = host_.address(*next_);
  if (vector && !has_room(*vector)) return false;
  const SendRequest request = *std::exchange(next_, std::nullopt);
  if (vector) {
    send(request, *vector);
  } else {
    host_.send_failed(request, vector.error());
  }
  return true;
}

bool UdQueuePair::has_room(const AddressVector& vector) const {
  if (next_->length > to_.mtu) return true;  // it will not be sent
  return to_.link.has_room(
      vector.destination, PacketWriter::size(Opcode::UdSendOnlyImm, static_cast<std::size_t>(next_->length)));
}

bool UdQueuePair::waits_for_room() const {
  if (!next_ || !to_.requests()) return false;
  const auto vector = host_.address(*next_);
  return vector && !has_room(*vector);
}

TimePoint UdQueuePair::deadline() const {
  // Without room it is the link's deadline that counts, and the chip asks the link itself.
  return has_work({}) ? TimePoint{} : TimePoint::max();
}

void UdQueuePair::expire(TimePoint now) {
  if (has_work(now)) static_cast<void>(transmit(kExpireBudget, now));
}

void UdQueuePair::send(const SendRequest& request, const AddressVector& vector) {
  if (request.length > to_.mtu) {
    return host_.send_failed(request,
                             {mlx5::Syndrome::LocalLength, vendor_error::kUnknown,
                              fmt::format("a datagram of {} bytes is longer than the port's MTU, which is {}",
                                          request.length, to_.mtu)});
  }
  address(vector);
  host_.transmitting(request);
  PacketHeader header;
  const bool immediate = request.operation == Operation::SendImm;
  header.opcode = immediate ? Opcode::UdSendOnlyImm : Opcode::UdSendOnly;
  header.solicited = request.solicited;
  header.migrated = false;  // a state of connections
  header.psn = next_psn_;
  ++next_psn_;
  if (auto out = Outgoing::begin(to_, header, static_cast<std::size_t>(request.length))) {
    out->writer().set_deth({vector.qkey_on_wire(qkey_), to_.qpn});
    out->writer().set_immediate(request.immediate);
    if (request.length != 0) {
      if (Check read = host_.gather(request, 0, out->writer().payload()); !read) {
        return host_.send_failed(request, read.error());
      }
    }
    out->finish();
    if (to_.peer_qpn == kMulticastQpn) ++to_.counters.multicast_packets_sent;
  }
  host_.send_done(request);
}

void UdQueuePair::address(const AddressVector& vector) {
  to_.peer_qpn = vector.remote_qpn;
  if (to_.peer == vector.destination) return;
  to_.peer = vector.destination;
  to_.icrc = Icrc(to_.link.local(), to_.peer);
}

// ---- Receiving ----------------------------------------------------------------------------------

bool UdQueuePair::receives() const {
  switch (to_.state) {
    case IBV_QPS_RTR:
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
    case IBV_QPS_SQE:
      return true;
    default:
      return false;
  }
}

void UdQueuePair::receive(const Packet& packet, const wire::Endpoint& source, TimePoint) {
  take(packet, source, to_.link.local());
}

void UdQueuePair::receive_multicast(const Packet& packet, const wire::Endpoint& source,
                                    const wire::Endpoint& group) {
  const std::uint64_t before = to_.counters.packets_received;
  take(packet, source, group);
  to_.counters.multicast_packets_received += to_.counters.packets_received - before;
}

void UdQueuePair::take(const Packet& packet, const wire::Endpoint& source,
                       const wire::Endpoint& destination) {
  if (!receives() || service_of(packet.opcode()) != Service::UnreliableDatagram) return;
  const Deth deth = packet.deth();
  const std::size_t size = packet.payload().size();
  const auto from = [&] {
    return fmt::format("a datagram of {} bytes from {} (queue pair {:#x}) is lost", size,
                       wire::to_string(source), deth.source_qpn);
  };
  if (deth.qkey != qkey_) {  // IBTA vol. 1 9.6.1.5.1: dropped, and nobody is told
    return losses_.note(Loss::WrongQkey, [&] {
      return fmt::format("{}: its Q_Key is {:#x}, this queue pair's is {:#x}", from(), deth.qkey, qkey_);
    });
  }
  if (size > to_.mtu) {
    return losses_.note(Loss::BadLength, [&] {
      return fmt::format("{}: it is longer than this port's MTU, which is {}", from(), to_.mtu);
    });
  }
  ReceiveRequest request;
  if (!host_.next_receive(request)) {
    ++to_.counters.out_of_buffer;
    return losses_.note(Loss::NoReceive, [&] { return from() + ": no receive is posted"; });
  }
  if (kGrhSize + size > request.length) {
    return host_.receive_failed(
        request, {mlx5::Syndrome::LocalLength, vendor_error::kReceiveTooShort,
                  fmt::format("a datagram of {} bytes came, with the {} bytes of its GRH in front, for a "
                              "receive of {}",
                              size, kGrhSize, request.length)});
  }
  store(request, packet, source, destination);
}

void UdQueuePair::store(const ReceiveRequest& request, const Packet& packet, const wire::Endpoint& source,
                        const wire::Endpoint& destination) {
  const std::span<std::byte> payload = packet.payload();
  const Grh grh = make_grh(source, destination, packet.size());
  Check stored = host_.scatter_receive(request, 0, grh);
  if (stored && !payload.empty()) stored = host_.scatter_receive(request, kGrhSize, payload);
  if (!stored) return host_.receive_failed(request, stored.error());
  ++to_.counters.packets_received;
  to_.counters.bytes_received += packet.size();
  Received what;
  what.opcode = packet.info().has(OpcodeInfo::kImmediate) ? mlx5::CqeOpcode::ResponderSendImm
                                                          : mlx5::CqeOpcode::ResponderSend;
  what.byte_count = kGrhSize + payload.size();
  what.immediate = packet.immediate();
  what.source_qpn = packet.deth().source_qpn;
  what.solicited = packet.solicited();
  what.source = source;
  what.grh = grh_kind(source, destination);
  host_.receive_done(request, what);
}

}  // namespace qpair::softnic::roce
