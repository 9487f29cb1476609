#include "softnic/roce/rc_queue_pair.hpp"

#include <algorithm>
#include <cstring>

#include "softnic/roce/connection.hpp"
#include "softnic/roce/requester.hpp"
#include "softnic/roce/responder.hpp"

namespace qpair::softnic::roce {

class RcQueuePair::State {
 public:
  State(std::uint32_t qpn, RcHost& host, wire::Link& link)
      : host_(host), connection_(qpn, link), requester_(connection_, host), responder_(connection_, host) {}

  void modify(const ibv_qp_attr& attributes, int mask);
  void set_state(ibv_qp_state state);
  void query(ibv_qp_attr& attributes) const;
  bool transmit(unsigned budget, TimePoint now);
  bool has_work(TimePoint now) const { return responder_.has_work() || requester_.has_work(now); }
  void receive(const Packet& packet, const wire::Endpoint& source, TimePoint now);
  TimePoint deadline() const;
  void expire(TimePoint now);

  const Connection& connection() const { return connection_; }

 private:
  void after_host_calls();

  RcHost& host_;
  Connection connection_;
  Requester requester_;
  Responder responder_;
  bool established_ = false;   // IBV_EVENT_COMM_EST was raised
  bool drain_notify_ = false;  // IBV_EVENT_SQ_DRAINED was asked for and not raised yet
};

void RcQueuePair::State::modify(const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_PATH_MTU) != 0) connection_.mtu = 128U << attributes.path_mtu;
  if ((mask & IBV_QP_DEST_QPN) != 0) connection_.peer_qpn = attributes.dest_qp_num & 0xffffff;
  if ((mask & IBV_QP_AV) != 0) {
    std::memcpy(connection_.peer.address.data(), attributes.ah_attr.grh.dgid.raw, 16);
    connection_.peer.port = wire::kRoceUdpPort;
    connection_.icrc = Icrc(connection_.link.local(), connection_.peer);
  }
  requester_.configure(attributes, mask);
  responder_.configure(attributes, mask);
  if ((mask & IBV_QP_RQ_PSN) != 0) responder_.start(Psn(attributes.rq_psn));
  if ((mask & IBV_QP_SQ_PSN) != 0) requester_.start(Psn(attributes.sq_psn));
  if ((mask & IBV_QP_STATE) == 0) return;
  set_state(attributes.qp_state);
  if (attributes.qp_state == IBV_QPS_SQD) {
    drain_notify_ = (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 && attributes.en_sqd_async_notify != 0;
    after_host_calls();
  }
}

void RcQueuePair::State::set_state(ibv_qp_state state) {
  connection_.state = state;
  drain_notify_ = false;
  if (state == IBV_QPS_RESET || state == IBV_QPS_ERR || state == IBV_QPS_SQE) {
    requester_.clear();
    responder_.clear();
  }
  if (state != IBV_QPS_RESET) return;
  responder_.reset();
  established_ = false;
}

void RcQueuePair::State::query(ibv_qp_attr& attributes) const {
  attributes.sq_psn = requester_.next_psn().value();
  attributes.rq_psn = responder_.expected_psn().value();
  attributes.sq_draining = connection_.state == IBV_QPS_SQD && !requester_.is_idle() ? 1 : 0;
}

// The host may have ended the connection, or the last request of a draining send queue may be complete.
void RcQueuePair::State::after_host_calls() {
  if (connection_.state == IBV_QPS_ERR) {
    requester_.clear();
    responder_.clear();
  } else if (drain_notify_ && connection_.state == IBV_QPS_SQD && requester_.is_idle()) {
    drain_notify_ = false;
    host_.raise(IBV_EVENT_SQ_DRAINED);
  }
}

// Answers go first, but when both sides have much to send each gets half.
bool RcQueuePair::State::transmit(unsigned budget, TimePoint now) {
  const unsigned half = (budget + 1) / 2;
  const Sent answers = responder_.transmit(half);
  Sent requests = requester_.transmit(budget - answers.packets, now);
  bool more = requests.more;
  if (answers.more) more |= responder_.transmit(budget - answers.packets - requests.packets).more;
  after_host_calls();
  return more && connection_.responds();
}

void RcQueuePair::State::receive(const Packet& packet, const wire::Endpoint& source, TimePoint now) {
  if (source.address != connection_.peer.address) return;
  if (connection_.state == IBV_QPS_ERR && packet.info().has(OpcodeInfo::kRequest)) {
    return responder_.request_after_refusal(packet.sequence());
  }
  if (!connection_.responds()) return;
  ++connection_.counters.packets_received;
  connection_.counters.bytes_received += packet.payload().size();
  if (packet.info().has(OpcodeInfo::kRequest)) {
    if (!established_ && connection_.state == IBV_QPS_RTR) host_.raise(IBV_EVENT_COMM_EST);
    established_ = true;
    responder_.request(packet);
  } else if (connection_.requests()) {
    if (static_cast<Opcode>(packet.opcode()) == Opcode::Reason) {
      requester_.reason(packet);
    } else if (packet.info().has(OpcodeInfo::kRead)) {
      requester_.read_response(packet, now);
    } else if (packet.info().has(OpcodeInfo::kAtomic)) {
      requester_.atomic_response(packet, now);
    } else {
      requester_.acknowledged(packet, now);
    }
  }
  after_host_calls();
}

TimePoint RcQueuePair::State::deadline() const {
  const TimePoint timer = requester_.deadline();
  // The past, for "at once"; not min(), with which an engine could not compute.
  return has_work(TimePoint::min()) ? TimePoint{} : timer;
}

void RcQueuePair::State::expire(TimePoint now) {
  requester_.expire(now);
  if (has_work(now)) static_cast<void>(transmit(kExpireBudget, now));
  after_host_calls();
}

RcQueuePair::RcQueuePair(std::uint32_t qpn, RcHost& host, wire::Link& link)
    : state_(std::make_unique<State>(qpn, host, link)) {}
RcQueuePair::~RcQueuePair() = default;

void RcQueuePair::modify(const ibv_qp_attr& attributes, int mask, TimePoint) {
  state_->modify(attributes, mask);
}
void RcQueuePair::set_state(ibv_qp_state state) {
  state_->set_state(state);
}
ibv_qp_state RcQueuePair::state() const {
  return state_->connection().state;
}
void RcQueuePair::query(ibv_qp_attr& attributes) const {
  state_->query(attributes);
}
bool RcQueuePair::transmit(unsigned budget, TimePoint now) {
  return state_->transmit(budget, now);
}
bool RcQueuePair::has_work(TimePoint now) const {
  return state_->has_work(now);
}
void RcQueuePair::receive(const Packet& packet, const wire::Endpoint& source, TimePoint now) {
  state_->receive(packet, source, now);
}
TimePoint RcQueuePair::deadline() const {
  return state_->deadline();
}
void RcQueuePair::expire(TimePoint now) {
  state_->expire(now);
}
const RcCounters& RcQueuePair::counters() const {
  return state_->connection().counters;
}

}  // namespace qpair::softnic::roce
