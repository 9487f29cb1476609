#include "softnic/nic/queue_pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "qpair/mlx5/doorbell.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/qp_states.hpp"
#include "softnic/nic/queue_pair_detail.hpp"
#include "softnic/nic/vendor_errors.hpp"

namespace qpair::softnic::nic {

namespace {

constexpr std::uint16_t kMaxBlocks = 16;  // of one WQE

using explain::Kind;
using mlx5::CqeOpcode;
using mlx5::Opcode;
using mlx5::Syndrome;
using roce::Refusal;

}  // namespace

QueuePair::QueuePair(Qpn number, const QpParameters& parameters, CompletionQueue& send_cq,
                     CompletionQueue& receive_cq, Device& device)
    : number_(number),
      parameters_(parameters),
      send_cq_(send_cq),
      receive_cq_(receive_cq),
      device_(device),
      transport_(
          std::make_unique<roce::RcQueuePair>(static_cast<std::uint32_t>(number), *this, device.link)) {
  // Without an address of its own the send ring follows the receive ring (mlx5_ib: qp->sq.offset).
  if (parameters_.sq_buffer == 0) {
    parameters_.sq_buffer =
        parameters_.buffer + (std::uint64_t{parameters_.rq_wqe_count} << parameters_.rq_wqe_shift);
  }
  ++send_cq_.users;
  ++receive_cq_.users;
}

QueuePair::~QueuePair() {
  set_watched(false);
  --send_cq_.users;
  --receive_cq_.users;
}

ReceiveRing QueuePair::receive_ring() const {
  return {parameters_.buffer, parameters_.rq_wqe_count, parameters_.rq_wqe_shift, parameters_.wq_signature};
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
  const ibv_qp_state now = state();
  if (now == IBV_QPS_RESET) return false;
  const bool pending = look();
  const auto index = static_cast<std::uint16_t>(opmod_idx_opcode >> 8);
  const std::uint16_t distance = ahead(rung_, index);
  if (now != IBV_QPS_ERR && (distance == 0 || distance > 0x8000)) {
    explain::say(
        Kind::Finding,
        fmt::format(
            "queue pair {:#x}: the doorbell names WQE {}, but the send doorbell record says {}: the record "
            "must be stored before the doorbell is rung",
            qpn(), index, rung_));
  }
  if (now == IBV_QPS_INIT || now == IBV_QPS_RTR) {
    std::uint16_t receive_record = 0;
    const bool swapped = read_record(mlx5::kReceiveRecord, receive_record) &&
                         static_cast<std::uint16_t>(ahead(receive_record, index) - 1) < kMaxBlocks;
    explain::say(
        Kind::Finding,
        fmt::format("queue pair {:#x}: the doorbell names WQE {}, but the send doorbell record says {}: {}",
                    qpn(), index, rung_,
                    swapped ? "the receive record has what belongs there"
                            : "it must be stored before the doorbell is rung"));
  }
  if (now == IBV_QPS_INIT || now == IBV_QPS_RTR) {
    explain::say(Kind::Finding,
                 fmt::format("queue pair {:#x}: its send doorbell was rung in state {}; a send queue works "
                             "from RTS on",
                             qpn(), state_name(now)));
  }
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
    default:
      break;
  }
  if (parameters_.sq_basic_blocks == 0) return false;
  const std::uint16_t before = rung_;
  if (!read_record(mlx5::kSendRecord, rung_)) {
    fail_later(fmt::format("its doorbell record at {:#x} is not mapped", parameters_.doorbell_record));
    return false;
  }
  return rung_ != before && state() == IBV_QPS_RTS;
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
  explain::say(Kind::Failure,
               fmt::format("queue pair {:#x} refused a request of its peer: {}", qpn(), why.reason));
  raise(event);
  enter_error();
}

void QueuePair::raise(ibv_event_type event) {
  if (event == IBV_EVENT_SQ_DRAINED && !notify_drained_) return;
  parameters_.sink->qp_event(number_, event);
}

void QueuePair::fail_later(const std::string& reason) {
  if (failing_) return;
  failing_ = true;
  explain::say(Kind::Failure, fmt::format("queue pair {:#x} is in error: {}", qpn(), reason));
  device_.failed_qps.push_back(number_);
}

void QueuePair::fatal() {
  if (state() == IBV_QPS_RESET) return;
  raise(IBV_EVENT_QP_FATAL);
  enter_error();
}

void QueuePair::enter_error() {
  transport_->set_state(IBV_QPS_ERR);
  set_watched(parameters_.rq_wqe_count != 0);
  flush_sends();
  flush_receives();
}

void QueuePair::completed(CompletionQueue& cq, bool pushed) {
  if (!pushed && std::ranges::find(device_.failed_cqs, cq.number()) == device_.failed_cqs.end()) {
    device_.failed_cqs.push_back(cq.number());
  }
}

void QueuePair::complete_send_error(std::uint16_t index, Opcode opcode, Syndrome syndrome,
                                    std::uint8_t vendor_err) {
  mlx5::ErrorCqe error{};
  error.srqn_uidx = parameters_.user_index;
  error.vendor_err = vendor_err;
  error.syndrome = syndrome;
  error.wqe_opcode_qpn = (static_cast<std::uint32_t>(opcode) << 24) | qpn();
  error.wqe_counter = index;
  error.op_own = op_own(CqeOpcode::RequestError);
  completed(send_cq_, send_cq_.push(std::bit_cast<mlx5::Cqe64>(error), CompletionQueue::Notice::Solicited));
}

void QueuePair::complete_receive_error(std::uint16_t index, Syndrome syndrome, std::uint8_t vendor_err) {
  mlx5::ErrorCqe error{};
  error.srqn_uidx = parameters_.user_index;
  error.vendor_err = vendor_err;
  error.syndrome = syndrome;
  error.wqe_opcode_qpn = qpn();
  error.wqe_counter = index;
  error.op_own = op_own(CqeOpcode::ResponderError);
  completed(receive_cq_,
            receive_cq_.push(std::bit_cast<mlx5::Cqe64>(error), CompletionQueue::Notice::Solicited));
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
  rung_ = record;
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
  if (parameters_.rq_wqe_count == 0) return;
  std::uint16_t record = 0;
  if (!read_record(mlx5::kReceiveRecord, record)) return;
  if (ahead(record, receive_retired_) > parameters_.rq_wqe_count) {
    receive_retired_ = receive_taken_ = record;
    return;
  }
  while (receive_retired_ != record) {
    complete_receive_error(receive_retired_, Syndrome::WorkRequestFlushed, kVendorFlushed);
    ++receive_retired_;
  }
  receive_taken_ = record;
}

}  // namespace qpair::softnic::nic
