// Whatever a program writes into its rings and records, whatever the service of its queue pairs, and in
// whatever order it rings, reads and changes state: the device touches only memory that it was given, writes
// no more completions than fit, and comes to rest.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "qpair/mlx5/doorbell.hpp"
#include "qpair/mlx5/wqe.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/chip.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/wire/loopback_link.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/send_wqe.hpp"

namespace {

using namespace qpair;
using namespace qpair::softnic;
using namespace qpair::softnic::nic;

using qpair::fuzz::Input;
using qpair::fuzz::kSendServices;
using qpair::fuzz::require;
using qpair::fuzz::SendService;
using qpair::fuzz::SendWqes;

class NoEvents final : public EventSink {
  void completion(Cqn) override {}
  void cq_event(Cqn, ibv_event_type) override {}
  void qp_event(Qpn, ibv_event_type) override {}
  void srq_event(Srqn, ibv_event_type) override {}
};

std::uint64_t address_of(const void* p) {
  return reinterpret_cast<std::uint64_t>(p);
}

wire::Endpoint here() {
  wire::Endpoint endpoint;
  endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 71, 0, 1};
  endpoint.port = wire::kRoceUdpPort;
  return endpoint;
}

constexpr ibv_qp_type sender_type(SendService service) {
  switch (service) {
    case SendService::Uc:
      return IBV_QPT_UC;
    case SendService::Ud:
      return IBV_QPT_UD;
    case SendService::Xrc:
      return IBV_QPT_XRC_SEND;
    case SendService::Dc:
      return kDcInitiator;
    case SendService::Rc:
      break;
  }
  return IBV_QPT_RC;
}

constexpr ibv_qp_type receiver_type(SendService service) {
  if (service == SendService::Xrc) return IBV_QPT_XRC_RECV;
  return service == SendService::Dc ? kDcTarget : sender_type(service);
}

// What a queue pair of that type is to be given on its way to RTS (the tables in nic/qp_states.cpp).
int attributes_for(ibv_qp_type type, ibv_qp_state to) {
  const bool datagram = type == IBV_QPT_UD;
  const bool dc = type == kDcInitiator || type == kDcTarget;
  if (to == IBV_QPS_INIT) {
    const int rest = datagram ? IBV_QP_QKEY : type == kDcInitiator ? 0 : IBV_QP_ACCESS_FLAGS;
    return IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | rest;
  }
  constexpr int kResponder = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  constexpr int kRequester = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  const bool responds = type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV;
  const bool requests = type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND || type == kDcInitiator;
  if (to == IBV_QPS_RTR) {
    if (datagram) return IBV_QP_STATE;
    if (type == kDcInitiator) return IBV_QP_STATE | IBV_QP_PATH_MTU;
    const int of_all = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU;
    if (dc) return of_all | IBV_QP_MIN_RNR_TIMER;
    return of_all | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | (responds ? kResponder : 0);
  }
  const int timeout = requests || responds ? IBV_QP_TIMEOUT : 0;
  return IBV_QP_STATE | IBV_QP_SQ_PSN | timeout | (requests ? kRequester : 0);
}

// A program with one completion queue and two queue pairs: the one sends, the other receives.
class Program {
 public:
  explicit Program(Input& input)
      : input_(input),
        chip_(std::make_unique<wire::LoopbackLink>(here(), 256 << 10), 1024, "lo", 1),
        service_(static_cast<SendService>(input.byte() % kSendServices)),
        shares_(input.byte() % 2 != 0 || service_ >= SendService::Xrc),
        send_shift_(input.byte() % 6),
        receive_shift_(shares_ ? kSharedShift : 4 + input.byte() % 3),
        memory_(kGuard + kRegistered + kGuard, kUntouched),
        send_ring_(std::size_t{64} << send_shift_),
        receive_ring_(std::size_t{kReceives} << receive_shift_),
        cq_ring_(std::size_t{kEntries} * 64, std::byte{0xf0}),
        wqes_(input) {
    uar_ = chip_.pages().add(page_);
    pd_ = chip_.create_pd().value();
    make_keys();
    cq_ = chip_.create_cq({address_of(cq_ring_.data()), address_of(cq_record_), kEntries, 64, uar_, &sink_})
              .value();
    domain_ = chip_.xrc_domains().open(std::nullopt, 0).value();
    if (shares_) make_shared_queue();
    make_queue_pairs();
    wqes_.set({.service = service_,
               .qpn = static_cast<std::uint32_t>(qp_),
               .peer = static_cast<std::uint32_t>(peer_),
               .srqn = static_cast<std::uint32_t>(srq_),
               .gid = chip_.gids()[3].gid,
               .qkey = kQkey,
               .access_key = kAccessKey,
               .keys = keys_,
               .registered = registered(),
               .registered_size = kRegistered});
    connect(peer_, qp_);
    connect(qp_, peer_);
    require(chip_.find_qp(qp_)->state() == IBV_QPS_RTS);
    require(chip_.find_qp(peer_)->state() >= IBV_QPS_RTR);
  }

