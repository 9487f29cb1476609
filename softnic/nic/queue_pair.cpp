#include "softnic/nic/queue_pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "qpair/mlx5/doorbell.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/qp_states.hpp"
#include "softnic/nic/vendor_errors.hpp"

namespace qpair::softnic::nic {
namespace {

using explain::Kind;
using mlx5::CqeOpcode;
using mlx5::Opcode;
using mlx5::Syndrome;
using roce::Check;
using roce::Refusal;

std::uint8_t op_own(CqeOpcode opcode) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(opcode) << 4);
}

// How far `to` is ahead of `from`, 16-bit indices.
std::uint16_t ahead(std::uint16_t to, std::uint16_t from) {
  return static_cast<std::uint16_t>(to - from);
}

Opcode opcode_of(roce::Operation operation) {
  switch (operation) {
    case roce::Operation::Send:
      return Opcode::Send;
    case roce::Operation::SendImm:
      return Opcode::SendImm;
    case roce::Operation::SendInvalidate:
      return Opcode::SendInvalidate;
    case roce::Operation::Write:
      return Opcode::RdmaWrite;
    case roce::Operation::WriteImm:
      return Opcode::RdmaWriteImm;
    case roce::Operation::Read:
      return Opcode::RdmaRead;
    case roce::Operation::CompareSwap:
      return Opcode::AtomicCompareSwap;
    case roce::Operation::FetchAdd:
      return Opcode::AtomicFetchAdd;
  }
  return Opcode::Nop;
}

tl::unexpected<Refusal> unmapped_locally(std::uint32_t lkey, std::uint64_t address, std::size_t size) {
  return tl::unexpected(
      Refusal{Syndrome::LocalProtection, kVendorLocalTranslation,
              fmt::format("[{:#x}, {:#x}) is registered (lkey {:#x}), but the program has unmapped or "
                          "protected part of it",
                          address, address + size, lkey)});
}

tl::unexpected<Refusal> unmapped_remotely(std::uint32_t rkey, std::uint64_t address, std::size_t size) {
  return tl::unexpected(
      Refusal{Syndrome::RemoteOperation, kVendorRemoteOperation,
              fmt::format("[{:#x}, {:#x}) is registered (rkey {:#x}), but its program has unmapped or "
                          "protected part of it",
                          address, address + size, rkey)});
}

// Calls `each(address, entry, size, done)` for every piece of bytes [offset, offset + size) of a list.
template <typename Each>
Check for_pieces(const ScatterList& list, std::uint64_t offset, std::size_t size, Each&& each) {
  std::size_t done = 0;
  for (const ScatterEntry& entry : list.view()) {
    if (done == size) break;
    if (offset >= entry.length) {
      offset -= entry.length;
      continue;
    }
    const auto piece = static_cast<std::size_t>(std::min<std::uint64_t>(size - done, entry.length - offset));
    if (auto ok = each(entry.address + offset, entry, piece, done); !ok) return ok;
    done += piece;
    offset = 0;
  }
  if (done == size) return {};
  return tl::unexpected(Refusal{
      Syndrome::LocalLength, kVendorLocalQpOperation,
      fmt::format("its scatter list holds {} bytes, {} more were to be moved", list.length, size - done)});
}

}  // namespace

// ---- The queue of WQEs that the transport has ---------------------------------------------------

void QueuePair::InflightQueue::push(const Inflight& entry) {
  if (size_ == slots_.size()) {
    std::rotate(slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(head_), slots_.end());
    head_ = 0;
    slots_.resize(std::max<std::size_t>(8, slots_.size() * 2));
  }
  slots_[(head_ + size_) & (slots_.size() - 1)] = entry;
  ++size_;
}

void QueuePair::InflightQueue::pop() {
  head_ = (head_ + 1) & (slots_.size() - 1);
  --size_;
}

void QueuePair::Payload::keep(std::uint16_t of, std::uint64_t offset, std::span<const std::byte> from) {
  if (offset == 0) {
    index = of;
    valid = true;
  }
  if (offset + from.size() > bytes.size() || index != of) {
    valid = false;  // too long for any CQE
  } else {
    std::memcpy(bytes.data() + offset, from.data(), from.size());
  }
}

