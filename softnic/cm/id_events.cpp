// What an identifier tells its program.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "softnic/cm/id.hpp"

namespace qpair::softnic::cm {
namespace {

// The consumer's part of a message, and how much of it there is.
template <typename Parameters>
void hand_over(Parameters& to, std::span<const std::uint8_t> private_data) {
  const std::size_t size = std::min(private_data.size(), sizeof to.private_data);
  std::memcpy(to.private_data, private_data.data(), size);
  to.private_data_len = static_cast<std::uint8_t>(size);
}

}  // namespace

void Id::tell(EventType type, int status) {
  Event event;
  event.type = type;
  event.status = status;
  if (consumer_ != nullptr) consumer_->happened(std::move(event));
}

// cma_ib_handler(), cma_sidr_rep_handler().
void Id::report(Report what, const Mad* mad, TimePoint) {
  if (state_ != (what == Report::TimewaitExit ? State::Disconnect : State::Connect)) return;
  switch (what) {
    case Report::ReqError:
    case Report::RepError:
    case Report::SidrReqError:
      return tell(EventType::Unreachable, -ETIMEDOUT);
    case Report::RepReceived:
      return told_of_reply(*mad);
    case Report::RtuReceived:
      return tell(EventType::Established);
    case Report::RejReceived:
      return told_of_rejection(*mad);
    case Report::DreqError:
      return told_of_disconnection(-ETIMEDOUT);
    case Report::DreqReceived:
    case Report::DrepReceived:
      return told_of_disconnection(0);
    case Report::TimewaitExit:
      return tell(EventType::TimewaitExit);
    case Report::SidrRepReceived:
      return told_of_resolution(*mad);
  }
}

// cma_set_req_event_data(), and ucma_event_handler() for a listener whose backlog is full.
void Id::tell_of_request(std::unique_ptr<Id> request, const Req& req) {
  Event event;
  event.type = EventType::ConnectRequest;
  event.ece = req.ece;
  hand_over(event.conn, std::span(req.private_data).subspan(IpHeader::kSize));
  event.conn.responder_resources = req.initiator_depth;
  event.conn.initiator_depth = req.responder_resources;
  event.conn.flow_control = req.flow_control ? 1 : 0;
  event.conn.retry_count = req.retry_count;
  event.conn.rnr_retry_count = req.rnr_retry_count;
  event.conn.srq = req.srq ? 1 : 0;
  event.conn.qp_num = req.qpn;
  offer(std::move(event), std::move(request));
}

void Id::tell_of_request(std::unique_ptr<Id> request, const SidrReq& req) {
  Event event;
  event.type = EventType::ConnectRequest;
  hand_over(event.ud, std::span(req.private_data).subspan(IpHeader::kSize));
  offer(std::move(event), std::move(request));
}

void Id::offer(Event event, std::unique_ptr<Id> request) {
  event.request = std::move(request);
  if (consumer_ == nullptr || !consumer_->has_room()) return event.request->discard();
  consumer_->happened(std::move(event));
}

void Id::told_of_disconnection(int status) {
  state_ = State::Disconnect;
  tell(EventType::Disconnected, status);
}

// cma_set_rep_event_data(). The queue pair is the program's, which moves it and then establishes.
void Id::told_of_reply(const Mad& mad) {
  const Rep rep = Rep::parse(mad);
  Event event;
  event.type = EventType::ConnectResponse;
  event.ece = rep.ece;
  hand_over(event.conn, rep.private_data);
  event.conn.responder_resources = rep.initiator_depth;
  event.conn.initiator_depth = rep.responder_resources;
  event.conn.flow_control = rep.flow_control ? 1 : 0;
  event.conn.rnr_retry_count = rep.rnr_retry_count;
  event.conn.srq = rep.srq ? 1 : 0;
  event.conn.qp_num = rep.qpn;
  if (consumer_ != nullptr) consumer_->happened(std::move(event));
}

void Id::told_of_rejection(const Mad& mad) {
  const Rej rej = Rej::parse(mad);
  Event event;
  event.type = EventType::Rejected;
  event.status = rej.reason;
  hand_over(event.conn, rej.private_data);
  if (consumer_ != nullptr) consumer_->happened(std::move(event));
}

void Id::told_of_resolution(const Mad& mad) {
  const SidrRep rep = SidrRep::parse(mad);
  Event event;
  event.type = rep.status == 0 ? EventType::Established : EventType::Unreachable;
  event.status = rep.status;
  event.ece = rep.ece;
  hand_over(event.ud, rep.private_data);
  if (rep.status == 0) {
    event.ud.ah_attr = address_vector();
    event.ud.qp_num = rep.qpn;
    event.ud.qkey = rep.qkey;
  }
  if (consumer_ != nullptr) consumer_->happened(std::move(event));
}

}  // namespace qpair::softnic::cm
