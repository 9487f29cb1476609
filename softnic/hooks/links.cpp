// Where links lead and what directories are called. A program is never shown the private tree: it sees /sys
// and /dev.

#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "softnic/hooks/hook.hpp"
#include "softnic/hooks/path.hpp"

namespace qpair::softnic::hooks {
namespace {

QPAIR_NEXT Next<ssize_t(const char*, char*, size_t)> next_readlink("readlink");
QPAIR_NEXT Next<ssize_t(int, const char*, char*, size_t)> next_readlinkat("readlinkat");
QPAIR_NEXT Next<char*(const char*, char*)> next_realpath("realpath");
QPAIR_NEXT Next<char*(char*, size_t)> next_getcwd("getcwd");
QPAIR_NEXT Next<int(const char*)> next_chdir("chdir");

// /proc/self/fd/N and /proc/self/cwd say where a file really is.
ssize_t public_link(char* target, ssize_t length) {
  return length <= 0 ? length : static_cast<ssize_t>(public_path(target, static_cast<std::size_t>(length)));
}

}  // namespace
}  // namespace qpair::softnic::hooks

using namespace qpair::softnic::hooks;

QPAIR_HOOK(ssize_t hooked_readlink(const char* path, char* target, size_t size), "readlink");
ssize_t hooked_readlink(const char* path, char* target, size_t size) {
  return with_path(path,
                   [&](const Path& at) { return public_link(target, (*next_readlink)(at, target, size)); });
}

QPAIR_HOOK(ssize_t hooked_readlink_chk(const char* path, char* target, size_t size, size_t room),
           "__readlink_chk");
ssize_t hooked_readlink_chk(const char* path, char* target, size_t size, size_t room) {
  if (size > room) abort();  // as glibc does
  return hooked_readlink(path, target, size);
}

QPAIR_HOOK(ssize_t hooked_readlinkat(int directory, const char* path, char* target, size_t size),
           "readlinkat");
ssize_t hooked_readlinkat(int directory, const char* path, char* target, size_t size) {
  return with_path(path, [&](const Path& at) {
    return public_link(target, (*next_readlinkat)(directory, at, target, size));
  });
}

QPAIR_HOOK(ssize_t hooked_readlinkat_chk(int directory, const char* path, char* target, size_t size,
                                         size_t room),
           "__readlinkat_chk");
ssize_t hooked_readlinkat_chk(int directory, const char* path, char* target, size_t size, size_t room) {
  if (size > room) abort();
  return hooked_readlinkat(directory, path, target, size);
}

QPAIR_HOOK(char* hooked_realpath(const char* path, char* resolved), "realpath");
char* hooked_realpath(const char* path, char* resolved) {
  return with_path(path, [&](const Path& at) { return public_path((*next_realpath)(at, resolved)); });
}

QPAIR_HOOK(char* hooked_realpath_chk(const char* path, char* resolved, size_t room), "__realpath_chk");
char* hooked_realpath_chk(const char* path, char* resolved, size_t room) {
  if (room < PATH_MAX) abort();
  return hooked_realpath(path, resolved);
}

QPAIR_HOOK(char* hooked_canonicalize_file_name(const char* path), "canonicalize_file_name");
char* hooked_canonicalize_file_name(const char* path) {
  return hooked_realpath(path, nullptr);
}

QPAIR_HOOK(char* hooked_getcwd(char* path, size_t size), "getcwd");
char* hooked_getcwd(char* path, size_t size) {
  return public_path((*next_getcwd)(path, size));
}

QPAIR_HOOK(char* hooked_getcwd_chk(char* path, size_t size, size_t room), "__getcwd_chk");
char* hooked_getcwd_chk(char* path, size_t size, size_t room) {
  if (size > room) abort();
  return hooked_getcwd(path, size);
}

QPAIR_HOOK(int hooked_chdir(const char* path), "chdir");
int hooked_chdir(const char* path) {
  return with_path(path, [&](const Path& at) { return (*next_chdir)(at); });
}
