#pragma once
// A host of two arrays and a link that a test reads and writes by hand, so that a test can say "receive this,
// expect that". Time is a number that the test moves.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "softnic/roce/rc_queue_pair.hpp"

namespace qpair::softnic::roce::test {

using namespace std::chrono_literals;

inline constexpr std::uint64_t kBase = 0x100000;  // address of the first byte of a FakeHost's memory
inline constexpr std::uint32_t kKey = 0x1234;

inline wire::Endpoint endpoint(std::uint8_t last, std::uint16_t port = wire::kRoceUdpPort) {
  wire::Endpoint result;
  result.address[10] = result.address[11] = 0xff;
  result.address[12] = 127;
  result.address[13] = 71;
  result.address[15] = last;
  result.port = port;
  return result;
}

inline std::byte pattern(std::uint64_t seed, std::uint64_t i) {
  return static_cast<std::byte>((seed * 0x9e3779b97f4a7c15ULL + i * 0x2545f4914f6cdd1dULL) >> 53);
}

class FakeHost : public Host {
 public:
  struct Completion {
    std::uint16_t index = 0;
    bool ok = true;
    Refusal why{};
    friend void PrintTo(const Completion& c, std::ostream* out) {
      *out << c.index << (c.ok ? " ok" : " failed: " + c.why.reason);
    }
  };
  struct Receipt {
    std::uint16_t index = 0;
    bool ok = true;
    Received what{};
    Refusal why{};
  };

  explicit FakeHost(std::size_t size) : memory(size) {}

  std::vector<std::byte> memory;
  Transport* queue_pair = nullptr;  // told about ERR, as the NIC does
  ibv_qp_state after_failed_send = IBV_QPS_ERR;
  std::map<std::uint16_t, AddressVector> addresses;  // of datagrams
  std::vector<std::string> losses;
  std::vector<Completion> completions;
  std::vector<Receipt> receipts;
  std::vector<ibv_event_type> events;
  std::vector<Refusal> responder_refusals;
  std::vector<std::uint32_t> invalidated;
  std::uint64_t local_end = ~0ULL;   // gather() beyond it fails: a local protection error
  std::uint64_t remote_end = ~0ULL;  // remote accesses beyond it are refused
  std::function<void()> on_send_done;
  unsigned gathers = 0;
  bool copies = false;  // it reaches the other side's memory by itself
  std::vector<std::pair<std::uint64_t, std::uint64_t>> copied;  // offsets and sizes

  // Posts a work request whose local data starts at `local` in memory.
  std::uint16_t post(SendRequest request, std::uint64_t local) {
    request.wqe_index = next_index_++;
    locals_[request.wqe_index] = local;
    sends_.push_back(request);
    return request.wqe_index;
  }
  std::uint16_t post_receive(std::uint64_t local, std::uint64_t length) {
    receives_.push_back({next_receive_, length});
    receive_locals_[next_receive_] = local;
    return next_receive_++;
  }
  std::size_t receives_left() const { return receives_.size(); }
  std::size_t sends_left() const { return sends_.size(); }

  void fill(std::uint64_t at, std::uint64_t size, std::uint64_t seed) {
    for (std::uint64_t i = 0; i < size; ++i) memory[at + i] = pattern(seed, i);
  }
  bool holds(std::uint64_t at, std::uint64_t size, std::uint64_t seed) const {
    for (std::uint64_t i = 0; i < size; ++i) {
      if (memory[at + i] != pattern(seed, i)) return false;
    }
    return true;
  }
  std::uint64_t word(std::uint64_t at) const {
    std::uint64_t value;
    std::memcpy(&value, &memory[at], 8);
    return value;
  }
  void set_word(std::uint64_t at, std::uint64_t value) { std::memcpy(&memory[at], &value, 8); }

