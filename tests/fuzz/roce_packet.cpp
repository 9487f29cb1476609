// Any sequence of packets, work requests and pauses leaves a queue pair that keeps its promises to its host:
// memory is touched only within what was checked, every work request completes at most once and in order,
// nothing is sent beyond the budget, and nothing happens after the end.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "softnic/roce/rc_queue_pair.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using namespace qpair;
using namespace qpair::softnic;
using namespace qpair::softnic::roce;

using qpair::fuzz::Input;
using qpair::fuzz::require;

constexpr std::uint64_t kMemory = 64 * 1024;
constexpr std::uint32_t kKey = 7;

class Host : public RcHost {
 public:
  RcQueuePair* qp = nullptr;
  std::vector<SendRequest> queue;
  std::size_t taken = 0, completed = 0;
  std::uint16_t receives_posted = 0, receives_taken = 0, receives_done = 0;
  bool over = false;
  std::uint64_t unreadable = ~0ULL;

  bool next_send(SendRequest& out) override {
    require(!over);
    if (taken == queue.size()) return false;
    out = queue[taken++];
    return true;
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
  void send_done(const SendRequest& request) override {
    require(!over && completed < taken && request.wqe_index == static_cast<std::uint16_t>(completed));
    ++completed;
  }
  void send_failed(const SendRequest& request, const Refusal& why) override {
    require(!over && completed < taken && request.wqe_index == static_cast<std::uint16_t>(completed));
    require(!why.reason.empty());
    end();
  }
  bool next_receive(ReceiveRequest& out) override {
    require(!over);
    if (receives_taken == receives_posted) return false;
    out = {receives_taken++, 1000};
    return true;
  }
  Check scatter_receive(const ReceiveRequest& request, std::uint64_t offset,
                        std::span<const std::byte> from) override {
    require(!over && offset + from.size() <= request.length);
    return {};
  }
  void receive_done(const ReceiveRequest& request, const Received&) override {
    require(!over && request.wqe_index == receives_done);
    ++receives_done;
  }
  void receive_failed(const ReceiveRequest& request, const Refusal& why) override {
    require(!over && request.wqe_index == receives_done && !why.reason.empty());
    end();
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
    require(!over && check_remote(RemoteAccess::Read, rkey, address, to.size()).has_value());
    std::fill(to.begin(), to.end(), std::byte{2});
    return {};
  }
  Check compare_swap(std::uint32_t, std::uint64_t address, std::uint64_t, std::uint64_t,
                     std::uint64_t& original) override {
    require(!over && address % 8 == 0);
    original = 5;
    return {};
  }
  Check fetch_add(std::uint32_t, std::uint64_t address, std::uint64_t, std::uint64_t& original) override {
    require(!over && address % 8 == 0);
    original = 6;
    return {};
  }
  Check invalidate(std::uint32_t rkey) override {
    if (rkey == 9)
      return tl::unexpected(Refusal{mlx5::Syndrome::RemoteAccess, 0x88, "cannot be invalidated"});
    return {};
  }
  void responder_failed(ibv_event_type, const Refusal& why) override {
    require(!over && !why.reason.empty());
    end();
  }
  void raise(ibv_event_type) override { require(!over); }

 private:
  void end() {
    over = true;
    qp->set_state(IBV_QPS_ERR);
  }
};

class Sink : public wire::Link {
 public:
  std::size_t committed = 0;
  bool full = false;
  wire::Endpoint local() const override { return {}; }
  std::span<std::byte> reserve(const wire::Endpoint&, std::size_t size) override {
    if (full) return {};
    open_.resize(size);  // exactly: a write beyond it is found
    open_.shrink_to_fit();
    return open_;
  }
  void commit() override {
    require(Packet::parse(open_).has_value());
    ++committed;
  }
  void flush() override {}
  std::size_t poll(const Receiver&, std::size_t, wire::TimePoint) override { return 0; }

 private:
  std::vector<std::byte> open_;
};

void connect(RcQueuePair& qp, Input& in, wire::TimePoint now) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = static_cast<ibv_mtu>(IBV_MTU_256 + in.byte() % 5);
  a.rq_psn = in.byte() % 2 != 0 ? 0xfffffa : 100;
  a.sq_psn = a.rq_psn;
  a.max_dest_rd_atomic = in.byte() % 18;
  a.max_rd_atomic = in.byte() % 18;
  a.timeout = in.byte() % 32;
  a.retry_cnt = in.byte() % 8;
  a.rnr_retry = in.byte() % 8;
  qp.modify(a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC, now);
  a.qp_state = IBV_QPS_RTS;
  qp.modify(a,
            IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                IBV_QP_MAX_QP_RD_ATOMIC,
            now);
}

