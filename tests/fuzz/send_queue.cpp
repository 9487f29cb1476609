// Whatever a program writes into its rings and records, and in whatever order it rings, reads and changes
// state: the device touches only memory that it was given, writes no more completions than fit, and comes to
// rest.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "qpair/mlx5/doorbell.hpp"
#include "qpair/mlx5/wqe.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/chip.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/wire/loopback_link.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using namespace qpair;
using namespace qpair::softnic;
using namespace qpair::softnic::nic;

using qpair::fuzz::Input;
using qpair::fuzz::require;

class NoEvents final : public EventSink {
  void completion(Cqn) override {}
  void cq_event(Cqn, ibv_event_type) override {}
  void qp_event(Qpn, ibv_event_type) override {}
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

// A program with one completion queue and two queue pairs: the one sends, the other receives.
class Program {
 public:
  explicit Program(Input& input)
      : input_(input),
        chip_(std::make_unique<wire::LoopbackLink>(here(), 256 << 10), 1024, "lo", 1),
        send_shift_(input.byte() % 6),
        receive_shift_(4 + input.byte() % 3),
        memory_(kGuard + kRegistered + kGuard, std::byte{0xa5}),
        send_ring_(std::size_t{64} << send_shift_),
        receive_ring_(std::size_t{kReceives} << receive_shift_),
        cq_ring_(std::size_t{kEntries} * 64, std::byte{0xf0}) {
    uar_ = chip_.pages().add(page_);
    pd_ = chip_.create_pd().value();
    key_ = static_cast<std::uint32_t>(
        chip_.keys().create({pd_, registered(), kRegistered, registered(), kAllAccess}).value());
    cq_ = chip_.create_cq({address_of(cq_ring_.data()), address_of(cq_record_), kEntries, 64, uar_, &sink_})
              .value();
    QpParameters sender{};
    sender.type = IBV_QPT_RC;
    sender.pd = pd_;
    sender.send_cq = sender.recv_cq = cq_;
    sender.sq_buffer = address_of(send_ring_.data());
    sender.doorbell_record = address_of(record_);
    sender.sq_basic_blocks = 1U << send_shift_;
    sender.scatter_to_cqe_send = sender.scatter_to_cqe_recv = true;
    sender.uar = uar_;
    sender.sink = &sink_;
    QpParameters receiver = sender;
    receiver.sq_basic_blocks = 0;
    receiver.buffer = address_of(receive_ring_.data());
    receiver.rq_wqe_count = kReceives;
    receiver.rq_wqe_shift = receive_shift_;
    qp_ = chip_.create_qp(sender).value();
    peer_ = chip_.create_qp(receiver).value();
    connect(qp_, peer_);
    connect(peer_, qp_);
  }

  void run() {
    while (!input_.empty()) step();
    for (int i = 0; i < 64; ++i) chip_.round(now_);
    // Everything around the registered bytes is as it was.
    const auto untouched = [](std::byte b) { return b == std::byte{0xa5}; };
    require(std::all_of(memory_.begin(), memory_.begin() + kGuard, untouched));
    require(std::all_of(memory_.end() - kGuard, memory_.end(), untouched));
    require(chip_.destroy_qp(qp_).value == 0 && chip_.destroy_qp(peer_).value == 0);
    require(chip_.destroy_cq(cq_).value == 0);
  }

 private:
  static constexpr std::size_t kGuard = 4096;
  static constexpr std::size_t kRegistered = 8192;
  static constexpr std::uint32_t kReceives = 8;
  static constexpr std::uint32_t kEntries = 16;
  static constexpr int kAllAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

  std::uint64_t registered() const { return address_of(memory_.data() + kGuard); }

  void connect(Qpn qp, Qpn peer) {
    ibv_qp_attr attributes{};
    QueuePair& pair = *chip_.find_qp(qp);
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = kAllAccess;
    chip_.modify_qp(pair, attributes, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS,
                    now_);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_256;
    attributes.dest_qp_num = static_cast<std::uint32_t>(peer);
    attributes.max_dest_rd_atomic = 4;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.sgid_index = 3;
    attributes.ah_attr.grh.dgid = chip_.gids()[3].gid;
    chip_.modify_qp(pair, attributes,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                    now_);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 10;
    attributes.retry_cnt = 1;
    attributes.rnr_retry = 1;
    attributes.max_rd_atomic = 4;
    chip_.modify_qp(pair, attributes,
                    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_MAX_QP_RD_ATOMIC,
                    now_);
  }

  void step() {
    switch (input_.byte() % 10) {
      case 0:
      case 1:
        write_wqe();
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
        post_receive();
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
      default:
        change_state();
        break;
    }
  }

