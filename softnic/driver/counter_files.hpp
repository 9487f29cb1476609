#pragma once
// The attributes in sysfs that the kernel works out when somebody reads them: counters, and why work requests
// failed. Here the file that was opened gives way, under the same descriptor, to one in memory that holds
// what was true at that moment.

#include "softnic/driver/sysfs.hpp"

namespace qpair::softnic::driver {

// `fd` was just opened for reading, and nothing was read from it. If that fails it shows what is in the tree,
// which is 0. Not for signal handlers: it waits for the NIC's lock.
void show_counter(int fd, const LiveCounter& counter);
// The same with Nic::failures(); empty if that fails.
void show_failures(int fd);

}  // namespace qpair::softnic::driver
