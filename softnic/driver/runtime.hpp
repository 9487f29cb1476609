#pragma once
// The one emulated NIC of this process and the configuration that it was made with. Made on first use, so
// that a program which never looks for RDMA devices pays nothing. Thread-safe; never throws.

#include <memory>

#include "softnic/config.hpp"
#include "softnic/nic/nic.hpp"

namespace qpair::softnic::driver {

// The NIC, made from NicConfig::from_environment() by the first caller. Null when it cannot be made; the
// reason has then been said through explain, once, and later calls stay null: a machine without the device.
// Null after shut_down().
nic::Nic* current_nic();

// The same with a share in its life: who holds it may use it until it lets go, whatever happens meanwhile.
std::shared_ptr<nic::Nic> share_nic();

// What current_nic() was made with; defaults while there is none. Valid until the process ends.
const NicConfig& current_config();

// Counts up at every fork, in the child: what was made in an older generation belongs to the parent's NIC,
// whose engine and locks do not work here. The fork handlers are registered when the library is loaded; the
// next current_nic() in the child makes a NIC of the child's own.
unsigned fork_generation();

// At process exit: every open device is closed and the NIC ends, so that a capture is complete. Whoever calls
// later finds no device. hooks/ calls it after the destructors of every library, which may still use the
// device.
void shut_down();

// What shut_down() closes before the NIC goes.
class Closable {
 public:
  virtual ~Closable() = default;
  virtual void shut_down() = 0;  // must not throw
};
void close_at_shut_down(std::weak_ptr<Closable> open);

}  // namespace qpair::softnic::driver