  // Like a program's, except where the input says otherwise.
  void write_wqe() {
    static constexpr mlx5::Opcode kOpcodes[] = {mlx5::Opcode::Nop,
                                                mlx5::Opcode::Send,
                                                mlx5::Opcode::SendImm,
                                                mlx5::Opcode::RdmaWrite,
                                                mlx5::Opcode::RdmaWriteImm,
                                                mlx5::Opcode::RdmaRead,
                                                mlx5::Opcode::AtomicFetchAdd,
                                                mlx5::Opcode::AtomicCompareSwap};
    const std::uint8_t shape = input_.byte();
    const auto opcode = (shape & 8) != 0 ? static_cast<mlx5::Opcode>(input_.byte()) : kOpcodes[shape & 7];
    const std::uint32_t segments = 1 + (shape >> 4);
    mlx5::ControlSegment control{};
    control.opmod_idx_opcode = mlx5::opmod_idx_opcode(next_, opcode);
    control.qpn_ds = mlx5::qpn_ds(static_cast<std::uint32_t>(qp_), segments);
    control.fm_ce_se = input_.byte();
    std::memcpy(&doorbell_, &control, sizeof doorbell_);
    store(0, &control);
    for (std::uint32_t i = 1; i < segments; ++i) {
      mlx5::DataSegment segment{};
      switch (input_.byte() % 4) {
        case 0:
          input_.bytes(reinterpret_cast<std::byte*>(&segment), sizeof segment);
          break;
        case 1:
          segment = {input_.word() % kRegistered, key_, registered() + input_.word() % kRegistered};
          break;
        case 2: {
          const mlx5::RemoteAddressSegment remote{registered() + input_.word() % kRegistered, key_,
                                                  std::uint32_t{0}};
          std::memcpy(&segment, &remote, sizeof segment);
          break;
        }
        default:
          segment.byte_count = mlx5::kInlineFlag | input_.byte();
          break;
      }
      store(i, &segment);
    }
    next_ = static_cast<std::uint16_t>(next_ + (segments + 3) / 4);
  }

  void store(std::uint32_t segment, const void* bytes) {
    const std::size_t at = (std::size_t{next_} * 64 + std::size_t{segment} * 16) % send_ring_.size();
    std::memcpy(send_ring_.data() + at, bytes, 16);
  }

  void ring() {
    std::memcpy(page_ + mlx5::kBlueFlameOffset, &doorbell_, sizeof doorbell_);
    if (input_.byte() == 0) input_.bytes(page_ + mlx5::kBlueFlameOffset, 8);
  }

  void post_receive() {
    const std::uint32_t slots = (1U << receive_shift_) / 16;
    const std::size_t at = (receives_++ % kReceives) << receive_shift_;
    for (std::uint32_t i = 0; i < slots; ++i) {
      mlx5::DataSegment segment{input_.byte(), key_, registered() + input_.word() % kRegistered};
      if (i == 0 && input_.byte() < 16) input_.bytes(reinterpret_cast<std::byte*>(&segment), sizeof segment);
      std::memcpy(receive_ring_.data() + at + std::size_t{i} * 16, &segment, sizeof segment);
    }
    record_[mlx5::kReceiveRecord] = mlx5::be32{input_.byte() < 8 ? input_.word() : receives_ & 0xffff};
  }

  void change_state() {
    ibv_qp_attr attributes{};
    attributes.qp_state = static_cast<ibv_qp_state>(input_.byte() % 8);
    chip_.modify_qp(*chip_.find_qp(qp_), attributes, IBV_QP_STATE, now_);
    if (attributes.qp_state != IBV_QPS_RESET) return;
    next_ = 0;
    record_[mlx5::kSendRecord] = mlx5::be32{0U};
    connect(qp_, peer_);
    attributes.qp_state = IBV_QPS_RESET;
    chip_.modify_qp(*chip_.find_qp(peer_), attributes, IBV_QP_STATE, now_);
    receives_ = 0;
    record_[mlx5::kReceiveRecord] = mlx5::be32{0U};
    connect(peer_, qp_);
  }

  Input& input_;
  NoEvents sink_;
  Chip chip_;
  wire::TimePoint now_ = wire::TimePoint{} + std::chrono::hours(1);
  std::uint32_t send_shift_;
  std::uint32_t receive_shift_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> send_ring_;
  std::vector<std::byte> receive_ring_;
  std::vector<std::byte> cq_ring_;
  alignas(8) mlx5::be32 record_[2] = {std::uint32_t{0}, std::uint32_t{0}};
  alignas(8) mlx5::be32 cq_record_[2] = {std::uint32_t{0}, std::uint32_t{0}};
  alignas(4096) std::byte page_[4096] = {};
  UarId uar_{};
  Pdn pd_{};
  std::uint32_t key_ = 0;
  Cqn cq_{};
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
