#pragma once
// One link out of three: packets to our own address stay in the process, packets to other NICs of this user
// on this host go through shared memory where that can be had, everything else goes to the network.

#include <memory>
#include <vector>

#include "softnic/wire/link.hpp"
#include "softnic/wire/shared_memory_link.hpp"

namespace qpair::softnic::wire {

class RoutingLink final : public Link {
 public:
  // All have the same local address. `host` may be null.
  RoutingLink(std::unique_ptr<Link> loopback, std::unique_ptr<SharedMemoryLink> host,
              std::unique_ptr<Link> network)
      : loopback_(std::move(loopback)), host_(std::move(host)), network_(std::move(network)) {
    links_ = {network_.get(), loopback_.get()};
    if (host_ != nullptr) links_.push_back(host_.get());
  }

  Endpoint local() const override { return network_->local(); }
  std::span<std::byte> reserve(const Endpoint& destination, std::size_t size) override;
  void commit() override { open_->commit(); }
  void flush() override;
  std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint now) override;
  bool ready() const override {
    return loopback_->ready() || network_->ready() || (host_ != nullptr && host_->ready());
  }
  int descriptor() const override { return network_->descriptor(); }
  int second_descriptor() const override { return host_ != nullptr ? host_->descriptor() : -1; }
  bool has_room(const Endpoint& destination, std::size_t size) override;
  bool is_full(const Endpoint& destination, std::size_t size) override {
    return way_to(destination).is_full(destination, size);
  }
  bool sleeps() override { return host_ == nullptr || host_->sleeps(); }
  void wakes() override {
    if (host_ != nullptr) host_->wakes();
  }
  std::optional<Endpoint> departed() override { return host_ != nullptr ? host_->departed() : std::nullopt; }
  void has_queue_pairs(bool any) override {
    if (host_ != nullptr) host_->has_queue_pairs(any);
  }
  std::optional<TimePoint> deadline() const override { return network_->deadline(); }
  int join(const Endpoint& group) override { return network_->join(group); }
  void leave(const Endpoint& group) override { network_->leave(group); }
  void abandon() override;

 private:
  Link& way_to(const Endpoint& destination);
  bool network_is_quiet(TimePoint now);

  std::unique_ptr<Link> loopback_;
  std::unique_ptr<SharedMemoryLink> host_;
  std::unique_ptr<Link> network_;
  Link* open_ = loopback_.get();  // where the open reservation is
  std::vector<Link*> links_;      // those that there are, in turns
  std::size_t turn_ = 0;
  bool sent_ = false;  // to the network, since it was last polled
  TimePoint network_used_{};
  TimePoint network_polled_{};
};

}  // namespace qpair::softnic::wire
