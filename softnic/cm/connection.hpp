#pragma once
// One conversation of communication management (IBTA vol. 1 12.9), as ib_cm of the kernel leads it
// (drivers/infiniband/core/cm.c): what was said, what may be said next, what has to be said again.
//
//   active   Idle ──REQ──▶ ReqSent ──◀REP── RepReceived ──RTU──▶ Established
//   passive  Idle ──◀REQ── ReqReceived ──REP──▶ RepSent ──◀RTU── Established
//   both     Established ──DREQ──▶ DreqSent ──◀DREP── Timewait ──▶ Idle
//            Established ──◀DREQ── DreqReceived ──DREP──▶ Timewait
//   datagram Idle ──SIDR_REQ──▶ SidrReqSent ──◀SIDR_REP── Idle
//
// Calls answer 0 or an errno. Reports go to the Listener, from inside receive(), expire() and the static
// errors only; the listener may destroy the conversation in none of them.

#include <chrono>
#include <cstdint>
#include <optional>

#include "softnic/cm/messages.hpp"
#include "softnic/cm/tunables.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::cm {

using wire::TimePoint;

enum class State : std::uint8_t {
  Idle,
  ReqSent,
  MraReqReceived,
  ReqReceived,
  RepSent,
  MraRepReceived,
  RepReceived,
  Established,
  DreqSent,
  DreqReceived,
  Timewait,
  SidrReqSent,
  SidrReqReceived,
};

enum class Report : std::uint8_t {
  ReqError,  // never answered
  RepError,
  RepReceived,
  RtuReceived,
  RejReceived,
  DreqError,
  DreqReceived,
  DrepReceived,
  TimewaitExit,
  SidrReqError,
  SidrRepReceived,
};

// What both ends agreed on, for the queue pair's attributes.
struct Agreement {
  wire::Endpoint peer;
  Gid peer_gid{};
  std::uint32_t remote_qpn = 0;
  std::uint32_t sq_psn = 0;
  std::uint32_t rq_psn = 0;
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t mtu = 0;  // enum ibv_mtu
  std::uint8_t ack_timeout = 0;
  std::uint8_t retry_count = 0;
  std::uint8_t rnr_retry_count = 0;
  std::uint32_t flow_label = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = kHopLimit;
};

class Connection {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // `mad` is what arrived; empty for errors and timewait.
    virtual void report(Report what, const Mad* mad, TimePoint now) = 0;
  };
  struct Environment {
    nic::MadSender* sender;
    std::uint64_t ca_guid;
    std::uint8_t ack_delay;
  };

  Connection(const Environment& environment, std::uint32_t local_id, Listener& listener)
      : environment_(environment), local_id_(local_id), listener_(&listener) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  State state() const { return state_; }
  std::uint32_t local_id() const { return local_id_; }
  std::uint32_t remote_id() const { return remote_id_; }
  std::uint64_t remote_guid() const { return remote_guid_; }
  const Agreement& agreement() const { return agreement_; }
  std::uint64_t service_id() const { return service_id_; }

  // Active side. `req` without identifiers and GUID. `packet_lifetime` of the path.
  int send_req(const wire::Endpoint& peer, Req req, std::uint8_t packet_lifetime, TimePoint now);
  int send_rtu();
  int send_sidr_req(const wire::Endpoint& peer, SidrReq req, TimePoint now);

  // Passive side.
  void take_req(const Req& req, std::uint64_t transaction, const wire::Endpoint& source);
  void take_sidr_req(const SidrReq& req, std::uint64_t transaction, const wire::Endpoint& source);
  int send_rep(Rep rep, TimePoint now);
  int send_sidr_rep(SidrRep rep);
  // The first message on the queue pair came before the RTU (IBTA vol. 1 12.9.7.2, COMM_EST).
  int establish(TimePoint now);

  int send_rej(Rej rej, TimePoint now);
  int send_dreq(TimePoint now);
  int send_drep(TimePoint now);
  // Says goodbye as the state asks for it; the peer's answer is nobody's any more (cm_destroy_id()).
  void abandon(TimePoint now);

  // A message for this conversation from its peer.
  void receive(Attribute attribute, const Mad& mad, TimePoint now);
  // A REQ that is the one which this conversation began with.
  void repeated_req();

  TimePoint deadline() const;
  void expire(TimePoint now);

 private:
  struct Resend {
    Mad mad;
    std::chrono::milliseconds interval;
    unsigned left;
    TimePoint due;
  };

  std::uint64_t transaction() const;
  void send(const Mad& mad);
  void send_until_answered(const Mad& mad, std::chrono::milliseconds interval, TimePoint now);
  void enter_timewait(TimePoint now);
  void become_idle();

  void receive_mra(const Mra& mra, TimePoint now);
  void receive_rej(const Mad& mad, TimePoint now);
  void receive_rep(const Mad& mad, TimePoint now);
  void receive_rtu(const Mad& mad, TimePoint now);
  void receive_dreq(const Mad& mad, TimePoint now);
  void receive_drep(const Mad& mad, TimePoint now);
  void receive_sidr_rep(const Mad& mad, TimePoint now);

  Environment environment_;
  std::uint32_t local_id_;
  Listener* listener_;
  State state_ = State::Idle;
  std::uint32_t remote_id_ = 0;
  std::uint64_t remote_guid_ = 0;
  std::uint64_t service_id_ = 0;
  std::uint32_t local_qpn_ = 0;
  std::uint64_t peer_transaction_ = 0;  // of the REQ, SIDR_REQ or DREQ that is to be answered
  Agreement agreement_;
  std::chrono::milliseconds interval_{0};
  unsigned max_retries_ = kMaxRetries;
  std::optional<Resend> resend_;
  TimePoint timewait_end_ = TimePoint::max();
};

}  // namespace qpair::softnic::cm
