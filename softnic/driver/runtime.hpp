#pragma once
// The one emulated NIC of this process and the configuration that it was made with. Made on first use, so that a
// program which never looks for RDMA devices pays nothing. Thread-safe; never throws.

#include "softnic/config.hpp"
#include "softnic/nic/nic.hpp"

namespace qpair::softnic::driver {

// The NIC, made from NicConfig::from_environment() by the first caller. Null when it cannot be made; the reason has then
// been said through explain, once, and later calls stay null: a machine without the device.
nic::Nic* current_nic();

// What current_nic() was made with; defaults while there is none. Valid until the process ends.
const NicConfig& current_config();

// In the child of fork(): the parent's NIC is abandoned (its engine thread does not exist here) and the next
// current_nic() makes a new one. Files opened before the fork answer EIO from then on. The first current_nic() installs
// this with pthread_atfork, so that nobody has to call it.
void reset_after_fork();

// Counts up at every fork in the child: whatever belongs to an older generation belongs to the parent's NIC.
unsigned fork_generation();

// Ends the NIC at process exit: the engine stops, and everything that is called later finds no NIC.
void shut_down();

}  // namespace qpair::softnic::driver