  // ---- Host
  bool next_send(SendRequest& out) override {
    if (sends_.empty()) return false;
    out = sends_.front();
    sends_.pop_front();
    return true;
  }
  bool can_copy(const SendRequest&, std::uint64_t) override { return copies; }
  std::optional<std::uint64_t> copy(const SendRequest& request, std::uint64_t offset,
                                    std::uint64_t limit) override {
    if (!copies) return std::nullopt;
    copied.emplace_back(offset, std::min(limit, request.length - offset));
    return copied.back().second;
  }
  Check gather(const SendRequest& request, std::uint64_t offset, std::span<std::byte> to) override {
    ++gathers;
    EXPECT_LE(offset + to.size(), request.length);
    const std::uint64_t at = locals_.at(request.wqe_index) + offset;
    if (at + to.size() > local_end)
      return tl::unexpected(Refusal{mlx5::Syndrome::LocalProtection, 0x51, "no such lkey"});
    std::memcpy(to.data(), &memory[at], to.size());
    return {};
  }
  Check scatter(const SendRequest& request, std::uint64_t offset, std::span<const std::byte> from) override {
    const std::uint64_t at = locals_.at(request.wqe_index) + offset;
    if (at + from.size() > local_end)
      return tl::unexpected(Refusal{mlx5::Syndrome::LocalProtection, 0x51, "no such lkey"});
    std::memcpy(&memory[at], from.data(), from.size());
    return {};
  }
  void send_done(const SendRequest& request) override {
    completions.push_back({request.wqe_index});
    if (on_send_done) on_send_done();
  }
  void send_failed(const SendRequest& request, const Refusal& why) override {
    completions.push_back({request.wqe_index, false, why});
    if (queue_pair != nullptr) queue_pair->set_state(after_failed_send);
  }
  tl::expected<AddressVector, Refusal> address(const SendRequest& request) override {
    const auto at = addresses.find(request.wqe_index);
    if (at == addresses.end()) return Host::address(request);
    return at->second;
  }
  void dropped(const std::string& sentence) override { losses.push_back(sentence); }
  bool next_receive(ReceiveRequest& out) override {
    if (receives_.empty()) return false;
    out = receives_.front();
    receives_.pop_front();
    return true;
  }
  Check scatter_receive(const ReceiveRequest& request, std::uint64_t offset,
                        std::span<const std::byte> from) override {
    const std::uint64_t at = receive_locals_.at(request.wqe_index) + offset;
    if (at + from.size() > local_end)
      return tl::unexpected(Refusal{mlx5::Syndrome::LocalProtection, 0x51, "no such lkey"});
    std::memcpy(&memory[at], from.data(), from.size());
    return {};
  }
  void receive_done(const ReceiveRequest& request, const Received& what) override {
    receipts.push_back({request.wqe_index, true, what, {}});
  }
  void receive_failed(const ReceiveRequest& request, const Refusal& why) override {
    receipts.push_back({request.wqe_index, false, {}, why});
    to_error();
  }
  Check check_remote(RemoteAccess, std::uint32_t rkey, std::uint64_t address, std::uint64_t length) override {
    EXPECT_NE(length, 0U) << "an access without bytes checks nothing";
    return allowed(rkey, address, length);
  }
  Check write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> from) override {
    if (Check check = allowed(rkey, address, from.size()); !check) return check;
    std::memcpy(&memory[address - kBase], from.data(), from.size());
    return {};
  }
  Check read(std::uint32_t rkey, std::uint64_t address, std::span<std::byte> to) override {
    if (Check check = allowed(rkey, address, to.size()); !check) return check;
    std::memcpy(to.data(), &memory[address - kBase], to.size());
    return {};
  }
  Check compare_swap(std::uint32_t rkey, std::uint64_t address, std::uint64_t compare, std::uint64_t swap,
                     std::uint64_t& original) override {
    if (Check check = allowed(rkey, address, 8); !check) return check;
    original = word(address - kBase);
    if (original == compare) set_word(address - kBase, swap);
    return {};
  }
  Check fetch_add(std::uint32_t rkey, std::uint64_t address, std::uint64_t add,
                  std::uint64_t& original) override {
    if (Check check = allowed(rkey, address, 8); !check) return check;
    original = word(address - kBase);
    set_word(address - kBase, original + add);
    return {};
  }
  Check invalidate(std::uint32_t rkey) override {
    invalidated.push_back(rkey);
    return {};
  }
  void responder_failed(ibv_event_type event, const Refusal& why) override {
    events.push_back(event);
    responder_refusals.push_back(why);
    to_error();
  }
  void raise(ibv_event_type event) override { events.push_back(event); }

 private:
  Check allowed(std::uint32_t rkey, std::uint64_t address, std::uint64_t length) const {
    if (rkey != kKey) {
      return tl::unexpected(Refusal{mlx5::Syndrome::RemoteAccess, 0x88, fmt::format("no key {:#x}", rkey)});
    }
    const std::uint64_t end = std::min<std::uint64_t>(kBase + memory.size(), remote_end);
    if (address < kBase || length > end - kBase || address - kBase > end - kBase - length) {
      return tl::unexpected(Refusal{mlx5::Syndrome::RemoteAccess, 0x88, "out of bounds"});
    }
    return {};
  }
  void to_error() {
    if (queue_pair != nullptr) queue_pair->set_state(IBV_QPS_ERR);
  }

