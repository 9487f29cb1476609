// The requester's side of QueuePair: WQEs to the transport, and their completions.
#include "softnic/nic/queue_pair.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "qpair/mlx5/doorbell.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/address_resolution.hpp"
#include "softnic/nic/address_vector.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/queue_pair_detail.hpp"
#include "softnic/nic/tracer.hpp"
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
  // Too long for any CQE; or it comes from a program's memory, which may be gone.
  if (offset + from.size() > bytes.size() || index != of ||
      !guarded_copy(bytes.data() + offset, from.data(), from.size())) {
    valid = false;
  }
}

bool QueuePair::next_send(roce::SendRequest& out) {
  while (!failing_ && state() != IBV_QPS_ERR) {
    if (fetched_ == rung_ && !look()) return false;
    const std::uint16_t index = fetched_;
    const auto begun = device_.tracer != nullptr ? Tracer::Clock::now() : Tracer::TimePoint{};
    const std::uint16_t available = ahead(rung_, index);
    WqeHead head;
    bool hit = false;
    ScatterList& list = device_.decoded.at(qpn(), DecodeCache::Queue::Send, index, hit);
    std::optional<DecodeError> error;
    if (available > parameters_.sq_basic_blocks) {
      error = DecodeError{
          DecodeError::Kind::Overwritten,
          fmt::format("it was overwritten: the send doorbell record says {}, {} basic blocks after it; the "
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
    if (is_local(head.opcode)) {
      device_.decoded.forget(qpn(), DecodeCache::Queue::Send, index);
      // It takes effect when everything before it is complete: no access that began earlier fails for it.
      if (!inflight_.empty() || !run_local(index, head)) return false;
      continue;
    }
    check_keys(list, "send", index);
    fetched_ = static_cast<std::uint16_t>(index + head.blocks);
    ++counters_.send_wqes;
    if (device_.tracer != nullptr) {
      device_.tracer->fetched(qpn(), index, head.opcode, head.opcode == Opcode::Nop ? 0 : out.length, begun);
    }
    inflight_.push({index, static_cast<std::uint8_t>(head.blocks), head.opcode,
                    head.signaled() || parameters_.signal_all});
    if (head.opcode != Opcode::Nop) return true;
    retire_nops();
  }
  return false;
}

tl::expected<roce::AddressVector, Refusal> QueuePair::address(const roce::SendRequest& request) {
  const auto segment = read_datagram_segment(send_ring(), request.wqe_index);
  if (!segment) {
    return tl::unexpected(
        Refusal{Syndrome::LocalQpOperation, kVendorLocalQpOperation, "the send ring is not mapped"});
  }
  roce::AddressVector vector = decode_address(*segment, device_.link.local());
  if (device_.port.link_layer == IBV_LINK_LAYER_INFINIBAND) {
    if (const auto lid = lid_in(*segment)) {
      vector.destination = endpoint_of(address_of_lid(*lid, device_.link.local().address));
    }
  }
  if (vector.sgid_index < device_.gids.size()) return vector;
  return tl::unexpected(
      Refusal{Syndrome::LocalQpOperation, kVendorLocalQpOperation,
              fmt::format("its address vector has source GID index {}, the GID table has entries 0 to {}",
                          static_cast<unsigned>(vector.sgid_index), device_.gids.size() - 1)});
}

void QueuePair::transmitting(const roce::SendRequest& request) {
  if (device_.tracer != nullptr) device_.tracer->transmitting(request.wqe_index);
}

bool QueuePair::decode_failed(const DecodeError& error, std::uint16_t index, const WqeHead& head) {
  if (error.kind == DecodeError::Kind::Unreadable) {
    fail_later(error.reason);
    return false;
  }
  const Syndrome syndrome =
      error.kind == DecodeError::Kind::TooLong ? Syndrome::LocalLength : Syndrome::LocalQpOperation;
  device_.failures.add(number_, Failures::Side::Send, syndrome, kVendorLocalQpOperation,
                       fmt::format("queue pair {:#x}, send WQE {}: {}", qpn(), index, error.reason),
                       error.kind == DecodeError::Kind::Malformed ? Kind::Finding : Kind::Failure);
  complete_send_error(index, head.opcode, syndrome, kVendorLocalQpOperation);
  fetched_ = static_cast<std::uint16_t>(index + std::min<std::uint32_t>(head.blocks, ahead(rung_, index)));
  enter_send_error();
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
        if (!entry.in_ring) return load(entry.lkey, address, to.subspan(done, size));
        if (guarded_copy(to.data() + done, reinterpret_cast<const std::byte*>(address), size)) return {};
        return tl::unexpected(Refusal{Syndrome::LocalProtection, kVendorLocalTranslation,
                                      "its inline data cannot be read: the send ring is not mapped"});
      });
}

Check QueuePair::scatter(const roce::SendRequest& request, std::uint64_t offset,
                         std::span<const std::byte> from) {
  Refusal why;
  const ScatterList* const list = send_list(request.wqe_index, why);
  if (list == nullptr) return tl::unexpected(std::move(why));
  if (parameters_.scatter_to_cqe_send) send_payload_.keep(request.wqe_index, offset, from);
  return store(parameters_.pd, *list, offset, from);
}

Check QueuePair::store(Pdn pd, const ScatterList& list, std::uint64_t offset,
                       std::span<const std::byte> from) {
  return for_pieces(
      list, offset, from.size(),
      [&](std::uint64_t address, const ScatterEntry& entry, std::size_t size, std::size_t done) -> Check {
        return store(pd, entry.lkey, address, from.subspan(done, size));
      });
}

// Where the bytes lie that a request names: 0 pieces when they cannot be told, or are too many.
std::size_t QueuePair::local_pieces(const roce::SendRequest& request, std::uint64_t offset,
                                    std::uint64_t size, std::span<iovec> pieces) {
  Refusal why;
  const ScatterList* const list = send_list(request.wqe_index, why);
  if (list == nullptr) return 0;
  const auto access = request.operation == roce::Operation::Read ? MemoryKeys::LocalAccess::Write
                                                                 : MemoryKeys::LocalAccess::Read;
  std::size_t count = 0;
  const Check all = for_pieces(
      *list, offset, size,
      [&](std::uint64_t address, const ScatterEntry& entry, std::size_t length, std::size_t) -> Check {
        while (length != 0) {
          auto run = entry.in_ring ? MemoryKeys::Run(MemoryRun{reinterpret_cast<std::byte*>(address), length})
                                   : device_.keys.local(parameters_.pd, entry.lkey, address, length, access);
          if (!run) return tl::unexpected(std::move(run.error()));
          if (run->at == nullptr || count == pieces.size()) return tl::unexpected(Refusal{});
          const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(run->size, length));
          pieces[count++] = {run->at, part};
          address += part;
          length -= part;
        }
        return {};
      });
  return all ? count : 0;
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
  if (!entry.signaled) {
    if (device_.tracer != nullptr) device_.tracer->done_unsignaled(qpn(), entry.index);
    return;
  }
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
  device_.failures.add(
      number_, Failures::Side::Send, why.syndrome, why.vendor_err,
      fmt::format("queue pair {:#x}, send WQE {}: {} of {} bytes failed: {}", qpn(), request.wqe_index,
                  opcode_name(opcode_of(request.operation)), request.length, why.reason));
  while (!inflight_.empty() && inflight_.front().index != request.wqe_index) {
    complete_send_error(inflight_.front().index, inflight_.front().opcode, Syndrome::WorkRequestFlushed,
                        kVendorFlushed);
    inflight_.pop();
  }
  if (!inflight_.empty()) inflight_.pop();
  complete_send_error(request.wqe_index, opcode_of(request.operation), why.syndrome, why.vendor_err);
  enter_send_error();
}

}  // namespace qpair::softnic::nic