  void run() {
    while (!input_.empty()) step();
    for (int i = 0; i < 64; ++i) chip_.round(now_);
    // Everything around the registered bytes is as it was.
    const auto untouched = [](std::byte b) { return b == kUntouched; };
    require(std::all_of(memory_.begin(), memory_.begin() + kGuard, untouched));
    require(std::all_of(memory_.end() - kGuard, memory_.end(), untouched));
    require(chip_.destroy_qp(qp_).value == 0 && chip_.destroy_qp(peer_).value == 0);
    if (shares_) require(chip_.destroy_srq(srq_).value == 0);
    require(chip_.destroy_cq(cq_).value == 0);
    require(chip_.xrc_domains().close(domain_).value == 0);
  }

 private:
  static constexpr std::byte kUntouched{0xa5};
  static constexpr std::size_t kGuard = 4096;
  static constexpr std::uint32_t kRegistered = 8192;
  static constexpr std::uint32_t kReceives = 8;
  static constexpr std::uint32_t kSharedShift = 6;
  static constexpr std::uint32_t kEntries = 16;
  static constexpr std::uint32_t kQkey = 0x1111;
  static constexpr std::uint64_t kAccessKey = 77;
  static constexpr int kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

  std::uint64_t registered() const { return address_of(memory_.data() + kGuard); }

  // ---- Objects

  void make_keys() {
    const auto number = [](const auto& key) { return static_cast<std::uint32_t>(key.value()); };
    keys_ = {number(chip_.keys().create({pd_, registered(), kRegistered, registered(), kAllAccess})),
             number(chip_.keys().create_window({pd_, IBV_MW_TYPE_1})),
             number(chip_.keys().create_window({pd_, IBV_MW_TYPE_2})),
             number(chip_.keys().create_indirect({pd_, 4, kAllAccess, true})),
             number(chip_.keys().create_indirect({pd_, 4, kAllAccess, true}))};
  }

  void make_shared_queue() {
    SrqParameters parameters{};
    parameters.pd = pd_;
    parameters.buffer = address_of(receive_ring_.data());
    parameters.doorbell_record = address_of(srq_record_);
    parameters.wqe_count = kReceives;
    parameters.wqe_shift = kSharedShift;
    if (service_ == SendService::Xrc) parameters.xrc = XrcParameters{domain_, cq_, std::nullopt};
    parameters.sink = &sink_;
    srq_ = chip_.create_srq(parameters).value();
  }

  void make_queue_pairs() {
    QpParameters sender{};
    sender.type = sender_type(service_);
    sender.pd = pd_;
    sender.send_cq = sender.recv_cq = cq_;
    sender.sq_buffer = address_of(send_ring_.data());
    sender.doorbell_record = address_of(record_);
    sender.sq_basic_blocks = 1U << send_shift_;
    sender.scatter_to_cqe_send = sender.scatter_to_cqe_recv = true;
    sender.uar = uar_;
    sender.sink = &sink_;
    QpParameters receiver = sender;
    receiver.type = receiver_type(service_);
    receiver.sq_basic_blocks = 0;
    receiver.xrc_domain = domain_;
    receiver.dc_access_key = kAccessKey;
    if (!shares_) {
      receiver.buffer = address_of(receive_ring_.data());
      receiver.rq_wqe_count = kReceives;
      receiver.rq_wqe_shift = receive_shift_;
    } else if (service_ != SendService::Xrc) {
      receiver.srq = srq_;
    }
    qp_ = chip_.create_qp(sender).value();
    peer_ = chip_.create_qp(receiver).value();
  }

