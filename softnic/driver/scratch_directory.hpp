#pragma once
// A directory for files that nobody but this process needs, which does not outlive it.
//
//   $XDG_RUNTIME_DIR | /dev/shm | $TMPDIR | /tmp
//     qpair-<uid>/            mode 0700, one for all processes of the user, gone with the last of them
//       <pid>-XXXXXX/         this process's; flock()ed through an open descriptor for as long as the process
//       lives
//
// The owner removes its directory when it exits. A process that is killed cannot; but the kernel drops its
// lock, and the next process that makes a scratch directory removes every sibling that nobody holds a lock
// on, unless its maker works in it: one that has executed another program may. The lock's descriptor is
// close-on-exec and fork() children drop it (forget()), so the lock means "the maker is alive, and the same
// program" exactly.

#include <fcntl.h>

#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "softnic/driver/private_fd.hpp"

namespace qpair::softnic::driver {

// How such directories are opened.
inline constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
// Nobody else owns it or may do anything with it. Async-signal-safe.
bool owned_by_us(int descriptor);

class ScratchDirectory {
 public:
  // The error is a sentence that names the directories that were tried.
  static tl::expected<ScratchDirectory, std::string> create();
  // The same under a directory of the caller's choice.
  static tl::expected<ScratchDirectory, std::string> create_in(const std::string& base);

  ScratchDirectory(ScratchDirectory&&) noexcept = default;
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;
  ~ScratchDirectory();

  // Absolute, without symbolic links in it.
  const std::string& path() const { return path_; }

  // Removes the directory with everything in it; the parent too when it is empty then. Async-signal-safe.
  void remove();
  // In the child of fork(): the directory is the parent's. No memory is allocated or freed.
  void forget();

 private:
  ScratchDirectory(std::string path, std::unique_ptr<PrivateFd> lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}

  bool ours() const { return lock_ != nullptr && lock_->get() >= 0; }

  std::string path_;
  std::unique_ptr<PrivateFd> lock_;
};

}  // namespace qpair::softnic::driver
