#include "tests/simulation/end.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "qpair/mlx5/doorbell.hpp"
#include "qpair/mlx5/wqe.hpp"
#include "tests/unit/nic/harness.hpp"

namespace qpair::simulation {
namespace {

using mlx5::CqeOpcode;
using mlx5::Syndrome;
using nic::testing_support::Wqe;

constexpr std::uint32_t kSendBlocks = 16;  // so that lists wrap around its end
constexpr std::uint32_t kReceives = 8;
constexpr std::uint32_t kReceiveShift = 6;
constexpr std::uint32_t kCqEntries = 32;
constexpr std::uint32_t kRights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr std::uint8_t kGidIndex = 3;

mlx5::Opcode opcode_of(Kind kind) {
  switch (kind) {
    case Kind::Send:
      return mlx5::Opcode::Send;
    case Kind::SendImm:
      return mlx5::Opcode::SendImm;
    case Kind::Write:
      return mlx5::Opcode::RdmaWrite;
    case Kind::WriteImm:
      return mlx5::Opcode::RdmaWriteImm;
    case Kind::Read:
      return mlx5::Opcode::RdmaRead;
    case Kind::FetchAdd:
      return mlx5::Opcode::AtomicFetchAdd;
    case Kind::CompareSwap:
      return mlx5::Opcode::AtomicCompareSwap;
  }
  return mlx5::Opcode::Nop;
}

CqeOpcode arrives_as(Kind kind) {
  switch (kind) {
    case Kind::SendImm:
      return CqeOpcode::ResponderSendImm;
    case Kind::WriteImm:
      return CqeOpcode::ResponderWriteImm;
    default:
      return CqeOpcode::ResponderSend;
  }
}

std::uint64_t address_of(const std::byte* at) {
  return reinterpret_cast<std::uint64_t>(at);
}

}  // namespace

struct End::Rings {
  alignas(64) std::array<std::byte, kSendBlocks * 64> send{};
  alignas(64) std::array<std::byte, kReceives << kReceiveShift> receive{};
  alignas(64) std::array<std::byte, kCqEntries * 64> send_cq{};
  alignas(64) std::array<std::byte, kCqEntries * 64> receive_cq{};
  alignas(64) std::array<std::byte, 64> record{};
  alignas(64) std::array<std::byte, 64> send_cq_record{};
  alignas(64) std::array<std::byte, 64> receive_cq_record{};

