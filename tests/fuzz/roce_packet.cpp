// Any sequence of packets, work requests and pauses leaves a queue pair of any service keeping its promises
// to its host: memory is touched only within what was checked, every work request and every receive completes
// at most once and in order, nothing is sent beyond the budget, and nothing happens after the end.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "softnic/roce/dc_initiator.hpp"
#include "softnic/roce/dc_target.hpp"
#include "softnic/roce/rc_queue_pair.hpp"
#include "softnic/roce/uc_queue_pair.hpp"
#include "softnic/roce/ud_queue_pair.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/roce_host.hpp"

namespace {

using namespace qpair;
using namespace qpair::softnic;
using namespace qpair::softnic::roce;

using qpair::fuzz::CheckingHost;
using qpair::fuzz::Input;
using qpair::fuzz::is_unreliable;
using qpair::fuzz::Kind;
using qpair::fuzz::require;
using qpair::fuzz::Sink;

constexpr std::uint32_t kQpn = 1;
constexpr std::uint32_t kQkey = 0x1111;
constexpr std::uint64_t kAccessKey = 4;
constexpr std::uint32_t kPortMtu = 4096;

Service service_of(Kind kind) {
  switch (kind) {
    case Kind::Rc:
      return Service::ReliableConnection;
    case Kind::XrcInitiator:
    case Kind::XrcTarget:
      return Service::ExtendedReliableConnection;
    case Kind::Uc:
      return Service::UnreliableConnection;
    case Kind::Ud:
      return Service::UnreliableDatagram;
    case Kind::DcInitiator:
    case Kind::DcTarget:
      return Service::DynamicallyConnected;
  }
  return Service::ReliableConnection;
}

std::unique_ptr<Transport> make_transport(Kind kind, Host& host, wire::Link& link) {
  switch (kind) {
    case Kind::Rc:
      break;
    case Kind::XrcInitiator:
      return std::make_unique<RcQueuePair>(kQpn, host, link, RcQueuePair::Xrc::Initiator);
    case Kind::XrcTarget:
      return std::make_unique<RcQueuePair>(kQpn, host, link, RcQueuePair::Xrc::Target);
    case Kind::Uc:
      return std::make_unique<UcQueuePair>(kQpn, host, link);
    case Kind::Ud:
      return std::make_unique<UdQueuePair>(kQpn, host, link, kPortMtu);
    case Kind::DcInitiator:
      return std::make_unique<DcInitiator>(kQpn, host, link);
    case Kind::DcTarget:
      return std::make_unique<DcTarget>(kQpn, host, link, kAccessKey);
  }
  return std::make_unique<RcQueuePair>(kQpn, host, link);
}

class Script {
 public:
  explicit Script(Input& in)
      : in_(in),
        host_(static_cast<Kind>(in.byte() % fuzz::kKinds)),
        qp_(make_transport(host_.kind, host_, link_)) {
    host_.qp = qp_.get();
    connect();
  }

  void run() {
    while (!in_.empty()) step();
  }

 private:
  void step() {
    switch (in_.byte() % 8) {
      case 0: {
        auto bytes = in_.bytes(in_.byte());
        if (const auto packet = Packet::parse(bytes)) arrive(*packet);
        break;
      }
      case 1:
      case 2:
      case 3: {
        auto bytes = plausible();
        const auto packet = Packet::parse(bytes);
        require(packet.has_value());
        arrive(*packet);
        break;
      }
      case 4:
        post_send();
        break;
      case 5: {
        const unsigned budget = in_.byte() % 64;
        const std::size_t before = link_.committed;
        qp_->transmit(budget, now_);
        // A refusal is two packets; a DC target may refuse many initiators at once.
        require(link_.committed - before <= (host_.kind == Kind::DcTarget ? budget * 2 : budget + 1));
        break;
      }
      case 6: {
        const wire::TimePoint deadline = qp_->deadline();
        if (deadline != wire::TimePoint::max()) now_ = std::max(now_, deadline);
        qp_->expire(now_);
        break;
      }
      default:
        change();
        break;
    }
  }

