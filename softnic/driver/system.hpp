#pragma once
// System calls that the driver makes on its own behalf. They go to the kernel directly: the library's own
// libc symbols are interposed by hooks/, and a driver that met itself there would wait for its own locks.
// Results are as the kernel's: a negative errno for failure.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace qpair::softnic::driver::system {

inline constexpr std::size_t kPageSize =
    4096;  // of the device's doorbell pages, and of this x86-64 or Arm machine

int close(int fd);
// May wait, and be cancelled then, as libc's read().
ssize_t read(int fd, void* bytes, std::size_t size);
ssize_t write(int fd, const void* bytes, std::size_t size);
// Does not wait, whatever the descriptor's O_NONBLOCK says: -EAGAIN. -EOPNOTSUPP where the kernel cannot.
ssize_t read_without_waiting(int fd, void* bytes, std::size_t size);
// New descriptors are none of the standard ones.
int memory_file(const char* name);  // sealable, close-on-exec
int resize_file(int fd, off_t size);
int seal_file(int fd, int seals);
int semaphore_eventfd();                                                        // close-on-exec
int duplicate_above(int fd, int lowest);                                        // close-on-exec
long map(std::size_t length, int protection, int flags, int fd, off_t offset);  // address or negative errno
int unmap(void* address, std::size_t length);
int not_in_children(void* address, std::size_t length);  // MADV_DONTFORK
// 0 when every page of the range lies in some mapping, else -ENOMEM. Touches nothing (mincore(2)).
int is_mapped(const void* address, std::size_t length);
// Which file is open as `fd`: its device and inode. 0, or a negative errno.
int identify(int fd, std::uint64_t& device, std::uint64_t& inode);
// The name of what is open as `fd`, as /proc/self/fd shows it; empty when it is not open. No allocation.
std::size_t descriptor_name(int fd, char* name, std::size_t size);

}  // namespace qpair::softnic::driver::system
