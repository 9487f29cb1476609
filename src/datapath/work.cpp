#include "src/datapath/work.hpp"

namespace qpair::detail {

namespace {

std::optional<Error> check_atomic(const Work& work) {
  constexpr std::uint64_t kWord = 8;
  if (work.local.size() != 1 || work.local[0].size < kWord) {
    return Error(ErrorCode::invalid_argument,
                 "an atomic operation needs 8 local bytes for what was there; l has {}",
                 {work.local.empty() ? 0 : work.local[0].size});
  }
  if (work.remote->size < kWord) {
    return Error(ErrorCode::invalid_argument, "an atomic operation changes 8 remote bytes; r has {}",
                 {work.remote->size});
  }
  if (work.remote->addr % kWord != 0) {
    return Error(ErrorCode::invalid_argument,
                 "an atomic operation needs an address that is a multiple of 8; r is at {:#x}",
                 {work.remote->addr});
  }
  return {};
}

}  // namespace

Work transfer(mlx5::Opcode opcode, std::span<const RdmaBuffer> local, const RdmaBuffer& remote, Signal signal,
              std::uint32_t imm) {
  Work work;
  work.opcode = opcode;
  work.local = local;
  work.remote = &remote;
  work.signal = signal;
  work.imm = imm;
  return work;
}

Work put_work(const Put& put, Signal signal) {
  return transfer(mlx5::Opcode::RdmaWrite, {&put.l, 1}, put.r, signal);
}

Result<std::uint64_t> entries_of(std::span<const Put> puts, Signal signal, const WorkLimits& limits,
                                 std::uint64_t capacity) {
  std::uint64_t entries = 0;
  for (const Put& put : puts) {
    const Result<WorkPlan> planned = plan(put_work(put, signal), limits);
    if (!planned) return tl::unexpected(planned.error());
    entries += planned->entries;
    if (entries > capacity) return tl::unexpected(never_fits(entries, capacity));
  }
  return entries;
}

Result<WorkPlan> plan(const Work& work, const WorkLimits& limits) {
  if (is_atomic(work.opcode)) {
    if (const std::optional<Error> error = check_atomic(work)) return tl::unexpected(*error);
    return WorkPlan{8, 1};
  }
  WorkPlan result;
  if (work.is_inline) {
    result.bytes = work.inline_data.size();
    if (result.bytes > limits.max_inline) {
      return tl::unexpected(
          Error(ErrorCode::invalid_argument,
                "{} bytes inline; this queue pair allows {} (IbverbsConfig::max_inline_data)",
                {result.bytes, limits.max_inline}));
    }
  } else {
    if (work.local.size() > limits.max_send_sge) {
      return tl::unexpected(Error(ErrorCode::invalid_argument,
                                  "{} local pieces; this queue pair allows {} (IbverbsConfig::max_send_sge)",
                                  {work.local.size(), limits.max_send_sge}));
    }
    for (const RdmaBuffer& piece : work.local) {
      if (__builtin_add_overflow(result.bytes, piece.size, &result.bytes)) {
        return tl::unexpected(
            Error(ErrorCode::invalid_argument, "the local pieces are longer than 64 bits can say"));
      }
    }
  }
  if (work.remote != nullptr && result.bytes > work.remote->size) {
    return tl::unexpected(Error(ErrorCode::invalid_argument, "l has {} bytes, r only {}; take a slice of l",
                                {result.bytes, work.remote->size}));
  }
  if (result.bytes > limits.max_message) {
    if (is_send(work.opcode)) {
      return tl::unexpected(Error(ErrorCode::length,
                                  "a message of {} bytes; the port allows {}, and a send cannot be split",
                                  {result.bytes, limits.max_message}));
    }
    result.entries = (result.bytes - 1) / limits.max_message + 1;
  }
  return result;
}

std::optional<Error> check_receive(std::span<const RdmaBuffer> pieces, const WorkLimits& limits) {
  if (pieces.size() > limits.max_recv_sge) {
    return Error(ErrorCode::invalid_argument,
                 "{} pieces to receive into; this queue pair allows {} "
                 "(IbverbsConfig::max_recv_sge)",
                 {pieces.size(), limits.max_recv_sge});
  }
  for (const RdmaBuffer& piece : pieces) {
    if (piece.size > 0x7fffffff) {
      return Error(ErrorCode::invalid_argument,
                   "a piece of {} bytes to receive into; the NIC allows {} in one", {piece.size, 0x7fffffff});
    }
  }
  return {};
}

Error not_connected() {
  return {ErrorCode::not_connected, "the queue pair is not connected: connect() first"};
}

Error cannot_receive_yet() {
  return {ErrorCode::not_connected, "a queue pair in RESET takes no receives: connect() first"};
}

Error queue_full(std::uint64_t outstanding, std::uint64_t capacity) {
  return {ErrorCode::queue_full,
          "the send queue has no room: {} of {} basic blocks are in use; poll completions, then ask again",
          {outstanding, capacity}};
}

Error never_fits(std::uint64_t needed, std::uint64_t capacity) {
  return {
      ErrorCode::invalid_argument,
      "the operation needs {} basic blocks of the send queue, which has {}; split it, or raise max_send_wr",
      {needed, capacity}};
}

Error receive_queue_full(std::uint64_t capacity) {
  return {ErrorCode::queue_full, "all {} receives are in use; poll completions, then ask again", {capacity}};
}

}  // namespace qpair::detail
