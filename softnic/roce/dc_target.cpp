#include "softnic/roce/dc_target.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "softnic/roce/tunables.hpp"
#include "softnic/wire/address.hpp"

namespace qpair::softnic::roce {

// One initiator's connection, and what its responder has to know of the target.
class DcTarget::Peer final : private ForwardingHost {
 public:
  Peer(DcTarget& target, const PeerName& name, const wire::Endpoint& source)
      : ForwardingHost(target.host_),
        target_(target),
        connection_(target.qpn_, target.link_),
        responder_(connection_, *this) {
    connection_.service = Service::DynamicallyConnected;
    connection_.peer = source;
    connection_.peer.port = wire::kRoceUdpPort;
    connection_.peer_qpn = name.qpn;
    connection_.icrc = Icrc(connection_.link.local(), connection_.peer);
  }

  void connect(const DcEth& header) {
    let_go("its initiator connected anew in the middle of the message");
    number_ = header.connection;
    connection_.mtu = 128U << target_.attributes_.path_mtu;
    connection_.state = IBV_QPS_RTR;
    responder_.configure(target_.attributes_, IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC);
    responder_.start(Psn(header.first_psn));
    if (header.access_key != target_.access_key_) {
      responder_.reject(Psn(header.first_psn), NakCode::RemoteAccess,
                        {mlx5::Syndrome::RemoteAccess, vendor_error::kRemoteAccess,
                         fmt::format("the DC access key {:#x} is not that of DC target {:#x}",
                                     header.access_key, target_.qpn_)});
    }
  }

  void request(const Packet& packet) {
    if (connection_.state == IBV_QPS_ERR) return responder_.request_after_refusal(packet.sequence());
    ++connection_.counters.packets_received;
    connection_.counters.bytes_received += packet.size();
    responder_.request(packet);
  }

  Sent transmit(unsigned budget) { return responder_.transmit(budget); }
  bool has_work() const { return responder_.has_work(); }
  bool waits_for_room() const { return responder_.waits_for_room(); }
  std::uint64_t number() const { return number_; }
  Counters& counters() { return connection_.counters; }

  std::uint64_t last_used = 0;  // DcTarget::packets_ at the time
  bool is_busy = false;         // in DcTarget::busy_

  // What is halfway received will not be received whole.
  void let_go(const char* why) {
    responder_.clear();
    if (!has_receive_) return;
    has_receive_ = false;
    target_.host_.receive_lost(receive_, {mlx5::Syndrome::LocalQpOperation, vendor_error::kUnknown,
                                          fmt::format("the message of DC initiator {:#x} ended halfway: {}",
                                                      connection_.peer_qpn, why)});
  }

 private:
  bool next_receive(ReceiveRequest& out) override {
    has_receive_ = target_.host_.next_receive(out);
    receive_ = out;
    return has_receive_;
  }
  void receive_done(const ReceiveRequest& request, const Received& what) override {
    has_receive_ = false;
    target_.host_.receive_done(request, what);
  }
  // The message cannot be received: its receive completes in error, and the connection is over.
  void receive_failed(const ReceiveRequest& request, const Refusal& why) override {
    receive_lost(request, why);
  }
  void receive_lost(const ReceiveRequest& request, const Refusal& why) override {
    has_receive_ = false;
    target_.host_.receive_lost(request, why);
  }
  void responder_failed(ibv_event_type, const Refusal& why) override {
    target_.host_.dropped(fmt::format("a request of DC initiator {:#x} at {} was refused: {}",
                                      connection_.peer_qpn, wire::to_string(connection_.peer), why.reason));
  }

  DcTarget& target_;
  Connection connection_;
  Responder responder_;
  std::uint64_t number_ = 0;
  bool has_receive_ = false;  // taken, and neither done nor failed
  ReceiveRequest receive_{};
};

DcTarget::DcTarget(std::uint32_t qpn, Host& host, wire::Link& link, std::uint64_t access_key)
    : host_(host), link_(link), qpn_(qpn), access_key_(access_key) {
  attributes_.path_mtu = IBV_MTU_1024;
  attributes_.max_dest_rd_atomic = kMaxReadsAtomics;
}

DcTarget::~DcTarget() = default;

void DcTarget::modify(const ibv_qp_attr& attributes, int mask, TimePoint) {
  if ((mask & IBV_QP_PATH_MTU) != 0) attributes_.path_mtu = attributes.path_mtu;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) attributes_.min_rnr_timer = attributes.min_rnr_timer;
  if ((mask & IBV_QP_STATE) != 0) set_state(attributes.qp_state);
}

