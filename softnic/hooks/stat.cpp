// Asking about files. The placeholder of the device node, and descriptors of the device, show as the
// character device.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <unistd.h>

#include "softnic/driver/file.hpp"
#include "softnic/driver/file_calls.hpp"
#include "softnic/hooks/device_files.hpp"
#include "softnic/hooks/hook.hpp"
#include "softnic/hooks/path.hpp"

namespace qpair::softnic::hooks {
namespace {

constexpr mode_t kDeviceMode = S_IFCHR | 0666;

int stat_by_system_call(int directory, const char* path, struct stat* status, int flags) {
  return static_cast<int>(syscall(SYS_newfstatat, directory, path, status, flags));
}

QPAIR_NEXT Next<int(int, const char*, struct stat*, int)> next_fstatat("fstatat", stat_by_system_call);
QPAIR_NEXT Next<int(int, const char*, int, unsigned, struct statx*)> next_statx("statx");
QPAIR_NEXT Next<int(const char*, int)> next_access("access");
QPAIR_NEXT Next<int(int, const char*, int, int)> next_faccessat("faccessat");
QPAIR_NEXT Next<int(const char*, int)> next_euidaccess("euidaccess");

// 0: it is no device of ours.
dev_t device_of(int fd) {
  return driver::FileTable::in_use() ? driver::file_device_number(fd) : 0;
}

dev_t device_of(const driver::FileIdentity& identity) {
  const driver::SysfsTree* tree = device_files_if_made();
  if (tree == nullptr) return 0;
  if (tree->node() == identity) return makedev(driver::kDeviceMajor, driver::kDeviceMinor);
  return tree->cm_node() == identity ? makedev(driver::kCmMajor, driver::kCmMinor) : 0;
}

bool names_descriptor(const char* path, int flags) {
  return (flags & AT_EMPTY_PATH) != 0 && (path == nullptr || path[0] == '\0');
}

int status_at(int directory, const char* path, struct stat* status, int flags) {
  const int result =
      with_path(path, [&](const Path& at) { return (*next_fstatat)(directory, at, status, flags); });
  if (result != 0) return result;
  dev_t device = device_of({status->st_dev, status->st_ino});
  if (device == 0 && names_descriptor(path, flags)) device = device_of(directory);
  if (device != 0) {
    status->st_mode = kDeviceMode;
    status->st_rdev = device;
    status->st_size = 0;
    status->st_blocks = 0;
  }
  return 0;
}

}  // namespace
}  // namespace qpair::softnic::hooks

using namespace qpair::softnic::hooks;
using Status = struct stat;

QPAIR_HOOK(int hooked_stat(const char* path, Status* status), "stat");
int hooked_stat(const char* path, Status* status) {
  return status_at(AT_FDCWD, path, status, 0);
}
QPAIR_HOOK_ALIAS(int hooked_stat64(const char*, Status*), "stat64", "stat");

