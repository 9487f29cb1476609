// The protocol checker: what a program does wrong with its rings, records and doorbells, where a real NIC
// would hang or read garbage. (What is wrong inside a WQE is found where it is decoded.)
//
// Nothing here may ever accuse a correct program. A doorbell is seen late, and only the last of several in
// one register; meanwhile its program goes on. So the record may be ahead of a doorbell by all that the ring
// holds, but it is never behind: it was stored first. And hardware takes no more than the queue pair's number
// from a doorbell: some programs (NVSHMEM's ibgda_ring_db) put the record there in place of their last WQE's
// index. So a doorbell counts as naming a WQE only if that very WQE is in the ring.

#include <fmt/format.h>

#include "qpair/mlx5/doorbell.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/qp_states.hpp"
#include "softnic/nic/queue_pair.hpp"
#include "softnic/nic/queue_pair_detail.hpp"

namespace qpair::softnic::nic {
namespace {

using explain::Kind;

constexpr std::uint16_t kMaxBlocks = 16;          // of one WQE: 63 segments
constexpr std::uint16_t kLargestRing = 1U << 15;  // basic blocks: indices are compared as on a circle

// Whether a record that says `record` leaves out the WQE at `index`.
bool leaves_out(std::uint16_t record, std::uint16_t index) {
  const std::uint16_t distance = ahead(record, index);
  return distance == 0 || distance > kLargestRing + kMaxBlocks;
}

}  // namespace

void QueuePair::check_doorbell(ibv_qp_state when_rung, std::uint32_t opmod_idx_opcode) {
  if (when_rung == IBV_QPS_ERR) return;
  if (when_rung == IBV_QPS_RESET || when_rung == IBV_QPS_INIT || when_rung == IBV_QPS_RTR) {
    return explain::say(
        Kind::Finding,
        fmt::format("queue pair {:#x}: its send doorbell was rung in state {}; a send queue works "
                    "from RTS on",
                    qpn(), state_name(when_rung)));
  }
  const auto index = static_cast<std::uint16_t>(opmod_idx_opcode >> 8);
  if (parameters_.sq_basic_blocks == 0) {
    return explain::say(
        Kind::Finding, fmt::format("queue pair {:#x}: a doorbell names send WQE {}, but it has no send queue",
                                   qpn(), index));
  }
  if (!leaves_out(rung_, index)) return;
  const auto head = read_head(send_ring(), index);
  if (!head || head->index != index || head->qpn != qpn() ||
      mlx5::opmod_idx_opcode(head->index, head->opcode) != (opmod_idx_opcode & 0xff'ffff)) {
    return;
  }
  explain::say(
      Kind::Finding,
      fmt::format("queue pair {:#x}: the doorbell names WQE {}, but the send doorbell record says {}{}: "
                  "the record must be stored before the doorbell is rung",
                  qpn(), index, rung_, suspect_swapped_records(index)));
}

// "; the receive record says …" when the receive record has what the send record should have.
std::string QueuePair::suspect_swapped_records(std::uint16_t index) {
  std::uint16_t record = 0;
  if (!read_record(mlx5::kReceiveRecord, record)) return {};
  const std::uint16_t distance = ahead(record, index);
  if (distance == 0 || distance > kMaxBlocks) return {};
  return fmt::format("; the receive record says {}, as if the two were swapped", record);
}

// A WQE stays the NIC's until it is complete.
void QueuePair::check_overwritten() {
  const std::uint16_t oldest = inflight_.empty() ? fetched_ : inflight_.front().index;
  const std::uint16_t posted = ahead(rung_, oldest);
  if (posted <= parameters_.sq_basic_blocks) return;
  explain::say(
      Kind::Finding,
      fmt::format(
          "queue pair {:#x}: the send doorbell record says {}, {} basic blocks after WQE {}, which is "
          "not complete; the ring has {}: WQE {} was overwritten",
          qpn(), rung_, posted, oldest, parameters_.sq_basic_blocks, oldest));
}

// No device hands out key 0: it is a segment that was never filled in.
void QueuePair::check_keys(const ScatterList& list, const char* which, std::uint16_t index) {
  std::size_t segment = 0;
  for (const ScatterEntry& entry : list.view()) {
    if (entry.lkey == 0 && !entry.in_ring && entry.length != 0) {
      return explain::say(Kind::Finding,
                          fmt::format("queue pair {:#x}, {} WQE {}: its data segment {} names memory key 0, "
                                      "which is never valid, for "
                                      "{} bytes at {:#x}",
                                      qpn(), which, index, segment, entry.length, entry.address));
    }
    ++segment;
  }
}

}  // namespace qpair::softnic::nic
