#include "softnic/driver/system.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>

namespace qpair::softnic::driver::system {
namespace {

template <typename... Arguments>
long call(long number, Arguments... arguments) {
  const int saved = errno;
  const long result = ::syscall(number, arguments...);
  const long value = result == -1 ? -static_cast<long>(errno) : result;
  errno = saved;  // a successful call of the program's must leave errno alone
  return value;
}

}  // namespace

int close(int fd) {
  return static_cast<int>(call(SYS_close, fd));
}

ssize_t read(int fd, void* bytes, std::size_t size) {
  const iovec vector{.iov_base = bytes, .iov_len = size};
  // As libc has it, and without a hook of ours: from the file's own position.
  const ssize_t got = ::preadv2(fd, &vector, 1, -1, 0);
  return got < 0 ? -errno : got;
}

ssize_t write(int fd, const void* bytes, std::size_t size) {
  return call(SYS_write, fd, bytes, size);
}

ssize_t read_without_waiting(int fd, void* bytes, std::size_t size) {
  const iovec vector{.iov_base = bytes, .iov_len = size};
  // Offset -1: the file's own position (preadv2(2)); its two halves are separate arguments.
  return call(SYS_preadv2, fd, &vector, 1L, -1L, -1L, static_cast<long>(RWF_NOWAIT));
}

namespace {

// A program that has closed its standard error has not asked for a device that receives what is written
// there.
int not_standard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int higher = duplicate_above(fd, STDERR_FILENO + 1);
  close(fd);
  return higher;
}

}  // namespace

int memory_file(const char* name) {
  return not_standard(
      static_cast<int>(call(SYS_memfd_create, name, static_cast<unsigned>(MFD_CLOEXEC | MFD_ALLOW_SEALING))));
}

int resize_file(int fd, off_t size) {
  return static_cast<int>(call(SYS_ftruncate, fd, size));
}

int seal_file(int fd, int seals) {
  return static_cast<int>(call(SYS_fcntl, fd, F_ADD_SEALS, seals));
}

int semaphore_eventfd() {
  return not_standard(static_cast<int>(call(SYS_eventfd2, 0U, EFD_CLOEXEC | EFD_SEMAPHORE)));
}

int duplicate_above(int fd, int lowest) {
  return static_cast<int>(call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, lowest));
}

long map(std::size_t length, int protection, int flags, int fd, off_t offset) {
  return call(SYS_mmap, nullptr, length, protection, flags, fd, offset);
}

int unmap(void* address, std::size_t length) {
  return static_cast<int>(call(SYS_munmap, address, length));
}

int not_in_children(void* address, std::size_t length) {
  return static_cast<int>(call(SYS_madvise, address, length, MADV_DONTFORK));
}

int is_mapped(const void* address, std::size_t length) {
  constexpr std::size_t kPagesAtOnce = 1024;
  unsigned char residence[kPagesAtOnce];  // not asked for, but told
  const auto* at = static_cast<const std::byte*>(address);
  for (std::size_t done = 0; done < length; done += kPagesAtOnce * kPageSize) {
    const std::size_t part = std::min(length - done, kPagesAtOnce * kPageSize);
    const long result = call(SYS_mincore, at + done, part, residence);
    if (result != 0) return static_cast<int>(result);
  }
  return 0;
}

int identify(int fd, std::uint64_t& device, std::uint64_t& inode) {
  struct statx status {};
  const long result = call(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_INO, &status);
  if (result != 0) return static_cast<int>(result);
  device = (std::uint64_t{status.stx_dev_major} << 32) | status.stx_dev_minor;
  inode = status.stx_ino;
  return 0;
}

std::size_t descriptor_name(int fd, char* name, std::size_t size) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const long length = call(SYS_readlinkat, AT_FDCWD, path, name, size);
  return length < 0 ? 0 : static_cast<std::size_t>(length);
}

}  // namespace qpair::softnic::driver::system
