#include "available_memory.hpp"

#include <cstdlib>
#include <fstream>
#include <string>

namespace qpair::tool {

std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("MemAvailable:")) return std::strtoull(line.c_str() + 13, nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace qpair::tool
