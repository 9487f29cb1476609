#pragma once
// What the processes that a command starts have in common: results that must be there, failures told to
// whoever started them, and polling that leaves something of the cores to others.

#include <chrono>
#include <exception>
#include <qpair/qpair.hpp>
#include <string>
#include <type_traits>
#include <utility>

#include "channel.hpp"
#include "failure.hpp"

namespace qpair::tool {

// How long one operation or one step of the exchange may take. The coordinator waits longer for news.
inline constexpr unsigned kDefaultTimeoutSeconds = 30;

// The value, or a Failure: "context: why".
template <typename T>
T need(Result<T>&& result, const std::string& context) {
  if (!result) throw Failure(context + ": " + result.error().message());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

// Runs a role. `channel_fd` leads to the coordinator: it is told what the role throws, and prints it. The
// exit status is then 1.
template <typename Role>
int run_role(int channel_fd, Role role) {
  Channel channel(channel_fd);
  try {
    role(channel);
    return 0;
  } catch (const std::exception& error) {
    channel.send({{"event", "failed"}, {"message", error.what()}});
    return kFailed;
  }
}

// Polls with less and less eagerness: the processes and their NICs may share two cores.
class Patience {
 public:
  static constexpr unsigned kSpins = 256;

  explicit Patience(std::chrono::milliseconds timeout, unsigned spins = kSpins)
      : timeout_(timeout), spins_(spins) {}
  void reset() { misses_ = 0; }
  // Nothing came. Spins, then gives the core away. False: the time is over.
  [[nodiscard]] bool wait();

 private:
  std::chrono::milliseconds timeout_;
  unsigned spins_;
  unsigned misses_ = 0;
  std::chrono::steady_clock::time_point start_{};
};

}  // namespace qpair::tool
