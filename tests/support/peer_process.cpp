#include "tests/support/peer_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace qpair::testing {

PeerProcess::PeerProcess(const std::string& role) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int theirs = 100;  // dup2 to another number drops close-on-exec
  posix_spawn_file_actions_adddup2(&actions, ends[1], theirs);
  std::string fd = std::to_string(theirs);
  std::string program = "/proc/self/exe";
  std::string flag = "--peer";
  std::string role_argument = role;
  char* arguments[] = {program.data(), flag.data(), role_argument.data(), fd.data(), nullptr};
  const int error = posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  socket_ = ends[0];
  if (error != 0) throw std::runtime_error("posix_spawn");
}

PeerProcess::~PeerProcess() {
  kill();
  wait();
  close(socket_);
}

void PeerProcess::kill() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

int PeerProcess::wait() {
  if (pid_ <= 0) return 0;
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace qpair::testing
