#pragma once
// One link out of two: packets to our own address stay in memory, everything else goes to the network.

#include <memory>

#include "softnic/wire/link.hpp"

namespace qpair::softnic::wire {

class RoutingLink final : public Link {
 public:
  // Both have the same local address.
  RoutingLink(std::unique_ptr<Link> loopback, std::unique_ptr<Link> network)
      : loopback_(std::move(loopback)), network_(std::move(network)) {}

  Endpoint local() const override { return network_->local(); }
  std::span<std::byte> reserve(const Endpoint& destination, std::size_t size) override;
  void commit() override { open_->commit(); }
  void flush() override;
  std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint now) override;
  bool ready() const override { return loopback_->ready() || network_->ready(); }
  int descriptor() const override { return network_->descriptor(); }
  std::optional<TimePoint> deadline() const override { return network_->deadline(); }
  void abandon() override { network_->abandon(); }

 private:
  std::unique_ptr<Link> loopback_;
  std::unique_ptr<Link> network_;
  Link* open_ = loopback_.get();  // where the open reservation is
  bool network_first_ = false;
};

}  // namespace qpair::softnic::wire
