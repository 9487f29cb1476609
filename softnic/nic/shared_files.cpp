#include "softnic/nic/shared_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "softnic/nic/own_mappings.hpp"

// Raw system calls: the interposed libc would take the descriptors for the program's.

namespace qpair::softnic::nic {
namespace {

using wire::Descriptor;

struct Status {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
};

std::optional<Status> status_of(int fd) {
  struct stat status {};
  if (::syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) != 0 || !S_ISREG(status.st_mode)) {
    return std::nullopt;
  }
  return Status{status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size)};
}

bool is_writable(int fd) {
  const long flags = ::syscall(SYS_fcntl, fd, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) == O_RDWR;
}

// The link of the mapping itself (proc(5)): CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE may follow it.
Descriptor open_mapping(const OwnMappings::Mapping& mapping) {
  const std::string path = fmt::format("/proc/self/map_files/{:x}-{:x}", mapping.first, mapping.end);
  return Descriptor(
      static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY, 0)));
}

// A descriptor of the program's for the same file.
Descriptor find_open(const OwnMappings::Mapping& mapping) {
  const Descriptor folder(static_cast<int>(
      ::syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)));
  if (!folder) return {};
  alignas(dirent64) std::array<char, 4096> buffer;
  for (;;) {
    const long size = ::syscall(SYS_getdents64, folder.get(), buffer.data(), buffer.size());
    if (size <= 0) return {};
    for (long at = 0; at < size;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(buffer.data() + at);
      at += entry->d_reclen;
      int fd = -1;
      const std::string_view name(entry->d_name);
      if (std::from_chars(name.data(), name.data() + name.size(), fd).ec != std::errc{}) continue;
      const auto status = status_of(fd);
      if (!status || status->inode != mapping.inode || status->device != mapping.device || !is_writable(fd)) {
        continue;
      }
      return Descriptor(static_cast<int>(::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0)));
    }
  }
}

}  // namespace

std::optional<SharedFiles::Place> SharedFiles::find(std::uint64_t address, std::uint64_t length) {
  const auto mapping = OwnMappings().shared_at(address, length);
  if (!mapping) return std::nullopt;
  const std::uint64_t offset = mapping->offset + (address - mapping->first);
  const auto known = std::ranges::find_if(files_, [&mapping](const File& file) {
    return file.inode == mapping->inode && file.device == mapping->device;
  });
  if (known != files_.end()) {
    // It may have grown.
    if (const auto status = status_of(known->descriptor.get())) known->size = status->size;
    if (offset + length > known->size) return std::nullopt;
    ++known->users;
    return Place{known->number, offset};
  }
  Descriptor fd = open_mapping(*mapping);
  if (!fd) fd = find_open(*mapping);
  if (!fd) return std::nullopt;
  const auto status = status_of(fd.get());
  if (!status || status->inode != mapping->inode || offset + length > status->size) return std::nullopt;
  files_.push_back({.number = next_,
                    .device = mapping->device,
                    .inode = mapping->inode,
                    .size = status->size,
                    .users = 1,
                    .descriptor = std::move(fd)});
  return Place{next_++, offset};
}

SharedFiles::File* SharedFiles::at(std::uint64_t number) {
  const auto found = std::ranges::find(files_, number, &File::number);
  return found != files_.end() ? &*found : nullptr;
}

bool SharedFiles::release(std::uint64_t number) {
  File* const file = at(number);
  if (file == nullptr || --file->users != 0) return false;
  files_.erase(files_.begin() + (file - files_.data()));
  return true;
}

int SharedFiles::descriptor(std::uint64_t number) const {
  const auto found = std::ranges::find(files_, number, &File::number);
  return found != files_.end() ? found->descriptor.get() : -1;
}

std::uint64_t SharedFiles::size(std::uint64_t number) const {
  const auto found = std::ranges::find(files_, number, &File::number);
  return found != files_.end() ? found->size : 0;
}

void SharedFiles::abandon() {
  for (File& file : files_) file.descriptor.abandon();
}

}  // namespace qpair::softnic::nic
