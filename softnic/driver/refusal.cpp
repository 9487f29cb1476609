#include "softnic/driver/refusal.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "softnic/explain/explain.hpp"

namespace qpair::softnic::driver {

int refuse(int error, std::string_view sentence) {
  explain::say(explain::Kind::Refusal, sentence);
  return -error;
}

int unsupported(const char* what) {
  static constinit std::array<std::atomic<const char*>, 64> said{};
  for (auto& place : said) {
    const char* there = place.load(std::memory_order_acquire);
    if (there == nullptr && place.compare_exchange_strong(there, what)) {
      explain::say(explain::Kind::Refusal, fmt::format("{}: not supported by the emulated NIC.", what));
      break;
    }
    if (std::strcmp(there, what) == 0) break;
  }
  return -EOPNOTSUPP;
}

}  // namespace qpair::softnic::driver
