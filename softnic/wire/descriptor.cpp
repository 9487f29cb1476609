#include "softnic/wire/descriptor.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "softnic/wire/private_descriptors.hpp"

// By raw system calls: the interposed libc refuses to close what is private.

namespace qpair::softnic::wire {

Descriptor::Descriptor(int fd) : fd_(fd), owner_(::getpid()) {
  if (fd < 0) {
    return;
  }
  const auto high = static_cast<int>(::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, lowest_private_descriptor()));
  if (high >= 0) {
    ::syscall(SYS_close, fd);
    fd_ = high;
  }
  set_private_descriptor(fd_);
}

Descriptor::~Descriptor() {
  if (fd_ >= 0 && owner_ == ::getpid()) {
    unset_private_descriptor(fd_);
    ::syscall(SYS_close, fd_);
  }
}

void Descriptor::forget() {
  unset_private_descriptor(fd_);
  fd_ = -1;
}

}  // namespace qpair::softnic::wire
