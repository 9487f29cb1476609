#include "softnic/driver/event_queue.hpp"

#include <rdma/ib_user_verbs.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "softnic/driver/system.hpp"
#include "softnic/driver/user_memory.hpp"
#include "softnic/explain/explain.hpp"

namespace qpair::softnic::driver {
namespace {

// A program that arms and never reads must not eat the memory; a real kernel stops at what
// kmalloc(GFP_ATOMIC) gives.
constexpr std::size_t kMaxQueued = 1U << 16;

}  // namespace

EventQueue::EventQueue(EventKind kind, const void* owner, int fd) : kind_(kind), owner_(owner), signal_(fd) {}

std::shared_ptr<EventQueue> EventQueue::create(EventKind kind, const void* owner, int& program_fd) {
  program_fd = system::semaphore_eventfd();
  if (program_fd < 0) return nullptr;
  auto queue = std::make_shared<EventQueue>(kind, owner, program_fd);
  if (queue->signal_.get() < 0) {
    system::close(program_fd);
    program_fd = queue->signal_.get();
    return nullptr;
  }
  return queue;
}

void EventQueue::push(Event event) {
  const std::scoped_lock lock(mutex_);
  if (device_closed_ || descriptor_closed_) return;
  if (events_.size() >= kMaxQueued) {
    explain::say(explain::Kind::Finding,
                 "65536 events wait unread on one event descriptor; this one is lost.");
    return;
  }
  try {
    events_.push_back(std::move(event));
  } catch (const std::bad_alloc&) {
    return;  // lost, as on a kernel without memory
  }
  const std::uint64_t one = 1;
  system::write(signal_.get(), &one, sizeof one);  // below 2^64 - 1: does not block
}

EventQueue::Popped EventQueue::pop(Event& event) {
  const std::scoped_lock lock(mutex_);
  if (events_.empty()) return device_closed_ ? Popped::DeviceGone : Popped::Nothing;
  event = std::move(events_.front());
  events_.pop_front();
  if (event.count) ++event.count->read;
  return Popped::Event;
}

ssize_t EventQueue::read(int fd, void* bytes, std::size_t size) {
  const std::size_t needed =
      kind_ == EventKind::Async ? sizeof(ib_uverbs_async_event_desc) : sizeof(ib_uverbs_comp_event_desc);
  if (size < needed) return -EINVAL;
  for (;;) {
    std::uint64_t token = 0;
    const ssize_t waited = system::read(fd, &token, sizeof token);
    if (waited < 0) return waited;
    Event event;
    switch (pop(event)) {
      case Popped::Event:
        break;
      case Popped::Nothing:  // its object was destroyed between the token and here
        continue;
      case Popped::DeviceGone: {
        const std::scoped_lock lock(mutex_);
        const std::uint64_t one = 1;
        system::write(signal_.get(), &one, sizeof one);  // stays readable for whoever asks next
        return -EIO;
      }
    }
    const auto to = reinterpret_cast<std::uintptr_t>(bytes);
    if (kind_ == EventKind::Async) {
      const ib_uverbs_async_event_desc description{
          .element = event.element, .event_type = event.type, .reserved = 0};
      return copy_to_user(to, &description, sizeof description) ? static_cast<ssize_t>(needed) : -EFAULT;
    }
    const ib_uverbs_comp_event_desc description{.cq_handle = event.element};
    return copy_to_user(to, &description, sizeof description) ? static_cast<ssize_t>(needed) : -EFAULT;
  }
}

// Where the kernel cannot read without waiting the tokens stay: one poll() too many says "readable", no event
// is wrong.
void EventQueue::take_tokens(std::size_t count) {
  for (; count > 0; --count) {
    std::uint64_t token = 0;
    if (system::read_without_waiting(signal_.get(), &token, sizeof token) < 0) return;
  }
}

std::uint32_t EventQueue::drop(const std::shared_ptr<EventCount>& count) {
  const std::scoped_lock lock(mutex_);
  const auto kept = std::remove_if(events_.begin(), events_.end(),
                                   [&](const Event& event) { return event.count == count; });
  const auto dropped = static_cast<std::size_t>(events_.end() - kept);
  events_.erase(kept, events_.end());
  take_tokens(dropped);
  return count->read;
}

void EventQueue::device_closed() {
  const std::scoped_lock lock(mutex_);
  if (device_closed_) return;
  device_closed_ = true;
  const std::uint64_t one = 1;
  if (signal_.get() >= 0) system::write(signal_.get(), &one, sizeof one);
}

void EventQueue::descriptor_closed() {
  const std::scoped_lock lock(mutex_);
  descriptor_closed_ = true;
  events_.clear();
  signal_.reset();
}

}  // namespace qpair::softnic::driver