void DcTarget::set_state(ibv_qp_state state) {
  state_ = state;
  if (state == IBV_QPS_RTR) return;
  for (auto& [name, peer] : peers_) {
    if (state == IBV_QPS_ERR) peer->let_go("the target is in error");
    collect(*peer);
  }
  busy_.clear();
  peers_.clear();
}

void DcTarget::query(ibv_qp_attr& attributes) const {
  attributes.max_dest_rd_atomic = attributes_.max_dest_rd_atomic;
}

// ---- Initiators ---------------------------------------------------------------------------------

void DcTarget::collect(Peer& peer) {
  counters_ = counters_ + peer.counters();
  peer.counters() = {};
}

void DcTarget::forget_the_idlest() {
  const auto idlest =
      std::ranges::min_element(peers_, {}, [](const auto& entry) { return entry.second->last_used; });
  end(*idlest->second, "it was silent for longer than all others");
  peers_.erase(idlest);
}

void DcTarget::end(Peer& peer, const char* why) {
  peer.let_go(why);
  collect(peer);
  if (peer.is_busy) std::erase(busy_, &peer);
}

void DcTarget::peer_departed(const wire::Endpoint& gone) {
  std::erase_if(peers_, [this, &gone](const auto& entry) {
    if (entry.first.address != gone.address) return false;
    end(*entry.second, "its process has ended");
    return true;
  });
}

// Whose packet it is. Null: of a connection that is over.
DcTarget::Peer* DcTarget::peer_of(const Packet& packet, const wire::Endpoint& source) {
  const DcEth header = packet.dc();
  const PeerName name{source.address, header.source_qpn};
  auto at = peers_.find(name);
  const bool is_new = at == peers_.end();
  if (is_new) {
    if (peers_.size() >= kMaxDcPeers) forget_the_idlest();
    at = peers_.emplace(name, std::make_unique<Peer>(*this, name, source)).first;
  }
  Peer& peer = *at->second;
  if (is_new || header.connection > peer.number()) {
    peer.connect(header);
  } else if (header.connection < peer.number()) {
    return nullptr;
  }
  peer.last_used = ++packets_;
  return &peer;
}

// ---- Packets ------------------------------------------------------------------------------------

void DcTarget::receive(const Packet& packet, const wire::Endpoint& source, TimePoint) {
  if (state_ != IBV_QPS_RTR) return;
  if (service_of(packet.opcode()) != Service::DynamicallyConnected ||
      !packet.info().has(OpcodeInfo::kRequest)) {
    return;
  }
  Peer* const peer = peer_of(packet, source);
  if (peer == nullptr) return;
  peer->request(packet);
  collect(*peer);
  if (peer->has_work() && !peer->is_busy) {
    peer->is_busy = true;
    busy_.push_back(peer);
  }
}

bool DcTarget::transmit(unsigned budget, TimePoint) {
  while (budget != 0 && !busy_.empty()) {
    Peer& peer = *busy_.front();
    busy_.pop_front();
    const Sent sent = peer.transmit(std::min(budget, kDcPeerBudget));
    budget -= std::min(budget, std::max(1U, sent.packets));
    collect(peer);
    peer.is_busy = peer.has_work();
    if (peer.is_busy) busy_.push_back(&peer);
  }
  return has_work({});
}

// All of those with something to send do.
bool DcTarget::waits_for_room() const {
  return !busy_.empty() && std::ranges::all_of(busy_, &Peer::waits_for_room);
}

void DcTarget::expire(TimePoint now) {
  static_cast<void>(transmit(kExpireBudget, now));
}

}  // namespace qpair::softnic::roce
