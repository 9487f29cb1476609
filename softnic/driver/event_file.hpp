#pragma once
// The File behind a completion channel or an asynchronous event descriptor.

#include <memory>

#include "softnic/driver/event_queue.hpp"
#include "softnic/driver/file.hpp"

namespace qpair::softnic::driver {

class EventFile : public File {
 public:
  explicit EventFile(std::shared_ptr<EventQueue> queue);
  ~EventFile() override;

  ssize_t read(int fd, void* bytes, std::size_t size) override;

  const std::shared_ptr<EventQueue>& queue() const { return queue_; }

 private:
  std::shared_ptr<EventQueue> queue_;
  const unsigned generation_;
};

// A new descriptor of the program's, entered in the FileTable, and its queue. Null: `fd` is a negative errno.
std::shared_ptr<EventQueue> open_event_file(EventKind kind, const void* owner, int& fd);
// Takes back what open_event_file() gave, when the command that made it fails.
void close_event_file(int fd);
// The queue behind the program's `fd`: null when that is no event descriptor of this kind and owner (the
// kernel: EBADF).
std::shared_ptr<EventQueue> find_event_queue(EventKind kind, const void* owner, std::int64_t fd);

}  // namespace qpair::softnic::driver
