#include "softnic/wire/routing_link.hpp"

#include <chrono>
#include <utility>

namespace qpair::softnic::wire {
namespace {

// Asking a socket is a system call, which is most of what a round costs in which nothing came. Where the
// network was not used lately it is asked less often.
constexpr std::chrono::microseconds kQuietAfter{200};
constexpr std::chrono::microseconds kQuietInterval{20};

}  // namespace

Link& RoutingLink::way_to(const Endpoint& destination) {
  if (destination.address == network_->local().address) return *loopback_;
  if (host_ != nullptr && host_->reaches(destination)) return *host_;
  return *network_;
}

std::span<std::byte> RoutingLink::reserve(const Endpoint& destination, std::size_t size) {
  open_ = &way_to(destination);
  sent_ |= open_ == network_.get();
  return open_->reserve(destination, size);
}

bool RoutingLink::has_room(const Endpoint& destination, std::size_t size) {
  return way_to(destination).has_room(destination, size);
}

void RoutingLink::flush() {
  loopback_->flush();
  if (host_ != nullptr) host_->flush();
  network_->flush();
}

bool RoutingLink::network_is_quiet(TimePoint now) {
  if (std::exchange(sent_, false)) network_used_ = now;
  if (host_ == nullptr || now < network_used_ + kQuietAfter) return false;
  if (network_->deadline().value_or(TimePoint::max()) <= now) return false;
  return now < network_polled_ + kQuietInterval && !network_->ready();
}

std::size_t RoutingLink::poll(const Receiver& receiver, std::size_t limit, TimePoint now) {
  // Turn about, so that none starves the others.
  std::size_t delivered = 0;
  for (std::size_t i = 0; i < links_.size() && delivered < limit; ++i) {
    Link* const link = links_[(turn_ + i) % links_.size()];
    if (link == network_.get() && network_is_quiet(now)) continue;
    const std::size_t count = link->poll(receiver, limit - delivered, now);
    delivered += count;
    if (link != network_.get()) continue;
    network_polled_ = now;
    if (count != 0) network_used_ = now;
  }
  turn_ = (turn_ + 1) % links_.size();
  return delivered;
}

void RoutingLink::abandon() {
  if (host_ != nullptr) host_->abandon();
  network_->abandon();
}

}  // namespace qpair::softnic::wire
