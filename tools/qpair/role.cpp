#include "role.hpp"

#include <sched.h>

namespace qpair::tool {

bool Patience::wait() {
  if (misses_ == 0) start_ = std::chrono::steady_clock::now();
  if (++misses_ < spins_) return true;
  ::sched_yield();
  return std::chrono::steady_clock::now() - start_ < timeout_;
}

}  // namespace qpair::tool
