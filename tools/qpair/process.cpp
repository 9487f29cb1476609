#include "process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "failure.hpp"

namespace qpair::tool {
namespace {

std::pair<int, int> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Failure(fmt::format("cannot make a socket pair: {}", std::strerror(errno)));
  }
  return {ends[0], ends[1]};
}

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  return set;
}

void keep_over_exec(int fd) {
  ::fcntl(fd, F_SETFD, ::fcntl(fd, F_GETFD) & ~FD_CLOEXEC);
}

// In the child, between fork and exec. Never returns.
[[noreturn]] void become(const std::vector<std::string>& arguments, const Environment& environment,
                         pid_t parent, const std::vector<int>& inherited) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it died before the line above
  const sigset_t set = ending_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  for (const int fd : inherited) keep_over_exec(fd);
  try {
    exec_program(arguments, environment);
  } catch (const Failure& failure) {
    fmt::print(stderr, "qpair: {}\n", failure.what());
    ::_exit(failure.status());
  }
}

}  // namespace

ChildProcess::ChildProcess(std::string name, std::vector<std::string> arguments,
                           const Environment& environment, const std::vector<int>& inherited)
    : name_(std::move(name)) {
  const auto [ours, theirs] = socket_pair();
  channel_ = Channel(ours);
  arguments.insert(arguments.begin(), own_executable().string());
  arguments.insert(arguments.end(), {"--channel", std::to_string(theirs)});
  std::vector<int> descriptors = inherited;
  descriptors.push_back(theirs);
  const pid_t self = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become(arguments, environment, self, descriptors);
  const int error = errno;
  ::close(theirs);
  if (pid_ < 0) throw Failure(fmt::format("cannot start a process: {}", std::strerror(error)));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      channel_(std::move(other.channel_)) {}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<std::string> ChildProcess::finish(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  int status = 0;
  bool killed = false;
  for (;;) {
    const pid_t ended = ::waitpid(pid_, &status, killed ? 0 : WNOHANG);
    if (ended == pid_) break;
    if (ended < 0 && errno != EINTR) break;
    if (!killed && std::chrono::steady_clock::now() >= deadline) {
      ::kill(pid_, SIGKILL);
      killed = true;
    }
    if (!killed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  pid_ = -1;
  if (killed) return fmt::format("{} did not end within {} ms and was killed", name_, patience.count());
  if (WIFSIGNALED(status)) {
    return fmt::format("{} was killed by signal {} ({})", name_, WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) == 0) return std::nullopt;
  std::string words;
  while (const auto message = channel_.receive()) {
    if (message->value("event", "") == "failed") words = fmt::format(" ({})", message->value("message", ""));
  }
  return fmt::format("{} ended with exit status {}{}", name_, WEXITSTATUS(status), words);
}

SignalWatch::SignalWatch() {
  const sigset_t set = ending_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) throw Failure(fmt::format("cannot watch for signals: {}", std::strerror(errno)));
}

SignalWatch::~SignalWatch() {
  ::close(fd_);
  const sigset_t set = ending_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

std::optional<int> SignalWatch::received() {
  signalfd_siginfo information{};
  if (::read(fd_, &information, sizeof information) != sizeof information) return std::nullopt;
  return static_cast<int>(information.ssi_signo);
}

}  // namespace qpair::tool