  void connect(Qpn qp, Qpn peer) {
    QueuePair& pair = *chip_.find_qp(qp);
    const ibv_qp_type type = pair.parameters().type;
    ibv_qp_attr attributes{};
    attributes.port_num = 1;
    attributes.qp_access_flags = kAllAccess & ~IBV_ACCESS_MW_BIND;
    attributes.qkey = kQkey;
    attributes.path_mtu = IBV_MTU_256;
    attributes.dest_qp_num = static_cast<std::uint32_t>(peer);
    attributes.max_dest_rd_atomic = 4;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.sgid_index = 3;
    attributes.ah_attr.grh.dgid = chip_.gids()[3].gid;
    attributes.timeout = 10;
    attributes.retry_cnt = 1;
    attributes.rnr_retry = 1;
    attributes.max_rd_atomic = 4;
    for (const ibv_qp_state to : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      if (to == IBV_QPS_RTS && type == kDcTarget) break;
      attributes.qp_state = to;
      chip_.modify_qp(pair, attributes, attributes_for(type, to), now_);
    }
  }

  // ---- What it does

  void step() {
    switch (input_.byte() % 12) {
      case 0:
        write_wqe();
        break;
      case 1:
        write_wqe();
        record_[mlx5::kSendRecord] = mlx5::be32{next_ & 0xffffU};
        ring();
        chip_.round(now_);
        break;
      case 2:
        record_[mlx5::kSendRecord] = mlx5::be32{next_ & 0xffffU};
        break;
      case 3:
        record_[mlx5::kSendRecord] = mlx5::be32{input_.word()};
        break;
      case 4:
        ring();
        break;
      case 5:
        shares_ ? post_shared_receive() : post_receive();
        break;
      case 6:
        cq_record_[0] = mlx5::be32{cq_index_ += input_.byte() % kEntries};
        break;
      case 7:
        now_ += std::chrono::microseconds(input_.word());
        [[fallthrough]];
      case 8:
        chip_.round(now_);
        break;
      case 9:
        store_entries();
        break;
      case 10:
        if (shares_) chip_.find_srq(srq_)->arm(input_.byte() % (kReceives + 1));
        break;
      default:
        change_state();
        break;
    }
  }

  void write_wqe() {
    const std::span<const std::byte> wqe = wqes_.make(next_);
    std::memcpy(&doorbell_, wqe.data(), sizeof doorbell_);
    for (std::size_t at = 0; at < wqe.size(); at += mlx5::kSegmentSize) {
      std::memcpy(send_ring_.data() + (std::size_t{next_} * mlx5::kBasicBlockSize + at) % send_ring_.size(),
                  wqe.data() + at, mlx5::kSegmentSize);
    }
    next_ =
        static_cast<std::uint16_t>(next_ + (wqe.size() + mlx5::kBasicBlockSize - 1) / mlx5::kBasicBlockSize);
  }

  // Into registered memory, where a WQE may say that they are.
  void store_entries() {
    std::size_t at = kGuard + input_.word() % kRegistered;
    for (std::uint32_t left = input_.byte() % 8; left != 0; --left) {
      const mlx5::KlmSegment klm = wqes_.entry();
      if (at + sizeof klm > kGuard + kRegistered) return;
      std::memcpy(memory_.data() + at, &klm, sizeof klm);
      at += sizeof klm;
    }
  }

  void ring() {
    std::memcpy(page_ + mlx5::kBlueFlameOffset, &doorbell_, sizeof doorbell_);
    if (input_.byte() == 0) input_.bytes(page_ + mlx5::kBlueFlameOffset, 8);
  }

