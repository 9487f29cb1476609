#pragma once
// One run: machines, network and programs in one thread under a virtual clock, all of it decided by one seed.
//
//   schedule ─▶ events ─▶ machines (nic::Chip, stepped) ◀─▶ network ◀─ weather
//                            ▲ rings, doorbells  │ completions
//                         connections (programs) ▼ ─▶ model: every completion and every byte is checked

#include <cstdint>

#include "tests/simulation/connection.hpp"

namespace qpair::simulation {

struct Result {
  Totals totals;
  std::uint64_t digest = 0;  // equal for equal runs
  std::uint64_t packets = 0, lost = 0, restarts = 0;
  Duration took{};  // of virtual time
};

// Throws Violation.
Result run(const Schedule& schedule, Log& log);

}  // namespace qpair::simulation
