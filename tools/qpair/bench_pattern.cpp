#include "bench_pattern.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace qpair::tool {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): every position has a
// value of its own.
std::uint64_t word_at(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t offset = 0; offset < bytes.size(); offset += kWord) {
    const std::uint64_t word = word_at(seed, offset / kWord);
    std::memcpy(bytes.data() + offset, &word, std::min(kWord, bytes.size() - offset));
  }
}

std::optional<std::size_t> find_difference(std::span<const std::byte> bytes, std::uint64_t seed) {
  for (std::size_t offset = 0; offset < bytes.size(); offset += kWord) {
    const std::uint64_t word = word_at(seed, offset / kWord);
    std::array<std::byte, kWord> expected{};
    std::memcpy(expected.data(), &word, kWord);
    const std::size_t length = std::min(kWord, bytes.size() - offset);
    const auto differs =
        std::mismatch(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(length),
                      bytes.begin() + static_cast<std::ptrdiff_t>(offset));
    const auto equal = static_cast<std::size_t>(differs.first - expected.begin());
    if (equal != length) return offset + equal;
  }
  return std::nullopt;
}

}  // namespace qpair::tool
