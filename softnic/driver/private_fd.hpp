#pragma once
// A descriptor that belongs to the emulated kernel, not to the program: the program sees neither its number
// nor should it be able to close it. hooks/ asks is_private_fd() where a program closes descriptors that it
// did not open (close_range, loops up to the limit) and answers EBADF for these. The register itself is
// wire's, whose sockets and files are private as well.

#include "softnic/wire/private_descriptors.hpp"

namespace qpair::softnic::driver {

class PrivateFd {
 public:
  PrivateFd() = default;
  // A duplicate of `fd`, with a number far above those that programs use. get() < 0: a negative errno.
  explicit PrivateFd(int fd);
  ~PrivateFd() { reset(); }
  PrivateFd(const PrivateFd&) = delete;
  PrivateFd& operator=(const PrivateFd&) = delete;

  int get() const { return fd_; }
  void reset();

 private:
  int fd_ = -1;
};

// Numbers from here on are not tracked.
inline constexpr int kPrivateFdLimit = wire::kPrivateDescriptorLimit;

// Lock-free.
bool is_private_fd(int fd);

}  // namespace qpair::softnic::driver
