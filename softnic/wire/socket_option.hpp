#pragma once
// setsockopt() of a value whose type says how long it is.

#include <sys/socket.h>

namespace qpair::softnic::wire {

// False: errno says why.
template <typename T>
bool set_option(int fd, int level, int name, const T& value) {
  return ::setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

}  // namespace qpair::softnic::wire
