#pragma once
// One end of a connection: a program that owns a queue pair, writes its rings by hand, and reads its
// completions. Every completion is checked when it comes: once each, in order, with a status that is allowed,
// and with the data in place.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tests/simulation/operation.hpp"

namespace qpair::simulation {

// Why operations may fail, as only the whole world knows.
struct Excuses {
  bool network = false;    // packets are lost, or machines stand still
  bool peer_gone = false;  // its queue pair does not exist, or is in error
  std::uint8_t rnr_retries = 7;
};

class End {
 public:
  // `name` for sentences.
  End(std::string name, Machine& machine, const ConnectionPlan& plan, Log& log, std::uint64_t seed);
  ~End();

  // ---- A life ----
  // Queue pair in INIT, in a fresh one or in the old one after RESET; memory as new.
  enum class Renewal : std::uint8_t { Reset, Another };
  void prepare(Renewal renewal);
  // What it asks for, and the receives for what its peer asks for.
  void set_plan(std::vector<Operation> operations, std::vector<Receive> receives);
  void connect(const End& peer, std::uint32_t psn);

  // One thing after another that the program does in a life: posts some of it. True: there is more to post.
  bool act(Random& random, bool peer_knows);
  // Reads all completions. True: there were some.
  bool poll(const Excuses& excuses, const std::vector<Operation>& arriving);
  // The program gives the connection up.
  void give_up();
  // Its machine was killed.
  void die();

  // ---- How it stands ----
  bool is_dead() const { return dead_; }
  bool is_broken() const { return dead_ || broken_; }
  bool in_error() const;
  bool is_done() const;     // everything asked for was posted and is complete
  bool is_flushed() const;  // everything posted has had its completion
  bool has_outstanding() const;
  bool has_more_to_post() const {
    return posted_ < operations_.size() || receives_posted_ < receives_.size();
  }
  std::size_t posted() const { return posted_; }
  std::size_t completed() const { return completed_; }
  std::size_t received() const { return received_; }

  const std::string& name() const { return name_; }
  Machine& machine() const { return machine_; }
  std::uint32_t qpn() const { return static_cast<std::uint32_t>(number_); }
  std::uint32_t rkey() const { return key_; }
  const std::vector<Operation>& operations() const { return operations_; }
  const std::vector<Receive>& receives() const { return receives_; }
  const Bytes& source() const { return source_; }
  std::span<std::byte> memory() { return {memory_->bytes, layout::kSize}; }
  std::span<const std::byte> memory() const { return {memory_->bytes, layout::kSize}; }
  // As it was when the life began.
  const Bytes& before() const { return before_; }
  // The bytes of this end's memory that a list of pieces names.
  Bytes collect(const std::vector<Piece>& pieces) const;

  std::optional<TimePoint> act_at;

 private:
  struct Rings;
  struct Memory {
    alignas(64) std::byte bytes[layout::kSize];
  };

  void create_cqs();
  void create_qp();
  void post_send(Operation& operation);
  void post_receive();
  void ring();
  bool poll_cq(std::byte* ring, std::uint32_t& index, std::byte* record, const Excuses& excuses,
               const std::vector<Operation>& arriving);
  void send_completed(const mlx5::Cqe64& cqe);
  void check_result(std::size_t i) const;
  void send_failed(std::uint16_t index, mlx5::Syndrome syndrome, const Excuses& excuses);
  void receive_completed(const mlx5::Cqe64& cqe, const std::vector<Operation>& arriving);
  void receive_failed(std::uint16_t index, mlx5::Syndrome syndrome, const std::vector<Operation>& arriving);
  std::string why_not(const Operation& operation, mlx5::Syndrome syndrome, const Excuses& excuses) const;
  [[noreturn]] void violated(const std::string& what) const;
  void check_event();

  std::string name_;
  Machine& machine_;
  const ConnectionPlan& plan_;
  Log& log_;
  Bytes source_;
  Bytes before_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Rings> rings_;

  std::uint32_t key_ = 0;
  std::optional<nic::Cqn> send_cq_, receive_cq_;
  std::optional<nic::Qpn> qp_;
  nic::Qpn number_{};
  std::uint32_t send_consumed_ = 0, receive_consumed_ = 0;
  std::uint32_t peer_key_ = 0;

  std::vector<Operation> operations_;
  std::vector<Receive> receives_;
  std::size_t posted_ = 0, completed_ = 0;
  std::size_t receives_posted_ = 0, received_ = 0;  // received_: successfully
  std::size_t receives_failed_ = 0;
  std::uint16_t send_index_ = 0, send_retired_ = 0;
  std::uint64_t doorbell_ = 0;
  bool dead_ = false, broken_ = false, stops_posting_ = false;
  bool flushed_ = false, has_reason_ = false;  // work was; something justifies it
};

}  // namespace qpair::simulation
