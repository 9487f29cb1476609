#include "softnic/nic/own_receive_queue.hpp"

#include <fmt/format.h>

#include "qpair/mlx5/doorbell.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/queue_pair_detail.hpp"

namespace qpair::softnic::nic {

using explain::Kind;

bool OwnReceiveQueue::read_record(std::uint16_t& value) const {
  std::uint32_t raw = 0;
  if (!guarded_load32(reinterpret_cast<const void*>(parameters_.doorbell_record +
                                                    std::uint64_t{mlx5::kReceiveRecord} * sizeof raw),
                      raw)) {
    return false;
  }
  value = static_cast<std::uint16_t>(mlx5::byte_swap(raw));
  return true;
}

ReceiveQueue::Taken OwnReceiveQueue::take(roce::ReceiveRequest& out, std::string& why) {
  std::uint16_t posted = 0;
  if (!read_record(posted)) {
    why = fmt::format("its doorbell record at {:#x} is not mapped", parameters_.doorbell_record);
    return Taken::Broken;
  }
  const std::uint16_t available = ahead(posted, taken_);
  if (available == 0) return Taken::Nothing;
  if (available > parameters_.rq_wqe_count) {
    explain::say(
        Kind::Finding,
        fmt::format(
            "queue pair {:#x}: the receive doorbell record says {}, {} ahead of what was consumed; the ring "
            "has {} entries",
            qpn_, posted, available, parameters_.rq_wqe_count));
    why = "receive ring overrun";
    return Taken::Broken;
  }
  bool hit = false;
  ScatterList& list = decoded_.at(qpn_, DecodeCache::Queue::Receive, taken_, hit);
  if (const auto error = decode_receive(ring(), taken_, list)) {
    decoded_.forget(qpn_, DecodeCache::Queue::Receive, taken_);
    if (error->kind == DecodeError::Kind::Malformed) {
      explain::say(Kind::Finding,
                   fmt::format("queue pair {:#x}, receive WQE {}: {}", qpn_, taken_, error->reason));
    }
    why = error->reason;
    return Taken::Broken;
  }
  out.wqe_index = taken_++;
  out.length = list.length;
  return Taken::Yes;
}

const ScatterList* OwnReceiveQueue::list(std::uint16_t index, std::string& why) {
  bool hit = false;
  ScatterList& list = decoded_.at(qpn_, DecodeCache::Queue::Receive, index, hit);
  if (hit) return &list;
  const auto error = decode_receive(ring(), index, list);
  if (!error) return &list;
  decoded_.forget(qpn_, DecodeCache::Queue::Receive, index);
  why = error->reason;
  return nullptr;
}

void OwnReceiveQueue::flush(const std::function<void(std::uint16_t)>& each) {
  std::uint16_t record = 0;
  if (!read_record(record)) return;
  if (ahead(record, retired_) <= parameters_.rq_wqe_count) {
    for (; retired_ != record; ++retired_) each(retired_);
  }
  retired_ = taken_ = record;
}

}  // namespace qpair::softnic::nic
