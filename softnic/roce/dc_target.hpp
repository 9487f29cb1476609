#pragma once
// The receiving side of a dynamically connected service (dc_initiator.hpp): a responder for each initiator
// that has connected, made by the first request of its connection. What goes wrong ends that connection and
// no other. Engine thread only. Nothing throws.

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "softnic/roce/connection.hpp"
#include "softnic/roce/forwarding_host.hpp"
#include "softnic/roce/responder.hpp"
#include "softnic/roce/transport.hpp"

namespace qpair::softnic::roce {

class DcTarget final : public Transport {
 public:
  DcTarget(std::uint32_t qpn, Host& host, wire::Link& link, std::uint64_t access_key);
  ~DcTarget() override;

  void modify(const ibv_qp_attr& attributes, int mask, TimePoint now) override;
  void set_state(ibv_qp_state state) override;
  ibv_qp_state state() const override { return state_; }
  void query(ibv_qp_attr& attributes) const override;
  bool transmit(unsigned budget, TimePoint now) override;
  bool has_work(TimePoint) const override { return !busy_.empty() && !waits_for_room(); }
  bool waits_for_room() const override;
  void receive(const Packet& packet, const wire::Endpoint& source, TimePoint now) override;
  TimePoint deadline() const override { return has_work({}) ? TimePoint{} : TimePoint::max(); }
  void expire(TimePoint now) override;
  void peer_departed(const wire::Endpoint& peer) override;
  const Counters& counters() const override { return counters_; }

 private:
  class Peer;
  struct PeerName {
    std::array<std::uint8_t, 16> address{};
    std::uint32_t qpn = 0;
    friend bool operator<(const PeerName& a, const PeerName& b) {
      return a.qpn != b.qpn ? a.qpn < b.qpn : a.address < b.address;
    }
  };

  Peer* peer_of(const Packet& packet, const wire::Endpoint& source);
  void collect(Peer& peer);
  void forget_the_idlest();
  void end(Peer& peer, const char* why);

  Host& host_;
  wire::Link& link_;
  const std::uint32_t qpn_;
  const std::uint64_t access_key_;
  ibv_qp_state state_ = IBV_QPS_RESET;
  ibv_qp_attr attributes_{};  // for the responders to come
  std::map<PeerName, std::unique_ptr<Peer>> peers_;
  std::deque<Peer*> busy_;  // those with something to send
  std::uint64_t packets_ = 0;
  Counters counters_;
};

}  // namespace qpair::softnic::roce
