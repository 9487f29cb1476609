#pragma once
// Unreliable connections (IBTA vol. 1 9.8.2): SEND and RDMA WRITE in numbered packets to one peer, which
// answers nothing. A message is complete once its last packet has left; one of which a packet is missing, or
// that cannot be carried out, is dropped whole by the receiver, and what it had taken is used for the next
// one. Engine thread only. Nothing throws.

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

#include "softnic/roce/connection.hpp"
#include "softnic/roce/host.hpp"
#include "softnic/roce/losses.hpp"
#include "softnic/roce/transport.hpp"

namespace qpair::softnic::roce {

// The sending side.
class UcRequester {
 public:
  UcRequester(Connection& connection, Host& host) : connection_(connection), host_(host) {}

  void start(Psn first) { next_psn_ = first; }
  // Forgets the message in progress.
  void clear() { current_.reset(); }
  // True: there was more than the budget allowed.
  bool transmit(unsigned budget);
  bool is_idle() const { return !current_; }
  bool waits_for_room() const;
  Psn next_psn() const { return next_psn_; }

 private:
  bool send_packet();
  std::size_t next_size() const;  // bytes of the next packet's payload

  Connection& connection_;
  Host& host_;
  std::optional<SendRequest> current_;
  std::uint64_t offset_ = 0;  // of current_, sent so far
  Psn next_psn_;
};

// The receiving side.
class UcResponder {
 public:
  UcResponder(Connection& connection, Host& host) : connection_(connection), host_(host), losses_(host) {}

  void start(Psn first);
  // The host has flushed, or will flush, the receive in progress.
  void clear();
  void reset();
  void request(const Packet& packet);
  Psn expected_psn() const { return expected_; }

 private:
  enum class Message : std::uint8_t { None, Send, Write };

  bool in_sequence(const Packet& packet);
  bool payload_fits_path(const Packet& packet);
  void send_packet(const Packet& packet);
  void write_packet(const Packet& packet);
  bool begin_write(const Packet& packet);
  bool take_receive();
  void complete_receive(const Packet& packet);
  // The rest of the message in progress is ignored.
  void drop() { message_ = Message::None; }

  Connection& connection_;
  Host& host_;
  Losses losses_;
  Psn expected_;
  Message message_ = Message::None;
  bool has_receive_ =
      false;  // kept when a message is dropped, for the next one (IBTA vol. 1 9.9.3, class D1)
  ReceiveRequest receive_{};
  std::uint32_t rkey_ = 0;
  std::uint64_t address_ = 0;
  std::uint64_t length_ = 0;  // announced by a WRITE
  std::uint64_t offset_ = 0;  // received so far
};

class UcQueuePair final : public Transport {
 public:
  UcQueuePair(std::uint32_t qpn, Host& host, wire::Link& link);

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
  const Counters& counters() const override { return connection_.counters; }

 private:
  void check_drained();

  Host& host_;
  Connection connection_;
  UcRequester requester_;
  UcResponder responder_;
  bool established_ = false;   // IBV_EVENT_COMM_EST was raised
  bool drain_notify_ = false;  // IBV_EVENT_SQ_DRAINED was asked for and not raised yet
};

}  // namespace qpair::softnic::roce
