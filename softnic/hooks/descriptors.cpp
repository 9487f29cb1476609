// Calls on open descriptors: those of the device and of its event files go to the driver.

#include <fcntl.h>
#include <linux/netlink.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdarg>
#include <cstdlib>

#include "softnic/driver/file.hpp"
#include "softnic/driver/file_calls.hpp"
#include "softnic/driver/private_fd.hpp"
#include "softnic/hooks/hook.hpp"

namespace qpair::softnic::hooks {
namespace {

using driver::FileTable;

QPAIR_NEXT Next<int(int, unsigned long, ...)> next_ioctl("ioctl");
QPAIR_NEXT Next<ssize_t(int, const void*, size_t)> next_write("write");
QPAIR_NEXT Next<ssize_t(int, const iovec*, int)> next_writev("writev");
QPAIR_NEXT Next<ssize_t(int, void*, size_t)> next_read("read");
QPAIR_NEXT Next<ssize_t(int, const iovec*, int)> next_readv("readv");
QPAIR_NEXT Next<void*(void*, size_t, int, int, int, off_t)> next_mmap("mmap");
QPAIR_NEXT Next<int(int, int, ...)> next_fcntl("fcntl");
QPAIR_NEXT Next<int(int)> next_dup("dup");
QPAIR_NEXT Next<int(int, int)> next_dup2("dup2");
QPAIR_NEXT Next<int(int, int, int)> next_dup3("dup3");
QPAIR_NEXT Next<int(int)> next_close("close");
QPAIR_NEXT Next<int(int, int, int)> next_socket("socket");

int close_range_by_system_call(unsigned first, unsigned last, int flags) {
  return static_cast<int>(syscall(SYS_close_range, first, last, flags));
}
void close_from_by_system_call(int first) {
  syscall(SYS_close_range, first < 0 ? 0 : first, ~0U, 0);
}
QPAIR_NEXT Next<int(unsigned, unsigned, int)> next_close_range("close_range", close_range_by_system_call);
QPAIR_NEXT Next<void(int)> next_closefrom("closefrom", close_from_by_system_call);

// A descriptor of the emulated kernel, which the program did not open and cannot know.
bool is_private(int fd) {
  return FileTable::in_use() && driver::is_private_fd(fd);
}

int bad_descriptor() {
  errno = EBADF;
  return -1;
}

// Everything in the range but the private descriptors.
int close_public(unsigned first, unsigned last) {
  for (unsigned fd = first; fd <= last && fd < unsigned{driver::kPrivateFdLimit}; ++fd) {
    if (!driver::is_private_fd(static_cast<int>(fd))) continue;
    if (fd > first) (*next_close_range)(first, fd - 1, 0);
    first = fd + 1;
  }
  return first <= last ? (*next_close_range)(first, last, 0) : 0;
}

// The kernel handles these before it asks the file (fs/ioctl.c, do_vfs_ioctl).
bool about_descriptor(unsigned long request) {
  return request == FIOCLEX || request == FIONCLEX || request == FIONBIO || request == FIOASYNC;
}

// Asks the driver, and libc if the descriptor is not the driver's.
template <typename Ours, typename Next>
auto ours_or_next(const Ours& ours, const Next& next) {
  if (FileTable::in_use()) {
    const driver::Outcome outcome = ours();
    if (outcome.ours) return static_cast<decltype(next())>(system_result(outcome.result));
  }
  return next();
}

// `to` is about to be closed by the kernel in favour of `from`.
void release_target(int from, int to) {
  if (FileTable::in_use() && from != to && (*next_fcntl)(from, F_GETFD) >= 0)
    FileTable::instance().remove(to);
}

int duplicated(int from, int to) {
  if (to >= 0 && FileTable::in_use()) FileTable::instance().duplicate(from, to);
  return to;
}

}  // namespace
}  // namespace qpair::softnic::hooks

using namespace qpair::softnic::hooks;
namespace driver = qpair::softnic::driver;

QPAIR_HOOK(int hooked_ioctl(int fd, unsigned long request, ...), "ioctl");
int hooked_ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  if (about_descriptor(request)) return (*next_ioctl)(fd, request, argument);
  return ours_or_next([&] { return driver::file_ioctl(fd, request, argument); },
                      [&] { return (*next_ioctl)(fd, request, argument); });
}

QPAIR_HOOK(ssize_t hooked_write(int fd, const void* bytes, size_t size), "write");
ssize_t hooked_write(int fd, const void* bytes, size_t size) {
  return ours_or_next([&] { return driver::file_write(fd, bytes, size); },
                      [&] { return (*next_write)(fd, bytes, size); });
}
QPAIR_HOOK_ALIAS(ssize_t hooked_write_internal(int, const void*, size_t), "__write", "write");

QPAIR_HOOK(ssize_t hooked_writev(int fd, const iovec* vectors, int count), "writev");
ssize_t hooked_writev(int fd, const iovec* vectors, int count) {
  return ours_or_next([&] { return driver::file_writev(fd, vectors, count); },
                      [&] { return (*next_writev)(fd, vectors, count); });
}

