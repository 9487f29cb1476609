#include "softnic/nic/queue_pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

#include "qpair/mlx5/doorbell.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/completion_errors.hpp"
#include "softnic/nic/error_counters.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/host_memory.hpp"
#include "softnic/nic/qp_states.hpp"
#include "softnic/nic/queue_pair_detail.hpp"
#include "softnic/nic/tracer.hpp"
#include "softnic/nic/vendor_errors.hpp"
#include "softnic/roce/dc_initiator.hpp"
#include "softnic/roce/dc_target.hpp"
#include "softnic/roce/rc_queue_pair.hpp"
#include "softnic/roce/uc_queue_pair.hpp"
#include "softnic/roce/ud_queue_pair.hpp"

namespace qpair::softnic::nic {

namespace {

using mlx5::CqeOpcode;
using mlx5::Opcode;
using mlx5::Syndrome;
using roce::Refusal;

std::unique_ptr<roce::Transport> make_transport(const QpParameters& parameters, std::uint32_t qpn,
                                                roce::Host& host, const Device& device) {
  if (parameters.type == kDcInitiator) {
    return std::make_unique<roce::DcInitiator>(qpn, host, device.link);
  }
  if (parameters.type == kDcTarget) {
    return std::make_unique<roce::DcTarget>(qpn, host, device.link, parameters.dc_access_key);
  }
  switch (parameters.type) {
    case IBV_QPT_UC:
      return std::make_unique<roce::UcQueuePair>(qpn, host, device.link);
    case IBV_QPT_UD:
      return std::make_unique<roce::UdQueuePair>(qpn, host, device.link, 128U << device.port.active_mtu);
    case IBV_QPT_XRC_SEND:
      return std::make_unique<roce::RcQueuePair>(qpn, host, device.link, roce::RcQueuePair::Xrc::Initiator);
    case IBV_QPT_XRC_RECV:
      return std::make_unique<roce::RcQueuePair>(qpn, host, device.link, roce::RcQueuePair::Xrc::Target);
    default:
      return std::make_unique<roce::RcQueuePair>(qpn, host, device.link);
  }
}

}  // namespace

QueuePair::QueuePair(Qpn number, const QpParameters& parameters, CompletionQueue& send_cq,
                     CompletionQueue& receive_cq, SharedReceiveQueue* srq, Device& device)
    : number_(number),
      parameters_(parameters),
      send_cq_(send_cq),
      receive_cq_(receive_cq),
      listeners_(parameters.sink),
      device_(device),
      srq_(srq),
      transport_(make_transport(parameters, static_cast<std::uint32_t>(number), *this, device)) {
  // Without an address of its own the send ring follows the receive ring (mlx5_ib: qp->sq.offset).
  if (parameters_.sq_buffer == 0) {
    parameters_.sq_buffer =
        parameters_.buffer + (std::uint64_t{parameters_.rq_wqe_count} << parameters_.rq_wqe_shift);
  }
  if (srq_ != nullptr) {
    ++srq_->users;
    receives_ = srq_;
  } else if (parameters_.rq_wqe_count != 0) {
    own_receives_ = std::make_unique<OwnReceiveQueue>(number_, parameters_, device_.decoded);
    receives_ = own_receives_.get();
  }
  ++send_cq_.users;
  ++receive_cq_.users;
}

QueuePair::~QueuePair() {
  if (device_.host != nullptr) device_.host->hide_queue_pair(number_);
  set_watched(false);
  device_.failures.over(number_);
  retire_receives();
  if (srq_ != nullptr) --srq_->users;
  --send_cq_.users;
  --receive_cq_.users;
}

bool QueuePair::read_record(std::size_t entry, std::uint16_t& value) {
  std::uint32_t raw = 0;
  if (!guarded_load32(reinterpret_cast<const void*>(parameters_.doorbell_record + entry * sizeof raw), raw)) {
    return false;
  }
  value = static_cast<std::uint16_t>(mlx5::byte_swap(raw));
  return true;
}

// ---- Doorbells ----------------------------------------------------------------------------------

bool QueuePair::rung(std::uint32_t opmod_idx_opcode) {
  // What it was rung for is read next, after the record: both lines come from another processor's cache.
  if (const std::uint32_t blocks = parameters_.sq_basic_blocks; blocks != 0) {
    const std::uint32_t index = (opmod_idx_opcode >> 8) & (blocks - 1);
    __builtin_prefetch(
        reinterpret_cast<const void*>(parameters_.sq_buffer + std::uint64_t{index} * mlx5::kBasicBlockSize));
  }
  const ibv_qp_state before = state();
  const bool pending = look();
  if (!failing_) check_doorbell(before, opmod_idx_opcode);
  return pending;
}

bool QueuePair::look() {
  switch (state()) {
    case IBV_QPS_RESET:
      return false;
    case IBV_QPS_ERR:
      flush_sends();
      flush_receives();
      return false;
    case IBV_QPS_SQE:
      flush_sends();
      return false;
    default:
      break;
  }
  if (parameters_.sq_basic_blocks == 0) return false;
  const std::uint16_t before = rung_;
  if (!read_record(mlx5::kSendRecord, rung_)) {
    fail_later(fmt::format("its doorbell record at {:#x} is not mapped", parameters_.doorbell_record));
    return false;
  }
  if (rung_ == before) return false;
  if (device_.tracer != nullptr) device_.tracer->doorbell(qpn(), before, rung_);
  check_overwritten();
  return state() == IBV_QPS_RTS;
}

void QueuePair::set_watched(bool watched) {
  if (watched_ == watched) return;
  watched_ = watched;
  if (watched) {
    ++device_.watched_qps;
  } else {
    --device_.watched_qps;
  }
}

// ---- Failure ------------------------------------------------------------------------------------

void QueuePair::responder_failed(ibv_event_type event, const Refusal& why) {
  device_.failures.add(number_,
                       fmt::format("queue pair {:#x} refused a request of its peer: {}", qpn(), why.reason));
  if (event == IBV_EVENT_QP_ACCESS_ERR) ++counters_.resp_remote_access_errors;
  raise(event);
  enter_error();
}

void QueuePair::raise(ibv_event_type event) {
  if (event == IBV_EVENT_SQ_DRAINED && !notify_drained_) return;
  listeners_.event(number_, event);
}

void QueuePair::dropped(const std::string& sentence) {
  explain::say(explain::Kind::Notice, fmt::format("queue pair {:#x}: {} (said once)", qpn(), sentence));
}

void QueuePair::fail_later(const std::string& reason) {
  if (failing_) return;
  failing_ = true;
  device_.failures.add(number_, fmt::format("queue pair {:#x} is in error: {}", qpn(), reason));
  device_.failed_qps.push_back(number_);
}

void QueuePair::fatal_because(const std::string& reason) {
  if (state() == IBV_QPS_RESET) return;
  device_.failures.add(number_, fmt::format("queue pair {:#x} is in error: {}", qpn(), reason));
  fatal();
}

void QueuePair::fatal() {
  if (state() == IBV_QPS_RESET) return;
  raise(IBV_EVENT_QP_FATAL);
  enter_error();
}

void QueuePair::let_go_of(const SharedReceiveQueue& srq) {
  if (std::ranges::find(receiving_, &srq, &Receiving::from) != receiving_.end()) fatal();
  if (xrc_srq_ == &srq) xrc_srq_ = nullptr;
}

void QueuePair::enter_error() {
  transport_->set_state(IBV_QPS_ERR);
  show();
  copied_ = 0;
  set_watched(own_receives_ != nullptr);
  flush_sends();
  flush_receives();
  // The program must wait for it before it destroys the queue pair: from then on nothing of the shared
  // receive queue is with this queue pair (IBTA vol. 1 10.3.1, 11.6.3.2).
  if ((srq_ != nullptr || parameters_.type == IBV_QPT_XRC_RECV) && !std::exchange(last_wqe_reached_, true))
    raise(IBV_EVENT_QP_LAST_WQE_REACHED);
}

// A request that cannot be sent ends a reliable connection; of an unreliable one and of datagrams only the
// send queue stops, until modify_qp brings it back to RTS (IBTA vol. 1 10.3.1.7).
void QueuePair::enter_send_error() {
  const bool unreliable = parameters_.type == IBV_QPT_UC || parameters_.type == IBV_QPT_UD;
  if (!unreliable || state() != IBV_QPS_RTS) return enter_error();
  transport_->set_state(IBV_QPS_SQE);
  flush_sends();
}

void QueuePair::completed(CompletionQueue& cq, bool pushed) {
  if (!pushed && std::ranges::find(device_.failed_cqs, cq.number()) == device_.failed_cqs.end()) {
    device_.failed_cqs.push_back(cq.number());
  }
}

void QueuePair::complete_send_error(std::uint16_t index, Opcode opcode, Syndrome syndrome,
                                    std::uint8_t vendor_err) {
  assert(is_known({CompletionSide::Send, syndrome, vendor_err}));
  count_send_error(counters_, syndrome);
  mlx5::ErrorCqe error{};
  error.srqn_uidx = parameters_.user_index;
  error.vendor_err = vendor_err;
  error.syndrome = syndrome;
  error.wqe_opcode_qpn = (static_cast<std::uint32_t>(opcode) << 24) | qpn();
  error.wqe_counter = index;
  error.op_own = op_own(CqeOpcode::RequestError);
  completed(send_cq_, send_cq_.push(std::bit_cast<mlx5::Cqe64>(error), CompletionQueue::Notice::Solicited));
}

ReceiveQueue::Completes QueuePair::receive_completes(std::uint16_t index) const {
  if (const Receiving* const taken = receiving(index)) {
    if (const auto its_own = taken->from->completes()) return *its_own;
  }
  return {.on = &receive_cq_, .index = parameters_.receive_index.value_or(parameters_.user_index)};
}

void QueuePair::complete_receive_error(std::uint16_t index, Syndrome syndrome, std::uint8_t vendor_err) {
  assert(is_known({CompletionSide::Receive, syndrome, vendor_err}));
  count_receive_error(counters_, syndrome);
  const ReceiveQueue::Completes completes = receive_completes(index);
  mlx5::ErrorCqe error{};
  error.srqn_uidx = completes.index;
  error.vendor_err = vendor_err;
  error.syndrome = syndrome;
  error.wqe_opcode_qpn = qpn();
  error.wqe_counter = index;
  error.op_own = op_own(CqeOpcode::ResponderError);
  completed(*completes.on,
            completes.on->push(std::bit_cast<mlx5::Cqe64>(error), CompletionQueue::Notice::Solicited));
}

void QueuePair::flush_sends() {
  while (!inflight_.empty()) {
    complete_send_error(inflight_.front().index, inflight_.front().opcode, Syndrome::WorkRequestFlushed,
                        kVendorFlushed);
    inflight_.pop();
  }
  if (parameters_.sq_basic_blocks == 0) return;
  std::uint16_t record = 0;
  if (!read_record(mlx5::kSendRecord, record)) return;
  if (std::exchange(rung_, record) != record) check_overwritten();
  if (ahead(record, fetched_) > parameters_.sq_basic_blocks) {
    fetched_ = record;  // nonsense was said about it when it was fetched, or the ring was reset under us
    return;
  }
  while (fetched_ != record) {
    const auto head = read_head(send_ring(), fetched_);
    if (!head) {
      fetched_ = record;
      return;
    }
    // A block that is no WQE of its own cannot be completed: the program could not tell what it belongs to.
    if (head->index == fetched_ && head->qpn == qpn()) {
      complete_send_error(fetched_, head->opcode, Syndrome::WorkRequestFlushed, kVendorFlushed);
    }
    fetched_ =
        static_cast<std::uint16_t>(fetched_ + std::min<std::uint32_t>(head->blocks, ahead(record, fetched_)));
  }
}

void QueuePair::flush_receives() {
  while (!receiving_.empty()) {
    const std::uint16_t index = receiving_.front().index;
    complete_receive_error(index, Syndrome::WorkRequestFlushed, kVendorFlushed);
    retire_receive(index);
  }
  if (receives_ == nullptr) return;
  receives_->flush([this](std::uint16_t index) {
    complete_receive_error(index, Syndrome::WorkRequestFlushed, kVendorFlushed);
  });
}

const QueuePair::Receiving* QueuePair::receiving(std::uint16_t index) const {
  const auto found = std::ranges::find(receiving_, index, &Receiving::index);
  return found != receiving_.end() ? &*found : nullptr;
}

void QueuePair::retire_receive(std::uint16_t index) {
  const auto found = std::ranges::find(receiving_, index, &Receiving::index);
  if (found == receiving_.end()) return;
  found->from->retire(index);
  receiving_.erase(found);
}

void QueuePair::retire_receives() {
  for (const Receiving& taken : receiving_) taken.from->retire(taken.index);
  receiving_.clear();
}

}  // namespace qpair::softnic::nic
