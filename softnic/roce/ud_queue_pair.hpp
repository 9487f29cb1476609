#pragma once
// Unreliable datagrams (IBTA vol. 1 9.8.3, 9.8.4): each message is one packet to wherever its work request
// says. Nothing is acknowledged, so it is complete once it has left, which it does as soon as the link has
// room; a packet that cannot be received is dropped. Engine thread only. Nothing throws.

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

#include "softnic/roce/connection.hpp"
#include "softnic/roce/host.hpp"
#include "softnic/roce/losses.hpp"
#include "softnic/roce/transport.hpp"

namespace qpair::softnic::roce {

class UdQueuePair final : public Transport {
 public:
  // `mtu`: the port's, in bytes, which is as long as a message may be.
  UdQueuePair(std::uint32_t qpn, Host& host, wire::Link& link, std::uint32_t mtu);

  void modify(const ibv_qp_attr& attributes, int mask, TimePoint now) override;
  void set_state(ibv_qp_state state) override;
  ibv_qp_state state() const override { return to_.state; }
  void query(ibv_qp_attr& attributes) const override;
  bool transmit(unsigned budget, TimePoint now) override;
  // What the budget left, transmit() says itself.
  bool has_work(TimePoint) const override { return next_ && to_.requests() && !waits_for_room(); }
  bool waits_for_room() const override;
  void receive(const Packet& packet, const wire::Endpoint& source, TimePoint now) override;
  void receive_multicast(const Packet& packet, const wire::Endpoint& source,
                         const wire::Endpoint& group) override;
  TimePoint deadline() const override;
  void expire(TimePoint now) override;
  const Counters& counters() const override { return to_.counters; }

 private:
  bool send_next();
  bool has_room(const AddressVector& vector) const;
  void send(const SendRequest& request, const AddressVector& vector);
  void check_drained();
  void address(const AddressVector& vector);
  void take(const Packet& packet, const wire::Endpoint& source, const wire::Endpoint& destination);
  void store(const ReceiveRequest& request, const Packet& packet, const wire::Endpoint& source,
             const wire::Endpoint& destination);
  bool receives() const;

  Host& host_;
  Connection to_;                    // the latest destination
  std::optional<SendRequest> next_;  // taken from the send queue, and not sent yet
  bool drain_notify_ = false;        // IBV_EVENT_SQ_DRAINED was asked for and not raised yet
  Losses losses_;
  std::uint32_t qkey_ = 0;
  Psn next_psn_;
};

}  // namespace qpair::softnic::roce
