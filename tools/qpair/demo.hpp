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
#include <string>

#include "demo_plan.hpp"
#include "role.hpp"

namespace qpair::tool {

// What a process of the demo was started with.
struct RoleOptions {
  std::string device;  // empty: the first one
  std::uint64_t size = 0;
  unsigned timeout_seconds = kDefaultTimeoutSeconds;
  int channel = -1;

  std::chrono::milliseconds timeout() const { return std::chrono::seconds(timeout_seconds); }
};

void add_role_options(CLI::App& app, RoleOptions& options);

}  // namespace qpair::tool
