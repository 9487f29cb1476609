// Work requests that the queue pair carries out by itself: changes of memory keys, and copies. They run in
// their turn, when everything before them is complete, and are complete at once.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "softnic/nic/queue_pair.hpp"
#include "softnic/nic/queue_pair_detail.hpp"
#include "softnic/nic/tunables.hpp"
#include "softnic/nic/vendor_errors.hpp"

namespace qpair::softnic::nic {

using roce::Refusal;

bool QueuePair::run_local(std::uint16_t index, const WqeHead& head) {
  return head.opcode == mlx5::Opcode::Umr ? update_key(index, head) : copy_memory(index, head);
}

bool QueuePair::update_key(std::uint16_t index, const WqeHead& head) {
  KeyUpdate update;
  KeyEntriesElsewhere elsewhere;
  if (const auto error = decode_key_update(send_ring(), index, head, update, elsewhere)) {
    return decode_failed(*error, index, head);
  }
  Refusal why;
  if (elsewhere.bytes != 0 && !fetch_entries(elsewhere, update, why)) return local_failed(index, head, why);
  if (auto done = device_.keys.update(key_user(), update); !done) {
    return local_failed(index, head, done.error());
  }
  local_done(index, head, 0);
  return true;
}

bool QueuePair::fetch_entries(const KeyEntriesElsewhere& where, KeyUpdate& update, Refusal& why) {
  std::vector<std::byte> entries(where.bytes);
  if (auto loaded = load(where.lkey, where.address, entries); !loaded) {
    why = std::move(loaded.error());
    return false;
  }
  const auto error = decode_key_entries(entries, update.layout);
  if (!error) return true;
  why = Refusal{mlx5::Syndrome::MemoryWindowBind, kVendorMemoryWindowBind, error->reason};
  return false;
}

// A long copy takes many rounds, so that the other queue pairs have their turns.
bool QueuePair::copy_memory(std::uint16_t index, const WqeHead& head) {
  MemoryCopy copy;
  if (const auto error = decode_memory_copy(send_ring(), index, head, copy)) {
    return decode_failed(*error, index, head);
  }
  const std::uint64_t end = std::min<std::uint64_t>(copy.from.length, copied_ + kCopyBudget);
  std::array<std::byte, kCopyPiece> piece;
  while (copied_ < end) {
    const auto bytes = std::span{piece}.first(std::min<std::uint64_t>(piece.size(), end - copied_));
    auto moved = load(copy.from.lkey, copy.from.address + copied_, bytes);
    if (moved) moved = store(parameters_.pd, copy.to.lkey, copy.to.address + copied_, bytes);
    if (!moved) return local_failed(index, head, moved.error());
    copied_ += bytes.size();
  }
  if (copied_ < copy.from.length) return false;
  local_done(index, head, copy.from.length);
  return true;
}

bool QueuePair::local_failed(std::uint16_t index, const WqeHead& head, const Refusal& why) {
  device_.failures.add(number_, Failures::Side::Send, why.syndrome, why.vendor_err,
                       fmt::format("queue pair {:#x}, send WQE {}: {} failed: {}", qpn(), index,
                                   opcode_name(head.opcode), why.reason));
  copied_ = 0;
  complete_send_error(index, head.opcode, why.syndrome, why.vendor_err);
  fetched_ = static_cast<std::uint16_t>(index + head.blocks);
  enter_send_error();
  return false;
}

void QueuePair::local_done(std::uint16_t index, const WqeHead& head, std::uint64_t bytes) {
  copied_ = 0;
  fetched_ = static_cast<std::uint16_t>(index + head.blocks);
  retire(
      {index, static_cast<std::uint8_t>(head.blocks), head.opcode, head.signaled() || parameters_.signal_all},
      bytes, nullptr);
}

}  // namespace qpair::softnic::nic
