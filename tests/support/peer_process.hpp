#pragma once
// Another process for a test to talk to: this same program, started anew with `--peer ROLE FD`.

#include <sys/types.h>

#include <string>

namespace qpair::testing {

// Starts it and holds one end of a socket pair; the other is FD over there. Killed and reaped at the end of
// life.
class PeerProcess {
 public:
  explicit PeerProcess(const std::string& role);
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess();

  int socket() const { return socket_; }
  pid_t pid() const { return pid_; }
  void kill();
  // Waits for its end; its exit status, or 128 + the signal that ended it.
  int wait();

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace qpair::testing
