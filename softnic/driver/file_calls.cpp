#include "softnic/driver/file_calls.hpp"

#include <fcntl.h>

#include <cerrno>
#include <exception>
#include <memory>

#include "softnic/driver/cm_file.hpp"
#include "softnic/driver/file.hpp"

namespace qpair::softnic::driver {
namespace {

template <typename Call>
Outcome on_file(int fd, const Call& call) {
  const auto file = FileTable::instance().find(fd);
  if (file == nullptr) return {};
  return {true, call(*file)};
}

template <typename Transfer>
ssize_t for_each(const iovec* vectors, int count, const Transfer& transfer) {
  ssize_t total = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t moved = transfer(vectors[i].iov_base, vectors[i].iov_len);
    if (moved < 0) return total > 0 ? total : moved;
    total += moved;
    if (static_cast<std::size_t>(moved) < vectors[i].iov_len) break;
  }
  return total;
}

// Nothing but the answers that every File gives by itself.
class UnreadableFile final : public File {};

}  // namespace

Outcome file_ioctl(int fd, unsigned long request, void* argument) {
  return on_file(fd, [&](File& file) { return file.ioctl(request, argument); });
}

Outcome file_write(int fd, const void* bytes, std::size_t size) {
  return on_file(fd, [&](File& file) { return file.write(bytes, size); });
}

Outcome file_writev(int fd, const iovec* vectors, int count) {
  return on_file(fd, [&](File& file) {
    return for_each(vectors, count, [&](const void* at, std::size_t size) { return file.write(at, size); });
  });
}

Outcome file_read(int fd, void* bytes, std::size_t size) {
  return on_file(fd, [&](File& file) { return file.read(fd, bytes, size); });
}

Outcome file_readv(int fd, const iovec* vectors, int count) {
  return on_file(fd, [&](File& file) {
    return for_each(vectors, count, [&](void* at, std::size_t size) { return file.read(fd, at, size); });
  });
}

Outcome before_file_mmap(int fd, std::size_t length, int protection, int flags, off_t offset) {
  return on_file(fd, [&](File& file) { return file.before_mmap(length, protection, flags, offset); });
}

void after_file_mmap(int fd, void* address, std::size_t length, off_t offset) {
  on_file(fd, [&](File& file) {
    file.after_mmap(address, length, offset);
    return 0;
  });
}

dev_t file_device_number(int fd) {
  const auto file = FileTable::instance().find(fd);
  return file != nullptr ? file->device_number() : 0;
}

namespace {

template <typename Open>
int open_file(int flags, const Open& open) {
  try {
    std::shared_ptr<File> file;
    const int fd = open(file);
    if (fd < 0) return fd;
    fcntl(fd, F_SETFD, (flags & O_CLOEXEC) != 0 ? FD_CLOEXEC : 0);
    if ((flags & O_NONBLOCK) != 0) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    FileTable::instance().install(fd, std::move(file));
    return fd;
  } catch (const std::exception&) {
    return -ENOMEM;
  }
}

}  // namespace

int open_device_file(int flags) {
  return open_file(flags, [](std::shared_ptr<File>& file) { return open_device(file); });
}

int open_cm_file(int flags, const std::string& scratch) {
  return open_file(flags, [&](std::shared_ptr<File>& file) { return CmFile::open(scratch, file); });
}

void make_unreadable(int fd) {
  try {
    FileTable::instance().install(fd, std::make_shared<UnreadableFile>());
  } catch (const std::exception&) {  // then it reads as an empty file
  }
}

}  // namespace qpair::softnic::driver
