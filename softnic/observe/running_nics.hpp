#pragma once
// The emulated NICs of this user's processes on this host, and what they have counted.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "softnic/observe/counter_page.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::observe {

struct QueuePairReading {
  QueuePairIdentity who;
  Counters counters;
};

struct NicReading {
  pid_t pid = 0;              // as seen from here
  std::string process;        // its name, as in /proc/PID/comm
  std::uint64_t inode = 0;    // of the page: tells the NIC from an earlier one with the same process number
  std::uint64_t started = 0;  // ns since 1970
  wire::Endpoint address;
  std::uint64_t queue_pairs = 0;
  std::uint64_t unlisted_queue_pairs = 0;  // beyond kListedQueuePairs
  Counters totals;                         // since it was made
  Counters unlisted;
  std::vector<QueuePairReading> listed;
};

// Sorted by process number. Those of `pid` only, unless it is 0. What cannot be read is left out: processes
// that end meanwhile, and those whose descriptors the kernel does not show (another user's, or not dumpable).
std::vector<NicReading> running_nics(pid_t pid = 0);

}  // namespace qpair::softnic::observe
