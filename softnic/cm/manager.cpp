#include "softnic/cm/manager.hpp"

#include <algorithm>

#include "softnic/nic/address_resolution.hpp"

namespace qpair::softnic::cm {
namespace {

constexpr std::uint64_t kMultiplier = 6'364'136'223'846'793'005U;  // of Knuth's MMIX generator
constexpr std::uint64_t kIncrement = 1'442'695'040'888'963'407U;

}  // namespace

Gid Port::gid_of(const wire::Endpoint& peer) const {
  if (!infiniband) return peer.address;
  const ibv_gid local = nic::link_local(nic::port_mac(peer.address));
  Gid of_peer{};
  std::ranges::copy(local.raw, of_peer.begin());
  return of_peer;
}

std::uint16_t Port::lid_of(const wire::Endpoint& peer) const {
  return infiniband ? nic::lid_of(peer.address) : std::uint16_t{0};
}

Manager::Manager(nic::MadSender& sender, const Port& port, std::uint64_t seed)
    : sender_(sender), port_(port), random_(seed) {}

Manager::~Manager() = default;

std::uint32_t Manager::random() {
  random_ = random_ * kMultiplier + kIncrement;
  return static_cast<std::uint32_t>(random_ >> 32);
}

std::uint32_t Numbers::take() {
  while (taken_.contains(lowest_free_)) ++lowest_free_;
  taken_.insert(lowest_free_);
  return lowest_free_++;
}

void Numbers::give(std::uint32_t number) {
  taken_.erase(number);
  lowest_free_ = std::min(lowest_free_, number);
}

// ---- Conversations ------------------------------------------------------------------------------

std::unique_ptr<Connection> Manager::start_conversation(Id& id) {
  std::uint32_t local_id = random();
  while (local_id == 0 || conversations_.contains(local_id)) local_id = random();
  auto conversation = std::make_unique<Connection>(
      Connection::Environment{.sender = &sender_, .ca_guid = port_.node_guid, .ack_delay = port_.ack_delay},
      local_id, id);
  conversations_[local_id].conversation = conversation.get();
  return conversation;
}

void Manager::end_conversation(Connection& conversation) {
  const auto at = conversations_.find(conversation.local_id());
  if (at == conversations_.end()) return;
  Entry& entry = at->second;
  timers_.erase({entry.timer, at->first});
  unfile(remote_ids_, entry.remote_id, at->first);
  unfile(remote_qpns_, entry.remote_qpn, at->first);
  conversations_.erase(at);
}

void Manager::watch(const Connection& conversation) {
  const auto at = conversations_.find(conversation.local_id());
  if (at == conversations_.end()) return;
  Entry& entry = at->second;
  if (const TimePoint deadline = conversation.deadline(); deadline != entry.timer) {
    timers_.erase({entry.timer, at->first});
    if (deadline != TimePoint::max()) timers_.insert({deadline, at->first});
    entry.timer = deadline;
  }
  const bool over = conversation.state() == State::Idle;
  const bool known = !over && conversation.remote_guid() != 0;
  file(remote_ids_, entry.remote_id,
       known ? Remote{conversation.remote_guid(), conversation.remote_id()} : Remote{}, at->first);
  const bool in_use = known && conversation.agreement().remote_qpn != 0;
  file(remote_qpns_, entry.remote_qpn,
       in_use ? Remote{conversation.remote_guid(), conversation.agreement().remote_qpn} : Remote{},
       at->first);
}

void Manager::unfile(RemoteTable& table, Remote& filed, std::uint32_t local_id) {
  const auto at = table.find(filed);
  if (at != table.end() && at->second == local_id) table.erase(at);
  filed = {};
}

void Manager::file(RemoteTable& table, Remote& filed, const Remote& now, std::uint32_t local_id) {
  if (filed == now) return;
  unfile(table, filed, local_id);
  if (now.first == 0) return;
  table[now] = local_id;
  filed = now;
}

Connection* Manager::find(std::uint32_t local_id) const {
  const auto at = conversations_.find(local_id);
  return at != conversations_.end() ? at->second.conversation : nullptr;
}

Connection* Manager::find(const RemoteTable& table, const Remote& remote) const {
  const auto at = table.find(remote);
  return at != table.end() ? find(at->second) : nullptr;
}

// ---- Listeners ----------------------------------------------------------------------------------

void Manager::add_listener(Id& id) {
  listeners_.emplace(id.service(), &id);
}

void Manager::remove_listener(Id& id) {
  const auto [first, last] = listeners_.equal_range(id.service());
  const auto at = std::find_if(first, last, [&](const auto& entry) { return entry.second == &id; });
  if (at != last) listeners_.erase(at);
}

// `known`: somebody listens to the service, be it at another address.
Id* Manager::find_listener(std::uint64_t service, const IpHeader& header, bool& known) const {
  const auto [first, last] = listeners_.equal_range(service);
  known = first != last;
  Id* at_any = nullptr;
  for (auto at = first; at != last; ++at) {
    Id& id = *at->second;
    if (id.source().bytes == header.destination) return &id;
    const bool fits = id.source().family == header.family || !id.family_only();
    if (id.source().is_any() && fits) at_any = &id;
  }
  return at_any;
}

// ---- Datagrams ----------------------------------------------------------------------------------

void Manager::receive(nic::MadView bytes, const wire::Endpoint& source, TimePoint now) {
  const auto header = Header::parse(bytes);
  if (!header) return;
  Mad mad;
  std::ranges::copy(bytes, mad.begin());
  switch (header->attribute) {
    case Attribute::Req:
      return receive_req(*header, mad, source, now);
    case Attribute::SidrReq:
      return receive_sidr_req(*header, mad, source, now);
    case Attribute::Dreq:
      return receive_dreq(*header, mad, source, now);
    case Attribute::SidrRep:
      return hand_over(SidrRep::parse(mad).request_id, *header, mad, source, now);
    case Attribute::Rej: {
      const Rej rej = Rej::parse(mad);
      // Who gave up waiting for our REP may not know our identifier (cm_acquire_rejected_id()).
      if (rej.remote_id == 0) {
        Remote remote{0, rej.local_id};
        for (std::size_t i = 0; i < sizeof remote.first; ++i)
          remote.first = (remote.first << 8) | rej.info[i];
        const Connection* const conversation = find(remote_ids_, remote);
        return conversation != nullptr ? hand_over(conversation->local_id(), *header, mad, source, now)
                                       : void();
      }
      return hand_over(rej.remote_id, *header, mad, source, now);
    }
    case Attribute::Mra:
    case Attribute::Rep:
    case Attribute::Rtu:
    case Attribute::Drep:
      return hand_over(Note::parse(mad).remote_id, *header, mad, source, now);  // all begin alike
  }
}

// Only its peer may speak in a conversation, and only with the peer's identifier once that is known.
void Manager::hand_over(std::uint32_t local_id, const Header& header, const Mad& mad,
                        const wire::Endpoint& source, TimePoint now) {
  Connection* const conversation = find(local_id);
  if (conversation == nullptr || conversation->agreement().peer.address != source.address) return;
  const bool knows_peer = conversation->remote_id() != 0;
  const bool names_itself = header.attribute != Attribute::SidrRep;
  const std::uint32_t sender_id = Note::parse(mad).local_id;
  const bool rejects = header.attribute == Attribute::Rej;  // of a REQ that was not taken: may have none
  if (knows_peer && names_itself && sender_id != conversation->remote_id() && !(rejects && sender_id == 0)) {
    return;
  }
  conversation->receive(header.attribute, mad, now);
  watch(*conversation);
}

void Manager::refuse(const Req& req, const Header& header, const wire::Endpoint& to, Reason reason) {
  const Rej rej{.local_id = 0,
                .remote_id = req.local_id,
                .message = Message::Req,
                .reason = static_cast<std::uint16_t>(reason)};
  sender_.send(to, rej.emit(header.transaction));
}

// cm_req_handler(), cma_ib_req_handler().
void Manager::receive_req(const Header& header, const Mad& mad, const wire::Endpoint& source, TimePoint now) {
  const Req req = Req::parse(mad);
  if (Connection* const known = find(remote_ids_, {req.ca_guid, req.local_id})) {
    if (known->agreement().peer.address == source.address) known->repeated_req();
    return;
  }
  // The peer's queue pair has a new life: what we have of its old one is over (IBTA vol. 1 12.9.8.3.1).
  if (Connection* const stale = find(remote_qpns_, {req.ca_guid, req.qpn})) {
    if (stale->agreement().peer.address != source.address) return;
    refuse(req, header, source, Reason::StaleConnection);
    stale->send_dreq(now);
    return watch(*stale);
  }
  const auto addresses = IpHeader::parse(std::span(req.private_data).first<IpHeader::kSize>());
  bool known_service = listeners_.contains(req.service_id);
  if (!known_service) return refuse(req, header, source, Reason::InvalidServiceId);
  Id* const listener = addresses ? find_listener(req.service_id, *addresses, known_service) : nullptr;
  if (listener == nullptr || listener->is_datagram()) {
    return refuse(req, header, source, Reason::ConsumerDefined);
  }
  auto id = Id::of_request(*listener, *addresses);
  id->set_peer(req.local_gid, port_.lid_of(source));
  Connection& conversation = id->converse();
  conversation.take_req(req, header.transaction, source);
  watch(conversation);
  listener->tell_of_request(std::move(id), req);
}

// cm_sidr_req_handler().
void Manager::receive_sidr_req(const Header& header, const Mad& mad, const wire::Endpoint& source,
                               TimePoint) {
  const SidrReq req = SidrReq::parse(mad);
  for (const auto& [number, entry] : conversations_) {
    const Connection& other = *entry.conversation;
    if (other.state() == State::SidrReqReceived && other.remote_id() == req.request_id &&
        other.agreement().peer.address == source.address) {
      return;  // it is being thought about
    }
  }
  const auto addresses = IpHeader::parse(std::span(req.private_data).first<IpHeader::kSize>());
  bool known = false;
  Id* const listener = addresses ? find_listener(req.service_id, *addresses, known) : nullptr;
  if (listener == nullptr || !listener->is_datagram()) {
    const SidrRep rep{.request_id = req.request_id,
                      .status = static_cast<std::uint8_t>(SidrStatus::InvalidServiceId),
                      .service_id = req.service_id};
    return sender_.send(source, rep.emit(header.transaction));
  }
  auto id = Id::of_request(*listener, *addresses);
  id->set_peer(port_.gid_of(source), port_.lid_of(source));
  id->converse().take_sidr_req(req, header.transaction, source);
  listener->tell_of_request(std::move(id), req);
}

// cm_dreq_handler(): who is not known any more has said goodbye already; the peer missed it.
void Manager::receive_dreq(const Header& header, const Mad& mad, const wire::Endpoint& source,
                           TimePoint now) {
  const Dreq dreq = Dreq::parse(mad);
  const Connection* const conversation = find(dreq.remote_id);
  if (conversation != nullptr && conversation->state() != State::Idle) {
    return hand_over(dreq.remote_id, header, mad, source, now);
  }
  const Note drep{.local_id = dreq.remote_id, .remote_id = dreq.local_id};
  sender_.send(source, drep.emit(Attribute::Drep, header.transaction));
}

// ---- Time ---------------------------------------------------------------------------------------

TimePoint Manager::deadline() const {
  return timers_.empty() ? TimePoint::max() : timers_.begin()->first;
}

void Manager::expire(TimePoint now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const std::uint32_t local_id = timers_.begin()->second;
    Connection* const conversation = find(local_id);
    if (conversation == nullptr) {
      timers_.erase(timers_.begin());
      continue;
    }
    conversation->expire(now);
    watch(*conversation);
  }
}

}  // namespace qpair::softnic::cm