// A well-formed packet near what is expected, so that more than the parser is reached.
std::vector<std::byte> plausible(Input& in, const RcQueuePair& qp) {
  ibv_qp_attr now{};
  qp.query(now);
  PacketHeader header;
  const std::uint8_t choice = in.byte();
  header.opcode = static_cast<Opcode>(choice % 0x19);
  if (choice % 0x19 == 0x18) header.opcode = Opcode::Reason;
  if (!opcode_info(header.opcode).has(OpcodeInfo::kKnown)) header.opcode = Opcode::Acknowledge;
  const bool request = opcode_info(header.opcode).has(OpcodeInfo::kRequest);
  const std::uint32_t base = request ? now.rq_psn : now.sq_psn;
  header.psn = Psn(base + in.byte() - (request ? 8U : 128U));
  if (request && choice >= 128) header.psn = Psn(base);
  header.ack_request = in.byte() % 2 != 0;
  std::size_t payload = 0;
  if (opcode_info(header.opcode).has(OpcodeInfo::kPayload)) {
    const std::uint8_t size = in.byte();
    payload = size < 128 ? size : std::size_t{256} << (size % 5);
  }
  std::vector<std::byte> bytes(PacketWriter::size(header.opcode, payload));
  PacketWriter writer(bytes, header, payload);
  const std::uint64_t address = in.word();
  const std::uint32_t key = in.byte() < 240 ? kKey : 8;
  writer.set_reth({address, key, in.byte() < 250 ? in.word() : in.word() << 16});
  writer.set_atomic({address & ~std::uint64_t{in.byte() < 200 ? 7U : 0U}, key, in.byte(), in.byte()});
  writer.set_aeth({in.byte(), 0});
  writer.set_invalidated_key(in.byte());
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, std::min<std::size_t>(size, 4096));
  wire::TimePoint now = wire::TimePoint{} + std::chrono::hours(1);
  Host host;
  Sink link;
  RcQueuePair qp(1, host, link);
  host.qp = &qp;
  connect(qp, in, now);
  while (!in.empty()) {
    switch (in.byte() % 8) {
      case 0: {
        auto bytes = in.bytes(in.byte());
        if (const auto packet = Packet::parse(bytes)) qp.receive(*packet, {}, now);
        break;
      }
      case 1:
      case 2:
      case 3: {
        auto bytes = plausible(in, qp);
        const auto packet = Packet::parse(bytes);
        require(packet.has_value());
        qp.receive(*packet, {}, now);
        break;
      }
      case 4: {
        SendRequest request;
        request.operation = static_cast<Operation>(in.byte() % 8);
        request.fence = in.byte() % 4 == 0;
        request.length = request.operation >= Operation::CompareSwap ? 8 : in.word() * (in.byte() % 4);
        if (in.byte() == 255) request.length = 1ULL << (in.byte() % 40);
        request.wqe_index = static_cast<std::uint16_t>(host.queue.size());
        host.queue.push_back(request);
        break;
      }
      case 5: {
        const unsigned budget = in.byte() % 64;
        const std::size_t before = link.committed;
        qp.transmit(budget, now);
        require(link.committed - before <= budget + 1);  // a refusal is two packets
        break;
      }
      case 6: {
        const wire::TimePoint deadline = qp.deadline();
        if (deadline != wire::TimePoint::max()) now = std::max(now, deadline);
        qp.expire(now);
        break;
      }
      default: {
        const std::uint8_t what = in.byte();
        if (what < 128) ++host.receives_posted;
        if (what == 200) host.unreadable = in.word();
        if (what == 201) link.full = !link.full;
        if (what == 202 && !host.over) qp.set_state(IBV_QPS_SQD);
        if (what == 203 && !host.over) qp.set_state(IBV_QPS_RTS);
        if (what == 204) {
          host.over = true;
          qp.set_state(IBV_QPS_ERR);
        }
        break;
      }
    }
  }
  return 0;
}
