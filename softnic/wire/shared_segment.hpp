#pragma once
// Memory that NICs of different processes share: a memfd, mapped. Its size is sealed, so that a mapping never
// loses its pages, whatever the other process does.

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "softnic/wire/descriptor.hpp"

namespace qpair::softnic::wire {

class SharedSegment {
 public:
  enum class Rights : bool { Read, ReadWrite };

  SharedSegment() = default;
  // Zeros, resident only where they were touched. Empty when the kernel refuses.
  static std::optional<SharedSegment> create(const char* name, std::size_t size);
  // What another process made. Empty unless its size is sealed and is `size`.
  static std::optional<SharedSegment> map(int fd, std::size_t size, Rights rights);

  SharedSegment(SharedSegment&& other) noexcept
      : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}
  SharedSegment& operator=(SharedSegment&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedSegment();

  std::span<std::byte> bytes() const { return bytes_; }
  // For the process that is to map it; -1 where it came from another one.
  int descriptor() const { return fd_.get(); }
  void close_descriptor() { fd_ = Descriptor(); }
  // In a child of fork().
  void abandon() { fd_.abandon(); }

 private:
  Descriptor fd_;
  std::span<std::byte> bytes_;
};

}  // namespace qpair::softnic::wire
