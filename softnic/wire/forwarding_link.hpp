#pragma once
// A link in front of another, which passes everything on: for links that look at the packets on their way, or
// do something to them.

#include <memory>
#include <utility>

#include "softnic/wire/link.hpp"

namespace qpair::softnic::wire {

class ForwardingLink : public Link {
 public:
  explicit ForwardingLink(std::unique_ptr<Link> inner) : inner_(std::move(inner)) {}

  Endpoint local() const override { return inner_->local(); }
  std::span<std::byte> reserve(const Endpoint& destination, std::size_t size) override {
    return inner_->reserve(destination, size);
  }
  void commit() override { inner_->commit(); }
  bool has_room(const Endpoint& destination, std::size_t size) override {
    return inner_->has_room(destination, size);
  }
  bool is_full(const Endpoint& destination, std::size_t size) override {
    return inner_->is_full(destination, size);
  }
  void flush() override { inner_->flush(); }
  std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint now) override {
    return inner_->poll(receiver, limit, now);
  }
  bool ready() const override { return inner_->ready(); }
  int descriptor() const override { return inner_->descriptor(); }
  int second_descriptor() const override { return inner_->second_descriptor(); }
  std::optional<TimePoint> deadline() const override { return inner_->deadline(); }
  bool sleeps() override { return inner_->sleeps(); }
  void wakes() override { inner_->wakes(); }
  std::optional<Endpoint> departed() override { return inner_->departed(); }
  void has_queue_pairs(bool any) override { inner_->has_queue_pairs(any); }
  int join(const Endpoint& group) override { return inner_->join(group); }
  void leave(const Endpoint& group) override { inner_->leave(group); }
  void abandon() override { inner_->abandon(); }

 protected:
  const std::unique_ptr<Link> inner_;
};

}  // namespace qpair::softnic::wire