// ---- Life ---------------------------------------------------------------------------------------

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

// ---- Requester ----------------------------------------------------------------------------------

bool QueuePair::next_send(roce::SendRequest& out) {
  while (!failing_ && state() != IBV_QPS_ERR) {
    if (fetched_ == rung_ && !look()) return false;
    const std::uint16_t index = fetched_;
    const std::uint16_t available = ahead(rung_, index);
    WqeHead head;
    bool hit = false;
    ScatterList& list = device_.decoded.at(qpn(), DecodeCache::Queue::Send, index, hit);
    std::optional<DecodeError> error;
    if (available > parameters_.sq_basic_blocks) {
      error = DecodeError{
          DecodeError::Kind::Malformed,
          fmt::format("the send doorbell record says {}, {} basic blocks ahead of what was executed; the "
                      "ring has {}",
                      rung_, available, parameters_.sq_basic_blocks)};
    } else {
      error = decode_send(send_ring(), qpn(), index, available, device_.limits.max_message, head, out, list);
    }
    if (error) {
      device_.decoded.forget(qpn(), DecodeCache::Queue::Send, index);
      // What came before it completes first, as on a real NIC; it is decoded again when its turn has come.
      if (!inflight_.empty()) return false;
      return decode_failed(*error, index, head);
    }
    fetched_ = static_cast<std::uint16_t>(index + head.blocks);
    inflight_.push({index, static_cast<std::uint8_t>(head.blocks), head.opcode,
                    head.signaled() || parameters_.signal_all});
    if (head.opcode != Opcode::Nop) return true;
    retire_nops();
  }
  return false;
}

bool QueuePair::decode_failed(const DecodeError& error, std::uint16_t index, const WqeHead& head) {
  if (error.kind == DecodeError::Kind::Unreadable) {
    fail_later(error.reason);
    return false;
  }
  explain::say(error.kind == DecodeError::Kind::Malformed ? Kind::Finding : Kind::Failure,
               fmt::format("queue pair {:#x}, send WQE {}: {}", qpn(), index, error.reason));
  complete_send_error(
      index, head.opcode,
      error.kind == DecodeError::Kind::TooLong ? Syndrome::LocalLength : Syndrome::LocalQpOperation,
      kVendorLocalQpOperation);
  fetched_ = static_cast<std::uint16_t>(index + std::min<std::uint32_t>(head.blocks, ahead(rung_, index)));
  enter_error();
  return false;
}

const ScatterList* QueuePair::send_list(std::uint16_t index, Refusal& why) {
  bool hit = false;
  ScatterList& list = device_.decoded.at(qpn(), DecodeCache::Queue::Send, index, hit);
  if (hit) return &list;
  WqeHead head;
  roce::SendRequest request;
  const auto error = decode_send(send_ring(), qpn(), index, parameters_.sq_basic_blocks,
                                 device_.limits.max_message, head, request, list);
  if (!error) return &list;
  device_.decoded.forget(qpn(), DecodeCache::Queue::Send, index);
  explain::say(Kind::Finding, fmt::format("queue pair {:#x}, send WQE {}, not yet completed: {}", qpn(),
                                          index, error->reason));
  why = Refusal{Syndrome::LocalQpOperation, kVendorLocalQpOperation, error->reason};
  return nullptr;
}

Check QueuePair::gather(const roce::SendRequest& request, std::uint64_t offset, std::span<std::byte> to) {
  Refusal why;
  const ScatterList* const list = send_list(request.wqe_index, why);
  if (list == nullptr) return tl::unexpected(std::move(why));
  return for_pieces(
      *list, offset, to.size(),
      [&](std::uint64_t address, const ScatterEntry& entry, std::size_t size, std::size_t done) -> Check {
        const std::byte* from = reinterpret_cast<const std::byte*>(address);
        if (!entry.in_ring) {
          auto where =
              device_.keys.local(parameters_.pd, entry.lkey, address, size, MemoryKeys::LocalAccess::Read);
          if (!where) return tl::unexpected(std::move(where.error()));
          from = *where;
        }
        if (guarded_copy(to.data() + done, from, size)) return {};
        return unmapped_locally(entry.lkey, address, size);
      });
}

