#pragma once
// A file descriptor of the emulated NIC inside somebody else's program: owned, and out of the program's way.

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace qpair::softnic::wire {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Gives the number up without closing it.
  int release() { return std::exchange(fd_, -1); }

  // To a number that programs, which close or replace low descriptors, hardly use. Stays where it is if there
  // is none.
  void move_up() {
    constexpr int kHigh = 900;
    const int high = ::fcntl(fd_, F_DUPFD_CLOEXEC, kHigh);
    if (high >= 0) {
      ::close(fd_);
      fd_ = high;
    }
  }

 private:
  int fd_ = -1;
};

}  // namespace qpair::softnic::wire
