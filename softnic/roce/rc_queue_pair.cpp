#include "softnic/roce/rc_queue_pair.hpp"

#include <algorithm>

#include "softnic/roce/connection.hpp"
#include "softnic/roce/requester.hpp"
#include "softnic/roce/responder.hpp"

namespace qpair::softnic::roce {

class RcQueuePair::State {
 public:
  State(std::uint32_t qpn, Host& host, wire::Link& link, Xrc side)
      : side_(side),
        host_(host),
        connection_(qpn, link),
        requester_(connection_, host),
        responder_(connection_, host) {
    if (side != Xrc::None) connection_.service = Service::ExtendedReliableConnection;
  }

  void modify(const ibv_qp_attr& attributes, int mask);
  void set_state(ibv_qp_state state);
  void query(ibv_qp_attr& attributes) const;
  bool transmit(unsigned budget, TimePoint now);
  bool has_work(TimePoint now) const {
    return (responder_.has_work() && !responder_.waits_for_room()) || requester_.has_work(now);
  }
  bool waits_for_room() const { return responder_.waits_for_room() || requester_.waits_for_room(); }
  void receive(const Packet& packet, const wire::Endpoint& source, TimePoint now);
  TimePoint deadline() const;
  void expire(TimePoint now);
  void peer_departed(const wire::Endpoint& peer);

  const Connection& connection() const { return connection_; }

 private:
  void after_host_calls();
  bool is_for_this(const Packet& packet) const;

  const Xrc side_;
  Host& host_;
  Connection connection_;
  Requester requester_;
  Responder responder_;
  bool established_ = false;   // IBV_EVENT_COMM_EST was raised
  bool drain_notify_ = false;  // IBV_EVENT_SQ_DRAINED was asked for and not raised yet
};

void RcQueuePair::State::modify(const ibv_qp_attr& attributes, int mask) {
  connection_.configure(attributes, mask);
  requester_.configure(attributes, mask);
  responder_.configure(attributes, mask);
  if ((mask & IBV_QP_RQ_PSN) != 0) responder_.start(Psn(attributes.rq_psn));
  if ((mask & IBV_QP_SQ_PSN) != 0) requester_.start(Psn(attributes.sq_psn));
  if ((mask & IBV_QP_STATE) == 0) return;
  set_state(attributes.qp_state);
  if (attributes.qp_state == IBV_QPS_SQD) {
    if ((mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0) drain_notify_ = attributes.en_sqd_async_notify != 0;
    after_host_calls();
  }
}

void RcQueuePair::State::set_state(ibv_qp_state state) {
  if (state != IBV_QPS_SQD || connection_.state != IBV_QPS_SQD) drain_notify_ = false;
  connection_.state = state;
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

// Another service's packets, and those of the wrong side of an XRC, are dropped (IBTA vol. 1 9.6.1.2).
bool RcQueuePair::State::is_for_this(const Packet& packet) const {
  if (static_cast<Opcode>(packet.opcode()) == Opcode::Reason) return side_ != Xrc::Target;
  if (service_of(packet.opcode()) != connection_.service) return false;
  return side_ == Xrc::None || packet.info().has(OpcodeInfo::kRequest) == (side_ == Xrc::Target);
}

void RcQueuePair::State::receive(const Packet& packet, const wire::Endpoint& source, TimePoint now) {
  if (source.address != connection_.peer.address || !is_for_this(packet)) return;
  if (connection_.state == IBV_QPS_ERR && packet.info().has(OpcodeInfo::kRequest)) {
    return responder_.request_after_refusal(packet.sequence());
  }
  if (!connection_.responds()) return;
  ++connection_.counters.packets_received;
  connection_.counters.bytes_received += packet.size();
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

void RcQueuePair::State::peer_departed(const wire::Endpoint& peer) {
  if (peer.address != connection_.peer.address) return;
  requester_.peer_departed();
  after_host_calls();
}

RcQueuePair::RcQueuePair(std::uint32_t qpn, Host& host, wire::Link& link, Xrc side)
    : state_(std::make_unique<State>(qpn, host, link, side)) {}
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
bool RcQueuePair::waits_for_room() const {
  return state_->waits_for_room();
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
void RcQueuePair::peer_departed(const wire::Endpoint& peer) {
  state_->peer_departed(peer);
}
const Counters& RcQueuePair::counters() const {
  return state_->connection().counters;
}

}  // namespace qpair::softnic::roce
