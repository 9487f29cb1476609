#include "softnic/hooks/path.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "softnic/driver/counter_files.hpp"
#include "softnic/driver/file_calls.hpp"
#include "softnic/hooks/device_files.hpp"
#include "softnic/hooks/hook.hpp"

namespace qpair::softnic::hooks {
namespace {

using driver::kDeviceMajor;
using driver::kDeviceMinor;
using driver::kPciAddress;
using driver::kPciRoot;
static_assert(kDeviceMajor == 231 && kDeviceMinor == 192);
static_assert(std::string_view(kPciRoot) == "pci7171:00" && std::string_view(kPciAddress) == "7171:00:00.0");

constexpr std::string_view kInfinibandClasses =
    "/sys/class/infiniband";  // and infiniband_verbs, infiniband_mad …
constexpr std::string_view kDirectories[] = {
    "/sys/class/misc/rdma_cm", "/sys/devices/pci7171:00", "/sys/bus/pci/devices/7171:00:00.0",
    "/sys/dev/char/231:192",   "/dev/infiniband",
};
constexpr std::string_view kNodeByNumber = "/dev/char/231:192";
constexpr const char* kNode = "/dev/infiniband/uverbs0";
constexpr std::string_view kAbsent = "/proc/self/fdinfo/no-rdma-device";

bool below(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

bool is_ours(std::string_view path) {
  if (path.starts_with(kInfinibandClasses)) {
    const char next = path.size() > kInfinibandClasses.size() ? path[kInfinibandClasses.size()] : '/';
    return next == '/' || next == '_';
  }
  for (const std::string_view directory : kDirectories) {
    if (below(path, directory)) return true;
  }
  return path == kNodeByNumber;
}

// Without "//", "/./" and "/../", until a directory of ours has been met: none of those above ours is a
// symbolic link. The rest is the kernel's business, as there ".." and a slash at the end may follow a link.
// The length, or 0: not ours.
std::size_t find_ours(const char* path, char* out, std::size_t room) {
  std::size_t length = 0;
  while (*path != '\0') {
    while (*path == '/') ++path;
    const char* end = path;
    while (*end != '\0' && *end != '/') ++end;
    const std::string_view component(path, static_cast<std::size_t>(end - path));
    path = end;
    if (component == "..") {
      while (length > 0 && out[--length] != '/') {
      }
      continue;
    }
    if (component.empty() || component == ".") continue;
    if (length + component.size() + 2 > room) return 0;
    out[length++] = '/';
    std::memcpy(out + length, component.data(), component.size());
    length += component.size();
    if (!is_ours({out, length})) continue;
    const std::size_t rest = std::strlen(path);
    if (length + rest + 1 > room) return 0;
    std::memcpy(out + length, path, rest + 1);
    return length + rest;
  }
  return 0;
}

bool identify(int fd, driver::FileIdentity& identity) {
  struct stat status {};
  if (syscall(SYS_fstat, fd, &status) != 0) return false;
  identity = {status.st_dev, status.st_ino};
  return true;
}

void show_live(const driver::SysfsTree& tree, const driver::FileIdentity& identity, int fd) {
  if (const driver::LiveCounter* counter = tree.counter(identity)) driver::show_counter(fd, *counter);
  if (identity == tree.failures()) driver::show_failures(fd);
}

}  // namespace

void TranslatedPath::translate(const char* path) {
  if (strnlen(path, PATH_MAX) == PATH_MAX) return;  // ENAMETOOLONG
  char normal[PATH_MAX];
  const std::size_t length = find_ours(path, normal, sizeof normal);
  if (length == 0) return;
  const driver::SysfsTree* tree = device_files();
  if (tree == nullptr || tree->root().size() + length >= sizeof buffer_) {
    buffer_[kAbsent.copy(buffer_, sizeof buffer_ - 1)] = '\0';
  } else {
    const std::string_view where = kNodeByNumber == normal ? kNode : std::string_view(normal, length);
    std::memcpy(buffer_, tree->root().data(), tree->root().size());
    std::memcpy(buffer_ + tree->root().size(), where.data(), where.size());
    buffer_[tree->root().size() + where.size()] = '\0';
  }
  path_ = buffer_;
  ours_ = true;
}

std::size_t public_path(char* path, std::size_t length) {
  const std::size_t prefix = private_prefix(path, length);
  if (prefix == 0) return length;
  std::memmove(path, path + prefix, length - prefix);
  return length - prefix;
}

char* public_path(char* path) {
  if (path == nullptr || device_files_if_made() == nullptr) return path;
  const std::size_t length = std::strlen(path);
  path[public_path(path, length)] = '\0';
  return path;
}

int opened(int fd, const Path& path, int flags) {
  if (fd < 0 || (!path.ours() && path[0] == '/') || (flags & O_PATH) != 0) return fd;
  const driver::SysfsTree* tree = device_files_if_made();
  driver::FileIdentity identity;
  if (tree == nullptr || !identify(fd, identity)) return fd;
  if (identity == tree->invalid_attribute()) driver::make_unreadable(fd);
  if ((flags & O_ACCMODE) == O_RDONLY) show_live(*tree, identity, fd);
  if (identity != tree->node() && identity != tree->cm_node()) return fd;
  close(fd);
  return system_result(identity == tree->node() ? driver::open_device_file(flags)
                                                : driver::open_cm_file(flags, tree->root()));
}

void stream_opened(FILE* stream, const Path& path) {
  const char* const name = path;  // null: freopen() of what is open already
  if (stream == nullptr || name == nullptr || (!path.ours() && name[0] == '/')) return;
  const driver::SysfsTree* tree = device_files_if_made();
  driver::FileIdentity identity;
  const int fd = fileno(stream);
  if (tree == nullptr || !identify(fd, identity)) return;
  show_live(*tree, identity, fd);
}

}  // namespace qpair::softnic::hooks