QPAIR_HOOK(ssize_t hooked_read(int fd, void* bytes, size_t size), "read");
ssize_t hooked_read(int fd, void* bytes, size_t size) {
  return ours_or_next([&] { return driver::file_read(fd, bytes, size); },
                      [&] { return (*next_read)(fd, bytes, size); });
}
QPAIR_HOOK_ALIAS(ssize_t hooked_read_internal(int, void*, size_t), "__read", "read");

QPAIR_HOOK(ssize_t hooked_read_chk(int fd, void* bytes, size_t size, size_t room), "__read_chk");
ssize_t hooked_read_chk(int fd, void* bytes, size_t size, size_t room) {
  if (size > room) abort();  // as glibc does
  return hooked_read(fd, bytes, size);
}

QPAIR_HOOK(ssize_t hooked_readv(int fd, const iovec* vectors, int count), "readv");
ssize_t hooked_readv(int fd, const iovec* vectors, int count) {
  return ours_or_next([&] { return driver::file_readv(fd, vectors, count); },
                      [&] { return (*next_readv)(fd, vectors, count); });
}

QPAIR_HOOK(void* hooked_mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset),
           "mmap");
void* hooked_mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  if ((flags & MAP_ANONYMOUS) != 0 || !FileTable::in_use()) {
    return (*next_mmap)(address, length, protection, flags, fd, offset);
  }
  const driver::Outcome allowed = driver::before_file_mmap(fd, length, protection, flags, offset);
  if (allowed.ours && allowed.result < 0) {
    errno = static_cast<int>(-allowed.result);
    return MAP_FAILED;
  }
  void* mapped = (*next_mmap)(address, length, protection, flags, fd, offset);
  if (allowed.ours && mapped != MAP_FAILED) driver::after_file_mmap(fd, mapped, length, offset);
  return mapped;
}
QPAIR_HOOK_ALIAS(void* hooked_mmap64(void*, size_t, int, int, int, off_t), "mmap64", "mmap");

QPAIR_HOOK(int hooked_fcntl(int fd, int command, ...), "fcntl");
int hooked_fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);  // an int or a pointer: either fits
  va_end(arguments);
  const int result = (*next_fcntl)(fd, command, argument);
  const bool duplicates = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
  return duplicates ? duplicated(fd, result) : result;
}
QPAIR_HOOK_ALIAS(int hooked_fcntl64(int, int, ...), "fcntl64", "fcntl");
QPAIR_HOOK_ALIAS(int hooked_fcntl_internal(int, int, ...), "__fcntl", "fcntl");

QPAIR_HOOK(int hooked_dup(int fd), "dup");
int hooked_dup(int fd) {
  return duplicated(fd, (*next_dup)(fd));
}

QPAIR_HOOK(int hooked_dup2(int from, int to), "dup2");
int hooked_dup2(int from, int to) {
  if (is_private(to)) return bad_descriptor();
  release_target(from, to);
  return duplicated(from, (*next_dup2)(from, to));
}
QPAIR_HOOK_ALIAS(int hooked_dup2_internal(int, int), "__dup2", "dup2");

QPAIR_HOOK(int hooked_dup3(int from, int to, int flags), "dup3");
int hooked_dup3(int from, int to, int flags) {
  if (is_private(to)) return bad_descriptor();
  release_target(from, to);
  return duplicated(from, (*next_dup3)(from, to, flags));
}

// The number is free for others as soon as the kernel has closed it, so our entry goes first.
QPAIR_HOOK(int hooked_close(int fd), "close");
int hooked_close(int fd) {
  if (FileTable::in_use()) {
    if (is_private(fd)) return bad_descriptor();
    const int saved_errno = errno;
    FileTable::instance().remove(fd);
    errno = saved_errno;
  }
  return (*next_close)(fd);
}
QPAIR_HOOK_ALIAS(int hooked_close_internal(int), "__close", "close");

QPAIR_HOOK(int hooked_close_range(unsigned first, unsigned last, int flags), "close_range");
int hooked_close_range(unsigned first, unsigned last, int flags) {
  if (!FileTable::in_use() || flags != 0 || first > last || first > INT_MAX) {
    return (*next_close_range)(first, last, flags);
  }
  FileTable::instance().remove_range(static_cast<int>(first),
                                     static_cast<int>(std::min<unsigned>(last, INT_MAX)));
  return close_public(first, last);
}

QPAIR_HOOK(void hooked_closefrom(int first), "closefrom");
void hooked_closefrom(int first) {
  if (!FileTable::in_use()) return (*next_closefrom)(first);
  FileTable::instance().remove_range(first, INT_MAX);
  close_public(first < 0 ? 0 : static_cast<unsigned>(first), ~0U);
}

// libibverbs and librdmacm ask the kernel's RDMA netlink first. It knows nothing of the emulated device;
// without it they look in sysfs (libibverbs/init.c, ibverbs_get_device_list).
QPAIR_HOOK(int hooked_socket(int domain, int type, int protocol), "socket");
int hooked_socket(int domain, int type, int protocol) {
  if (domain == AF_NETLINK && protocol == NETLINK_RDMA) {
    errno = EPROTONOSUPPORT;
    return -1;
  }
  return (*next_socket)(domain, type, protocol);
}
