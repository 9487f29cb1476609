#include "softnic/driver/private_fd.hpp"

#include "softnic/driver/system.hpp"
#include "softnic/wire/private_descriptors.hpp"

namespace qpair::softnic::driver {

PrivateFd::PrivateFd(int fd) {
  fd_ = system::duplicate_above(fd, wire::lowest_private_descriptor());
  if (fd_ < 0) fd_ = system::duplicate_above(fd, 3);
  wire::set_private_descriptor(fd_);
}

void PrivateFd::reset() {
  if (fd_ < 0) return;
  wire::unset_private_descriptor(fd_);
  system::close(fd_);
  fd_ = -1;
}

bool is_private_fd(int fd) {
  return wire::is_private_descriptor(fd);
}

}  // namespace qpair::softnic::driver
