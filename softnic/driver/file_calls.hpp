#pragma once
// The system calls that hooks/ makes on descriptors of the emulated kernel: finds the File and calls it.
//
// Everything here may be called for any descriptor. Hooks ask FileTable::in_use() first, which costs nothing.

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <string>

namespace qpair::softnic::driver {

struct Outcome {
  bool ours = false;   // otherwise the descriptor is the program's own business
  ssize_t result = 0;  // as of the system call: negative errno for failure
};

Outcome file_ioctl(int fd, unsigned long request, void* argument);
Outcome file_write(int fd, const void* bytes, std::size_t size);
Outcome file_writev(int fd, const iovec* vectors, int count);
Outcome file_read(int fd, void* bytes, std::size_t size);
Outcome file_readv(int fd, const iovec* vectors, int count);

// Around the real mmap(). Result 0: go on.
Outcome before_file_mmap(int fd, std::size_t length, int protection, int flags, off_t offset);
void after_file_mmap(int fd, void* address, std::size_t length, off_t offset);

dev_t file_device_number(int fd);  // 0: it is no device of ours

// Opens the device as open() with `flags` does. A descriptor, or a negative errno.
int open_device_file(int flags);
// The same for /dev/infiniband/rdma_cm. `scratch`: the process's scratch directory.
int open_cm_file(int flags, const std::string& scratch);
// From now on reading from `fd` is EINVAL, as of a sysfs attribute that the kernel refuses to show.
void make_unreadable(int fd);

}  // namespace qpair::softnic::driver
