#pragma once
// What a completion channel or an asynchronous event descriptor has to tell the program.
//
// The descriptor is a real eventfd in semaphore mode whose count is the length of the queue, so that poll,
// epoll, O_NONBLOCK and fcntl are the kernel's own. push() runs with the NIC's lock held: it never waits and
// never calls the Nic. Lock order: NIC, EventRouter, EventQueue.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "softnic/driver/private_fd.hpp"

namespace qpair::softnic::driver {

enum class EventKind { Completion, Async };

// How many events about one object the program has read: what destroying the object reports, so that
// libibverbs can wait for the acknowledgements (ibv_destroy_cq(3)). Guarded by the queue that the events went
// through.
struct EventCount {
  std::uint32_t read = 0;
};

struct Event {
  std::uint64_t element = 0;  // the program's own handle of the object, or the port number
  std::uint32_t type = 0;     // enum ibv_event_type; asynchronous events only
  std::shared_ptr<EventCount> count;
};

class EventQueue {
 public:
  // `program_fd`: the new descriptor, which the program owns, or a negative errno; the queue is null then.
  // `owner` tells apart the devices of a process and is never dereferenced.
  static std::shared_ptr<EventQueue> create(EventKind kind, const void* owner, int& program_fd);

  EventQueue(EventKind kind, const void* owner, int fd);

  EventKind kind() const { return kind_; }
  const void* owner() const { return owner_; }

  void push(Event event);
  // One struct ib_uverbs_comp_event_desc or ib_uverbs_async_event_desc; waits in the kernel, on the program's
  // descriptor.
  ssize_t read(int fd, void* bytes, std::size_t size);
  // Forgets the unread events about an object that is gone; says how many were read.
  std::uint32_t drop(const std::shared_ptr<EventCount>& count);
  // The device was closed: what is queued can still be read, then EIO (ib_uverbs_event_read()).
  void device_closed();
  // The last descriptor was closed: nobody will read.
  void descriptor_closed();

 private:
  enum class Popped { Event, Nothing, DeviceGone };
  Popped pop(Event& event);
  void take_tokens(std::size_t count);

  const EventKind kind_;
  const void* const owner_;
  std::mutex mutex_;
  std::deque<Event> events_;  // guarded by mutex_, as everything below
  PrivateFd signal_;
  bool device_closed_ = false;
  bool descriptor_closed_ = false;
};

}  // namespace qpair::softnic::driver
