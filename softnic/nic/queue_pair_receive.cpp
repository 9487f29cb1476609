// The responder's side of QueuePair: receives, and the peer's access to memory.
#include "softnic/nic/queue_pair.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "softnic/explain/explain.hpp"
#include "softnic/nic/address_resolution.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/queue_pair_detail.hpp"
#include "softnic/nic/tracer.hpp"
#include "softnic/nic/vendor_errors.hpp"

namespace qpair::softnic::nic {
namespace {

using mlx5::CqeOpcode;
using mlx5::Syndrome;
using roce::Check;
using roce::Refusal;

// Bits 29:28 say that a GRH lies in front of the data; where InfiniBand has the service level, RoCE has the
// kind of network header (the kernel's hw/mlx5/cq.c, handle_responder(): MLX5_CQE_ROCE_L3_HEADER_TYPE_*).
std::uint32_t grh_flags(roce::Received::Grh grh) {
  constexpr std::uint32_t kHasGrh = 1U << 28;
  switch (grh) {
    case roce::Received::Grh::Ipv4:
      return kHasGrh | 2U << 24;
    case roce::Received::Grh::Ipv6:
      return kHasGrh | 1U << 24;
    case roce::Received::Grh::None:
      break;
  }
  return 0;
}

}  // namespace

Check QueuePair::select_srq(std::uint32_t srqn) {
  SharedReceiveQueue* const srq = device_.srqs.find(srqn);
  const bool usable =
      srq != nullptr && srq->parameters().xrc && srq->parameters().xrc->domain == parameters_.xrc_domain;
  xrc_srq_ = usable ? srq : nullptr;
  if (usable) return {};
  return tl::unexpected(
      Refusal{Syndrome::RemoteAccess, kVendorRemoteAccess,
              fmt::format("XRC shared receive queue {:#x} {}", srqn,
                          srq == nullptr           ? "does not exist"
                          : !srq->parameters().xrc ? "is not one for XRC"
                                                   : "belongs to another XRC domain than the target")});
}

bool QueuePair::next_receive(roce::ReceiveRequest& out) {
  ReceiveQueue* const from = xrc_srq_ != nullptr ? xrc_srq_ : receives_;
  if (failing_ || from == nullptr) return false;
  std::string why;
  const ReceiveQueue::Taken taken = from->take(out, why);
  if (taken == ReceiveQueue::Taken::Broken) fail_later(why);
  if (taken != ReceiveQueue::Taken::Yes) return false;
  receiving_.push_back({from, out.wqe_index});
  if (device_.tracer != nullptr) device_.tracer->receive_taken(qpn(), out.wqe_index);
  if (const ScatterList* const list = from->list(out.wqe_index, why)) {
    check_keys(*list, "receive", out.wqe_index);
  }
  receive_payload_.valid = false;
  return true;
}

Check QueuePair::scatter_receive(const roce::ReceiveRequest& request, std::uint64_t offset,
                                 std::span<const std::byte> from) {
  std::string why = "the receive was flushed";
  const Receiving* const taken = receiving(request.wqe_index);
  const ScatterList* const list = taken != nullptr ? taken->from->list(request.wqe_index, why) : nullptr;
  if (list == nullptr) {
    return tl::unexpected(Refusal{Syndrome::LocalQpOperation, kVendorLocalQpOperation, std::move(why)});
  }
  if (parameters_.scatter_to_cqe_recv) receive_payload_.keep(request.wqe_index, offset, from);
  return store(taken->from->pd(), *list, offset, from);
}

void QueuePair::receive_done(const roce::ReceiveRequest& request, const roce::Received& what) {
  ++counters_.receive_wqes;
  const ReceiveQueue::Completes completes = receive_completes(request.wqe_index);
  mlx5::Cqe64 cqe{};
  cqe.srqn_uidx = completes.index;
  cqe.byte_cnt = static_cast<std::uint32_t>(what.byte_count);
  cqe.flags_rqpn = what.source_qpn & kIdMask;
  if (device_.port.link_layer == IBV_LINK_LAYER_INFINIBAND) {
    cqe.slid = lid_of(what.source.address);  // within a subnet packets need no GRH
  } else {
    cqe.flags_rqpn = cqe.flags_rqpn | grh_flags(what.grh);
  }
  cqe.sop_drop_qpn = qpn();
  cqe.wqe_counter = request.wqe_index;
  if (what.opcode == CqeOpcode::ResponderSendInvalidate) {
    cqe.imm_inval_pkey = what.immediate;
  } else {
    cqe.imm_inval_pkey.raw = what.immediate;
  }
  cqe.op_own = op_own(what.opcode);
  if (what.solicited) cqe.op_own |= mlx5::kCqeSolicited;
  retire_receive(request.wqe_index);
  const bool in_cqe = receive_payload_.valid && receive_payload_.index == request.wqe_index &&
                      what.byte_count <= completes.on->payload_capacity();
  completed(*completes.on,
            completes.on->push(
                cqe, what.solicited ? CompletionQueue::Notice::Solicited : CompletionQueue::Notice::Plain,
                in_cqe ? &receive_payload_.bytes : nullptr));
  receive_payload_.valid = false;
}

void QueuePair::receive_failed(const roce::ReceiveRequest& request, const Refusal& why) {
  receive_lost(request, why);
  enter_error();
}

void QueuePair::receive_lost(const roce::ReceiveRequest& request, const Refusal& why) {
  device_.failures.add(number_, Failures::Side::Receive, why.syndrome, why.vendor_err,
                       fmt::format("queue pair {:#x}, receive WQE {} of {} bytes failed: {}", qpn(),
                                   request.wqe_index, request.length, why.reason));
  complete_receive_error(request.wqe_index, why.syndrome, why.vendor_err);
  retire_receive(request.wqe_index);
}

}  // namespace qpair::softnic::nic
