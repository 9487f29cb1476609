#pragma once
// A file descriptor of the emulated NIC inside somebody else's program: owned, known as private, and out of
// the program's way.

#include <sys/types.h>

#include <utility>

namespace qpair::softnic::wire {

// The same for those who keep the number themselves: returns the private one, or what it was given when that
// is negative or there is no other.
int make_private(int fd);
void close_private(int fd);

class Descriptor {
 public:
  Descriptor() = default;
  // Takes `fd` over and moves it to a high number, which programs that close or replace low ones hardly meet.
  explicit Descriptor(int fd);
  Descriptor(Descriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), owner_(std::exchange(other.owner_, 0)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  // Closes it, except in a child of fork(): there the number may have become somebody else's meanwhile.
  ~Descriptor();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Gives the number up without closing it.
  void forget();
  // Closes it also in a child of fork(), which owns a copy for as long as it has opened nothing else.
  void abandon();

 private:
  int fd_ = -1;
  pid_t owner_ = 0;
};

}  // namespace qpair::softnic::wire
