#include "softnic/wire/shared_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace qpair::softnic::wire {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// Raw system calls: descriptors are none of the program's, and the interposed libc need not look.
std::span<std::byte> map_whole(int fd, std::size_t size, SharedSegment::Rights rights) {
  const int protection = rights == SharedSegment::Rights::ReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  const long at = ::syscall(SYS_mmap, nullptr, size, protection, MAP_SHARED | MAP_NORESERVE, fd, 0L);
  if (at == -1) return {};
  return {reinterpret_cast<std::byte*>(at), size};
}

}  // namespace

std::optional<SharedSegment> SharedSegment::create(const char* name, std::size_t size) {
  SharedSegment segment;
  segment.fd_ =
      Descriptor(static_cast<int>(::syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!segment.fd_) return std::nullopt;
  const int fd = segment.fd_.get();
  if (::syscall(SYS_ftruncate, fd, size) != 0 ||
      ::syscall(SYS_fcntl, fd, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return std::nullopt;
  }
  segment.bytes_ = map_whole(fd, size, Rights::ReadWrite);
  if (segment.bytes_.empty()) return std::nullopt;
  return segment;
}

std::optional<SharedSegment> SharedSegment::map(int fd, std::size_t size, Rights rights) {
  const long seals = ::syscall(SYS_fcntl, fd, F_GET_SEALS);
  struct stat status {};
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals ||
      ::syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) != 0 ||
      static_cast<std::size_t>(status.st_size) != size) {
    return std::nullopt;
  }
  SharedSegment segment;
  segment.bytes_ = map_whole(fd, size, rights);
  if (segment.bytes_.empty()) return std::nullopt;
  return segment;
}

SharedSegment::~SharedSegment() {
  if (!bytes_.empty()) ::syscall(SYS_munmap, bytes_.data(), bytes_.size());
}

}  // namespace qpair::softnic::wire
