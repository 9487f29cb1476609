#pragma once
// The requests that are outstanding, oldest first: a ring that doubles on demand up to a fixed bound.
// Positions count up for ever, so that a position stays valid while its entry is in the ring.

#include <cstdint>
#include <memory>
#include <utility>

#include "softnic/roce/host.hpp"
#include "softnic/roce/psn.hpp"
#include "softnic/roce/tunables.hpp"

namespace qpair::softnic::roce {

struct Outstanding {
  SendRequest request;
  Psn first;
  std::uint32_t packets = 0;  // PSNs that it takes: of request packets, or of read responses
  std::uint32_t chunk = 0;    // reads: packets asked for by one READ request; 0 before the first one was sent

  Psn end() const { return first + packets; }
  bool is_read() const { return request.operation == Operation::Read; }
  bool is_atomic() const {
    return request.operation == Operation::CompareSwap || request.operation == Operation::FetchAdd;
  }
  bool awaits_data() const { return is_read() || is_atomic(); }
};
static_assert(sizeof(Outstanding) <= 64);

class RequestRing {
 public:
  bool empty() const { return head_ == tail_; }
  bool full() const { return tail_ - head_ == kMaxOutstandingRequests; }
  std::uint64_t head() const { return head_; }
  std::uint64_t tail() const { return tail_; }
  Outstanding& front() { return at(head_); }
  const Outstanding& front() const { return at(head_); }
  Outstanding& at(std::uint64_t position) { return entries_[position & (capacity_ - 1)]; }
  const Outstanding& at(std::uint64_t position) const { return entries_[position & (capacity_ - 1)]; }

  // Must not be full.
  Outstanding& push() {
    if (tail_ - head_ == capacity_) grow();
    return at(tail_++) = Outstanding{};
  }
  void pop() { ++head_; }
  void clear() { head_ = tail_; }

 private:
  void grow() {
    const std::uint32_t larger = capacity_ == 0 ? kFirstOutstandingRequests : capacity_ * 2;
    auto entries = std::make_unique<Outstanding[]>(larger);
    for (std::uint64_t i = head_; i != tail_; ++i) entries[i & (larger - 1)] = at(i);
    entries_ = std::move(entries);
    capacity_ = larger;
  }

  std::unique_ptr<Outstanding[]> entries_;
  std::uint32_t capacity_ = 0;
  std::uint64_t head_ = 0, tail_ = 0;
};
static_assert((kFirstOutstandingRequests & (kFirstOutstandingRequests - 1)) == 0);
static_assert(kMaxOutstandingRequests % kFirstOutstandingRequests == 0);

}  // namespace qpair::softnic::roce