  void connect() {
    const Kind kind = host_.kind;
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = static_cast<ibv_mtu>(IBV_MTU_256 + in_.byte() % 5);
    a.rq_psn = in_.byte() % 2 != 0 ? 0xfffffa : 100;
    a.sq_psn = a.rq_psn;
    a.qkey = kQkey;
    a.max_dest_rd_atomic = in_.byte() % 18;
    a.max_rd_atomic = in_.byte() % 18;
    a.timeout = in_.byte() % 32;
    a.retry_cnt = in_.byte() % 8;
    a.rnr_retry = in_.byte() % 8;
    int mask = IBV_QP_STATE;
    if (kind == Kind::Ud) {
      mask |= IBV_QP_QKEY;
    } else {
      mask |= IBV_QP_PATH_MTU;
    }
    if (kind != Kind::Ud && kind != Kind::DcInitiator) mask |= IBV_QP_AV;
    if (kind == Kind::DcTarget) mask |= IBV_QP_MIN_RNR_TIMER;
    if (kind != Kind::Ud && kind != Kind::DcInitiator && kind != Kind::DcTarget) {
      mask |= IBV_QP_RQ_PSN | (kind == Kind::Uc ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC);
    }
    qp_->modify(a, mask, now_);
    if (kind == Kind::DcTarget) return;  // it stays in RTR
    a.qp_state = IBV_QPS_RTS;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (!is_unreliable(kind))
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    qp_->modify(a, mask, now_);
  }

  void arrive(const Packet& packet) {
    const std::uint8_t from = in_.byte();
    wire::Endpoint source;
    source.address[15] = from < 224 ? 0 : from & 3;
    if (from % 16 == 15) return qp_->receive_multicast(packet, source, {});
    qp_->receive(packet, source, now_);
  }

  Opcode plausible_opcode(std::uint8_t choice) const {
    const Service service = service_of(host_.kind);
    constexpr std::uint8_t kOpcodes = 0x18;
    if (service == Service::UnreliableDatagram)
      return choice % 2 != 0 ? Opcode::UdSendOnly : Opcode::UdSendOnlyImm;
    if (choice % (kOpcodes + 1) == kOpcodes) return Opcode::Reason;
    const Opcode opcode = on_service(service, static_cast<Opcode>(choice % (kOpcodes + 1)));
    if (opcode_info(opcode).has(OpcodeInfo::kKnown)) return opcode;
    return on_service(service,
                      service == Service::UnreliableConnection ? Opcode::SendOnly : Opcode::Acknowledge);
  }

  // Of a connection to a DC target. The initiator connects anew from time to time.
  DcEth dc_header(Psn& psn) {
    const std::uint8_t what = in_.byte();
    Initiator& initiator = initiators_[what % initiators_.size()];
    if (initiator.connection == 0 || (what & 0x40) != 0) {
      ++initiator.connection;
      initiator.first = initiator.next = Psn(in_.word());
    }
    if ((what & 0x80) != 0) initiator.next = Psn(initiator.next.value() + in_.byte() - 8U);
    psn = initiator.next;
    ++initiator.next;
    return {.source_qpn = static_cast<std::uint32_t>(what % initiators_.size()),
            .connection = initiator.connection,
            .first_psn = initiator.first.value(),
            .access_key = (what & 0x30) == 0x30 ? in_.byte() : kAccessKey};
  }