  std::deque<SendRequest> sends_;
  std::deque<ReceiveRequest> receives_;
  std::map<std::uint16_t, std::uint64_t> locals_, receive_locals_;
  std::uint16_t next_index_ = 0, next_receive_ = 0;
};

// Keeps what is sent until the test takes it.
class HandLink : public wire::Link {
 public:
  explicit HandLink(wire::Endpoint local) : local_(local) {}
  wire::Endpoint local() const override { return local_; }
  std::span<std::byte> reserve(const wire::Endpoint& destination, std::size_t size) override {
    if (full) return {};
    destination_ = destination;
    open_.assign(size, std::byte{0xee});
    return open_;
  }
  void commit() override {
    EXPECT_TRUE(check_icrc({local_, destination_, open_}));
    destinations.push_back(destination_);
    if (on_commit) return on_commit(std::move(open_));
    sent.push_back(std::move(open_));
  }
  void flush() override {}
  bool has_room(const wire::Endpoint& destination, std::size_t) override {
    return sent.size() < room && destination != congested;
  }
  bool is_full(const wire::Endpoint&, std::size_t) override { return full; }
  std::optional<wire::TimePoint> deadline() const override { return deadline_; }
  std::size_t poll(const Receiver&, std::size_t, wire::TimePoint) override { return 0; }

  std::size_t room = SIZE_MAX;  // packets
  bool full = false;
  wire::Endpoint congested;  // has no room at all
  std::optional<wire::TimePoint> deadline_;
  std::deque<std::vector<std::byte>> sent;
  std::vector<wire::Endpoint> destinations;  // of all that was sent
  std::function<void(std::vector<std::byte>)> on_commit;

 private:
  wire::Endpoint local_, destination_;
  std::vector<std::byte> open_;
};

// "RDMA WRITE First 5 [256]", "Acknowledge 7", "NAK sequence 6", "RNR 5": how the tests call a packet.
inline std::string describe(std::span<std::byte> bytes) {
  const auto packet = Packet::parse(bytes);
  if (!packet) return "malformed";
  const OpcodeInfo& info = packet->info();
  const std::uint32_t psn = packet->psn();
  if (static_cast<Opcode>(packet->opcode()) == Opcode::Acknowledge) {
    const Aeth aeth = packet->aeth();
    switch (aeth.kind()) {
      case AckKind::Ack:
        return fmt::format("ACK {}", psn);
      case AckKind::Rnr:
        return fmt::format("RNR {} timer {}", psn, aeth.value());
      case AckKind::Nak:
        return fmt::format("NAK {} {}", psn, name(static_cast<NakCode>(aeth.value())));
      case AckKind::Reserved:
        return "reserved";
    }
  }
  std::string text = fmt::format("{} {}", info.name, psn);
  if (info.has(OpcodeInfo::kPayload)) text += fmt::format(" [{}]", packet->payload().size());
  if (static_cast<Opcode>(packet->opcode()) == Opcode::ReadRequest)
    text += fmt::format(" for {}", packet->reth().length);
  if (static_cast<Opcode>(packet->opcode()) == Opcode::Reason) {
    text += fmt::format(" \"{}\"", std::string_view(reinterpret_cast<const char*>(packet->payload().data()),
                                                    packet->payload().size()));
  }
  if (packet->ack_request() && !info.has(OpcodeInfo::kRead | OpcodeInfo::kAtomic)) text += " ack?";
  if (packet->solicited()) text += " solicited";
  return text;
}

struct Settings {
  std::uint32_t mtu = 256;
  std::uint32_t first_psn = 5;
  std::uint8_t max_reads = 4;
  std::uint8_t timeout = 14;
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry = 7;
  std::uint8_t rnr_timer = 12;
};

inline ibv_mtu mtu_code(std::uint32_t bytes) {
  return bytes == 256    ? IBV_MTU_256
         : bytes == 512  ? IBV_MTU_512
         : bytes == 1024 ? IBV_MTU_1024
         : bytes == 2048 ? IBV_MTU_2048
                         : IBV_MTU_4096;
}

// RESET to RTR, and on to RTS, as a program does it.
inline void to_rtr(RcQueuePair& qp, const wire::Endpoint& peer, std::uint32_t peer_qpn, const Settings& s,
                   wire::TimePoint now) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  qp.modify(a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, now);
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = mtu_code(s.mtu);
  a.dest_qp_num = peer_qpn;
  a.rq_psn = s.first_psn;
  a.max_dest_rd_atomic = s.max_reads;
  a.min_rnr_timer = s.rnr_timer;
  std::memcpy(a.ah_attr.grh.dgid.raw, peer.address.data(), 16);
  qp.modify(a,
            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
            now);
}
inline void to_rts(RcQueuePair& qp, const Settings& s, wire::TimePoint now) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTS;
  a.sq_psn = s.first_psn;
  a.timeout = s.timeout;
  a.retry_cnt = s.retry_count;
  a.rnr_retry = s.rnr_retry;
  a.max_rd_atomic = s.max_reads;
  qp.modify(a,
            IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                IBV_QP_MAX_QP_RD_ATOMIC,
            now);
}

