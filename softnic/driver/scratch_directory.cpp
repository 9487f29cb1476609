#include "softnic/driver/scratch_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace qpair::softnic::driver {
namespace {

// Removal works without memory of its own and with little stack: it also runs where a signal handler calls
// _exit().
class Entries {
 public:
  // Calls visit(name) until it returns false. Nothing of this object may be used inside but the name.
  template <typename Visit>
  void each(int directory, const Visit& visit) {
    lseek(directory, 0, SEEK_SET);
    for (;;) {
      const long bytes = syscall(SYS_getdents64, directory, buffer_.data(), buffer_.size());
      if (bytes <= 0) return;
      for (long at = 0; at < bytes;) {
        // struct linux_dirent64 (getdents(2)): u64 inode, s64 offset, u16 length of the record, u8 type,
        // name.
        const char* record = buffer_.data() + at;
        std::uint16_t length = 0;
        std::memcpy(&length, record + 16, sizeof length);
        const char* name = record + 19;
        at += length;
        if (std::strcmp(name, ".") != 0 && std::strcmp(name, "..") != 0 && !visit(name)) return;
      }
    }
  }

 private:
  alignas(8) std::array<char, 2048> buffer_;
};

// Symbolic links are removed, never followed. False: something is left. The next sweep may have more
// descriptors.
bool empty_directory(int directory, Entries& entries) {
  // What lies below shares the buffer, so the listing starts again after each subdirectory, which is empty
  // then.
  bool again = true;
  bool emptied = true;
  for (int rounds = 0; again && rounds < 10'000; ++rounds) {
    again = false;
    entries.each(directory, [&](const char* name) {
      if (unlinkat(directory, name, 0) == 0 || unlinkat(directory, name, AT_REMOVEDIR) == 0) return true;
      const int below = openat(directory, name, kDirectory);
      if (below < 0) {
        emptied = false;
        return true;
      }
      again = empty_directory(below, entries);
      if (!again) emptied = false;
      close(below);
      return false;
    });
  }
  return emptied && !again;
}

void remove_directory(int parent, const char* name) {
  const int directory = openat(parent, name, kDirectory);
  if (directory < 0) return;
  Entries entries;
  empty_directory(directory, entries);
  close(directory);
  unlinkat(parent, name, AT_REMOVEDIR);
}

enum class When : std::uint8_t { Begins, Ends };  // the process that sweeps

// Whether the process that made the directory works in it: it has executed another program, which took the
// lock but left it where it was (`cd /sys/class/infiniband/mlx5_0; exec cat node_desc`).
bool is_occupied(const char* parent, const char* name, When when) {
  const long maker = std::strtol(name, nullptr, 10);
  if (maker <= 0 || (when == When::Ends && maker == getpid())) return false;
  std::array<char, 32> link{"/proc/"};
  const std::size_t digits = std::min<std::size_t>(std::strspn(name, "0123456789"), 20);
  std::memcpy(link.data() + 6, name, digits);
  std::memcpy(link.data() + 6 + digits, "/cwd", 4);
  std::array<char, PATH_MAX> where{};
  if (syscall(SYS_readlinkat, AT_FDCWD, link.data(), where.data(), where.size() - 1) <= 0) return false;
  const std::size_t length = std::strlen(parent);
  const std::size_t name_length = std::strlen(name);
  if (std::strncmp(where.data(), parent, length) != 0 || where.at(length) != '/') return false;
  const char* const rest = where.data() + length + 1;
  return std::strncmp(rest, name, name_length) == 0 &&
         (rest[name_length] == '/' || rest[name_length] == '\0');
}

// Removes the directory if nobody holds a lock on it and nobody works in it: who wants to go on there after
// executing another program went there while it had the lock. The lock is kept until the directory is gone,
// as its maker may just be about to take it.
void remove_if_abandoned(const char* parent_path, int parent, const char* name, When when) {
  const int descriptor = openat(parent, name, kDirectory);
  if (descriptor < 0) return;
  if (owned_by_us(descriptor) && flock(descriptor, LOCK_EX | LOCK_NB) == 0 &&
      !is_occupied(parent_path, name, when)) {
    remove_directory(parent, name);
  }
  close(descriptor);
}

void sweep(const char* parent, When when) {
  const int directory = open(parent, kDirectory);
  if (directory < 0) return;
  Entries entries;
  entries.each(directory, [&](const char* name) {
    remove_if_abandoned(parent, directory, name, when);
    return true;
  });
  close(directory);
}

// Whether others cannot rename what we put there: a sticky directory as /tmp is, or one that others may not
// write to.
bool keeps_names(const char* base) {
  struct stat status {};
  if (stat(base, &status) != 0) return false;
  if ((status.st_mode & S_ISVTX) != 0) return true;
  return (status.st_mode & S_IWOTH) == 0 && (status.st_uid == 0 || status.st_uid == geteuid());
}

// The user's directory, usable by nobody else. Somebody may have taken the name in /tmp: then it is not used.
bool make_parent(const std::string& parent) {
  if (mkdir(parent.c_str(), 0700) != 0 && errno != EEXIST) return false;
  const int descriptor = open(parent.c_str(), kDirectory);
  if (descriptor < 0) return false;
  const bool usable = owned_by_us(descriptor);
  close(descriptor);
  errno = EPERM;  // if not
  return usable;
}

// Locks the directory that was just made, unless another process's sweep() came first.
std::unique_ptr<PrivateFd> lock_new_directory(const std::string& path) {
  const int descriptor = open(path.c_str(), kDirectory);
  if (descriptor < 0) return nullptr;
  std::unique_ptr<PrivateFd> lock;
  struct stat at_path {};
  struct stat opened {};
  if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 && fstat(descriptor, &opened) == 0 &&
      stat(path.c_str(), &at_path) == 0 && opened.st_ino == at_path.st_ino) {
    lock = std::make_unique<PrivateFd>(descriptor);
  }
  close(descriptor);
  return lock;
}

}  // namespace

