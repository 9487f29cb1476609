#include "softnic/nic/shared_receive_queue.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "qpair/mlx5/endian.hpp"
#include "qpair/mlx5/wqe.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/queue_pair_detail.hpp"

namespace qpair::softnic::nic {

using explain::Kind;

SharedReceiveQueue::SharedReceiveQueue(Srqn number, const SrqParameters& parameters, CompletionQueue* cq,
                                       DecodeCache& decoded)
    : number_(number), parameters_(parameters), cq_(cq), decoded_(decoded), busy_(parameters.wqe_count) {
  if (cq_ != nullptr) ++cq_->users;
}

SharedReceiveQueue::~SharedReceiveQueue() {
  if (cq_ != nullptr) --cq_->users;
}

std::optional<ReceiveQueue::Completes> SharedReceiveQueue::completes() const {
  if (!parameters_.xrc || cq_ == nullptr) return std::nullopt;
  return Completes{.on = cq_, .index = parameters_.xrc->user_index.value_or(srqn())};
}

bool SharedReceiveQueue::read_record(std::uint16_t& value) const {
  std::uint32_t raw = 0;
  if (!guarded_load32(reinterpret_cast<const void*>(parameters_.doorbell_record), raw)) return false;
  value = static_cast<std::uint16_t>(mlx5::byte_swap(raw));
  return true;
}

bool SharedReceiveQueue::read_link(std::uint16_t index, std::uint16_t& next) const {
  mlx5::SharedReceiveLink link;
  const std::uint64_t at = parameters_.buffer + (std::uint64_t{index} << parameters_.wqe_shift);
  if (!guarded_copy(&link, reinterpret_cast<const void*>(at), sizeof link)) return false;
  next = link.next_wqe_index;
  return true;
}

void SharedReceiveQueue::arm(std::uint32_t limit) {
  limit_ = limit;
  std::uint16_t posted = 0;
  if (!broken_ && read_record(posted)) check_limit(ahead(posted, taken_));
}

void SharedReceiveQueue::check_limit(std::uint32_t left) {
  if (left >= limit_) return;
  limit_ = 0;
  parameters_.sink->srq_event(number_, IBV_EVENT_SRQ_LIMIT_REACHED);
}

void SharedReceiveQueue::fail(const std::string& reason) {
  if (broken_) return;
  broken_ = true;
  explain::say(Kind::Failure, fmt::format("shared receive queue {:#x} is in error: {}", srqn(), reason));
  parameters_.sink->srq_event(number_, IBV_EVENT_SRQ_ERR);
}

void SharedReceiveQueue::violated(const std::string& how) {
  explain::say(Kind::Finding, fmt::format("shared receive queue {:#x}: {}", srqn(), how));
  fail("its list of WQEs is broken");
}

// Whether the list still makes sense at its head.
bool SharedReceiveQueue::check(std::uint16_t posted, std::uint16_t available) {
  if (available > parameters_.wqe_count) {
    violated(
        fmt::format("its doorbell record says {}, {} ahead of what was consumed; the ring has {} entries",
                    posted, available, parameters_.wqe_count));
  } else if (head_ >= parameters_.wqe_count) {
    violated(fmt::format("a WQE names {} as the next one; the ring has entries 0 to {}", head_,
                         parameters_.wqe_count - 1));
  } else if (busy_[head_]) {
    violated(
        fmt::format("the list leads to WQE {}, which a queue pair has taken and not completed: it was "
                    "linked in twice, or the list is a circle shorter than the {} WQEs that were posted",
                    head_, available));
  }
  return !broken_;
}

ReceiveQueue::Taken SharedReceiveQueue::take(roce::ReceiveRequest& out, std::string& why) {
  const Taken taken = take_next(out);
  if (taken == Taken::Broken) why = fmt::format("its shared receive queue {:#x} is in error", srqn());
  return taken;
}

ReceiveQueue::Taken SharedReceiveQueue::take_next(roce::ReceiveRequest& out) {
  if (broken_) return Taken::Broken;
  std::uint16_t posted = 0;
  if (!read_record(posted)) {
    fail(fmt::format("its doorbell record at {:#x} is not mapped", parameters_.doorbell_record));
    return Taken::Broken;
  }
  const std::uint16_t available = ahead(posted, taken_);
  if (available == 0) return Taken::Nothing;
  if (!check(posted, available)) return Taken::Broken;
  const std::uint16_t index = head_;
  bool hit = false;
  ScatterList& list = decoded_.at(srqn(), DecodeCache::Queue::SharedReceive, index, hit);
  const auto error = decode_receive(ring(), index, list);
  std::uint16_t next = 0;
  if (error || !read_link(index, next)) {
    decoded_.forget(srqn(), DecodeCache::Queue::SharedReceive, index);
    if (error && error->kind == DecodeError::Kind::Malformed) {
      violated(fmt::format("WQE {}: {}", index, error->reason));
    } else {
      fail("its ring is not mapped");
    }
    return Taken::Broken;
  }
  head_ = next;
  ++taken_;
  busy_[index] = true;
  out.wqe_index = index;
  out.length = list.length;
  check_limit(available - 1U);
  return Taken::Yes;
}

const ScatterList* SharedReceiveQueue::list(std::uint16_t index, std::string& why) {
  bool hit = false;
  ScatterList& list = decoded_.at(srqn(), DecodeCache::Queue::SharedReceive, index, hit);
  if (hit) return &list;
  const auto error = decode_receive(ring(), index, list);
  if (!error) return &list;
  decoded_.forget(srqn(), DecodeCache::Queue::SharedReceive, index);
  why = error->reason;
  return nullptr;
}

void SharedReceiveQueue::retire(std::uint16_t index) {
  busy_[index] = false;
}

}  // namespace qpair::softnic::nic
