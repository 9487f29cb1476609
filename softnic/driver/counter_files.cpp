#include "softnic/driver/counter_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <string>
#include <string_view>

#include "softnic/driver/runtime.hpp"
#include "softnic/driver/system.hpp"

namespace qpair::softnic::driver {
namespace {

void replace_content(int fd, std::string_view text) {
  const int memory = system::memory_file("qpair-attribute");
  if (memory < 0) return;
  if (::syscall(SYS_pwrite64, memory, text.data(), text.size(), 0L) == static_cast<long>(text.size())) {
    system::seal_file(memory, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
    const long flags = ::syscall(SYS_fcntl, fd, F_GETFD, 0);
    ::syscall(SYS_dup3, memory, fd, flags > 0 && (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
  }
  system::close(memory);
}

template <typename Text>
void show(int fd, const Text& text) {
  const int saved_errno = errno;
  try {
    if (const auto nic = share_nic()) replace_content(fd, text(*nic));
  } catch (const std::exception&) {  // out of memory
  }
  errno = saved_errno;
}

}  // namespace

void show_counter(int fd, const LiveCounter& counter) {
  show(fd, [&](nic::Nic& nic) { return fmt::format("{}\n", counter.value(nic.counters())); });  // "%llu\n"
}

void show_failures(int fd) {
  show(fd, [](nic::Nic& nic) { return nic.failures(); });
}

}  // namespace qpair::softnic::driver
