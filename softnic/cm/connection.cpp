#include "softnic/cm/connection.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "softnic/wire/bytes.hpp"

namespace qpair::softnic::cm {
namespace {

constexpr std::uint8_t kNoAlternatePath = 1;  // IBTA vol. 1 12.7.25, failover accepted

}  // namespace

// The kernel's agent puts the conversation's identifier into the lower half (cm.c, cm_form_tid()).
std::uint64_t Connection::transaction() const {
  return (std::uint64_t{1} << 32) | local_id_;
}

void Connection::send(const Mad& mad) {
  environment_.sender->send(agreement_.peer, mad);
}

void Connection::send_until_answered(const Mad& mad, std::chrono::milliseconds interval, TimePoint now) {
  resend_ = Resend{.mad = mad, .interval = interval, .left = max_retries_, .due = now + interval};
  send(mad);
}

void Connection::enter_timewait(TimePoint now) {
  resend_.reset();
  state_ = State::Timewait;
  timewait_end_ = now + to_milliseconds(agreement_.ack_timeout);
}

void Connection::become_idle() {
  resend_.reset();
  state_ = State::Idle;
  timewait_end_ = TimePoint::max();
}

// ---- What a consumer says -----------------------------------------------------------------------

int Connection::send_req(const wire::Endpoint& peer, Req req, std::uint8_t packet_lifetime, TimePoint now) {
  if (state_ != State::Idle) return EINVAL;
  req.local_id = local_id_;
  req.ca_guid = environment_.ca_guid;
  req.ack_timeout = ack_timeout(environment_.ack_delay, packet_lifetime);
  service_id_ = req.service_id;
  local_qpn_ = req.qpn;
  max_retries_ = req.max_cm_retries;
  interval_ = to_milliseconds(packet_lifetime) * 2 + to_milliseconds(req.remote_response_timeout);
  agreement_ = {.peer = peer,
                .peer_gid = req.remote_gid,
                .rq_psn = req.starting_psn,
                .responder_resources = req.responder_resources,
                .initiator_depth = req.initiator_depth,
                .mtu = req.mtu,
                .ack_timeout = req.ack_timeout,
                .retry_count = req.retry_count,
                .rnr_retry_count = req.rnr_retry_count,
                .flow_label = req.flow_label,
                .traffic_class = req.traffic_class,
                .hop_limit = req.hop_limit};
  peer_transaction_ = transaction();
  state_ = State::ReqSent;
  send_until_answered(req.emit(transaction()), interval_, now);
  return 0;
}

int Connection::send_rtu() {
  if (state_ != State::RepReceived) return EINVAL;
  const Note rtu{.local_id = local_id_, .remote_id = remote_id_};
  send(rtu.emit(Attribute::Rtu, peer_transaction_));
  state_ = State::Established;
  return 0;
}

int Connection::send_sidr_req(const wire::Endpoint& peer, SidrReq req, TimePoint now) {
  if (state_ != State::Idle) return EINVAL;
  req.request_id = local_id_;
  agreement_.peer = peer;
  service_id_ = req.service_id;
  max_retries_ = kMaxRetries;
  state_ = State::SidrReqSent;
  send_until_answered(req.emit(transaction()), to_milliseconds(kResponseTimeout), now);
  return 0;
}

// cm_req_handler(). "Initiator" and "responder" change places: what one asks for, the other gives.
void Connection::take_req(const Req& req, std::uint64_t transaction, const wire::Endpoint& source) {
  remote_id_ = req.local_id;
  remote_guid_ = req.ca_guid;
  service_id_ = req.service_id;
  peer_transaction_ = transaction;
  max_retries_ = req.max_cm_retries;
  interval_ = to_milliseconds(req.local_response_timeout);
  agreement_ = {.peer = source,
                .peer_gid = req.local_gid,
                .remote_qpn = req.qpn,
                .sq_psn = req.starting_psn,
                .responder_resources = req.initiator_depth,
                .initiator_depth = req.responder_resources,
                .mtu = req.mtu,
                .ack_timeout = req.ack_timeout,
                .retry_count = req.retry_count,
                .rnr_retry_count = req.rnr_retry_count,
                .flow_label = req.flow_label,
                .traffic_class = req.traffic_class,
                .hop_limit = req.hop_limit};
  state_ = State::ReqReceived;
}

void Connection::take_sidr_req(const SidrReq& req, std::uint64_t transaction, const wire::Endpoint& source) {
  remote_id_ = req.request_id;
  service_id_ = req.service_id;
  peer_transaction_ = transaction;
  agreement_.peer = source;
  state_ = State::SidrReqReceived;
}

int Connection::send_rep(Rep rep, TimePoint now) {
  if (state_ != State::ReqReceived) return EINVAL;
  rep.local_id = local_id_;
  rep.remote_id = remote_id_;
  rep.ca_guid = environment_.ca_guid;
  rep.target_ack_delay = environment_.ack_delay;
  rep.failover = kNoAlternatePath;
  local_qpn_ = rep.qpn;
  agreement_.rq_psn = rep.starting_psn;
  agreement_.initiator_depth = rep.initiator_depth;
  agreement_.responder_resources = rep.responder_resources;
  state_ = State::RepSent;
  send_until_answered(rep.emit(peer_transaction_), interval_, now);
  return 0;
}

int Connection::send_sidr_rep(SidrRep rep) {
  if (state_ != State::SidrReqReceived) return EINVAL;
  rep.request_id = remote_id_;
  rep.service_id = service_id_;
  send(rep.emit(peer_transaction_));
  become_idle();
  return 0;
}

int Connection::establish(TimePoint now) {
  switch (state_) {
    case State::RepSent:
    case State::MraRepReceived:
      resend_.reset();
      state_ = State::Established;
      listener_->report(Report::RtuReceived, nullptr, now);
      return 0;
    case State::Established:
      return EISCONN;
    default:
      return EINVAL;
  }
}

int Connection::send_rej(Rej rej, TimePoint now) {
  rej.local_id = local_id_;
  rej.remote_id = remote_id_;
  switch (state_) {
    case State::ReqSent:
    case State::MraReqReceived:
    case State::ReqReceived:
      rej.message = Message::Req;
      break;
    case State::RepReceived:
      rej.message = Message::Rep;
      break;
    case State::RepSent:
    case State::MraRepReceived:
      rej.message = Message::Rep;
      send(rej.emit(peer_transaction_));
      enter_timewait(now);
      return 0;
    default:
      return EINVAL;
  }
  send(rej.emit(peer_transaction_));
  become_idle();
  return 0;
}

int Connection::send_dreq(TimePoint now) {
  if (state_ != State::Established) return EINVAL;
  const Dreq dreq{.local_id = local_id_, .remote_id = remote_id_, .remote_qpn = agreement_.remote_qpn};
  state_ = State::DreqSent;
  send_until_answered(dreq.emit(transaction()), interval_, now);
  return 0;
}

int Connection::send_drep(TimePoint now) {
  if (state_ != State::DreqReceived) return EINVAL;
  const Note drep{.local_id = local_id_, .remote_id = remote_id_};
  send(drep.emit(Attribute::Drep, peer_transaction_));
  enter_timewait(now);
  return 0;
}

void Connection::abandon(TimePoint now) {
  switch (state_) {
    case State::SidrReqReceived:
      send_sidr_rep({.status = static_cast<std::uint8_t>(SidrStatus::Rejected)});
      break;
    case State::ReqSent:
    case State::MraReqReceived: {
      Rej rej{.reason = static_cast<std::uint16_t>(Reason::Timeout), .info_length = sizeof(std::uint64_t)};
      wire::store_be(reinterpret_cast<std::byte*>(rej.info.data()), environment_.ca_guid);
      send_rej(rej, now);
      break;
    }
    case State::ReqReceived:
    case State::RepReceived:
    case State::RepSent:
    case State::MraRepReceived:
      send_rej({.reason = static_cast<std::uint16_t>(Reason::ConsumerDefined)}, now);
      break;
    case State::Established:
      send_dreq(now);
      break;
    case State::DreqReceived:
      send_drep(now);
      break;
    case State::Idle:
    case State::DreqSent:
    case State::Timewait:
    case State::SidrReqSent:
      break;
  }
  become_idle();
}

}  // namespace qpair::softnic::cm
