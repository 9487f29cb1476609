#pragma once
// CRC-32 as zlib and gzip compute it (ISA-L's crc32_gzip_refl: several gigabytes a second).

#include <cstddef>
#include <cstdint>
#include <span>

namespace qpair::tool {

std::uint32_t checksum(std::span<const std::byte> bytes);

}  // namespace qpair::tool
