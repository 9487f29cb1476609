#pragma once
// The host of a transport under fuzz: it has no memory, and ends the process when the transport asks for what
// it must not.

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "softnic/roce/host.hpp"
#include "softnic/roce/packet.hpp"
#include "softnic/roce/transport.hpp"
#include "softnic/wire/link.hpp"
#include "tests/fuzz/input.hpp"

namespace qpair::fuzz {

enum class Kind : std::uint8_t { Rc, XrcInitiator, XrcTarget, Uc, Ud, DcInitiator, DcTarget };
inline constexpr unsigned kKinds = 7;

constexpr bool is_unreliable(Kind kind) {
  return kind == Kind::Uc || kind == Kind::Ud;
}

// Requests for target number kNowhere have no address.
inline constexpr std::uint32_t kNowhere = 255;
// The shared receive queues of the XRC domain are 1 and 2.
inline constexpr std::uint32_t kLastSrq = 2;

class CheckingHost : public softnic::roce::Host {
 public:
  using Check = softnic::roce::Check;
  using Refusal = softnic::roce::Refusal;
  using SendRequest = softnic::roce::SendRequest;
  using ReceiveRequest = softnic::roce::ReceiveRequest;
  using RemoteAccess = softnic::roce::RemoteAccess;

  static constexpr std::uint64_t kMemory = 64 * 1024;
  static constexpr std::uint32_t kKey = 7;
  static constexpr std::uint32_t kNotInvalidated = 9;

  explicit CheckingHost(Kind of) : kind(of) {}

  const Kind kind;
  softnic::roce::Transport* qp = nullptr;
  std::vector<SendRequest> queue;
  std::size_t taken = 0, completed = 0;
  std::uint16_t receives_posted = 0, receives_taken = 0, receives_done = 0;
  std::uint64_t receive_length = 1000;
  std::uint64_t unreadable = ~0ULL;
  bool over = false;

  // As the NIC does on the way to RESET.
  void restart() {
    queue.clear();
    receiving_.clear();
    taken = completed = 0;
    receives_posted = receives_taken = receives_done = 0;
    has_srq_ = over = false;
  }

  // ---- Requester
  bool next_send(SendRequest& out) override {
    require(!over && qp->state() == IBV_QPS_RTS && kind != Kind::DcTarget);
    if (taken == queue.size()) return false;
    out = queue[taken++];
    return true;
  }
  tl::expected<softnic::roce::AddressVector, Refusal> address(const SendRequest& request) override {
    require(!over && (kind == Kind::Ud || kind == Kind::DcInitiator));
    if (request.rkey == kNowhere)
      return tl::unexpected(Refusal{mlx5::Syndrome::LocalQpOperation, 0, "no address"});
    softnic::roce::AddressVector vector;
    vector.destination.address[15] = static_cast<std::uint8_t>(request.rkey & 1);
    vector.remote_qpn = request.rkey & 3;
    vector.qkey = request.rkey << 30;
    vector.dc_key = request.rkey & 4;
    return vector;
  }
  Check gather(const SendRequest& request, std::uint64_t offset, std::span<std::byte> to) override {
    require(!over && offset + to.size() <= request.length);
    if (offset + to.size() > unreadable)
      return tl::unexpected(Refusal{mlx5::Syndrome::LocalProtection, 0x51, "unmapped"});
    std::fill(to.begin(), to.end(), std::byte{1});
    return {};
  }
  Check scatter(const SendRequest& request, std::uint64_t offset, std::span<const std::byte> from) override {
    require(!over && offset + from.size() <= request.length);
    return {};
  }
  void send_done(const SendRequest& request) override { complete(request); }
  // An unreliable service goes to SQE, and goes on when the program says so (IBTA vol. 1 10.3.1).
  void send_failed(const SendRequest& request, const Refusal& why) override {
    require(!why.reason.empty());
    complete(request);
    if (is_unreliable(kind)) return qp->set_state(IBV_QPS_SQE);
    end();
  }

