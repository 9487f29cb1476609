#include "softnic/nic/user_faults.hpp"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "softnic/explain/explain.hpp"
#include "softnic/wire/descriptor.hpp"

// Raw system calls throughout: the interposed libc would look these descriptors up among the program's.

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace qpair::softnic::nic {
namespace {

// linux/userfaultfd.h of the oldest supported distributions lacks these.
constexpr std::uint64_t kFeatureWpShmem = std::uint64_t{1} << 12;  // UFFD_FEATURE_WP_HUGETLBFS_SHMEM

long raw_ioctl(int fd, unsigned long request, void* argument) {
  return syscall(SYS_ioctl, fd, request, argument);
}

}  // namespace

UserFaults::~UserFaults() {
  abandon();
}

void UserFaults::abandon() {
  wire::close_private(std::exchange(fd_, -1));
  refused_ = true;
}

bool UserFaults::open() {
  if (fd_ >= 0) return true;
  if (refused_) return false;
  refused_ = true;
  const auto fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
  if (fd < 0) {
    explain::say(explain::Kind::Notice,
                 "userfaultfd is not available (a container's seccomp profile?): an idle emulated NIC looks "
                 "for doorbells "
                 "once in a while in place of being woken by them");
    return false;
  }
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | kFeatureWpShmem;
  if (raw_ioctl(fd, UFFDIO_API, &api) != 0) {
    syscall(SYS_close, fd);
    explain::say(explain::Kind::Notice,
                 "this kernel's userfaultfd cannot write-protect shared memory (Linux 5.19 can): an idle "
                 "emulated NIC looks "
                 "for doorbells once in a while");
    return false;
  }
  fd_ = wire::make_private(fd);
  refused_ = false;
  return true;
}

bool UserFaults::add(std::uint64_t address, std::size_t size) {
  if (!open()) return false;
  uffdio_register range{};
  range.range = {address, size};
  range.mode = UFFDIO_REGISTER_MODE_WP;
  return raw_ioctl(fd_, UFFDIO_REGISTER, &range) == 0;
}

void UserFaults::remove(std::uint64_t address, std::size_t size) {
  if (fd_ < 0) return;
  uffdio_range range{address, size};
  raw_ioctl(fd_, UFFDIO_UNREGISTER, &range);
}

UserFaults::Protection UserFaults::protect(std::uint64_t address, std::size_t size) {
  if (fd_ < 0) return Protection::Refused;
  uffdio_writeprotect change{};
  change.range = {address, size};
  change.mode = UFFDIO_WRITEPROTECT_MODE_WP;
  for (;;) {
    if (raw_ioctl(fd_, UFFDIO_WRITEPROTECT, &change) == 0) return Protection::Done;
    if (errno == EAGAIN) continue;  // the process's mappings are changing just now
    return errno == ENOENT || errno == EINVAL ? Protection::NotThere : Protection::Refused;
  }
}

void UserFaults::unprotect(std::uint64_t address, std::size_t size) {
  if (fd_ < 0) return;
  uffdio_writeprotect change{};
  change.range = {address, size};
  while (raw_ioctl(fd_, UFFDIO_WRITEPROTECT, &change) != 0) {
    if (errno == EAGAIN) continue;
    uffdio_range range{address, size};  // no longer mapped: whoever waits may find out by itself
    raw_ioctl(fd_, UFFDIO_WAKE, &range);
    return;
  }
}

std::optional<std::uint64_t> UserFaults::next() {
  uffd_msg message{};
  while (fd_ >= 0) {
    const long got = syscall(SYS_read, fd_, &message, sizeof message);
    if (got != static_cast<long>(sizeof message)) return std::nullopt;
    const std::uint64_t address = message.arg.pagefault.address;
    if (message.event == UFFD_EVENT_PAGEFAULT) return address;
  }
  return std::nullopt;
}

}  // namespace qpair::softnic::nic
