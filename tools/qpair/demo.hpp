#pragma once
// What the files of the demo share. The coordinator (demo.cpp) starts a server (demo_server.cpp) and workers
// (demo_worker.cpp). Messages to the coordinator have an "event":
//
//   server   loaded {checksum}; verified {phase}, once for each worker
//   worker   ready; progress {bytes}; measured {phase, measurement}
//   both     failed {message}
//
// and from it: go {phase, checksum} to the workers, stop to all.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <qpair/qpair.hpp>
#include <string>
#include <utility>

#include "channel.hpp"
#include "demo_plan.hpp"
#include "failure.hpp"

namespace qpair::tool {

// How long one operation or one step of the exchange may take. The coordinator waits twice that for news.
inline constexpr unsigned kDefaultTimeoutSeconds = 30;

// What a process of the demo was started with.
struct RoleOptions {
  std::string device;  // empty: the first one
  std::uint64_t size = 0;
  unsigned timeout_seconds = kDefaultTimeoutSeconds;
  int channel = -1;

  std::chrono::milliseconds timeout() const { return std::chrono::seconds(timeout_seconds); }
};

void add_role_options(CLI::App& app, RoleOptions& options);

// The value, or a Failure: "context: why".
template <typename T>
T need(Result<T>&& result, const std::string& context) {
  if (!result) throw Failure(context + ": " + result.error().message());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

// Runs a role. What it throws is told to the coordinator, which prints it; the exit status is then 1.
template <typename Role>
int run_role(const RoleOptions& options, Role role) {
  Channel channel(options.channel);
  try {
    role(channel);
    return 0;
  } catch (const std::exception& error) {
    channel.send({{"event", "failed"}, {"message", error.what()}});
    return kFailed;
  }
}

// Polls with less and less eagerness: the processes of a demo and their NICs may share two cores.
class Patience {
 public:
  explicit Patience(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  void reset();
  // Nothing came. Spins, then gives the core away. False: the time is over.
  [[nodiscard]] bool wait();

 private:
  static constexpr unsigned kSpins = 256;
  std::chrono::milliseconds timeout_;
  unsigned misses_ = 0;
  std::chrono::steady_clock::time_point start_{};
};

}  // namespace qpair::tool
