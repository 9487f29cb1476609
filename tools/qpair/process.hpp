#pragma once
// Processes that this one starts and that never outlive it: they are killed and reaped by the destructor, and
// by the kernel when this process is killed itself.

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "channel.hpp"
#include "emulated_nic.hpp"

namespace qpair::tool {

class ChildProcess {
 public:
  // Runs this binary with `arguments` and `--channel FD` behind them. `inherited`: descriptors that it gets
  // as well.
  ChildProcess(std::string name, std::vector<std::string> arguments, const Environment& environment,
               const std::vector<int>& inherited = {});
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  const std::string& name() const { return name_; }
  Channel& channel() { return channel_; }

  // Waits for the end; kills what is still there after `patience`. How it ended, as a sentence; nothing for
  // exit 0.
  std::optional<std::string> finish(std::chrono::milliseconds patience);

 private:
  std::string name_;
  pid_t pid_ = -1;
  Channel channel_;
};

// SIGINT, SIGTERM and SIGHUP as something to poll, so that what was started is ended in order.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_; }
  std::optional<int> received();  // the signal's number; does not wait

 private:
  int fd_;
};

}  // namespace qpair::tool
