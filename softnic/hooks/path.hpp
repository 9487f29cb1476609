#pragma once
// Which paths are the emulated device's, and where they really are.

#include <stdio.h>

#include <climits>
#include <cstddef>

namespace qpair::softnic::hooks {

// A path to be handed on to libc. Paths of the device lead into its private tree:
//
//   /sys/class/infiniband*   /sys/class/misc/rdma_cm   the emulated PCI device in /sys/devices and
//   /sys/bus/pci /dev/infiniband          /dev/char and /sys/dev/char of the device's number
//
// The machine's own RDMA devices, if it has any, are hidden: what is not in the tree does not exist.
class Path {
 public:
  explicit Path(const char* path) : path_(path) {}
  operator const char*() const { return path_; }
  bool ours() const { return ours_; }

  static bool may_be_ours(const char* path) {
    if (path == nullptr || path[0] != '/') return false;
    while (path[1] == '/') ++path;
    return (path[1] == 's' && path[2] == 'y' && path[3] == 's') ||
           (path[1] == 'd' && path[2] == 'e' && path[3] == 'v');
  }

 protected:
  const char* path_;
  bool ours_ = false;
};

class TranslatedPath : public Path {
 public:
  explicit TranslatedPath(const char* path) : Path(path) { translate(path); }
  TranslatedPath(const TranslatedPath&) = delete;
  TranslatedPath& operator=(const TranslatedPath&) = delete;

 private:
  void translate(const char* path);
  char buffer_[PATH_MAX];
};

template <typename Call>
__attribute__((noinline)) auto with_translated(const char* path, const Call& call) {
  const TranslatedPath at(path);
  return call(static_cast<const Path&>(at));
}

// call(Path). Most paths are told to be foreign by their first few bytes; those cost a signal handler with a
// small stack nothing of it.
template <typename Call>
auto with_path(const char* path, const Call& call) {
  return Path::may_be_ours(path) ? with_translated(path, call) : call(Path(path));
}

// For the paths that libc reports: cuts the private root off, in place. Null stays null.
char* public_path(char* path);
// The same for bytes without a terminator; the new length.
std::size_t public_path(char* path, std::size_t length);

// The file that was opened under `path`: if it stands for the device node, the device in its place; if it is
// an attribute that cannot be read, it is made so. -1 with errno, or a descriptor.
int opened(int fd, const Path& path, int flags);
// The same for a stream, as far as it can be done: it shows the counters.
void stream_opened(FILE* stream, const Path& path);

}  // namespace qpair::softnic::hooks