inline SendRequest make(Operation operation, std::uint64_t length, std::uint64_t remote = 0) {
  SendRequest request;
  request.operation = operation;
  request.length = length;
  request.rkey = kKey;
  request.remote_address = kBase + remote;
  return request;
}

// One queue pair whose peer is the test.
class Narrated : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kOwnQpn = 0x11, kPeerQpn = 0x22;

  void connect(const Settings& settings = {}, bool ready_to_send = true) {
    to_rtr(qp, kPeer, kPeerQpn, settings, now);
    if (ready_to_send) to_rts(qp, settings, now);
  }
  void SetUp() override { host.queue_pair = &qp; }

  // Everything that the queue pair sends now.
  std::vector<std::string> sends(unsigned budget = 10000) {
    qp.transmit(budget, now);
    std::vector<std::string> all;
    while (!link.sent.empty()) {
      last_sent = std::move(link.sent.front());
      link.sent.pop_front();
      all.push_back(describe(last_sent));
    }
    return all;
  }
  struct Extra {
    Reth reth{};
    Aeth aeth{};
    AtomicEth atomic{};
    std::uint64_t original = 0;
    std::uint32_t immediate = 0;
    bool ack_request = true;
    bool solicited = false;
    std::uint64_t seed = 1;
    std::uint64_t seed_offset = 0;  // where in the pattern the payload starts
    wire::Endpoint from = kPeer;
  };
  void receive(Opcode opcode, std::uint32_t psn, std::size_t payload, const Extra& extra) {
    std::vector<std::byte> bytes(PacketWriter::size(opcode, payload));
    PacketHeader header;
    header.opcode = opcode;
    header.psn = Psn(psn);
    header.ack_request = extra.ack_request;
    header.solicited = extra.solicited;
    header.destination_qpn = kOwnQpn;
    PacketWriter writer(bytes, header, payload);
    writer.set_reth(extra.reth);
    writer.set_aeth(extra.aeth);
    writer.set_atomic(extra.atomic);
    writer.set_atomic_original(extra.original);
    writer.set_immediate(extra.immediate);
    writer.set_invalidated_key(extra.immediate);
    for (std::size_t i = 0; i < payload; ++i)
      writer.payload()[i] = pattern(extra.seed, extra.seed_offset + i);
    deliver(bytes, extra.from);
  }
  void receive(Opcode opcode, std::uint32_t psn, std::size_t payload = 0) {
    receive(opcode, psn, payload, Extra());
  }
  void deliver(std::vector<std::byte>& bytes, const wire::Endpoint& from) {
    const auto packet = Packet::parse(bytes);
    ASSERT_TRUE(packet.has_value());
    qp.receive(*packet, from, now);
  }
  void receive_ack(std::uint32_t psn) { receive(Opcode::Acknowledge, psn, 0, {.aeth = {Aeth::kAck, 0}}); }
  void receive_nak(std::uint32_t psn, NakCode code) {
    receive(Opcode::Acknowledge, psn, 0, {.aeth = {Aeth::nak(code), 0}});
  }
  void receive_rnr(std::uint32_t psn, std::uint8_t timer) {
    receive(Opcode::Acknowledge, psn, 0, {.aeth = {Aeth::rnr(timer), 0}});
  }
  void receive_reason(std::uint32_t psn, std::string_view text) {
    std::vector<std::byte> bytes(PacketWriter::size(Opcode::Reason, text.size()));
    PacketHeader header;
    header.opcode = Opcode::Reason;
    header.psn = Psn(psn);
    PacketWriter writer(bytes, header, text.size());
    std::memcpy(writer.payload().data(), text.data(), text.size());
    deliver(bytes, kPeer);
  }
  std::vector<std::uint16_t> completed() const {
    std::vector<std::uint16_t> all;
    for (const auto& c : host.completions) {
      if (c.ok) all.push_back(c.index);
    }
    return all;
  }

  static inline const wire::Endpoint kPeer = endpoint(2);
  wire::TimePoint now = wire::TimePoint{} + 1h;
  FakeHost host{1 << 20};
  HandLink link{endpoint(1)};
  RcQueuePair qp{kOwnQpn, host, link};
  std::vector<std::byte> last_sent;
};

}  // namespace qpair::softnic::roce::test
