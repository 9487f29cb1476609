#include "softnic/roce/uc_queue_pair.hpp"

#include <algorithm>

#include "softnic/roce/message.hpp"
#include "softnic/roce/tunables.hpp"

namespace qpair::softnic::roce {

// ---- Sending ------------------------------------------------------------------------------------

bool UcRequester::transmit(unsigned budget) {
  for (unsigned sent = 0; connection_.requests(); ++sent) {
    if (sent == budget) return true;
    if (!current_) {
      // A draining send queue finishes the message in progress and starts no other.
      if (connection_.state != IBV_QPS_RTS) return false;
      SendRequest request;
      if (!host_.next_send(request) || connection_.state != IBV_QPS_RTS) return false;
      current_ = request;
      offset_ = 0;
    }
    if (waits_for_room() || !send_packet()) return false;
  }
  return false;
}

std::size_t UcRequester::next_size() const {
  return static_cast<std::size_t>(std::min<std::uint64_t>(connection_.mtu, current_->length - offset_));
}

bool UcRequester::waits_for_room() const {
  if (!current_ || !connection_.requests()) return false;
  return !connection_.link.has_room(connection_.peer,
                                    PacketWriter::size(Opcode::UcWriteOnlyImm, next_size()));
}

// False: the request failed.
bool UcRequester::send_packet() {
  const SendRequest request = *current_;
  host_.transmitting(request);
  const std::size_t size = next_size();
  const bool first = offset_ == 0;
  const bool last = offset_ + size == request.length;
  PacketHeader header;
  header.opcode = on_service(Service::UnreliableConnection, message_opcode(request.operation, first, last));
  header.solicited = last && request.solicited;
  header.psn = next_psn_;
  ++next_psn_;
  if (auto out = Outgoing::begin(connection_, header, size)) {
    PacketWriter& writer = out->writer();
    writer.set_reth({request.remote_address, request.rkey, static_cast<std::uint32_t>(request.length)});
    writer.set_immediate(request.immediate);
    if (size != 0) {
      if (Check read = host_.gather(request, offset_, writer.payload()); !read) {
        current_.reset();
        host_.send_failed(request, read.error());
        return false;
      }
    }
    out->finish();
  }
  offset_ += size;
  if (last) {
    current_.reset();
    host_.send_done(request);
  }
  return true;
}

// ---- The queue pair -----------------------------------------------------------------------------

UcQueuePair::UcQueuePair(std::uint32_t qpn, Host& host, wire::Link& link)
    : host_(host), connection_(qpn, link), requester_(connection_, host), responder_(connection_, host) {}

void UcQueuePair::modify(const ibv_qp_attr& attributes, int mask, TimePoint) {
  connection_.configure(attributes, mask);
  if ((mask & IBV_QP_RQ_PSN) != 0) responder_.start(Psn(attributes.rq_psn));
  if ((mask & IBV_QP_SQ_PSN) != 0) requester_.start(Psn(attributes.sq_psn));
  if ((mask & IBV_QP_STATE) == 0) return;
  set_state(attributes.qp_state);
  if (attributes.qp_state == IBV_QPS_SQD) {
    if ((mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0) drain_notify_ = attributes.en_sqd_async_notify != 0;
    check_drained();
  }
}

void UcQueuePair::set_state(ibv_qp_state state) {
  if (state != IBV_QPS_SQD || connection_.state != IBV_QPS_SQD) drain_notify_ = false;
  connection_.state = state;
  if (state == IBV_QPS_RESET || state == IBV_QPS_ERR || state == IBV_QPS_SQE) requester_.clear();
  if (state == IBV_QPS_RESET || state == IBV_QPS_ERR) responder_.clear();
  if (state != IBV_QPS_RESET) return;
  responder_.reset();
  established_ = false;
}

void UcQueuePair::query(ibv_qp_attr& attributes) const {
  attributes.sq_psn = requester_.next_psn().value();
  attributes.rq_psn = responder_.expected_psn().value();
  attributes.sq_draining = connection_.state == IBV_QPS_SQD && !requester_.is_idle() ? 1 : 0;
}

void UcQueuePair::check_drained() {
  if (!drain_notify_ || connection_.state != IBV_QPS_SQD || !requester_.is_idle()) return;
  drain_notify_ = false;
  host_.raise(IBV_EVENT_SQ_DRAINED);
}

bool UcQueuePair::transmit(unsigned budget, TimePoint) {
  const bool more = requester_.transmit(budget);
  check_drained();
  return more;
}

bool UcQueuePair::has_work(TimePoint) const {
  return connection_.requests() && !requester_.is_idle() && !waits_for_room();
}

TimePoint UcQueuePair::deadline() const {
  // Without room it is the link's deadline that counts, and the chip asks the link itself.
  return has_work({}) ? TimePoint{} : TimePoint::max();
}

void UcQueuePair::expire(TimePoint now) {
  if (has_work(now)) static_cast<void>(transmit(kExpireBudget, now));
}

void UcQueuePair::receive(const Packet& packet, const wire::Endpoint& source, TimePoint) {
  if (source.address != connection_.peer.address) return;
  if (service_of(packet.opcode()) != Service::UnreliableConnection) return;
  if (!connection_.responds() && connection_.state != IBV_QPS_SQE) return;
  ++connection_.counters.packets_received;
  connection_.counters.bytes_received += packet.size();
  if (!established_ && connection_.state == IBV_QPS_RTR) host_.raise(IBV_EVENT_COMM_EST);
  established_ = true;
  responder_.request(packet);
}

}  // namespace qpair::softnic::roce
