#pragma once
// One rdma_cm identifier, as the kernel has it (drivers/infiniband/core/cma.c): addresses, their resolution,
// and the conversation that a connection is made and ended with. Under the NIC's lock, like the Manager.
//
//   Idle → AddrBound → AddrResolved → RouteResolved → Connect → Disconnect        the side that connects
//   Idle → AddrBound → Listen;  each request makes another identifier in Connect  the side that listens
//
// Commands answer 0 or an errno.

#include <infiniband/verbs.h>
#include <rdma/rdma_user_cm.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "softnic/cm/address.hpp"
#include "softnic/cm/connection.hpp"

namespace qpair::softnic::cm {

class Id;
class Manager;

// enum rdma_cm_event_type of librdmacm, whose header and the kernel's exclude each other.
enum class EventType : std::uint32_t {
  AddrResolved = 0,
  AddrError,
  RouteResolved,
  RouteError,
  ConnectRequest,
  ConnectResponse,
  ConnectError,
  Unreachable,
  Rejected,
  Established,
  Disconnected,
  DeviceRemoval,
  MulticastJoin,
  MulticastError,
  AddrChange,
  TimewaitExit,
};

struct Event {
  EventType type{};
  int status = 0;  // negative errno, or the reason of a rejection
  rdma_ucm_conn_param conn{};
  rdma_ucm_ud_param ud{};
  Ece ece{};
  std::unique_ptr<Id> request;  // ConnectRequest: who wants to be accepted
};

// Who hears of an identifier's events: queues and returns.
class Consumer {
 public:
  virtual ~Consumer() = default;
  virtual void happened(Event event) = 0;
  // For another request. Without room it is dropped, and its peer asks again.
  virtual bool has_room() = 0;
};

// A port, for as long as somebody holds this.
class PortClaim {
 public:
  virtual ~PortClaim() = default;
};

class Id final : public Connection::Listener {
 public:
  enum class State : std::uint8_t {
    Idle,
    AddrBound,
    AddrResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
  };

  Id(Manager& manager, PortSpace space, std::uint8_t qp_type);
  ~Id() override;
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;

  void set_consumer(Consumer* consumer) { consumer_ = consumer; }

  State state() const { return state_; }
  PortSpace space() const { return space_; }
  bool is_datagram() const { return qp_type_ == IBV_QPT_UD; }
  bool has_device() const { return has_device_; }
  const Address& source() const { return source_; }
  const Address& destination() const { return destination_; }
  const Gid& peer_gid() const { return peer_gid_; }
  bool has_route() const { return state_ >= State::RouteResolved && state_ != State::Listen; }
  const std::shared_ptr<PortClaim>& port() const { return port_; }
  std::uint64_t service() const { return service_id(space_, source_.port); }

  // `address` has its port. `on_device`: it is an address and not "any".
  int bind(const Address& address, std::shared_ptr<PortClaim> port);
  // `peer`: the NIC that serves the destination as far as is known now. Not 0: how the resolution failed,
  // which the event tells.
  int resolve_address(const Address& destination, const wire::Endpoint& peer, int failure);
  int resolve_route();
  // For an identifier whose route is known, the NIC that serves the destination now.
  int connect(const rdma_ucm_conn_param& parameters, const Ece& ece, const wire::Endpoint& peer,
              TimePoint now);
  int listen();
  int accept(const rdma_ucm_conn_param& parameters, const Ece& ece, TimePoint now);
  // The active side's last word, when the program moved its queue pair by itself (rdma_establish()).
  int establish(TimePoint now);
  int reject(std::uint8_t reason, std::span<const std::uint8_t> private_data, TimePoint now);
  int disconnect(TimePoint now);
  int notify(std::uint32_t event, TimePoint now);
  // Of a datagram identifier: the event that tells how to send to `group`.
  int join(const Address& group, Event& event) const;
  int init_qp_attr(ib_uverbs_qp_attr& attributes) const;

  void set_tos(std::uint8_t tos) { tos_ = tos; }
  void set_ack_timeout(std::uint8_t timeout) { ack_timeout_ = timeout; }
  void set_reuse(bool reuse) { reuse_ = reuse; }
  bool reuse() const { return reuse_; }
  int set_family_only(bool only);
  bool family_only() const { return family_only_; }

  std::uint8_t packet_lifetime() const;
  std::uint32_t flow_label() const;
  std::uint8_t tos() const { return tos_; }

  // For the Manager: a request that came for `listener`.
  static std::unique_ptr<Id> of_request(Id& listener, const IpHeader& header);
  Connection& converse();  // makes the conversation when there is none
  const Connection* conversation() const { return conversation_.get(); }
  void set_peer(const Gid& gid, std::uint16_t lid) {
    peer_gid_ = gid;
    peer_lid_ = lid;
  }
  void tell_of_request(std::unique_ptr<Id> request, const Req& req);
  void tell_of_request(std::unique_ptr<Id> request, const SidrReq& req);
  void report(Report what, const Mad* mad, TimePoint now) override;
  // No goodbye: the peer will ask again.
  void discard();

 private:
  void tell(EventType type, int status = 0);
  void offer(Event event, std::unique_ptr<Id> request);
  int connect_datagram(const rdma_ucm_conn_param& parameters, const wire::Endpoint& peer, TimePoint now);
  IpHeader header() const;
  void told_of_reply(const Mad& mad);
  void told_of_rejection(const Mad& mad);
  void told_of_resolution(const Mad& mad);
  void told_of_disconnection(int status);
  int init_connected(ib_uverbs_qp_attr& attributes) const;
  int init_unconnected(ib_uverbs_qp_attr& attributes) const;
  ib_uverbs_ah_attr address_vector() const;

  Manager& manager_;
  Consumer* consumer_ = nullptr;
  const PortSpace space_;
  const std::uint8_t qp_type_;
  State state_ = State::Idle;
  bool has_device_ = false;
  Address source_;
  Address destination_;
  Gid peer_gid_{};
  std::uint16_t peer_lid_ = 0;
  std::shared_ptr<PortClaim> port_;
  std::unique_ptr<Connection> conversation_;
  std::uint32_t sequence_;  // first PSN that is expected
  std::uint32_t qp_num_ = 0;
  bool srq_ = false;
  bool reuse_ = false;
  bool family_only_ = false;
  std::uint8_t tos_ = 0;
  std::optional<std::uint8_t> ack_timeout_;
};

}  // namespace qpair::softnic::cm
