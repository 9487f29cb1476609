// Opening files and directories by name. What libc opens for itself (fopen, opendir, scandir, glob) does not
// come through open() and is therefore hooked too.

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <sys/types.h>

#include <cstdarg>

#include "softnic/hooks/hook.hpp"
#include "softnic/hooks/path.hpp"

namespace qpair::softnic::hooks {
namespace {

QPAIR_NEXT Next<int(const char*, int, ...)> next_open("open");
QPAIR_NEXT Next<int(int, const char*, int, ...)> next_openat("openat");
QPAIR_NEXT Next<FILE*(const char*, const char*)> next_fopen("fopen");
QPAIR_NEXT Next<FILE*(const char*, const char*, FILE*)> next_freopen("freopen");
QPAIR_NEXT Next<DIR*(const char*)> next_opendir("opendir");

bool has_mode(int flags) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
}

}  // namespace
}  // namespace qpair::softnic::hooks

using namespace qpair::softnic::hooks;

// On every 64-bit Linux off_t is 64 bits, so that the "64" twins are the same functions.
QPAIR_HOOK(int hooked_open(const char* path, int flags, ...), "open");
int hooked_open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if (has_mode(flags)) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);  // NOLINT(clang-analyzer-valist.Uninitialized): it is, by va_start
    va_end(arguments);
  }
  return with_path(path, [&](const Path& at) { return opened((*next_open)(at, flags, mode), at, flags); });
}
QPAIR_HOOK_ALIAS(int hooked_open64(const char*, int, ...), "open64", "open");
QPAIR_HOOK_ALIAS(int hooked_open_internal(const char*, int, ...), "__open", "open");
QPAIR_HOOK_ALIAS(int hooked_open64_internal(const char*, int, ...), "__open64", "open");

QPAIR_HOOK(int hooked_openat(int directory, const char* path, int flags, ...), "openat");
int hooked_openat(int directory, const char* path, int flags, ...) {
  mode_t mode = 0;
  if (has_mode(flags)) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);  // NOLINT(clang-analyzer-valist.Uninitialized): it is, by va_start
    va_end(arguments);
  }
  return with_path(
      path, [&](const Path& at) { return opened((*next_openat)(directory, at, flags, mode), at, flags); });
}
QPAIR_HOOK_ALIAS(int hooked_openat64(int, const char*, int, ...), "openat64", "openat");

// With _FORTIFY_SOURCE. glibc ends the program here when flags ask for a mode; open() then uses 0.
QPAIR_HOOK(int hooked_open_2(const char* path, int flags), "__open_2");
int hooked_open_2(const char* path, int flags) {
  return with_path(path, [&](const Path& at) { return opened((*next_open)(at, flags, 0), at, flags); });
}
QPAIR_HOOK_ALIAS(int hooked_open64_2(const char*, int), "__open64_2", "__open_2");

QPAIR_HOOK(int hooked_openat_2(int directory, const char* path, int flags), "__openat_2");
int hooked_openat_2(int directory, const char* path, int flags) {
  return with_path(
      path, [&](const Path& at) { return opened((*next_openat)(directory, at, flags, 0), at, flags); });
}
QPAIR_HOOK_ALIAS(int hooked_openat64_2(int, const char*, int), "__openat64_2", "__openat_2");

QPAIR_HOOK(int hooked_creat(const char* path, mode_t mode), "creat");
int hooked_creat(const char* path, mode_t mode) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  return with_path(path, [&](const Path& at) { return opened((*next_open)(at, kFlags, mode), at, kFlags); });
}
QPAIR_HOOK_ALIAS(int hooked_creat64(const char*, mode_t), "creat64", "creat");

QPAIR_HOOK(FILE* hooked_fopen(const char* path, const char* mode), "fopen");
FILE* hooked_fopen(const char* path, const char* mode) {
  return with_path(path, [&](const Path& at) {
    FILE* const stream = (*next_fopen)(at, mode);
    stream_opened(stream, at);
    return stream;
  });
}
QPAIR_HOOK_ALIAS(FILE* hooked_fopen64(const char*, const char*), "fopen64", "fopen");

QPAIR_HOOK(FILE* hooked_freopen(const char* path, const char* mode, FILE* stream), "freopen");
FILE* hooked_freopen(const char* path, const char* mode, FILE* stream) {
  return with_path(path, [&](const Path& at) {
    FILE* const opened_stream = (*next_freopen)(at, mode, stream);
    stream_opened(opened_stream, at);
    return opened_stream;
  });
}
QPAIR_HOOK_ALIAS(FILE* hooked_freopen64(const char*, const char*, FILE*), "freopen64", "freopen");

QPAIR_HOOK(DIR* hooked_opendir(const char* path), "opendir");
DIR* hooked_opendir(const char* path) {
  return with_path(path, [&](const Path& at) { return (*next_opendir)(at); });
}

namespace qpair::softnic::hooks {
namespace {

using Filter = int(const dirent*);
using Order = int(const dirent**, const dirent**);
QPAIR_NEXT Next<int(const char*, dirent***, Filter*, Order*)> next_scandir("scandir");
QPAIR_NEXT Next<int(int, const char*, dirent***, Filter*, Order*)> next_scandirat("scandirat");
QPAIR_NEXT Next<int(const char*, int, int (*)(const char*, int), glob_t*)> next_glob("glob");

}  // namespace
}  // namespace qpair::softnic::hooks

QPAIR_HOOK(int hooked_scandir(const char* path, dirent*** names, Filter* filter, Order* order), "scandir");
int hooked_scandir(const char* path, dirent*** names, Filter* filter, Order* order) {
  return with_path(path, [&](const Path& at) { return (*next_scandir)(at, names, filter, order); });
}
QPAIR_HOOK_ALIAS(int hooked_scandir64(const char*, dirent***, Filter*, Order*), "scandir64", "scandir");

QPAIR_HOOK(int hooked_scandirat(int directory, const char* path, dirent*** names, Filter* filter,
                                Order* order),
           "scandirat");
int hooked_scandirat(int directory, const char* path, dirent*** names, Filter* filter, Order* order) {
  return with_path(path,
                   [&](const Path& at) { return (*next_scandirat)(directory, at, names, filter, order); });
}
QPAIR_HOOK_ALIAS(int hooked_scandirat64(int, const char*, dirent***, Filter*, Order*), "scandirat64",
                 "scandirat");

// The pattern's literal beginning decides: "/sys/class/infiniband/*/ports" is ours, "/sys/class/*" is not.
QPAIR_HOOK(int hooked_glob(const char* pattern, int flags, int (*on_error)(const char*, int), glob_t* result),
           "glob");
int hooked_glob(const char* pattern, int flags, int (*on_error)(const char*, int), glob_t* result) {
  return with_path(pattern, [&](const Path& at) {
    const int outcome = (*next_glob)(at, flags, on_error, result);
    if (!at.ours() || outcome != 0) return outcome;
    const std::size_t first = (flags & GLOB_DOOFFS) != 0 ? result->gl_offs : 0;
    for (std::size_t i = 0; i < result->gl_pathc; ++i) public_path(result->gl_pathv[first + i]);
    return outcome;
  });
}
QPAIR_HOOK_ALIAS(int hooked_glob64(const char*, int, int (*)(const char*, int), glob_t*), "glob64", "glob");
