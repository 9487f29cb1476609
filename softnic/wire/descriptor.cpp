#include "softnic/wire/descriptor.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "softnic/wire/private_descriptors.hpp"

// By raw system calls: the interposed libc refuses to close what is private.

namespace qpair::softnic::wire {

int make_private(int fd) {
  if (fd < 0) {
    return fd;
  }
  const auto high = static_cast<int>(::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, lowest_private_descriptor()));
  if (high >= 0) {
    ::syscall(SYS_close, fd);
    fd = high;
  }
  set_private_descriptor(fd);
  return fd;
}

void close_private(int fd) {
  if (fd >= 0) {
    unset_private_descriptor(fd);
    ::syscall(SYS_close, fd);
  }
}

Descriptor::Descriptor(int fd) : fd_(make_private(fd)), owner_(::getpid()) {}

Descriptor::~Descriptor() {
  if (owner_ == ::getpid()) {
    close_private(fd_);
  }
}

void Descriptor::abandon() {
  close_private(std::exchange(fd_, -1));
}

void Descriptor::forget() {
  unset_private_descriptor(fd_);
  fd_ = -1;
}

}  // namespace qpair::softnic::wire
