#pragma once
// One line of `qpair doctor`.

#include <string>
#include <vector>

namespace qpair::tool {

enum class Verdict { Ok, Warn, Fail };

struct Check {
  std::string name;
  Verdict verdict;
  std::string detail;  // what was found
  std::string advice;  // what to do about it; empty when nothing
};

using Checks = std::vector<Check>;

// What can be said without opening a device.
void check_system(Checks& checks);

// Each device and port, and whether a queue pair moves bytes on it.
void check_devices(Checks& checks);

}  // namespace qpair::tool