Check QueuePair::scatter(const roce::SendRequest& request, std::uint64_t offset,
                         std::span<const std::byte> from) {
  Refusal why;
  const ScatterList* const list = send_list(request.wqe_index, why);
  if (list == nullptr) return tl::unexpected(std::move(why));
  if (parameters_.scatter_to_cqe_send) send_payload_.keep(request.wqe_index, offset, from);
  return for_pieces(
      *list, offset, from.size(),
      [&](std::uint64_t address, const ScatterEntry& entry, std::size_t size, std::size_t done) -> Check {
        auto where =
            device_.keys.local(parameters_.pd, entry.lkey, address, size, MemoryKeys::LocalAccess::Write);
        if (!where) return tl::unexpected(std::move(where.error()));
        if (guarded_copy(*where, from.data() + done, size)) return {};
        return unmapped_locally(entry.lkey, address, size);
      });
}

void QueuePair::send_done(const roce::SendRequest& request) {
  if (inflight_.empty()) return;  // flushed meanwhile
  const Inflight entry = inflight_.front();
  if (entry.index != request.wqe_index) return;
  inflight_.pop();
  const bool in_cqe = send_payload_.valid && send_payload_.index == request.wqe_index &&
                      request.length <= send_cq_.payload_capacity();
  const bool fetched_data = request.operation == roce::Operation::Read ||
                            request.operation == roce::Operation::CompareSwap ||
                            request.operation == roce::Operation::FetchAdd;
  retire(entry, request.length, in_cqe && fetched_data ? &send_payload_.bytes : nullptr);
  send_payload_.valid = false;
  retire_nops();
}

void QueuePair::retire(const Inflight& entry, std::uint64_t bytes, const CompletionQueue::Payload* payload) {
  if (!entry.signaled) return;
  mlx5::Cqe64 cqe{};
  cqe.srqn_uidx = parameters_.user_index;
  cqe.byte_cnt = static_cast<std::uint32_t>(bytes);
  cqe.sop_drop_qpn = (static_cast<std::uint32_t>(entry.opcode) << 24) | qpn();
  cqe.wqe_counter = entry.index;
  cqe.op_own = op_own(CqeOpcode::Request);
  completed(send_cq_, send_cq_.push(cqe, CompletionQueue::Notice::Plain, payload));
}

// NOPs complete in their turn without the transport.
void QueuePair::retire_nops() {
  while (!inflight_.empty() && inflight_.front().opcode == Opcode::Nop) {
    const Inflight nop = inflight_.front();
    inflight_.pop();
    retire(nop, 0, nullptr);
  }
}

void QueuePair::send_failed(const roce::SendRequest& request, const Refusal& why) {
  explain::say(Kind::Failure, fmt::format("queue pair {:#x}, send WQE {}: {} of {} bytes failed: {}", qpn(),
                                          request.wqe_index, opcode_name(opcode_of(request.operation)),
                                          request.length, why.reason));
  while (!inflight_.empty() && inflight_.front().index != request.wqe_index) {
    complete_send_error(inflight_.front().index, inflight_.front().opcode, Syndrome::WorkRequestFlushed,
                        kVendorFlushed);
    inflight_.pop();
  }
  if (!inflight_.empty()) inflight_.pop();
  complete_send_error(request.wqe_index, opcode_of(request.operation), why.syndrome, why.vendor_err);
  enter_error();
}

// ---- Responder: receives ------------------------------------------------------------------------