  static void set_up_cq(std::array<std::byte, kCqEntries * 64>& ring) {
    for (std::size_t i = 0; i < kCqEntries; ++i) ring[i * 64 + 63] = std::byte{0xf0};  // mlx5_alloc_cq_buf()
  }
};

End::End(std::string name, Machine& machine, const ConnectionPlan& plan, Log& log, std::uint64_t seed)
    : name_(std::move(name)),
      machine_(machine),
      plan_(plan),
      log_(log),
      source_(make_data(layout::kSourceSize, seed)),
      before_(layout::kSize, layout::kUntouched),
      memory_(std::make_unique<Memory>()),
      rings_(std::make_unique<Rings>()) {
  std::ranges::copy(source_, before_.begin() + layout::kSource);
}

End::~End() = default;

void End::violated(const std::string& what) const {
  throw Violation(fmt::format("{}: {}", name_, what));
}

// ---- A life -------------------------------------------------------------------------------------

void End::prepare(Renewal renewal) {
  if (dead_) {
    send_cq_.reset(), receive_cq_.reset(), qp_.reset();
    dead_ = false;
  }
  if (!send_cq_) create_cqs();
  if (qp_ && renewal == Renewal::Another) {
    if (machine_.chip().destroy_qp(*qp_).value != 0) violated("its queue pair could not be destroyed");
    qp_.reset();
  }
  std::memcpy(memory_->bytes, before_.data(), layout::kSize);
  rings_->record.fill(std::byte{0});
  send_index_ = send_retired_ = 0;
  posted_ = completed_ = receives_posted_ = received_ = receives_failed_ = 0;
  broken_ = stops_posting_ = flushed_ = has_reason_ = false;
  ibv_qp_attr attributes{};
  if (!qp_) {
    create_qp();
  } else {
    attributes.qp_state = IBV_QPS_RESET;
    machine_.chip().modify_qp(*machine_.chip().find_qp(*qp_), attributes, IBV_QP_STATE, log_.now);
  }
  static_cast<void>(machine_.took_error_event(number_));
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qp_access_flags = kRights;
  if (machine_.chip()
          .modify_qp(*machine_.chip().find_qp(*qp_), attributes,
                     IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS, log_.now)
          .value != 0) {
    violated("RESET to INIT was refused");
  }
}

void End::create_cqs() {
  nic::Chip& chip = machine_.chip();
  Rings::set_up_cq(rings_->send_cq);
  Rings::set_up_cq(rings_->receive_cq);
  rings_->send_cq_record.fill(std::byte{0});
  rings_->receive_cq_record.fill(std::byte{0});
  send_consumed_ = receive_consumed_ = 0;
  const auto create = [&](std::byte* ring, std::byte* record) {
    return chip.create_cq({address_of(ring), address_of(record), kCqEntries, 64, machine_.uar(), &machine_})
        .value();
  };
  send_cq_ = create(rings_->send_cq.data(), rings_->send_cq_record.data());
  receive_cq_ =
      plan_.one_cq ? *send_cq_ : create(rings_->receive_cq.data(), rings_->receive_cq_record.data());
  key_ = static_cast<std::uint32_t>(chip.keys()
                                        .create({machine_.pd(), address_of(memory_->bytes), layout::kSize,
                                                 layout::kMemoryAddress, static_cast<int>(kRights)})
                                        .value());
}

void End::create_qp() {
  nic::QpParameters is{};
  is.type = IBV_QPT_RC;
  is.pd = machine_.pd();
  is.send_cq = *send_cq_;
  is.recv_cq = *receive_cq_;
  is.buffer = address_of(rings_->receive.data());
  is.sq_buffer = address_of(rings_->send.data());
  is.doorbell_record = address_of(rings_->record.data());
  is.sq_basic_blocks = kSendBlocks;
  is.rq_wqe_count = kReceives;
  is.rq_wqe_shift = kReceiveShift;
  is.uar = machine_.uar();
  is.sink = &machine_;
  qp_ = machine_.chip().create_qp(is).value();
  number_ = *qp_;
}

void End::set_plan(std::vector<Operation> operations, std::vector<Receive> receives) {
  operations_ = std::move(operations);
  receives_ = std::move(receives);
  for (const Operation& operation : operations_) {
    if (operation.kind == Kind::Read || operation.is_atomic()) continue;
    std::size_t done = 0;
    for (const Piece& piece : operation.pieces) {
      std::copy_n(operation.data.data() + done, piece.length, memory_->bytes + piece.offset);
      done += piece.length;
    }
  }
}

void End::connect(const End& peer, std::uint32_t psn) {
  peer_key_ = peer.rkey();
  nic::Chip& chip = machine_.chip();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = plan_.mtu;
  attributes.dest_qp_num = peer.qpn();
  attributes.rq_psn = psn;
  attributes.max_dest_rd_atomic = plan_.reads;
  attributes.min_rnr_timer = plan_.rnr_timer;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.grh.sgid_index = kGidIndex;
  attributes.ah_attr.grh.dgid = peer.machine().chip().gids().at(kGidIndex).gid;
  const int to_rtr = chip.modify_qp(*chip.find_qp(*qp_), attributes,
                                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                                    log_.now)
                         .value;
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = psn;
  attributes.timeout = plan_.timeout;
  attributes.retry_cnt = plan_.retries;
  attributes.rnr_retry = plan_.rnr_retries;
  attributes.max_rd_atomic = plan_.reads;
  const int to_rts = chip.modify_qp(*chip.find_qp(*qp_), attributes,
                                    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                        IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
                                    log_.now)
                         .value;
  if (to_rtr != 0 || to_rts != 0) violated("it could not be connected");
  log_.say("{}: queue pair {:#x} connected to {:#x}, first PSN {:#x}", name_, qpn(), peer.qpn(), psn);
}

void End::give_up() {
  if (dead_) return;
  log_.say("{}: gives up", name_);
  has_reason_ = broken_ = true;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  machine_.chip().modify_qp(*machine_.chip().find_qp(*qp_), attributes, IBV_QP_STATE, log_.now);
}

void End::die() {
  dead_ = true;
  act_at.reset();
}

// ---- Posting ------------------------------------------------------------------------------------

bool End::act(Random& random, bool peer_knows) {
  // After a failure some programs go on for a while, and all of it is flushed.
  if (is_broken() && !stops_posting_) stops_posting_ = random.chance(0.7);
  if (dead_ || stops_posting_) return false;
  for (std::uint64_t receives = random.below(4); receives > 0; --receives) post_receive();
  std::uint64_t sends = peer_knows ? random.below(5) : 0;
  const bool one_doorbell = random.chance(0.5);
  bool rings = false;
  for (; sends > 0 && posted_ < operations_.size(); --sends) {
    Operation& next = operations_[posted_];
    // The most that a WQE here takes: control, address, and 200 bytes inline or three pieces.
    constexpr unsigned kMostBlocks = 5;
    const auto used = static_cast<std::uint16_t>(send_index_ - send_retired_);
    if (used + kMostBlocks > kSendBlocks) break;
    if (used + 2 * kMostBlocks > kSendBlocks) next.signaled = true;
    post_send(next);
    rings = true;
    if (!one_doorbell) ring();
  }
  if (rings && one_doorbell) ring();
  return has_more_to_post();
}

void End::post_send(Operation& operation) {
  std::uint8_t flags = 0;
  if (operation.signaled) flags |= mlx5::kCqUpdate;
  if (operation.fence) flags |= mlx5::kFence;
  if (operation.solicited) flags |= mlx5::kSolicited;
  Wqe wqe(opcode_of(operation.kind), flags, operation.immediate);
  std::uint32_t rkey = operation.ballot != nullptr ? operation.ballot->key : peer_key_;
  if (operation.mistake == Mistake::WrongRkey) rkey ^= 0x55;
  if (!operation.is_send()) {
    std::uint64_t address =
        operation.ballot != nullptr ? Ballot::kAddress : layout::kMemoryAddress + operation.remote;
    if (operation.mistake == Mistake::BeyondRegion) {
      address = layout::kMemoryAddress + layout::kSize - (operation.is_atomic() ? 0 : operation.length - 1);
    }
    wqe.remote(address, rkey);
  }
  if (operation.is_atomic()) wqe.atomic(operation.swap_add, operation.compare);
  if (operation.inlined) {
    wqe.inline_data({reinterpret_cast<const char*>(operation.data.data()), operation.data.size()});
  }
  for (std::size_t i = 0; i < operation.pieces.size(); ++i) {
    const bool wrong = operation.mistake == Mistake::WrongLkey && i + 1 == operation.pieces.size();
    wqe.data(layout::kMemoryAddress + operation.pieces[i].offset, operation.pieces[i].length,
             nic::Mkey{wrong ? key_ ^ 0x55 : key_});
  }
  const Bytes bytes = wqe.bytes(send_index_, qpn());
  const std::size_t start = (send_index_ % kSendBlocks) * std::size_t{64};
  for (std::size_t i = 0; i < bytes.size(); ++i) rings_->send[(start + i) % rings_->send.size()] = bytes[i];
  std::memcpy(&doorbell_, bytes.data(), sizeof doorbell_);
  operation.index = send_index_;
  operation.blocks = static_cast<std::uint16_t>((bytes.size() + 63) / 64);
  send_index_ = static_cast<std::uint16_t>(send_index_ + operation.blocks);
  log_.say("{}: posts {} #{} of {} bytes{}{}{}{}", name_, simulation::name(operation.kind), posted_,
           operation.length, operation.signaled ? "" : ", unsignaled", operation.fence ? ", fenced" : "",
           operation.hot ? ", hot" : "", simulation::name(operation.mistake));
  ++posted_;
}

void End::ring() {
  const std::uint32_t record = mlx5::be32{send_index_}.raw;
  __atomic_store_n(reinterpret_cast<std::uint32_t*>(rings_->record.data()) + mlx5::kSendRecord, record,
                   __ATOMIC_RELEASE);
  machine_.ring(doorbell_);
}

void End::post_receive() {
  if (receives_posted_ == receives_.size() || receives_posted_ - received_ - receives_failed_ >= kReceives)
    return;
  const Receive& receive = receives_[receives_posted_];
  auto* const slot = reinterpret_cast<mlx5::DataSegment*>(rings_->receive.data() +
                                                          ((receives_posted_ % kReceives) << kReceiveShift));
  const std::uint32_t lkey = receive.wrong_lkey ? key_ ^ 0x55 : key_;
  std::size_t i = 0;
  if (receive.buffer.length != 0) {
    slot[i++] = {receive.buffer.length, lkey, layout::kMemoryAddress + receive.buffer.offset};
  }
  slot[i] = {0, mlx5::kInvalidLkey, 0};
  ++receives_posted_;
  const std::uint32_t record = mlx5::be32{static_cast<std::uint32_t>(receives_posted_)}.raw;
  __atomic_store_n(reinterpret_cast<std::uint32_t*>(rings_->record.data()) + mlx5::kReceiveRecord, record,
                   __ATOMIC_RELEASE);
}

// ---- Completions --------------------------------------------------------------------------------

bool End::poll(const Excuses& excuses, const std::vector<Operation>& arriving) {
  if (dead_ || !qp_) return false;
  bool any =
      poll_cq(rings_->send_cq.data(), send_consumed_, rings_->send_cq_record.data(), excuses, arriving);
  if (!plan_.one_cq) {
    any |= poll_cq(rings_->receive_cq.data(), receive_consumed_, rings_->receive_cq_record.data(), excuses,
                   arriving);
  }
  check_event();
  if (flushed_ && !has_reason_) violated("work was flushed although nothing was wrong with the queue pair");
  return any;
}

void End::check_event() {
  if (machine_.took_error_event(number_)) has_reason_ = broken_ = true;
}

bool End::poll_cq(std::byte* ring, std::uint32_t& index, std::byte* record, const Excuses& excuses,
                  const std::vector<Operation>& arriving) {
  bool any = false;
  for (;; any = true) {
    mlx5::Cqe64 cqe;
    std::memcpy(&cqe, ring + std::size_t{index % kCqEntries} * 64, sizeof cqe);
    const CqeOpcode opcode = mlx5::cqe_opcode(cqe.op_own);
    const std::uint8_t owner = (index & kCqEntries) != 0 ? 1 : 0;
    if (opcode == CqeOpcode::Invalid || (cqe.op_own & mlx5::kCqeOwnerMask) != owner) return any;
    ++index;
    const std::uint32_t consumed = mlx5::be32{index & 0xff'ffff}.raw;
    std::memcpy(record, &consumed, sizeof consumed);

    if ((cqe.sop_drop_qpn & 0xff'ffff) != qpn()) violated("a completion names another queue pair");
    log_.digest((std::uint64_t{cqe.wqe_counter} << 8) | cqe.op_own);
    mlx5::ErrorCqe error;
    std::memcpy(&error, &cqe, sizeof error);
    switch (opcode) {
      case CqeOpcode::Request:
        send_completed(cqe);
        break;
      case CqeOpcode::RequestError:
        send_failed(error.wqe_counter, error.syndrome, excuses);
        break;
      case CqeOpcode::ResponderError:
        receive_failed(error.wqe_counter, error.syndrome, arriving);
        break;
      default:
        receive_completed(cqe, arriving);
        break;
    }
  }
}

void End::send_completed(const mlx5::Cqe64& cqe) {
  if (broken_ && completed_ > 0 && operations_[completed_ - 1].outcome == Outcome::Failed) {
    violated("an operation completed after one that failed");
  }
  // Unsignaled ones before it are done as well.
  std::size_t i = completed_;
  while (i < posted_ && !operations_[i].signaled) ++i;
  if (i == posted_)
    violated(
        fmt::format("a completion for WQE {}, though none is due", static_cast<unsigned>(cqe.wqe_counter)));
  Operation& done = operations_[i];
  if (done.index != cqe.wqe_counter) {
    violated(fmt::format("a completion for WQE {} where {} was next", static_cast<unsigned>(cqe.wqe_counter),
                         done.index));
  }
  for (std::size_t j = completed_; j <= i; ++j) {
    operations_[j].outcome = Outcome::Done;
    if (operations_[j].mistake != Mistake::None) {
      violated(fmt::format("operation #{} completed in spite of its mistake{}", j,
                           simulation::name(operations_[j].mistake)));
    }
  }
  for (std::size_t j = completed_; j <= i; ++j) check_result(j);
  completed_ = i + 1;
  send_retired_ = static_cast<std::uint16_t>(done.index + done.blocks);
  if (done.kind == Kind::Read && cqe.byte_cnt != done.length) {
    violated(fmt::format("a read of {} bytes completes with {}", done.length,
                         static_cast<unsigned>(cqe.byte_cnt)));
  }
  log_.say("{}: #{} is done", name_, i);
}

// What was fetched is there as soon as the completion says so.
void End::check_result(std::size_t i) const {
  const Operation& done = operations_[i];
  if (done.kind == Kind::Read && !done.hot && collect(done.pieces) != done.data) {
    violated(fmt::format("read #{} is complete and its data is not there", i));
  }
  if (!done.is_atomic()) return;
  std::uint64_t found = 0;
  std::memcpy(&found, memory_->bytes + done.pieces[0].offset, sizeof found);
  const bool right = done.ballot != nullptr ? (found & done.swap_add) == 0 && found >> Ballot::kBits == 0
                                            : found == done.original;
  if (!right) {
    violated(fmt::format("atomic #{} found {:#x} where {:#x} was", i, found, done.original));
  }
}

std::string End::why_not(const Operation& operation, Syndrome syndrome, const Excuses& excuses) const {
  switch (syndrome) {
    case Syndrome::WorkRequestFlushed:
      return "";  // see poll()
    case Syndrome::TransportRetryExceeded:
      return excuses.network || excuses.peer_gone ? "" : "the network was good and the peer alive";
    case Syndrome::RnrRetryExceeded:
      return operation.takes_receive() && excuses.rnr_retries != 7 ? "" : "it is to wait for ever";
    case Syndrome::RemoteAccess:
      return operation.mistake == Mistake::WrongRkey || operation.mistake == Mistake::BeyondRegion
                 ? ""
                 : "its remote address is right";
    case Syndrome::RemoteInvalidRequest:
      return operation.mistake == Mistake::ReceiveTooShort ? "" : "the peer's receive was long enough";
    case Syndrome::RemoteOperation:
      return operation.mistake == Mistake::ReceiveWrongLkey ? "" : "the peer's receive was right";
    case Syndrome::LocalProtection:
      return operation.mistake == Mistake::WrongLkey ? "" : "its local memory is right";
    default:
      return "no such status is to be expected";
  }
}

void End::send_failed(std::uint16_t index, Syndrome syndrome, const Excuses& excuses) {
  std::size_t i = completed_;
  const bool first = i == 0 || operations_[i - 1].outcome != Outcome::Failed;
  // After the first failure each has its own completion, signaled or not.
  if (first) {
    while (i < posted_ && operations_[i].index != index && !operations_[i].signaled) ++i;
  }
  if (i >= posted_ || operations_[i].index != index) {
    violated(fmt::format("an error completion {:#x} for WQE {}, which is not next",
                         static_cast<unsigned>(syndrome), index));
  }
  for (std::size_t j = completed_; j < i; ++j) operations_[j].outcome = Outcome::Done;
  Operation& failed = operations_[i];
  if (!first && syndrome != Syndrome::WorkRequestFlushed) {
    violated(fmt::format("operation #{} fails with {:#x} after another that failed", i,
                         static_cast<unsigned>(syndrome)));
  }
  if (const std::string why = why_not(failed, syndrome, excuses); !why.empty()) {
    violated(fmt::format("operation #{} ({} of {} bytes{}) fails with {:#x}, but {}", i,
                         simulation::name(failed.kind), failed.length, simulation::name(failed.mistake),
                         static_cast<unsigned>(syndrome), why));
  }
  failed.outcome = Outcome::Failed;
  failed.syndrome = syndrome;
  (syndrome == Syndrome::WorkRequestFlushed ? flushed_ : has_reason_) = true;
  completed_ = i + 1;
  broken_ = true;
  log_.say("{}: #{} fails with {:#x}", name_, i, static_cast<unsigned>(syndrome));
}

void End::receive_completed(const mlx5::Cqe64& cqe, const std::vector<Operation>& arriving) {
  if (receives_failed_ != 0) violated("a receive completed after one that failed");
  if (received_ == receives_posted_ || cqe.wqe_counter != (received_ & 0xffff)) {
    violated(fmt::format("a completion for receive {} where {} was next",
                         static_cast<unsigned>(cqe.wqe_counter), received_));
  }
  std::size_t message = received_;
  const auto sent = std::ranges::find_if(arriving, [&message](const Operation& operation) {
    return operation.takes_receive() && message-- == 0;
  });
  const bool right = sent->mistake == Mistake::None &&
                     mlx5::cqe_opcode(cqe.op_own) == arrives_as(sent->kind) && cqe.byte_cnt == sent->length &&
                     (sent->kind == Kind::Send || cqe.imm_inval_pkey == sent->immediate);
  if (!right) {
    violated(fmt::format("receive {} completes as another message than {} of {} bytes", received_,
                         simulation::name(sent->kind), sent->length));
  }
  Receive& receive = receives_[received_];
  if (sent->is_send() && !std::equal(sent->data.data(), sent->data.data() + sent->length,
                                     memory_->bytes + receive.buffer.offset)) {
    violated(fmt::format("receive {} is complete and its data is not there", received_));
  }
  receive.outcome = Outcome::Done;
  ++received_;
  log_.say("{}: receive {} got {} bytes", name_, received_ - 1, sent->length);
}

void End::receive_failed(std::uint16_t index, Syndrome syndrome, const std::vector<Operation>& arriving) {
  const std::size_t next = received_ + receives_failed_;
  if (next >= receives_posted_ || index != (next & 0xffff)) {
    violated(fmt::format("an error completion for receive {} where {} was next", index, next));
  }
  std::size_t message = next;
  const auto sent = std::ranges::find_if(arriving, [&message](const Operation& operation) {
    return operation.takes_receive() && message-- == 0;
  });
  const bool first = receives_failed_ == 0;
  const bool allowed =
      syndrome == Syndrome::WorkRequestFlushed ||
      (first && ((syndrome == Syndrome::LocalLength && sent->mistake == Mistake::ReceiveTooShort) ||
                 (syndrome == Syndrome::LocalProtection && sent->mistake == Mistake::ReceiveWrongLkey)));
  if (!allowed) {
    violated(fmt::format("receive {} fails with {:#x}, for which there is no reason", next,
                         static_cast<unsigned>(syndrome)));
  }
  receives_[next].outcome = Outcome::Failed;
  (syndrome == Syndrome::WorkRequestFlushed ? flushed_ : has_reason_) = true;
  ++receives_failed_;
  broken_ = true;
  log_.say("{}: receive {} fails with {:#x}", name_, next, static_cast<unsigned>(syndrome));
}

// ---- How it stands ------------------------------------------------------------------------------

bool End::in_error() const {
  if (dead_ || !qp_) return true;
  const nic::QueuePair* const qp = machine_.chip().find_qp(*qp_);
  return qp == nullptr || qp->state() == IBV_QPS_ERR;
}

bool End::is_done() const {
  return !is_broken() && completed_ == operations_.size() && received_ == receives_.size();
}

bool End::is_flushed() const {
  if (dead_) return true;
  // Unsignaled ones that were done before the failure came say nothing.
  const auto rest = std::span(operations_).subspan(completed_, posted_ - completed_);
  const bool sends = rest.empty() || (in_error() && std::ranges::none_of(rest, &Operation::signaled));
  return sends && received_ + receives_failed_ == receives_posted_;
}

bool End::has_outstanding() const {
  return std::ranges::any_of(std::span(operations_).subspan(completed_, posted_ - completed_),
                             &Operation::signaled);
}

Bytes End::collect(const std::vector<Piece>& pieces) const {
  Bytes all;
  for (const Piece& piece : pieces) {
    all.insert(all.end(), memory_->bytes + piece.offset, memory_->bytes + piece.offset + piece.length);
  }
  return all;
}

}  // namespace qpair::simulation