  // ---- Responder
  Check select_srq(std::uint32_t srqn) override {
    require(!over && kind == Kind::XrcTarget);
    has_srq_ = srqn != 0 && srqn <= kLastSrq;
    if (has_srq_) return {};
    return tl::unexpected(Refusal{mlx5::Syndrome::RemoteInvalidRequest, 0, "no such SRQ"});
  }
  bool next_receive(ReceiveRequest& out) override {
    require(!over && kind != Kind::XrcInitiator && kind != Kind::DcInitiator);
    require(kind != Kind::XrcTarget || has_srq_);
    require(kind == Kind::DcTarget || receiving_.empty());  // others receive one message at a time
    if (receives_taken == receives_posted) return false;
    out = {receives_taken++, receive_length};
    receiving_.insert(out.wqe_index);
    return true;
  }
  Check scatter_receive(const ReceiveRequest& request, std::uint64_t offset,
                        std::span<const std::byte> from) override {
    require(!over && offset + from.size() <= request.length && receiving_.contains(request.wqe_index));
    return {};
  }
  void receive_done(const ReceiveRequest& request, const softnic::roce::Received& what) override {
    require(what.byte_count <= request.length || what.opcode == mlx5::CqeOpcode::ResponderWriteImm);
    finish(request);
  }
  void receive_failed(const ReceiveRequest& request, const Refusal& why) override {
    require(!why.reason.empty() && kind != Kind::DcTarget);
    finish(request);
    end();
  }
  void receive_lost(const ReceiveRequest& request, const Refusal& why) override {
    require(!why.reason.empty() && kind == Kind::DcTarget);
    finish(request);
  }
  Check check_remote(RemoteAccess, std::uint32_t rkey, std::uint64_t address, std::uint64_t length) override {
    require(length != 0);
    if (rkey != kKey || address > kMemory || length > kMemory - address) {
      return tl::unexpected(Refusal{mlx5::Syndrome::RemoteAccess, 0x88, "no such memory"});
    }
    return {};
  }
  Check write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> from) override {
    require(!over && check_remote(RemoteAccess::Write, rkey, address, from.size()).has_value());
    return {};
  }
  Check read(std::uint32_t rkey, std::uint64_t address, std::span<std::byte> to) override {
    require(!over && !is_unreliable(kind));
    require(check_remote(RemoteAccess::Read, rkey, address, to.size()).has_value());
    std::fill(to.begin(), to.end(), std::byte{2});
    return {};
  }
  Check compare_swap(std::uint32_t, std::uint64_t address, std::uint64_t, std::uint64_t,
                     std::uint64_t& original) override {
    require(!over && !is_unreliable(kind) && address % 8 == 0);
    original = 5;
    return {};
  }
  Check fetch_add(std::uint32_t, std::uint64_t address, std::uint64_t, std::uint64_t& original) override {
    require(!over && !is_unreliable(kind) && address % 8 == 0);
    original = 6;
    return {};
  }
  Check invalidate(std::uint32_t rkey) override {
    require(!over && !is_unreliable(kind));
    if (rkey == kNotInvalidated)
      return tl::unexpected(Refusal{mlx5::Syndrome::RemoteAccess, 0x88, "cannot be invalidated"});
    return {};
  }
  void responder_failed(ibv_event_type, const Refusal& why) override {
    require(!over && !why.reason.empty() && kind != Kind::DcTarget);
    end();
  }
  void raise(ibv_event_type) override { require(!over); }
  void dropped(const std::string& sentence) override { require(!over && !sentence.empty()); }

 private:
  void complete(const SendRequest& request) {
    require(!over && completed < taken && request.wqe_index == static_cast<std::uint16_t>(completed));
    ++completed;
  }
  void finish(const ReceiveRequest& request) {
    require(!over && receiving_.erase(request.wqe_index) == 1);
    require(kind == Kind::DcTarget || request.wqe_index == receives_done);
    ++receives_done;
  }
  void end() {
    over = true;
    qp->set_state(IBV_QPS_ERR);
  }

  std::set<std::uint16_t> receiving_;  // taken, and neither done nor failed
  bool has_srq_ = false;
};

// Where its packets go: they are counted, and must be well formed.
class Sink : public softnic::wire::Link {
 public:
  std::size_t committed = 0;
  bool full = false;
  softnic::wire::Endpoint local() const override { return {}; }
  std::span<std::byte> reserve(const softnic::wire::Endpoint&, std::size_t size) override {
    if (full) return {};
    open_.resize(size);  // exactly: a write beyond it is found
    open_.shrink_to_fit();
    return open_;
  }
  void commit() override {
    require(softnic::roce::Packet::parse(open_).has_value());
    ++committed;
  }
  void flush() override {}
  std::size_t poll(const Receiver&, std::size_t, softnic::wire::TimePoint) override { return 0; }

 private:
  std::vector<std::byte> open_;
};

}  // namespace qpair::fuzz
