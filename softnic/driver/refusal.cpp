#include "softnic/driver/refusal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string>
#include <vector>

#include "softnic/explain/explain.hpp"

namespace qpair::softnic::driver {

int refuse(int error, std::string_view sentence) {
  explain::say(explain::Kind::Refusal, sentence);
  return -error;
}

int unsupported(std::string_view what) {
  static std::mutex mutex;
  static std::vector<std::string>& said = *std::make_unique<std::vector<std::string>>().release();
  bool first = false;
  {
    const std::scoped_lock lock(mutex);
    if (said.size() < 256 && std::find(said.begin(), said.end(), what) == said.end()) {
      said.emplace_back(what);
      first = true;
    }
  }
  if (first)
    explain::say(explain::Kind::Refusal, fmt::format("{}: not supported by the emulated NIC.", what));
  return -EOPNOTSUPP;
}

}  // namespace qpair::softnic::driver
