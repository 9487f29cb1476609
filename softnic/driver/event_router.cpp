#include "softnic/driver/event_router.hpp"

namespace qpair::softnic::driver {
namespace {

using Routes = std::unordered_map<std::uint32_t, EventRoute>;

template <typename Number>
std::uint32_t key(Number number) {
  return static_cast<std::uint32_t>(number);
}

void push_async(const Routes& routes, std::uint32_t number, ibv_event_type event) {
  const auto found = routes.find(number);
  if (found == routes.end() || !found->second.async) return;
  const EventRoute& route = found->second;
  route.async->push(
      {.element = route.user_handle, .type = static_cast<std::uint32_t>(event), .count = route.async_read});
}

EventRouter::Reported take(Routes& routes, std::uint32_t number) {
  EventRouter::Reported reported;
  const auto found = routes.find(number);
  if (found == routes.end()) return reported;
  const EventRoute& route = found->second;
  if (route.completions) reported.completions = route.completions->drop(route.completions_read);
  if (route.async) reported.async = route.async->drop(route.async_read);
  routes.erase(found);
  return reported;
}

}  // namespace

void EventRouter::completion(nic::Cqn cq) {
  const std::scoped_lock lock(mutex_);
  const auto found = cqs_.find(key(cq));
  if (found == cqs_.end() || !found->second.completions) return;
  const EventRoute& route = found->second;
  route.completions->push({.element = route.user_handle, .type = 0, .count = route.completions_read});
}

void EventRouter::cq_event(nic::Cqn cq, ibv_event_type event) {
  const std::scoped_lock lock(mutex_);
  push_async(cqs_, key(cq), event);
}

void EventRouter::qp_event(nic::Qpn qp, ibv_event_type event) {
  const std::scoped_lock lock(mutex_);
  push_async(qps_, key(qp), event);
}

void EventRouter::add(nic::Cqn cq, EventRoute route) {
  const std::scoped_lock lock(mutex_);
  cqs_.insert_or_assign(key(cq), std::move(route));
}

void EventRouter::add(nic::Qpn qp, EventRoute route) {
  const std::scoped_lock lock(mutex_);
  qps_.insert_or_assign(key(qp), std::move(route));
}

EventRouter::Reported EventRouter::remove(nic::Cqn cq) {
  const std::scoped_lock lock(mutex_);
  return take(cqs_, key(cq));
}

EventRouter::Reported EventRouter::remove(nic::Qpn qp) {
  const std::scoped_lock lock(mutex_);
  return take(qps_, key(qp));
}

}  // namespace qpair::softnic::driver
