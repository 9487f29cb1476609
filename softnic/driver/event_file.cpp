#include "softnic/driver/event_file.hpp"

#include <cerrno>
#include <limits>

#include "softnic/driver/runtime.hpp"
#include "softnic/driver/system.hpp"
#include "softnic/driver/user_memory.hpp"

namespace qpair::softnic::driver {

EventFile::EventFile(std::shared_ptr<EventQueue> queue)
    : queue_(std::move(queue)), generation_(fork_generation()) {}

EventFile::~EventFile() {
  // In a child of fork() the queue's lock may be one that a thread of the parent's held.
  if (generation_ == fork_generation()) queue_->descriptor_closed();
}

ssize_t EventFile::read(int fd, void* bytes, std::size_t size) {
  if (generation_ != fork_generation()) return -EIO;
  const UserAccess access;
  return queue_->read(fd, bytes, size);
}

std::shared_ptr<EventQueue> open_event_file(EventKind kind, const void* owner, int& fd) {
  auto queue = EventQueue::create(kind, owner, fd);
  if (queue) FileTable::instance().install(fd, std::make_shared<EventFile>(queue));
  return queue;
}

void close_event_file(int fd) {
  FileTable::instance().remove(fd);
  system::close(fd);
}

std::shared_ptr<EventQueue> find_event_queue(EventKind kind, const void* owner, std::int64_t fd) {
  if (fd < 0 || fd > std::numeric_limits<int>::max()) return nullptr;
  const auto file = std::dynamic_pointer_cast<EventFile>(FileTable::instance().find(static_cast<int>(fd)));
  if (!file || file->queue()->kind() != kind || file->queue()->owner() != owner) return nullptr;
  return file->queue();
}

}  // namespace qpair::softnic::driver
