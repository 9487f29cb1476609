#pragma once
// Which NIC the processes of a command get: a real one when there is one, otherwise an emulated one each.

#include <CLI/CLI.hpp>
#include <string>

#include "role.hpp"

namespace qpair::tool {

struct NicChoice {
  bool emulated;
  std::string device;    // name; empty: the first one
  std::string sentence;  // what was chosen and why, for people
};

// `device`: the name asked for, or empty; a Failure when there is no such device. `emulated`: as asked.
NicChoice choose_nic(const std::string& device, bool emulated);

// How a command that starts processes is told about it: --timeout, --device, --emulated.
struct ProcessOptions {
  unsigned timeout_seconds = kDefaultTimeoutSeconds;
  std::string device;  // empty: the first one
  bool emulated = false;
};
void add_process_options(CLI::App& app, ProcessOptions& options);

// A Failure when options of the emulated NIC were given: on a real device they would be ignored in silence.
void refuse_nic_options(const CLI::App& app);

}  // namespace qpair::tool