bool QueuePair::next_receive(roce::ReceiveRequest& out) {
  if (failing_ || parameters_.rq_wqe_count == 0) return false;
  std::uint16_t posted = 0;
  if (!read_record(mlx5::kReceiveRecord, posted)) {
    fail_later(fmt::format("its doorbell record at {:#x} is not mapped", parameters_.doorbell_record));
    return false;
  }
  const std::uint16_t available = ahead(posted, receive_taken_);
  if (available == 0) return false;
  if (available > parameters_.rq_wqe_count) {
    explain::say(
        Kind::Finding,
        fmt::format(
            "queue pair {:#x}: the receive doorbell record says {}, {} ahead of what was consumed; the ring "
            "has {} entries",
            qpn(), posted, available, parameters_.rq_wqe_count));
    fail_later("receive ring overrun");
    return false;
  }
  const std::uint16_t index = receive_taken_;
  bool hit = false;
  ScatterList& list = device_.decoded.at(qpn(), DecodeCache::Queue::Receive, index, hit);
  if (const auto error = decode_receive(receive_ring(), index, list)) {
    device_.decoded.forget(qpn(), DecodeCache::Queue::Receive, index);
    if (error->kind == DecodeError::Kind::Malformed) {
      explain::say(Kind::Finding,
                   fmt::format("queue pair {:#x}, receive WQE {}: {}", qpn(), index, error->reason));
    }
    fail_later(error->reason);
    return false;
  }
  ++receive_taken_;
  receive_payload_.valid = false;
  out.wqe_index = index;
  out.length = list.length;
  return true;
}

const ScatterList* QueuePair::receive_list(std::uint16_t index, Refusal& why) {
  bool hit = false;
  ScatterList& list = device_.decoded.at(qpn(), DecodeCache::Queue::Receive, index, hit);
  if (hit) return &list;
  const auto error = decode_receive(receive_ring(), index, list);
  if (!error) return &list;
  device_.decoded.forget(qpn(), DecodeCache::Queue::Receive, index);
  why = Refusal{Syndrome::LocalQpOperation, kVendorLocalQpOperation, error->reason};
  return nullptr;
}

Check QueuePair::scatter_receive(const roce::ReceiveRequest& request, std::uint64_t offset,
                                 std::span<const std::byte> from) {
  Refusal why;
  const ScatterList* const list = receive_list(request.wqe_index, why);
  if (list == nullptr) return tl::unexpected(std::move(why));
  if (parameters_.scatter_to_cqe_recv) receive_payload_.keep(request.wqe_index, offset, from);
  return for_pieces(
      *list, offset, from.size(),
      [&](std::uint64_t address, const ScatterEntry& entry, std::size_t size, std::size_t done) -> Check {
        auto where =
            device_.keys.local(parameters_.pd, entry.lkey, address, size, MemoryKeys::LocalAccess::Write);
        if (!where) return tl::unexpected(std::move(where.error()));
        if (guarded_copy(*where, from.data() + done, size)) return {};
        return unmapped_locally(entry.lkey, address, size);
      });
}

void QueuePair::receive_done(const roce::ReceiveRequest& request, const roce::Received& what) {
  mlx5::Cqe64 cqe{};
  cqe.srqn_uidx = parameters_.user_index;
  cqe.byte_cnt = static_cast<std::uint32_t>(what.byte_count);
  cqe.flags_rqpn = what.source_qpn & kIdMask;
  cqe.sop_drop_qpn = qpn();
  cqe.wqe_counter = request.wqe_index;
  if (what.opcode == CqeOpcode::ResponderSendInvalidate) {
    cqe.imm_inval_pkey = what.immediate;
  } else {
    cqe.imm_inval_pkey.raw = what.immediate;
  }
  cqe.op_own = op_own(what.opcode);
  if (what.solicited) cqe.op_own |= mlx5::kCqeSolicited;
  receive_retired_ = static_cast<std::uint16_t>(request.wqe_index + 1);
  const bool in_cqe = receive_payload_.valid && receive_payload_.index == request.wqe_index &&
                      what.byte_count <= receive_cq_.payload_capacity();
  completed(receive_cq_,
            receive_cq_.push(
                cqe, what.solicited ? CompletionQueue::Notice::Solicited : CompletionQueue::Notice::Plain,
                in_cqe ? &receive_payload_.bytes : nullptr));
  receive_payload_.valid = false;
}