  // A well-formed packet near what is expected, so that more than the parser is reached.
  std::vector<std::byte> plausible() {
    ibv_qp_attr now{};
    qp_->query(now);
    PacketHeader header;
    const std::uint8_t choice = in_.byte();
    header.opcode = plausible_opcode(choice);
    const OpcodeInfo& info = opcode_info(header.opcode);
    const bool request = info.has(OpcodeInfo::kRequest);
    const std::uint32_t base = request ? now.rq_psn : now.sq_psn;
    DcEth dc;
    if (host_.kind == Kind::DcTarget) {
      dc = dc_header(header.psn);
    } else {
      header.psn = Psn(base + in_.byte() - (request ? 8U : 128U));
      if (request && choice >= 128) header.psn = Psn(base);
    }
    header.ack_request = in_.byte() % 2 != 0;
    std::size_t payload = 0;
    if (info.has(OpcodeInfo::kPayload)) {
      const std::uint8_t size = in_.byte();
      payload = size < 128 ? size : std::size_t{256} << (size % 5);
    }
    std::vector<std::byte> bytes(PacketWriter::size(header.opcode, payload));
    PacketWriter writer(bytes, header, payload);
    const std::uint64_t address = in_.word();
    const std::uint32_t key = in_.byte() < 240 ? CheckingHost::kKey : 8;
    writer.set_reth({address, key, in_.byte() < 250 ? in_.word() : in_.word() << 16});
    writer.set_atomic({address & ~std::uint64_t{in_.byte() < 200 ? 7U : 0U}, key, in_.byte(), in_.byte()});
    writer.set_aeth({in_.byte(), 0});
    writer.set_invalidated_key(in_.byte());
    writer.set_xrc_srqn(1 + in_.byte() % (fuzz::kLastSrq + 1));
    writer.set_deth({in_.byte() < 240 ? kQkey : 0, in_.byte()});
    writer.set_dc(dc);
    return bytes;
  }

  void post_send() {
    const Kind kind = host_.kind;
    if (kind == Kind::XrcTarget || kind == Kind::DcTarget) return;  // they have no send queue
    SendRequest request;
    request.operation = static_cast<Operation>(in_.byte() % 8);
    if (kind == Kind::Ud)
      request.operation = request.operation < Operation::Write ? Operation::Send : Operation::SendImm;
    if (kind == Kind::Uc && request.operation >= Operation::Read) request.operation = Operation::Write;
    if (kind == Kind::Uc && request.operation == Operation::SendInvalidate)
      request.operation = Operation::SendImm;
    request.fence = in_.byte() % 4 == 0;
    request.rkey = in_.byte();
    request.xrc_srqn = 1;
    request.length = request.operation >= Operation::CompareSwap ? 8 : in_.word() * (in_.byte() % 4);
    if (in_.byte() == 255) request.length = 1ULL << (in_.byte() % 32);
    request.wqe_index = static_cast<std::uint16_t>(host_.queue.size());
    host_.queue.push_back(request);
  }

  void change() {
    const std::uint8_t what = in_.byte();
    if (what < 128) ++host_.receives_posted;
    if (what == 200) host_.unreadable = in_.word();
    if (what == 201) link_.full = !link_.full;
    if (what == 202 && !host_.over && host_.kind != Kind::DcTarget && qp_->state() == IBV_QPS_RTS)
      qp_->set_state(IBV_QPS_SQD);
    if (what == 203 && !host_.over && host_.kind != Kind::DcTarget) qp_->set_state(IBV_QPS_RTS);
    if (what == 204 && !host_.over) {
      qp_->set_state(IBV_QPS_ERR);  // a DC target tells of the receives that it had taken
      host_.over = true;
    }
    if (what == 205) {
      qp_->set_state(IBV_QPS_RESET);
      host_.restart();
      connect();
    }
    if (what == 206) host_.receive_length = in_.word();
  }

  struct Initiator {
    std::uint64_t connection = 0;
    Psn first, next;
  };

  Input& in_;
  wire::TimePoint now_ = wire::TimePoint{} + std::chrono::hours(1);
  CheckingHost host_;
  Sink link_;
  std::unique_ptr<Transport> qp_;
  std::array<Initiator, 4> initiators_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, std::min<std::size_t>(size, 4096));
  Script(in).run();
  return 0;
}
