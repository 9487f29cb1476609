// The commands tested here are wrong on purpose: their refusals need not fill the output. At the end the NIC
// stops as it does when a program exits.

#include <gtest/gtest.h>

#include <cstdlib>

#include "softnic/driver/runtime.hpp"
#include "softnic/nic/guarded_memory.hpp"

namespace qpair::softnic::driver {
namespace {

class QuietDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    setenv("QPAIR_NIC_QUIET", "1", 1);
    nic::install_fault_handler();  // open_device() does; queues are tested without one too
  }
  void TearDown() override { shut_down(); }
};

[[maybe_unused]] auto* const environment =
    ::testing::AddGlobalTestEnvironment(new QuietDevice);  // gtest owns it

}  // namespace
}  // namespace qpair::softnic::driver