  void post_receive() {
    const std::uint32_t slots = (1U << receive_shift_) / 16;
    const std::size_t at = (receives_++ % kReceives) << receive_shift_;
    for (std::uint32_t i = 0; i < slots; ++i) {
      mlx5::DataSegment segment{input_.byte(), wqes_.key(), wqes_.place()};
      if (i == 0 && input_.byte() < 16) input_.bytes(reinterpret_cast<std::byte*>(&segment), sizeof segment);
      std::memcpy(receive_ring_.data() + at + std::size_t{i} * 16, &segment, sizeof segment);
    }
    record_[mlx5::kReceiveRecord] = mlx5::be32{input_.byte() < 8 ? input_.word() : receives_ & 0xffff};
  }

  // Mostly the next one of the ring; seldom one that is taken, or a link to anywhere.
  void post_shared_receive() {
    const std::uint8_t wrong = input_.byte();
    const std::size_t at = (receives_ % kReceives) << kSharedShift;
    mlx5::SharedReceiveLink link{};
    link.next_wqe_index = static_cast<std::uint16_t>((receives_ + 1) % kReceives);
    if (wrong >= 240) link.next_wqe_index = static_cast<std::uint16_t>(input_.word());
    std::memcpy(receive_ring_.data() + at, &link, sizeof link);
    for (std::size_t i = 1; i < (1U << kSharedShift) / mlx5::kSegmentSize; ++i) {
      mlx5::DataSegment segment{input_.byte(), wqes_.key(), wqes_.place()};
      if (wrong >= 224 && wrong < 240) input_.bytes(reinterpret_cast<std::byte*>(&segment), sizeof segment);
      std::memcpy(receive_ring_.data() + at + i * mlx5::kSegmentSize, &segment, sizeof segment);
    }
    ++receives_;
    srq_record_[0] = mlx5::be32{wrong < 8 ? input_.word() : receives_ & 0xffff};
  }

  void change_state() {
    ibv_qp_attr attributes{};
    attributes.qp_state = static_cast<ibv_qp_state>(input_.byte() % 8);
    chip_.modify_qp(*chip_.find_qp(qp_), attributes, IBV_QP_STATE, now_);
    if (attributes.qp_state != IBV_QPS_RESET) return;
    next_ = 0;
    record_[mlx5::kSendRecord] = mlx5::be32{0U};
    connect(qp_, peer_);
    if (service_ == SendService::Dc) return;  // a target never goes back
    attributes.qp_state = IBV_QPS_RESET;
    chip_.modify_qp(*chip_.find_qp(peer_), attributes, IBV_QP_STATE, now_);
    if (!shares_) receives_ = 0;
    record_[mlx5::kReceiveRecord] = mlx5::be32{0U};
    connect(peer_, qp_);
  }

  Input& input_;
  NoEvents sink_;
  Chip chip_;
  wire::TimePoint now_ = wire::TimePoint{} + std::chrono::hours(1);
  const SendService service_;
  const bool shares_;  // receives lie in a shared receive queue
  std::uint32_t send_shift_;
  std::uint32_t receive_shift_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> send_ring_;
  std::vector<std::byte> receive_ring_;
  std::vector<std::byte> cq_ring_;
  SendWqes wqes_;
  alignas(8) mlx5::be32 record_[2] = {std::uint32_t{0}, std::uint32_t{0}};
  alignas(8) mlx5::be32 srq_record_[2] = {std::uint32_t{0}, std::uint32_t{0}};
  alignas(8) mlx5::be32 cq_record_[2] = {std::uint32_t{0}, std::uint32_t{0}};
  alignas(4096) std::byte page_[4096] = {};
  UarId uar_{};
  Pdn pd_{};
  std::array<std::uint32_t, 5> keys_{};  // a region, windows of both types, keys of pieces
  Cqn cq_{};
  Xrcdn domain_{};
  Srqn srq_{};
  Qpn qp_{}, peer_{};
  std::uint16_t next_ = 0;
  std::uint32_t receives_ = 0;
  std::uint32_t cq_index_ = 0;
  std::uint64_t doorbell_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool prepared = [] {
    explain::configure({true, false});
    install_fault_handler();
    return true;
  }();
  require(prepared);
  Input input(data, size);
  const auto program = std::make_unique<Program>(input);
  program->run();
  return 0;
}
