#pragma once
// The sending side of a dynamically connected service: every request names the target that it is for, and the
// connection to it is made on the way. NVIDIA does not publish the protocol; this one is ours, among emulated
// NICs: the requests of a reliable connection, each with a header that names the connection
// (opcode.hpp, Service::DynamicallyConnected). Engine thread only. Nothing throws.
//
// There is one connection at a time. A request for another target waits until everything before it is
// complete, as on a ConnectX; PSNs go on counting, so an answer from the target before is known for what it
// is.

#include <infiniband/verbs.h>

#include <optional>

#include "softnic/roce/connection.hpp"
#include "softnic/roce/forwarding_host.hpp"
#include "softnic/roce/requester.hpp"
#include "softnic/roce/transport.hpp"

namespace qpair::softnic::roce {

class DcInitiator final : public Transport, private ForwardingHost {
 public:
  DcInitiator(std::uint32_t qpn, Host& host, wire::Link& link);

  void modify(const ibv_qp_attr& attributes, int mask, TimePoint now) override;
  void set_state(ibv_qp_state state) override;
  ibv_qp_state state() const override { return connection_.state; }
  void query(ibv_qp_attr& attributes) const override;
  bool transmit(unsigned budget, TimePoint now) override;
  bool has_work(TimePoint now) const override;
  bool waits_for_room() const override { return requester_.waits_for_room(); }
  void receive(const Packet& packet, const wire::Endpoint& source, TimePoint now) override;
  TimePoint deadline() const override;
  void expire(TimePoint now) override;
  void peer_departed(const wire::Endpoint& peer) override;
  const Counters& counters() const override { return connection_.counters; }

 private:
  bool next_send(SendRequest& out) override;
  bool leads_to_the_same(const AddressVector& to) const;
  void connect(const AddressVector& to);
  void after_host_calls();

  Host& host_;
  Connection connection_;
  Requester requester_;
  std::optional<SendRequest> waiting_;  // for another target than the current one
};

}  // namespace qpair::softnic::roce
