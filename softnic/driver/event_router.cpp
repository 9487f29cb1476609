#include "softnic/driver/event_router.hpp"

namespace qpair::softnic::driver {
namespace {

using Routes = std::unordered_map<std::uint32_t, EventRoute>;
using SharedRoutes = std::unordered_multimap<std::uint32_t, EventRoute>;

template <typename Number>
std::uint32_t key(Number number) {
  return static_cast<std::uint32_t>(number);
}

void push_async(const EventRoute& route, ibv_event_type event) {
  if (!route.async) return;
  route.async->push(
      {.element = route.user_handle, .type = static_cast<std::uint32_t>(event), .count = route.async_read});
}

template <typename Table>
void push_async(const Table& routes, std::uint32_t number, ibv_event_type event) {
  for (auto [at, end] = routes.equal_range(number); at != end; ++at) push_async(at->second, event);
}

EventRouter::Reported unread_gone(const EventRoute& route) {
  EventRouter::Reported reported;
  if (route.completions) reported.completions = route.completions->drop(route.completions_read);
  if (route.async) reported.async = route.async->drop(route.async_read);
  return reported;
}

EventRouter::Reported take(Routes& routes, std::uint32_t number) {
  const auto found = routes.find(number);
  if (found == routes.end()) return {};
  const EventRouter::Reported reported = unread_gone(found->second);
  routes.erase(found);
  return reported;
}

EventRouter::Reported take(SharedRoutes& routes, std::uint32_t number, std::uint64_t user_handle) {
  for (auto [at, end] = routes.equal_range(number); at != end; ++at) {
    if (at->second.user_handle != user_handle) continue;
    const EventRouter::Reported reported = unread_gone(at->second);
    routes.erase(at);
    return reported;
  }
  return {};
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

void EventRouter::srq_event(nic::Srqn srq, ibv_event_type event) {
  const std::scoped_lock lock(mutex_);
  push_async(srqs_, key(srq), event);
}

void EventRouter::add(nic::Cqn cq, EventRoute route) {
  const std::scoped_lock lock(mutex_);
  cqs_.insert_or_assign(key(cq), std::move(route));
}

void EventRouter::add(nic::Qpn qp, EventRoute route) {
  const std::scoped_lock lock(mutex_);
  qps_.emplace(key(qp), std::move(route));
}

void EventRouter::add(nic::Srqn srq, EventRoute route) {
  const std::scoped_lock lock(mutex_);
  srqs_.insert_or_assign(key(srq), std::move(route));
}

EventRouter::Reported EventRouter::remove(nic::Cqn cq) {
  const std::scoped_lock lock(mutex_);
  return take(cqs_, key(cq));
}

EventRouter::Reported EventRouter::remove(nic::Qpn qp, std::uint64_t user_handle) {
  const std::scoped_lock lock(mutex_);
  return take(qps_, key(qp), user_handle);
}

EventRouter::Reported EventRouter::remove(nic::Srqn srq) {
  const std::scoped_lock lock(mutex_);
  return take(srqs_, key(srq));
}

}  // namespace qpair::softnic::driver
