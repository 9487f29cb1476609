#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <type_traits>
#include <utility>

#include "softnic/driver/file.hpp"

namespace qpair::softnic::driver {
namespace {

// By system call: fstat() of libc is the hook that asks this table.
bool identify(int fd, struct stat& status) {
  const int saved_errno = errno;
  const bool known = syscall(SYS_fstat, fd, &status) == 0;
  errno = saved_errno;
  return known;
}

}  // namespace

int File::ioctl(unsigned long, void*) {
  return -ENOTTY;
}
ssize_t File::write(const void*, std::size_t) {
  return -EINVAL;
}
ssize_t File::read(int, void*, std::size_t) {
  return -EINVAL;
}
int File::before_mmap(std::size_t, int, int, off_t) {
  return -ENODEV;
}
void File::after_mmap(void*, std::size_t, off_t) {}

FileTable& FileTable::instance() {
  static_assert(std::is_trivially_destructible_v<FileTable>, "descriptors are closed until the very end");
  static constinit FileTable table;
  return table;
}

std::atomic<FileTable::Entry*>* FileTable::slot(int fd) const {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kBlock * kBlocks) return nullptr;
  Block* block = blocks_[static_cast<std::size_t>(fd) / kBlock].load(std::memory_order_acquire);
  return block == nullptr ? nullptr : &(*block)[static_cast<std::size_t>(fd) % kBlock];
}

bool FileTable::in_child_of_vfork() const {
  return getpid() != owner_;
}

void FileTable::put(int fd, std::unique_ptr<Entry> entry) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kBlock * kBlocks) return;
  std::unique_ptr<Entry> replaced;
  {
    const std::lock_guard lock(mutex_);
    auto& block = blocks_[static_cast<std::size_t>(fd) / kBlock];
    if (block.load(std::memory_order_relaxed) == nullptr) {
      block.store(std::make_unique<Block>().release(), std::memory_order_release);  // kept for ever
    }
    if (owner_ == 0) owner_ = getpid();
    replaced.reset(slot(fd)->exchange(entry.release(), std::memory_order_acq_rel));
    in_use_.store(true, std::memory_order_release);
  }
}

std::unique_ptr<FileTable::Entry> FileTable::take(int fd) {
  auto* entry = slot(fd);
  if (entry == nullptr || entry->load(std::memory_order_acquire) == nullptr || in_child_of_vfork())
    return nullptr;
  const std::lock_guard lock(mutex_);
  return std::unique_ptr<Entry>(entry->exchange(nullptr, std::memory_order_acq_rel));
}

void FileTable::install(int fd, std::shared_ptr<File> file) {
  struct stat status {};
  if (file == nullptr || !identify(fd, status)) return;
  put(fd, std::make_unique<Entry>(Entry{std::move(file), status.st_dev, status.st_ino}));
}

std::shared_ptr<File> FileTable::find(int fd) const {
  auto* entry = slot(fd);
  if (entry == nullptr || entry->load(std::memory_order_acquire) == nullptr) return nullptr;
  std::shared_ptr<File> file;
  dev_t device = 0;
  ino_t inode = 0;
  {
    const std::lock_guard lock(mutex_);
    const Entry* current = entry->load(std::memory_order_relaxed);
    if (current == nullptr) return nullptr;
    file = current->file;
    device = current->device;
    inode = current->inode;
  }
  struct stat status {};
  if (identify(fd, status) && status.st_dev == device && status.st_ino == inode) return file;
  if (in_child_of_vfork()) return nullptr;
  std::unique_ptr<Entry> stale;
  const std::lock_guard lock(mutex_);
  const Entry* current = entry->load(std::memory_order_relaxed);
  if (current != nullptr && current->file == file && current->inode == inode) {
    stale.reset(entry->exchange(nullptr, std::memory_order_acq_rel));
  }
  return nullptr;
}

void FileTable::remove(int fd) {
  take(fd);
}

void FileTable::remove_range(int first, int last) {
  if (first < 0) first = 0;
  for (std::size_t block = static_cast<std::size_t>(first) / kBlock; block < kBlocks; ++block) {
    if (blocks_[block].load(std::memory_order_acquire) == nullptr) continue;
    for (std::size_t place = 0; place < kBlock; ++place) {
      const int fd = static_cast<int>(block * kBlock + place);
      if (fd > last) return;
      if (fd >= first) remove(fd);
    }
  }
}

void FileTable::duplicate(int from, int to) {
  if (from == to || in_child_of_vfork()) return;
  if (auto file = find(from)) install(to, std::move(file));
}

void FileTable::before_fork() {
  mutex_.lock();
}
void FileTable::after_fork_in_parent() {
  mutex_.unlock();
}
void FileTable::after_fork_in_child() {
  if (owner_ != 0) owner_ = getpid();
  mutex_.unlock();
}

}  // namespace qpair::softnic::driver
