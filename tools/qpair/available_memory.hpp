#pragma once

#include <cstdint>

namespace qpair::tool {

// Bytes that the kernel thinks can be had without swapping (MemAvailable of /proc/meminfo); 0 where it does
// not say.
std::uint64_t available_memory();

}  // namespace qpair::tool