void QueuePair::receive_failed(const roce::ReceiveRequest& request, const Refusal& why) {
  explain::say(Kind::Failure, fmt::format("queue pair {:#x}, receive WQE {} of {} bytes failed: {}", qpn(),
                                          request.wqe_index, request.length, why.reason));
  complete_receive_error(request.wqe_index, why.syndrome, why.vendor_err);
  receive_retired_ = static_cast<std::uint16_t>(request.wqe_index + 1);
  enter_error();
}

// ---- Responder: remote memory -------------------------------------------------------------------

Check QueuePair::check_remote(roce::RemoteAccess access, std::uint32_t rkey, std::uint64_t address,
                              std::uint64_t length) {
  if (length == 0) return {};
  auto where = device_.keys.remote(parameters_.pd, static_cast<int>(attributes_.qp_access_flags), access,
                                   rkey, address, length);
  if (!where) return tl::unexpected(std::move(where.error()));
  return {};
}

Check QueuePair::write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> from) {
  if (from.empty()) return {};
  auto where = device_.keys.remote(parameters_.pd, static_cast<int>(attributes_.qp_access_flags),
                                   roce::RemoteAccess::Write, rkey, address, from.size());
  if (!where) return tl::unexpected(std::move(where.error()));
  if (!guarded_copy(*where, from.data(), from.size())) return unmapped_remotely(rkey, address, from.size());
  return {};
}

Check QueuePair::read(std::uint32_t rkey, std::uint64_t address, std::span<std::byte> to) {
  if (to.empty()) return {};
  auto where = device_.keys.remote(parameters_.pd, static_cast<int>(attributes_.qp_access_flags),
                                   roce::RemoteAccess::Read, rkey, address, to.size());
  if (!where) return tl::unexpected(std::move(where.error()));
  if (!guarded_copy(to.data(), *where, to.size())) return unmapped_remotely(rkey, address, to.size());
  return {};
}

namespace {
// A misaligned atomic could straddle two cache lines, where x86 locks the bus and may raise SIGBUS.
Check check_alignment(std::uint64_t address, const std::byte* where) {
  if ((address & 7) == 0 && (reinterpret_cast<std::uintptr_t>(where) & 7) == 0) return {};
  return tl::unexpected(
      Refusal{Syndrome::RemoteInvalidRequest, kVendorRemoteRequest,
              fmt::format("an atomic at {:#x}: the address must be a multiple of 8", address)});
}
}  // namespace

Check QueuePair::compare_swap(std::uint32_t rkey, std::uint64_t address, std::uint64_t compare,
                              std::uint64_t swap, std::uint64_t& original) {
  auto where = device_.keys.remote(parameters_.pd, static_cast<int>(attributes_.qp_access_flags),
                                   roce::RemoteAccess::Atomic, rkey, address, sizeof original);
  if (!where) return tl::unexpected(std::move(where.error()));
  if (auto aligned = check_alignment(address, *where); !aligned) return aligned;
  if (guarded_compare_exchange64(*where, compare, swap, original)) return {};
  return unmapped_remotely(rkey, address, sizeof original);
}

Check QueuePair::fetch_add(std::uint32_t rkey, std::uint64_t address, std::uint64_t add,
                           std::uint64_t& original) {
  auto where = device_.keys.remote(parameters_.pd, static_cast<int>(attributes_.qp_access_flags),
                                   roce::RemoteAccess::Atomic, rkey, address, sizeof original);
  if (!where) return tl::unexpected(std::move(where.error()));
  if (auto aligned = check_alignment(address, *where); !aligned) return aligned;
  if (guarded_fetch_add64(*where, add, original)) return {};
  return unmapped_remotely(rkey, address, sizeof original);
}

Check QueuePair::invalidate(std::uint32_t rkey) {
  // Memory windows and fast registration: invalidation goes here.
  return tl::unexpected(Refusal{Syndrome::RemoteInvalidRequest, kVendorRemoteRequest,
                                fmt::format("rkey {:#x} cannot be invalidated by the peer", rkey)});
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
