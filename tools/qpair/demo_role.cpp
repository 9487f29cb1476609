#include <sched.h>

#include "demo.hpp"

namespace qpair::tool {

void add_role_options(CLI::App& app, RoleOptions& options) {
  app.group("");  // not in the help: for the coordinator
  app.add_option("--device", options.device);
  app.add_option("--size", options.size)->required();
  app.add_option("--timeout", options.timeout_seconds);
  app.add_option("--channel", options.channel)->required();
}

void Patience::reset() {
  misses_ = 0;
}

bool Patience::wait() {
  if (misses_ == 0) start_ = std::chrono::steady_clock::now();
  if (++misses_ < kSpins) return true;
  ::sched_yield();
  return std::chrono::steady_clock::now() - start_ < timeout_;
}

}  // namespace qpair::tool
