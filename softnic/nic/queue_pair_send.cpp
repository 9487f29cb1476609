// The requester's side of QueuePair: WQEs to the transport, and their completions.
#include "softnic/nic/queue_pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "qpair/mlx5/doorbell.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/queue_pair_detail.hpp"
#include "softnic/nic/vendor_errors.hpp"

namespace qpair::softnic::nic {
namespace {

using explain::Kind;
using mlx5::CqeOpcode;
using mlx5::Opcode;
using mlx5::Syndrome;
using roce::Check;
using roce::Refusal;

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
  return store(*list, offset, from);
}

Check QueuePair::store(const ScatterList& list, std::uint64_t offset, std::span<const std::byte> from) {
  return for_pieces(
      list, offset, from.size(),
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

}  // namespace qpair::softnic::nic
