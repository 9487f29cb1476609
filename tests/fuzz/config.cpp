// Any value of any variable gives a configuration or a sentence.

#include "softnic/config.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static constexpr std::array kVariables{"QPAIR_NIC_ADDRESS", "QPAIR_NIC_MTU",       "QPAIR_NIC_LOSS",
                                         "QPAIR_NIC_DELAY",   "QPAIR_NIC_SEED",      "QPAIR_NIC_QUIET",
                                         "QPAIR_NIC_ABI",     "QPAIR_NIC_INTERFACE", "QPAIR_NIC_LINK_LAYER"};
  if (size == 0) {
    return 0;
  }
  const char* variable = kVariables[data[0] % kVariables.size()];
  const std::string value(reinterpret_cast<const char*>(data) + 1, size - 1);
  ::setenv(variable, value.c_str(), 1);
  const auto config = qpair::softnic::NicConfig::from_environment();
  ::unsetenv(variable);
  if (!config) {
    return config.error().find(variable) == std::string::npos ? (std::abort(), 0) : 0;
  }
  // What was accepted is in range, and says itself again.
  if (config->loss < 0 || config->loss > 1 || config->delay.count() < 0 || config->mtu < 256 ||
      config->mtu > 4096) {
    std::abort();
  }
  static_cast<void>(to_environment(*config));
  return 0;
}