QPAIR_HOOK(int hooked_lstat(const char* path, Status* status), "lstat");
int hooked_lstat(const char* path, Status* status) {
  return status_at(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
QPAIR_HOOK_ALIAS(int hooked_lstat64(const char*, Status*), "lstat64", "lstat");

QPAIR_HOOK(int hooked_fstat(int fd, Status* status), "fstat");
int hooked_fstat(int fd, Status* status) {
  if (fd < 0) {  // AT_FDCWD would be a directory
    errno = EBADF;
    return -1;
  }
  return status_at(fd, "", status, AT_EMPTY_PATH);
}
QPAIR_HOOK_ALIAS(int hooked_fstat64(int, Status*), "fstat64", "fstat");

QPAIR_HOOK(int hooked_fstatat(int directory, const char* path, Status* status, int flags), "fstatat");
int hooked_fstatat(int directory, const char* path, Status* status, int flags) {
  return status_at(directory, path, status, flags);
}
QPAIR_HOOK_ALIAS(int hooked_fstatat64(int, const char*, Status*, int), "fstatat64", "fstatat");

// What programs call that were built against glibc before 2.33. The version says which struct stat they mean;
// on 64-bit machines there is only one.
QPAIR_HOOK(int hooked_xstat(int version, const char* path, Status* status), "__xstat");
int hooked_xstat(int, const char* path, Status* status) {
  return hooked_stat(path, status);
}
QPAIR_HOOK_ALIAS(int hooked_xstat64(int, const char*, Status*), "__xstat64", "__xstat");

QPAIR_HOOK(int hooked_lxstat(int version, const char* path, Status* status), "__lxstat");
int hooked_lxstat(int, const char* path, Status* status) {
  return hooked_lstat(path, status);
}
QPAIR_HOOK_ALIAS(int hooked_lxstat64(int, const char*, Status*), "__lxstat64", "__lxstat");

QPAIR_HOOK(int hooked_fxstat(int version, int fd, Status* status), "__fxstat");
int hooked_fxstat(int, int fd, Status* status) {
  return hooked_fstat(fd, status);
}
QPAIR_HOOK_ALIAS(int hooked_fxstat64(int, int, Status*), "__fxstat64", "__fxstat");

QPAIR_HOOK(int hooked_fxstatat(int version, int directory, const char* path, Status* status, int flags),
           "__fxstatat");
int hooked_fxstatat(int, int directory, const char* path, Status* status, int flags) {
  return hooked_fstatat(directory, path, status, flags);
}
QPAIR_HOOK_ALIAS(int hooked_fxstatat64(int, int, const char*, Status*, int), "__fxstatat64", "__fxstatat");

QPAIR_HOOK(int hooked_statx(int directory, const char* path, int flags, unsigned mask, struct statx* status),
           "statx");
int hooked_statx(int directory, const char* path, int flags, unsigned mask, struct statx* status) {
  const int result =
      with_path(path, [&](const Path& at) { return (*next_statx)(directory, at, flags, mask, status); });
  if (result != 0) return result;
  dev_t device = device_of({makedev(status->stx_dev_major, status->stx_dev_minor), status->stx_ino});
  if (device == 0 && names_descriptor(path, flags)) device = device_of(directory);
  if (device != 0) {
    status->stx_mode = kDeviceMode;
    status->stx_rdev_major = major(device);
    status->stx_rdev_minor = minor(device);
    status->stx_size = 0;
    status->stx_blocks = 0;
  }
  return 0;
}

QPAIR_HOOK(int hooked_access(const char* path, int mode), "access");
int hooked_access(const char* path, int mode) {
  return with_path(path, [&](const Path& at) { return (*next_access)(at, mode); });
}

QPAIR_HOOK(int hooked_faccessat(int directory, const char* path, int mode, int flags), "faccessat");
int hooked_faccessat(int directory, const char* path, int mode, int flags) {
  return with_path(path, [&](const Path& at) { return (*next_faccessat)(directory, at, mode, flags); });
}

QPAIR_HOOK(int hooked_euidaccess(const char* path, int mode), "euidaccess");
int hooked_euidaccess(const char* path, int mode) {
  return with_path(path, [&](const Path& at) { return (*next_euidaccess)(at, mode); });
}
QPAIR_HOOK_ALIAS(int hooked_eaccess(const char*, int), "eaccess", "euidaccess");

namespace qpair::softnic::hooks {
namespace {

QPAIR_NEXT Next<ssize_t(const char*, const char*, void*, size_t)> next_getxattr("getxattr");
QPAIR_NEXT Next<ssize_t(const char*, const char*, void*, size_t)> next_lgetxattr("lgetxattr");
QPAIR_NEXT Next<ssize_t(const char*, char*, size_t)> next_listxattr("listxattr");
QPAIR_NEXT Next<ssize_t(const char*, char*, size_t)> next_llistxattr("llistxattr");

}  // namespace
}  // namespace qpair::softnic::hooks

// `ls -l` asks for access control lists and security labels and complains when there is no such file.
QPAIR_HOOK(ssize_t hooked_getxattr(const char* path, const char* name, void* value, size_t size), "getxattr");
ssize_t hooked_getxattr(const char* path, const char* name, void* value, size_t size) {
  return with_path(path, [&](const Path& at) { return (*next_getxattr)(at, name, value, size); });
}

QPAIR_HOOK(ssize_t hooked_lgetxattr(const char* path, const char* name, void* value, size_t size),
           "lgetxattr");
ssize_t hooked_lgetxattr(const char* path, const char* name, void* value, size_t size) {
  return with_path(path, [&](const Path& at) { return (*next_lgetxattr)(at, name, value, size); });
}

QPAIR_HOOK(ssize_t hooked_listxattr(const char* path, char* list, size_t size), "listxattr");
ssize_t hooked_listxattr(const char* path, char* list, size_t size) {
  return with_path(path, [&](const Path& at) { return (*next_listxattr)(at, list, size); });
}

QPAIR_HOOK(ssize_t hooked_llistxattr(const char* path, char* list, size_t size), "llistxattr");
ssize_t hooked_llistxattr(const char* path, char* list, size_t size) {
  return with_path(path, [&](const Path& at) { return (*next_llistxattr)(at, list, size); });
}
