#include "softnic/roce/dc_initiator.hpp"

#include <chrono>

namespace qpair::softnic::roce {
namespace {

// Greater than any that a queue pair with this number had before, also one of an earlier process with this
// address, or of this machine before it was started anew: nobody connects more than once in a nanosecond.
std::uint64_t first_connection_number() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace

DcInitiator::DcInitiator(std::uint32_t qpn, Host& host, wire::Link& link)
    : ForwardingHost(host), host_(host), connection_(qpn, link), requester_(connection_, *this) {
  connection_.service = Service::DynamicallyConnected;
  connection_.dc.source_qpn = qpn;
  connection_.dc.connection = first_connection_number();
}

void DcInitiator::modify(const ibv_qp_attr& attributes, int mask, TimePoint) {
  if ((mask & IBV_QP_PATH_MTU) != 0) connection_.mtu = 128U << attributes.path_mtu;
  requester_.configure(attributes, mask);
  if ((mask & IBV_QP_SQ_PSN) != 0) requester_.start(Psn(attributes.sq_psn));
  if ((mask & IBV_QP_STATE) != 0) set_state(attributes.qp_state);
}

void DcInitiator::set_state(ibv_qp_state state) {
  connection_.state = state;
  if (connection_.requests()) return;
  requester_.clear();
  waiting_.reset();
  connection_.peer_qpn = 0;  // the next request makes a new connection
}

void DcInitiator::query(ibv_qp_attr& attributes) const {
  attributes.sq_psn = requester_.next_psn().value();
  attributes.sq_draining = connection_.state == IBV_QPS_SQD && !requester_.is_idle() ? 1 : 0;
}

bool DcInitiator::next_send(SendRequest& out) {
  if (!waiting_) {
    SendRequest next;
    if (!host_.next_send(next)) return false;
    waiting_ = next;
  }
  const auto to = host_.address(*waiting_);
  if (!to || !leads_to_the_same(*to)) {
    if (!requester_.is_idle()) return false;
    if (!to) {
      const SendRequest failed = *waiting_;
      waiting_.reset();
      connection_.state = IBV_QPS_ERR;
      host_.send_failed(failed, to.error());
      return false;
    }
    connect(*to);
  }
  out = *waiting_;
  waiting_.reset();
  return true;
}

bool DcInitiator::leads_to_the_same(const AddressVector& to) const {
  return to.destination == connection_.peer && to.remote_qpn == connection_.peer_qpn &&
         to.dc_key == connection_.dc.access_key;
}

void DcInitiator::connect(const AddressVector& to) {
  connection_.peer = to.destination;
  connection_.peer_qpn = to.remote_qpn;
  connection_.icrc = Icrc(connection_.link.local(), connection_.peer);
  connection_.dc.access_key = to.dc_key;
  connection_.dc.first_psn = requester_.next_psn().value();
  ++connection_.dc.connection;
  requester_.peer_changed();
}

void DcInitiator::after_host_calls() {
  if (connection_.state == IBV_QPS_ERR) set_state(IBV_QPS_ERR);
}

bool DcInitiator::transmit(unsigned budget, TimePoint now) {
  const Sent sent = requester_.transmit(budget, now);
  after_host_calls();
  return sent.more && connection_.requests();
}

bool DcInitiator::has_work(TimePoint now) const {
  return requester_.has_work(now) || (waiting_ && requester_.is_idle() && connection_.state == IBV_QPS_RTS);
}

void DcInitiator::receive(const Packet& packet, const wire::Endpoint& source, TimePoint now) {
  if (!connection_.requests() || source.address != connection_.peer.address) return;
  const OpcodeInfo& info = packet.info();
  const bool is_reason = static_cast<Opcode>(packet.opcode()) == Opcode::Reason;
  if (!is_reason &&
      (service_of(packet.opcode()) != Service::DynamicallyConnected || info.has(OpcodeInfo::kRequest))) {
    return;
  }
  ++connection_.counters.packets_received;
  connection_.counters.bytes_received += packet.size();
  if (is_reason) {
    requester_.reason(packet);
  } else if (info.has(OpcodeInfo::kRead)) {
    requester_.read_response(packet, now);
  } else if (info.has(OpcodeInfo::kAtomic)) {
    requester_.atomic_response(packet, now);
  } else {
    requester_.acknowledged(packet, now);
  }
  after_host_calls();
}

TimePoint DcInitiator::deadline() const {
  // The past, for "at once"; not min(), with which an engine could not compute.
  return has_work(TimePoint::min()) ? TimePoint{} : requester_.deadline();
}

void DcInitiator::expire(TimePoint now) {
  requester_.expire(now);
  if (has_work(now)) static_cast<void>(transmit(kExpireBudget, now));
  after_host_calls();
}

void DcInitiator::peer_departed(const wire::Endpoint& peer) {
  if (connection_.peer_qpn == 0 || peer.address != connection_.peer.address) return;
  requester_.peer_departed();
  after_host_calls();
}

}  // namespace qpair::softnic::roce
