#pragma once
// Which paths are the emulated device's, and where they really are.

#include <climits>
#include <cstddef>

namespace qpair::softnic::hooks {

// A path as a program gave it, to be handed on to libc. Paths of the device lead into its private tree;
// everything else is the program's own pointer, told apart by its first few bytes.
//
//   /sys/class/infiniband*   /sys/class/misc/rdma_cm   the emulated PCI device in /sys/devices and
//   /sys/bus/pci /dev/infiniband          /dev/char and /sys/dev/char of the device's number
//
// The machine's own RDMA devices, if it has any, are hidden: what is not in the tree does not exist.
class Path {
 public:
  explicit Path(const char* path) : path_(path) {
    if (path != nullptr && path[0] == '/' && may_be_ours(path)) translate(path);
  }
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;

  operator const char*() const { return path_; }
  bool ours() const { return path_ == buffer_; }

 private:
  static bool may_be_ours(const char* path) {
    while (path[1] == '/') ++path;
    return (path[1] == 's' && path[2] == 'y' && path[3] == 's') ||
           (path[1] == 'd' && path[2] == 'e' && path[3] == 'v');
  }
  void translate(const char* path);

  const char* path_;
  char buffer_[PATH_MAX];
};

// For the paths that libc reports: cuts the private root off, in place. Null stays null.
char* public_path(char* path);
// The same for bytes without a terminator; the new length.
std::size_t public_path(char* path, std::size_t length);

// The file that was opened under `path`: if it stands for the device node, the device in its place; if it is
// an attribute that cannot be read, it is made so. -1 with errno, or a descriptor.
int opened(int fd, const Path& path, int flags);

}  // namespace qpair::softnic::hooks
