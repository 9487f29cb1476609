// What the peer says, and what its silence means.

#include <algorithm>

#include "softnic/cm/connection.hpp"

namespace qpair::softnic::cm {

void Connection::receive(Attribute attribute, const Mad& mad, TimePoint now) {
  switch (attribute) {
    case Attribute::Mra:
      return receive_mra(Mra::parse(mad), now);
    case Attribute::Rej:
      return receive_rej(mad, now);
    case Attribute::Rep:
      return receive_rep(mad, now);
    case Attribute::Rtu:
      return receive_rtu(mad, now);
    case Attribute::Dreq:
      return receive_dreq(mad, now);
    case Attribute::Drep:
      return receive_drep(mad, now);
    case Attribute::SidrRep:
      return receive_sidr_rep(mad, now);
    case Attribute::Req:
    case Attribute::SidrReq:
      return;
  }
}

// cm_dup_req_handler(). The program takes its time: the peer is asked for more. A REP repeats itself.
void Connection::repeated_req() {
  if (state_ == State::ReqReceived) {
    const Mra mra{.local_id = local_id_,
                  .remote_id = remote_id_,
                  .message = Message::Req,
                  .service_timeout = kServiceTimeout};
    send(mra.emit(peer_transaction_));
  } else if (state_ == State::Timewait) {
    const Rej rej{.local_id = local_id_,
                  .remote_id = remote_id_,
                  .message = Message::Req,
                  .reason = static_cast<std::uint16_t>(Reason::StaleConnection)};
    send(rej.emit(peer_transaction_));
  }
}

// cm_mra_handler().
void Connection::receive_mra(const Mra& mra, TimePoint now) {
  if (state_ == State::ReqSent && mra.message == Message::Req) {
    state_ = State::MraReqReceived;
  } else if (state_ == State::RepSent && mra.message == Message::Rep) {
    state_ = State::MraRepReceived;
  } else {
    return;
  }
  if (resend_) {
    resend_->due = now + to_milliseconds(mra.service_timeout) + to_milliseconds(agreement_.ack_timeout);
  }
}

// cm_rej_handler().
void Connection::receive_rej(const Mad& mad, TimePoint now) {
  switch (state_) {
    case State::ReqSent:
    case State::MraReqReceived:
    case State::RepSent:
    case State::MraRepReceived:
      if (Rej::parse(mad).reason == static_cast<std::uint16_t>(Reason::StaleConnection)) {
        enter_timewait(now);
      } else {
        become_idle();
      }
      break;
    case State::ReqReceived:
      become_idle();
      break;
    case State::RepReceived:
    case State::Established:
    case State::DreqSent:
      enter_timewait(now);
      break;
    default:
      return;
  }
  listener_->report(Report::RejReceived, &mad, now);
}

// cm_rep_handler(), cm_dup_rep_handler().
void Connection::receive_rep(const Mad& mad, TimePoint now) {
  const Rep rep = Rep::parse(mad);
  if (state_ == State::Established && rep.local_id == remote_id_) {  // our RTU was lost
    const Note rtu{.local_id = local_id_, .remote_id = remote_id_};
    return send(rtu.emit(Attribute::Rtu, peer_transaction_));
  }
  if (state_ == State::RepReceived && rep.local_id == remote_id_) {  // the program takes its time
    const Mra mra{.local_id = local_id_,
                  .remote_id = remote_id_,
                  .message = Message::Rep,
                  .service_timeout = kServiceTimeout};
    return send(mra.emit(peer_transaction_));
  }
  if (state_ != State::ReqSent && state_ != State::MraReqReceived) return;
  resend_.reset();
  remote_id_ = rep.local_id;
  remote_guid_ = rep.ca_guid;
  agreement_.remote_qpn = rep.qpn;
  agreement_.sq_psn = rep.starting_psn;
  agreement_.initiator_depth = rep.responder_resources;
  agreement_.responder_resources = rep.initiator_depth;
  agreement_.rnr_retry_count = rep.rnr_retry_count;
  agreement_.ack_timeout =
      ack_timeout(rep.target_ack_delay, agreement_.ack_timeout != 0 ? agreement_.ack_timeout - 1U : 0U);
  state_ = State::RepReceived;
  listener_->report(Report::RepReceived, &mad, now);
}

void Connection::receive_rtu(const Mad& mad, TimePoint now) {
  if (state_ != State::RepSent && state_ != State::MraRepReceived) return;
  resend_.reset();
  state_ = State::Established;
  listener_->report(Report::RtuReceived, &mad, now);
}

// cm_dreq_handler().
void Connection::receive_dreq(const Mad& mad, TimePoint now) {
  if (Dreq::parse(mad).remote_qpn != local_qpn_) return;
  switch (state_) {
    case State::RepSent:
    case State::MraRepReceived:
    case State::DreqSent:
    case State::Established:
      resend_.reset();
      break;
    case State::Timewait: {  // our DREP was lost
      const auto header = Header::parse(mad);
      const Note drep{.local_id = local_id_, .remote_id = remote_id_};
      return send(drep.emit(Attribute::Drep, header ? header->transaction : peer_transaction_));
    }
    default:
      return;
  }
  if (const auto header = Header::parse(mad)) peer_transaction_ = header->transaction;
  state_ = State::DreqReceived;
  listener_->report(Report::DreqReceived, &mad, now);
}

void Connection::receive_drep(const Mad& mad, TimePoint now) {
  if (state_ != State::DreqSent && state_ != State::DreqReceived) return;
  enter_timewait(now);
  listener_->report(Report::DrepReceived, &mad, now);
}

void Connection::receive_sidr_rep(const Mad& mad, TimePoint now) {
  if (state_ != State::SidrReqSent) return;
  become_idle();
  listener_->report(Report::SidrRepReceived, &mad, now);
}

// ---- Time ---------------------------------------------------------------------------------------

TimePoint Connection::deadline() const {
  return std::min(timewait_end_, resend_ ? resend_->due : TimePoint::max());
}

void Connection::expire(TimePoint now) {
  if (timewait_end_ <= now) {
    become_idle();
    return listener_->report(Report::TimewaitExit, nullptr, now);
  }
  if (!resend_ || resend_->due > now) return;
  if (resend_->left > 0) {
    --resend_->left;
    resend_->due = now + resend_->interval;
    return send(resend_->mad);
  }
  // cm_process_send_error().
  switch (state_) {
    case State::ReqSent:
    case State::MraReqReceived:
      become_idle();
      return listener_->report(Report::ReqError, nullptr, now);
    case State::RepSent:
    case State::MraRepReceived:
      become_idle();
      return listener_->report(Report::RepError, nullptr, now);
    case State::DreqSent:
      enter_timewait(now);
      return listener_->report(Report::DreqError, nullptr, now);
    case State::SidrReqSent:
      become_idle();
      return listener_->report(Report::SidrReqError, nullptr, now);
    default:
      resend_.reset();
  }
}

}  // namespace qpair::softnic::cm
