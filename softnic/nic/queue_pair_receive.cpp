// The responder's side of QueuePair: receives, and the peer's access to memory.
#include "softnic/nic/queue_pair.hpp"

#include <fmt/format.h>

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
using mlx5::Syndrome;
using roce::Check;
using roce::Refusal;

tl::unexpected<Refusal> unmapped_remotely(std::uint32_t rkey, std::uint64_t address, std::size_t size) {
  return tl::unexpected(
      Refusal{Syndrome::RemoteOperation, kVendorRemoteOperation,
              fmt::format("[{:#x}, {:#x}) is registered (rkey {:#x}), but its program has unmapped or "
                          "protected part of it",
                          address, address + size, rkey)});
}

}  // namespace

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
  return store(*list, offset, from);
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

}  // namespace qpair::softnic::nic
