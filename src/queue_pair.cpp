#include "qpair/queue_pair.hpp"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "src/domain_state.hpp"
#include "src/queue_pair_state.hpp"

namespace qpair {

using detail::QueuePairState;
using detail::transfer;
using detail::Work;
using mlx5::Opcode;

namespace {

Work message(const RdmaBuffer& local, std::optional<std::uint32_t> imm, Signal signal) {
  Work work;
  work.opcode = imm ? Opcode::SendImm : Opcode::Send;
  work.local = {&local, 1};
  work.imm = imm.value_or(0);
  work.signal = signal;
  return work;
}

Work atomic(Opcode opcode, const RdmaBuffer& local, const RdmaBuffer& remote, std::uint64_t swap_add,
            std::uint64_t compare, Signal signal) {
  Work work;
  work.opcode = opcode;
  work.local = {&local, 1};
  work.remote = &remote;
  work.swap_add = swap_add;
  work.compare = compare;
  work.signal = signal;
  return work;
}

Error cannot_poll(int result) {
  return {ErrorCode::system,
          "the completion queue cannot be polled (errno {})",
          {static_cast<std::uint64_t>(-result)}};
}

}  // namespace

Result<RdmaQueuePair> RdmaQueuePair::create(ibv_context* context, ibv_pd* pd, const IbverbsConfig& config) {
  return QueuePairState::create(nullptr, context, pd, config);
}

Result<RdmaQueuePair> RdmaQueuePair::create(const RdmaDomain& domain, const IbverbsConfig& config) {
  return QueuePairState::create(domain.state_, domain.context(), domain.pd(), config);
}

RdmaQueuePair::RdmaQueuePair(std::shared_ptr<detail::QueuePairState> state)
    : state_(std::move(state)), path_(&state_->path()) {}

ibv_cq* RdmaQueuePair::send_cq() const {
  return state_->send_cq();
}
ibv_cq* RdmaQueuePair::recv_cq() const {
  return state_->recv_cq();
}
ibv_qp* RdmaQueuePair::qp() const {
  return state_->qp();
}
const mlx5dv_qp* RdmaQueuePair::dv_qp() const {
  return state_->dv_qp();
}
const mlx5dv_cq* RdmaQueuePair::dv_send_cq() const {
  return state_->dv_send_cq();
}
const mlx5dv_cq* RdmaQueuePair::dv_recv_cq() const {
  return state_->dv_recv_cq();
}
ibv_context* RdmaQueuePair::context() const {
  return state_->context();
}
const IbverbsConfig& RdmaQueuePair::config() const {
  return state_->config();
}

Result<RdmaQpInfo> RdmaQueuePair::get_qp_info() const {
  return state_->info();
}
Result<ibv_qp_state> RdmaQueuePair::state() const {
  return state_->state();
}
Result<void> RdmaQueuePair::connect(const RdmaQpInfo& peer) {
  return state_->connect(peer);
}
Result<void> RdmaQueuePair::reset() {
  return state_->reset();
}

// --- Operations ---

Result<WrId> RdmaQueuePair::put_with_recv(const RdmaBuffer& l, const RdmaBuffer& r, std::uint32_t imm,
                                          Signal signal) {
  return path_->post(transfer(Opcode::RdmaWriteImm, {&l, 1}, r, signal, imm));
}
Result<WrId> RdmaQueuePair::put(std::span<const RdmaBuffer> l, const RdmaBuffer& r, Signal signal) {
  return path_->post(transfer(Opcode::RdmaWrite, l, r, signal));
}
Result<WrId> RdmaQueuePair::get(std::span<const RdmaBuffer> l, const RdmaBuffer& r, Signal signal) {
  return path_->post(transfer(Opcode::RdmaRead, l, r, signal));
}
Result<WrId> RdmaQueuePair::put_with_recv(std::span<const RdmaBuffer> l, const RdmaBuffer& r,
                                          std::uint32_t imm, Signal signal) {
  return path_->post(transfer(Opcode::RdmaWriteImm, l, r, signal, imm));
}
Result<WrId> RdmaQueuePair::send(const RdmaBuffer& l, std::optional<std::uint32_t> imm, Signal signal) {
  return path_->post(message(l, imm, signal));
}
Result<WrId> RdmaQueuePair::fetch_add(const RdmaBuffer& l, const RdmaBuffer& r, std::uint64_t add,
                                      Signal signal) {
  return path_->post(atomic(Opcode::AtomicFetchAdd, l, r, add, 0, signal));
}
Result<WrId> RdmaQueuePair::compare_swap(const RdmaBuffer& l, const RdmaBuffer& r, std::uint64_t compare,
                                         std::uint64_t swap, Signal signal) {
  return path_->post(atomic(Opcode::AtomicCompareSwap, l, r, swap, compare, signal));
}

Result<WrId> RdmaQueuePair::enqueue_put_with_recv(const RdmaBuffer& l, const RdmaBuffer& r, std::uint32_t imm,
                                                  Signal signal) {
  return path_->enqueue(transfer(Opcode::RdmaWriteImm, {&l, 1}, r, signal, imm));
}
Result<WrId> RdmaQueuePair::enqueue_put(std::span<const RdmaBuffer> l, const RdmaBuffer& r, Signal signal) {
  return path_->enqueue(transfer(Opcode::RdmaWrite, l, r, signal));
}
Result<WrId> RdmaQueuePair::enqueue_get(std::span<const RdmaBuffer> l, const RdmaBuffer& r, Signal signal) {
  return path_->enqueue(transfer(Opcode::RdmaRead, l, r, signal));
}
Result<WrId> RdmaQueuePair::enqueue_puts(std::span<const Put> puts, Signal signal) {
  if (puts.empty()) {
    return tl::unexpected(Error(ErrorCode::invalid_argument, "enqueue_puts() needs at least one put"));
  }
  return path_->enqueue_puts(puts, signal);
}
Result<WrId> RdmaQueuePair::enqueue_send(const RdmaBuffer& l, std::optional<std::uint32_t> imm,
                                         Signal signal) {
  return path_->enqueue(message(l, imm, signal));
}
Result<WrId> RdmaQueuePair::enqueue_fetch_add(const RdmaBuffer& l, const RdmaBuffer& r, std::uint64_t add,
                                              Signal signal) {
  return path_->enqueue(atomic(Opcode::AtomicFetchAdd, l, r, add, 0, signal));
}
Result<WrId> RdmaQueuePair::enqueue_compare_swap(const RdmaBuffer& l, const RdmaBuffer& r,
                                                 std::uint64_t compare, std::uint64_t swap, Signal signal) {
  return path_->enqueue(atomic(Opcode::AtomicCompareSwap, l, r, swap, compare, signal));
}

// --- Completions ---

namespace {

// As many completions of `target` as there are and fit: how many, or negative errno.
int take(detail::DataPath& path, PollTarget target, std::atomic<bool>& receive_first, std::span<IbvWc> wcs) {
  if (target == PollTarget::Send) return path.take_send(wcs);
  if (target == PollTarget::Recv) return path.take_receive(wcs);
  // One of this side, one of the other; when one has no more, the rest is the other's.
  std::size_t count = 0;
  int dry = 0;
  int failure = 0;
  bool receive = receive_first.load(std::memory_order_relaxed);
  while (count != wcs.size() && dry != 2) {
    const int taken = receive ? path.poll_receive(wcs[count]) : path.poll_send(wcs[count]);
    if (taken < 0) {
      failure = taken;
      break;
    }
    receive = !receive;
    dry = taken == 0 ? dry + 1 : 0;
    count += static_cast<std::size_t>(taken);
  }
  receive_first.store(receive, std::memory_order_relaxed);
  return count != 0 ? static_cast<int>(count) : failure;
}

}  // namespace

Result<std::optional<IbvWc>> RdmaQueuePair::poll_completion_target(PollTarget target) {
  IbvWc wc;
  const int result = take(*path_, target, state_->receive_first, {&wc, 1});
  if (result == 0) return std::optional<IbvWc>{};
  if (result < 0) return tl::unexpected(cannot_poll(result));
  if (!wc.is_valid()) return tl::unexpected(Error(wc));
  return wc;
}

Result<std::size_t> RdmaQueuePair::poll_more(PollTarget target, std::span<IbvWc> completions,
                                             std::size_t taken) {
  if (taken != 0 && !path_->send_completed()) return taken;
  const int result = take(*path_, target, state_->receive_first, completions.subspan(taken));
  if (result < 0 && taken == 0) return tl::unexpected(cannot_poll(result));
  return taken + static_cast<std::size_t>(std::max(result, 0));
}

Result<int> RdmaQueuePair::completion_fd() const {
  return state_->completion_fd();
}

Result<void> RdmaQueuePair::arm(PollTarget target, bool solicited_only) {
  if (!state_->has_events()) return tl::unexpected(state_->completion_fd().error());
  return path_->arm(target, solicited_only);
}

Result<std::size_t> RdmaQueuePair::take_events() {
  return state_->take_events();
}

// --- Words ---

std::string to_string(const RdmaQpInfo& info) {
  return fmt::format("queue pair {:#x} at {}, PSN {:#x}, MTU {}, generation {}", info.qp_num,
                     info.gid ? to_string(*info.gid) : fmt::format("LID {}", info.lid), info.psn,
                     mtu_bytes(info.path_mtu), info.generation);
}

std::string to_string(const DoorBell& doorbell) {
  return fmt::format("doorbell: {} bytes from {} to {}", doorbell.size, fmt::ptr(doorbell.src_ptr),
                     fmt::ptr(doorbell.dst_ptr));
}

std::string to_string(const RdmaQueuePair& queue_pair) {
  return fmt::format("queue pair {:#x} on {}: send {} written, {} rung, {} completed; receive {}, {}, {}",
                     queue_pair.qp()->qp_num, queue_pair.config().device, queue_pair.send_wqe_idx(),
                     queue_pair.send_db_idx(), queue_pair.send_cq_idx(), queue_pair.recv_wqe_idx(),
                     queue_pair.recv_db_idx(), queue_pair.recv_cq_idx());
}

}  // namespace qpair
