#include "softnic/driver/doorbell_registers.hpp"

#include <algorithm>

namespace qpair::softnic::driver {

DoorbellRegisters::DoorbellRegisters(std::uint32_t total, std::uint32_t low_latency)
    : first_high_(total - low_latency), uses_(total) {}

int DoorbellRegisters::take() {
  if (uses_.empty()) return -1;
  const auto high = uses_.begin() + static_cast<std::ptrdiff_t>(std::max(first_high_, 1U));
  auto chosen = std::find(high, uses_.end(), 0U);
  if (chosen == uses_.end()) {
    const auto medium = uses_.begin() + 1;
    chosen = medium < high ? std::min_element(medium, high) : uses_.begin();
  }
  ++*chosen;
  return static_cast<int>(chosen - uses_.begin());
}

void DoorbellRegisters::give_back(int index) {
  if (index >= 0 && static_cast<std::size_t>(index) < uses_.size() &&
      uses_[static_cast<std::size_t>(index)] > 0) {
    --uses_[static_cast<std::size_t>(index)];
  }
}

std::uint32_t DoorbellRegisters::as_libmlx5(int index) {
  const auto number = static_cast<std::uint32_t>(index);
  return number / kRegistersPerPage * 4 + number % kRegistersPerPage;
}

}  // namespace qpair::softnic::driver
