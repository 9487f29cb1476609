#include "softnic/cm/id.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "softnic/cm/manager.hpp"

namespace qpair::softnic::cm {
namespace {

constexpr std::uint32_t kPsnMask = 0xff'ffff;
constexpr std::uint32_t kFlowLabelMask = 0xf'ffff;
constexpr std::uint8_t kMaxRetryCount = 7;
constexpr std::uint8_t kReliable = 0;
constexpr std::uint8_t kUnreliable = 1;

template <std::size_t room>
bool take(PrivateData<room>& to, std::size_t offset, std::span<const std::uint8_t> private_data) {
  if (offset + private_data.size() > room) return false;
  std::ranges::copy(private_data, to.begin() + static_cast<std::ptrdiff_t>(offset));
  return true;
}

std::span<const std::uint8_t> private_data_of(const rdma_ucm_conn_param& parameters) {
  return {parameters.private_data, parameters.private_data_len};
}

}  // namespace

Id::Id(Manager& manager, PortSpace space, std::uint8_t qp_type)
    : manager_(manager), space_(space), qp_type_(qp_type), sequence_(manager.random() & kPsnMask) {}

Id::~Id() {
  if (state_ == State::Listen) manager_.remove_listener(*this);
  if (!conversation_) return;
  conversation_->abandon(TimePoint{});
  manager_.end_conversation(*conversation_);
}

void Id::discard() {
  if (conversation_) manager_.end_conversation(*conversation_);
  conversation_.reset();
}

Connection& Id::converse() {
  if (!conversation_) conversation_ = manager_.start_conversation(*this);
  return *conversation_;
}

// The identifier of a request: its addresses are those of the header, seen from here.
std::unique_ptr<Id> Id::of_request(Id& listener, const IpHeader& header) {
  auto id = std::make_unique<Id>(listener.manager_, listener.space_, listener.qp_type_);
  id->source_ = {.family = header.family, .bytes = header.destination, .port = listener.source_.port};
  id->destination_ = {.family = header.family, .bytes = header.source, .port = header.source_port};
  id->has_device_ = true;
  id->tos_ = listener.tos_;
  id->ack_timeout_ = listener.ack_timeout_;
  id->state_ = State::Connect;
  return id;
}

// ---- Addresses ----------------------------------------------------------------------------------

// rdma_bind_addr().
int Id::bind(const Address& address, std::shared_ptr<PortClaim> port) {
  if (state_ != State::Idle) return EINVAL;
  source_ = address;
  port_ = std::move(port);
  has_device_ = !address.is_any();
  state_ = State::AddrBound;
  return 0;
}

int Id::set_family_only(bool only) {
  if (state_ != State::Idle && state_ != State::AddrBound) return EINVAL;
  family_only_ = only;
  return 0;
}

// rdma_resolve_addr(), and what the kernel does later in addr_handler().
int Id::resolve_address(const Address& destination, const wire::Endpoint& peer, int failure) {
  if (state_ != State::AddrBound || source_.family != destination.family) return EINVAL;
  destination_ = destination;
  if (failure != 0) {
    tell(EventType::AddrError, -failure);
    return 0;
  }
  if (source_.is_any()) source_.bytes = manager_.port().address.address;
  has_device_ = true;
  peer_gid_ = manager_.port().gid_of(peer);
  peer_lid_ = manager_.port().lid_of(peer);
  state_ = State::AddrResolved;
  tell(EventType::AddrResolved);
  return 0;
}

int Id::resolve_route() {
  if (state_ != State::AddrResolved) return EINVAL;
  state_ = State::RouteResolved;
  tell(EventType::RouteResolved);
  return 0;
}

int Id::listen() {
  if (state_ != State::AddrBound) return EINVAL;
  state_ = State::Listen;
  manager_.add_listener(*this);
  return 0;
}

// cma_resolve_iboe_route(): half of the time that the program allows for an acknowledgment.
std::uint8_t Id::packet_lifetime() const {
  return ack_timeout_ && *ack_timeout_ != 0 ? static_cast<std::uint8_t>(*ack_timeout_ - 1) : kPacketLifetime;
}

// cma_get_roce_udp_flow_label().
std::uint32_t Id::flow_label() const {
  return (std::uint32_t{source_.port} * 31 + destination_.port) & kFlowLabelMask;
}

IpHeader Id::header() const {
  return {.family = destination_.family,
          .source_port = source_.port,
          .source = source_.bytes,
          .destination = destination_.bytes};
}

// ---- Connections --------------------------------------------------------------------------------

// cma_connect_ib().
int Id::connect(const rdma_ucm_conn_param& parameters, const Ece& ece, const wire::Endpoint& peer,
                TimePoint now) {
  if (state_ != State::RouteResolved) return EINVAL;
  peer_gid_ = manager_.port().gid_of(peer);
  peer_lid_ = manager_.port().lid_of(peer);
  qp_num_ = parameters.qp_num;
  srq_ = parameters.srq != 0;
  if (is_datagram()) return connect_datagram(parameters, peer, now);
  Req req;
  header().emit(std::span(req.private_data).first<IpHeader::kSize>());
  if (!take(req.private_data, IpHeader::kSize, private_data_of(parameters))) return EINVAL;
  req.ece = ece;
  req.service_id = service_id(space_, destination_.port);
  req.qpn = parameters.qp_num & kPsnMask;
  req.responder_resources = parameters.responder_resources;
  req.initiator_depth = parameters.initiator_depth;
  req.remote_response_timeout = kResponseTimeout;
  req.service_type = qp_type_ == IBV_QPT_UC ? kUnreliable : kReliable;
  req.flow_control = parameters.flow_control != 0;
  req.starting_psn = sequence_;
  req.local_response_timeout = kResponseTimeout;
  req.retry_count = std::min(parameters.retry_count, kMaxRetryCount);
  req.rnr_retry_count = std::min(parameters.rnr_retry_count, kMaxRetryCount);
  req.mtu = manager_.port().mtu;
  req.max_cm_retries = kMaxRetries;
  req.srq = srq_;
  if (manager_.port().infiniband) {
    req.local_lid = manager_.port().lid_of(manager_.port().address);
    req.remote_lid = peer_lid_;
  }
  req.local_gid = manager_.port().gid;
  req.remote_gid = peer_gid_;
  req.flow_label = flow_label();
  req.traffic_class = tos_;
  req.hop_limit = kHopLimit;
  Connection& conversation = converse();
  const int error = conversation.send_req(peer, req, packet_lifetime(), now);
  manager_.watch(conversation);
  if (error == 0) state_ = State::Connect;
  return error;
}

// cma_resolve_ib_udp().
int Id::connect_datagram(const rdma_ucm_conn_param& parameters, const wire::Endpoint& peer, TimePoint now) {
  SidrReq req;
  header().emit(std::span(req.private_data).first<IpHeader::kSize>());
  if (!take(req.private_data, IpHeader::kSize, private_data_of(parameters))) return EINVAL;
  req.service_id = service_id(space_, destination_.port);
  Connection& conversation = converse();
  const int error = conversation.send_sidr_req(peer, req, now);
  manager_.watch(conversation);
  if (error == 0) state_ = State::Connect;
  return error;
}

// cma_accept_ib(), cma_send_sidr_rep().
int Id::accept(const rdma_ucm_conn_param& parameters, const Ece& ece, TimePoint now) {
  if (state_ != State::Connect || !conversation_) return EINVAL;
  qp_num_ = parameters.qp_num;
  srq_ = parameters.srq != 0;
  int error = 0;
  if (is_datagram()) {
    SidrRep rep{.status = static_cast<std::uint8_t>(SidrStatus::Valid), .ece = ece};
    rep.qpn = parameters.qp_num & kPsnMask;
    rep.qkey = kUdpQkey;
    error =
        take(rep.private_data, 0, private_data_of(parameters)) ? conversation_->send_sidr_rep(rep) : EINVAL;
  } else {
    Rep rep{.ece = ece};
    rep.qpn = parameters.qp_num & kPsnMask;
    rep.starting_psn = sequence_;
    rep.responder_resources = parameters.responder_resources;
    rep.initiator_depth = parameters.initiator_depth;
    rep.flow_control = parameters.flow_control != 0;
    rep.rnr_retry_count = std::min(parameters.rnr_retry_count, kMaxRetryCount);
    rep.srq = srq_;
    error =
        take(rep.private_data, 0, private_data_of(parameters)) ? conversation_->send_rep(rep, now) : EINVAL;
  }
  if (error != 0) reject(static_cast<std::uint8_t>(Reason::ConsumerDefined), {}, now);
  manager_.watch(*conversation_);
  return error;
}

// rdma_accept() without parameters: cma_rep_recv().
int Id::establish(TimePoint now) {
  if (state_ != State::Connect || !conversation_) return EINVAL;
  if (is_datagram()) {
    const int error =
        conversation_->send_sidr_rep({.status = static_cast<std::uint8_t>(SidrStatus::Rejected)});
    manager_.watch(*conversation_);
    return error;
  }
  const int error = conversation_->send_rtu();
  if (error != 0) reject(static_cast<std::uint8_t>(Reason::ConsumerDefined), {}, now);
  manager_.watch(*conversation_);
  return error;
}

int Id::reject(std::uint8_t reason, std::span<const std::uint8_t> private_data, TimePoint now) {
  if (!conversation_) return EINVAL;
  int error = EINVAL;
  if (is_datagram()) {
    SidrRep rep{.status = static_cast<std::uint8_t>(SidrStatus::Rejected)};
    if (take(rep.private_data, 0, private_data)) error = conversation_->send_sidr_rep(rep);
  } else {
    Rej rej{.reason = reason};
    if (take(rej.private_data, 0, private_data)) error = conversation_->send_rej(rej, now);
  }
  manager_.watch(*conversation_);
  return error;
}

int Id::disconnect(TimePoint now) {
  if (!conversation_) return EINVAL;
  if (is_datagram()) return 0;  // as rdma_disconnect(), which sends what such a one does not have
  if (conversation_->send_dreq(now) != 0) conversation_->send_drep(now);
  manager_.watch(*conversation_);
  return 0;
}

// ib_cm_notify(). There are no alternate paths to migrate to.
int Id::notify(std::uint32_t event, TimePoint now) {
  if (!conversation_ || event != IBV_EVENT_COMM_EST) return EINVAL;
  const int error = conversation_->establish(now);
  manager_.watch(*conversation_);
  return error;
}

}  // namespace qpair::softnic::cm
