#pragma once
// The files of the emulated device: made when a program first looks for them, and gone when the process ends.

#include <atomic>
#include <cstddef>

#include "softnic/driver/sysfs.hpp"

namespace qpair::softnic::hooks {

// Makes the NIC and writes its files at the first call. Null: there is no device, for a reason that has been
// said; or it is being made by this very thread; or the process is about to end.
const driver::SysfsTree* device_files();

namespace internal {
inline constinit std::atomic<const driver::SysfsTree*> tree{nullptr};
}
// The same, but never makes anything.
inline const driver::SysfsTree* device_files_if_made() {
  return internal::tree.load(std::memory_order_acquire);
}

// The longest prefix of `path` that is the tree's root, if `path` lies in the tree: what has to go from paths
// that libc reports. Otherwise 0.
std::size_t private_prefix(const char* path, std::size_t length);

// Removes the files. Only in the process that made them; async-signal-safe.
void remove_device_files();

// Around fork().
void device_files_before_fork();
void device_files_after_fork_in_parent();
void device_files_after_fork_in_child();

}  // namespace qpair::softnic::hooks
