#pragma once
// Bytes that follow from a seed and a position, so that either process can tell whether they arrived.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace qpair::tool {

void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed);

// The offset of the first byte that is not the pattern's.
std::optional<std::size_t> find_difference(std::span<const std::byte> bytes, std::uint64_t seed);

}  // namespace qpair::tool
