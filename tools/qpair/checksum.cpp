#include "checksum.hpp"

#include <isa-l/crc.h>

namespace qpair::tool {

std::uint32_t checksum(std::span<const std::byte> bytes) {
  return crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace qpair::tool
