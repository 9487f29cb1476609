#include "softnic/wire/routing_link.hpp"

namespace qpair::softnic::wire {

std::span<std::byte> RoutingLink::reserve(const Endpoint& destination, std::size_t size) {
  open_ = destination.address == network_->local().address ? loopback_.get() : network_.get();
  return open_->reserve(destination, size);
}

void RoutingLink::flush() {
  loopback_->flush();
  network_->flush();
}

std::size_t RoutingLink::poll(const Receiver& receiver, std::size_t limit, TimePoint now) {
  // Turn about, so that neither starves the other.
  network_first_ = !network_first_;
  Link& first = network_first_ ? *network_ : *loopback_;
  Link& second = network_first_ ? *loopback_ : *network_;
  const std::size_t delivered = first.poll(receiver, limit, now);
  return delivered < limit ? delivered + second.poll(receiver, limit - delivered, now) : delivered;
}

}  // namespace qpair::softnic::wire
