#include "src/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace qpair::detail {

namespace {

Error no_memory(std::size_t size, int reason) {
  return Error::make(ErrorCode::out_of_resources, fmt::format("cannot allocate {} bytes", size), reason);
}

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Faults every page in, as registering it with a device would. Without it, memory that the kernel has
// promised and cannot give is a SIGBUS at the first access.
bool populate(std::byte* address, std::size_t length, int file) {
  if (madvise(address, length, MADV_POPULATE_WRITE) == 0) return true;
  // Linux before 5.14 does not know it.
  return errno == EINVAL && (file < 0 || fallocate(file, 0, 0, static_cast<off_t>(length)) == 0);
}

}  // namespace

Result<SharedMemory> SharedMemory::make(std::size_t size, PageSize page_size) {
  // The kernel would try, and take the memory of everybody else before it gave up.
  if (const std::size_t most = physical_memory(); size > most) {
    return tl::unexpected(
        Error::make(ErrorCode::out_of_resources,
                    fmt::format("cannot allocate {} bytes: this machine has {}", size, most)));
  }
  const bool huge = page_size == PageSize::Huge;
  const std::size_t length = huge ? (size + kHugePage - 1) / kHugePage * kHugePage : size;
  const int file =
      memfd_create("qpair-memory", MFD_CLOEXEC | (huge ? MFD_HUGETLB | unsigned{MFD_HUGE_2MB} : 0U));
  // Out of descriptors: memory all the same, that only children can share.
  if (file < 0 && (huge || (errno != EMFILE && errno != ENFILE))) {
    return tl::unexpected(no_memory(size, errno));
  }
  SharedMemory memory(nullptr, length, file);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(length)) != 0) {
    return tl::unexpected(no_memory(size, errno));
  }
  void* const address =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
  if (address == MAP_FAILED) return tl::unexpected(no_memory(size, errno));
  memory.address_ = static_cast<std::byte*>(address);
  // Refused where the kernel has no transparent huge pages, which is no harm.
  if (!huge) static_cast<void>(madvise(address, length, MADV_HUGEPAGE));
  if (!populate(memory.address_, length, file)) return tl::unexpected(no_memory(size, errno));
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)),
      length_(other.length_),
      file_(std::exchange(other.file_, -1)) {}

SharedMemory::~SharedMemory() {
  if (address_ != nullptr) munmap(address_, length_);
  if (file_ >= 0) close(file_);
}

}  // namespace qpair::detail
