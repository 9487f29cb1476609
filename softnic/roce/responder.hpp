#pragma once
// The side that carries out requests (IBTA vol. 1 9.7.3 to 9.7.5): checks their order, touches memory through
// the host, and answers. receive() never sends: replies are kept and leave in transmit(), in order, so that
// many requests are acknowledged by one packet and a long read is paced by the budget.
//
// Order of what leaves: responses to reads and atomics, oldest first; then either the refusal that ends the
// connection or one acknowledgment or NAK for everything before.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "softnic/roce/connection.hpp"
#include "softnic/roce/host.hpp"
#include "softnic/roce/tunables.hpp"

namespace qpair::softnic::roce {

class Responder {
 public:
  Responder(Connection& connection, Host& host) : connection_(connection), host_(host) {}

  void configure(const ibv_qp_attr& attributes, int mask);
  // INIT to RTR: the first request is expected with this PSN.
  void start(Psn first);
  // Drops what is in progress; what was refused is remembered.
  void clear();
  void reset();

  void request(const Packet& packet);
  Sent transmit(unsigned budget);
  bool has_work() const {
    return response_count_ != 0 || refusal_ || reply_ != Reply::None || repeat_refusal_;
  }
  bool waits_for_room() const { return connection_.responds() && has_work() && connection_.is_blocked(); }
  // Ends the connection before anything of it was carried out; `psn` is that of its first request.
  void reject(Psn psn, NakCode code, Refusal why) { refuse(psn, code, std::move(why)); }
  // In ERR after a refusal: the requester asks again, so the NAK was lost. A ConnectX says nothing, and its
  // peer learns only that nobody answers; here the reason is to arrive.
  void request_after_refusal(Psn psn);
  Psn expected_psn() const { return expected_; }

 private:
  enum class Reply : std::uint8_t { None, Ack, SequenceNak, RnrNak };
  enum class Message : std::uint8_t { None, Send, Write };

  // A read or atomic that was accepted and is not answered whole.
  struct Response {
    Psn first;
    std::uint32_t packets = 0;
    std::uint32_t sent = 0;
    std::uint32_t msn = 0;
    bool is_atomic = false;
    bool is_duplicate = false;
    std::uint32_t srqn = 0;  // XRC: whose memory it reads
    std::uint32_t rkey = 0;
    std::uint64_t address = 0;
    std::uint64_t value = 0;  // bytes of a read; original value of an atomic
    Psn end() const { return first + packets; }
  };
  // An atomic that was carried out: a duplicate gets the same answer and changes nothing (IBTA vol.
  // 1 9.7.1.5).
  struct AtomicResult {
    Psn psn;
    bool valid = false;
    std::uint64_t original = 0;
  };
  // The end of the connection, kept until what comes before it was answered.
  struct Lost {
    ReceiveRequest receive;
    Refusal why;
  };
  struct Fatal {
    Psn psn;
    NakCode code{};
    Refusal why;
    std::optional<ReceiveRequest> receive;  // completes in error
    std::optional<Lost> lost;               // as does that of a later request
  };

  void out_of_order(Psn psn);
  void duplicate(const Packet& packet);
  void duplicate_read(const Packet& packet);
  void duplicate_atomic(Psn psn);

  void send_packet(const Packet& packet);
  void write_packet(const Packet& packet);
  void read_request(const Packet& packet);
  void atomic_request(const Packet& packet);

  bool select_srq(const Packet& packet);
  bool in_sequence(const Packet& packet, Message kind);
  bool payload_fits_path(const Packet& packet);
  bool take_receive(Psn psn);
  bool deliver(const Packet& packet);
  void complete_receive(const Packet& packet);
  bool has_resource(Psn psn);
  void accept(const Packet& packet, std::uint32_t packets);
  void count_request(const OpcodeInfo& info);
  void refuse(Psn psn, NakCode code, Refusal why);
  void refuse_request(Psn psn, std::string reason);

  Response& response(std::uint32_t i) { return responses_[(response_head_ + i) % responses_.size()]; }
  void make_room_for_responses();
  Response* push_response();
  Response* insert_response(Psn psn);
  void pop_response();
  bool send_response(Response& next);
  Check read(const Response& from, std::uint64_t offset, std::span<std::byte> to);
  void send_reply();
  void send_refusal();
  void send_refusal_packets(const Fatal& end);

  Connection& connection_;
  Host& host_;

  Psn expected_;
  std::uint32_t msn_ = 0;
  Reply reply_ = Reply::None;
  std::uint8_t min_rnr_timer_ = 0;
  std::uint8_t max_reads_ = 0;

  bool out_of_sequence_ = false;  // a NAK was sent for expected_, which has not come since
  Psn last_out_of_order_;

  // The message in progress.
  Message message_ = Message::None;
  bool has_receive_ = false;
  ReceiveRequest receive_{};
  std::uint32_t srqn_ = 0;  // XRC: the shared receive queue that it names
  std::uint32_t rkey_ = 0;
  std::uint64_t address_ = 0;
  std::uint64_t length_ = 0;  // announced by a WRITE
  std::uint64_t offset_ = 0;  // received so far

  std::vector<Response> responses_;  // ring; room for every resource and as many repeated ones
  std::uint32_t response_head_ = 0, response_count_ = 0, new_responses_ = 0;
  std::vector<AtomicResult> atomics_;  // ring
  std::uint32_t atomics_next_ = 0;
  std::unique_ptr<Fatal> refusal_;
  std::unique_ptr<Fatal> refused_;  // …that was sent, kept until the next connection
  bool repeat_refusal_ = false;
};

}  // namespace qpair::softnic::roce