bool owned_by_us(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && status.st_uid == geteuid() && (status.st_mode & 077U) == 0;
}

tl::expected<ScratchDirectory, std::string> ScratchDirectory::create() {
  std::string tried;
  std::string reason;
  const std::array<const char*, 4> bases = {std::getenv("XDG_RUNTIME_DIR"), "/dev/shm", std::getenv("TMPDIR"),
                                            "/tmp"};
  for (const char* base : bases) {
    if (base == nullptr || base[0] != '/') continue;
    auto made = create_in(base);
    if (made) return made;
    tried += tried.empty() ? base : fmt::format(", {}", base);
    reason = made.error();
  }
  return tl::unexpected(fmt::format("no private directory could be made in any of {}: {}", tried, reason));
}

tl::expected<ScratchDirectory, std::string> ScratchDirectory::create_in(const std::string& base) {
  std::array<char, PATH_MAX> resolved{};
  if (realpath(base.c_str(), resolved.data()) == nullptr) {
    return tl::unexpected(fmt::format("{}: {}", base, std::strerror(errno)));
  }
  if (!keeps_names(resolved.data())) {
    return tl::unexpected(fmt::format("{}: other users could replace what is put there", resolved.data()));
  }
  const std::string parent = fmt::format("{}/qpair-{}", resolved.data(), geteuid());
  // The last process of the user removes the parent and sweeps remove what is not locked yet: both may come
  // between two of our steps, but not many times in a row.
  int error = 0;
  for (int attempt = 0; attempt < 16; ++attempt) {
    if (!make_parent(parent)) {
      error = errno;
      continue;
    }
    sweep(parent.c_str(), When::Begins);
    std::string path = fmt::format("{}/{}-XXXXXX", parent, getpid());
    if (mkdtemp(path.data()) == nullptr) {
      error = errno;
      continue;
    }
    auto lock = lock_new_directory(path);
    if (lock != nullptr && lock->get() >= 0) return ScratchDirectory(std::move(path), std::move(lock));
    error = EAGAIN;
  }
  return tl::unexpected(fmt::format("{}: {}", parent, std::strerror(error)));
}

ScratchDirectory::~ScratchDirectory() {
  remove();
}

void ScratchDirectory::remove() {
  if (!ours()) return;
  remove_directory(AT_FDCWD, path_.c_str());
  std::array<char, PATH_MAX> parent{};
  const std::size_t length = path_.rfind('/');
  if (length < parent.size()) {
    std::memcpy(parent.data(), path_.data(), length);
    sweep(parent.data(), When::Ends);
    rmdir(parent.data());
  }
  forget();
}

void ScratchDirectory::forget() {
  if (ours()) lock_->reset();
}

}  // namespace qpair::softnic::driver
