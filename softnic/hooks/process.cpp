// The life of the process: loading, fork, exit.

#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "softnic/driver/file.hpp"
#include "softnic/driver/runtime.hpp"
#include "softnic/hooks/device_files.hpp"
#include "softnic/hooks/hook.hpp"

// What the linker says of the section of QPAIR_NEXT.
extern "C" __attribute__((visibility("hidden"))) qpair::softnic::hooks::Next<void()>
    __start_qpair_next[];  // NOLINT
extern "C" __attribute__((visibility("hidden"))) qpair::softnic::hooks::Next<void()>
    __stop_qpair_next[];  // NOLINT

extern "C" int __cxa_atexit(void (*function)(void*), void* argument, void* dso);

namespace qpair::softnic::hooks {
namespace {

using driver::FileTable;

void before_fork() {
  device_files_before_fork();
  FileTable::instance().before_fork();
}
void after_fork_in_parent() {
  FileTable::instance().after_fork_in_parent();
  device_files_after_fork_in_parent();
}
void after_fork_in_child() {
  FileTable::instance().after_fork_in_child();
  device_files_after_fork_in_child();
}

void at_exit(void*) {
  if (device_files_if_made() != nullptr) driver::shut_down();
  remove_device_files();
}

// They differ in their type alone.
static_assert(sizeof(Next<void()>) == alignof(Next<void()>));
void resolve_all() {
  for (auto* next = __start_qpair_next; next != __stop_qpair_next; ++next) static_cast<void>(**next);
}

// Registered for no library in particular and before main(): it runs after the destructors of every library,
// which may still close devices and free queue pairs (glibc, elf/dl-fini.c is itself an exit function and was
// registered later).
__attribute__((constructor)) void loaded() {
  resolve_all();
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  __cxa_atexit(at_exit, nullptr, nullptr);
  at_quick_exit([] { remove_device_files(); });
}

[[noreturn]] void exit_by_system_call(int status) {
  for (;;) syscall(SYS_exit_group, status);
}
QPAIR_NEXT Next<void(int)> next_exit("_exit", exit_by_system_call);

}  // namespace
}  // namespace qpair::softnic::hooks

using namespace qpair::softnic::hooks;

// Called in signal handlers and by the children of vfork(): remove_device_files() fits both.
QPAIR_HOOK(void hooked_exit(int status), "_exit");
void hooked_exit(int status) {
  remove_device_files();
  (*next_exit)(status);
  for (;;) syscall(SYS_exit_group, status);
}
QPAIR_HOOK_ALIAS(void hooked_Exit(int), "_Exit", "_exit");
