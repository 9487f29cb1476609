#pragma once
// Numbers as people type and read them. Parsers take the whole text or nothing.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace qpair::tool {

std::optional<double> parse_probability(std::string_view text);                 // "0.01" or "1%", in [0, 1]
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);  // "800ns" "50us" "1.5ms" "2s"
std::optional<std::uint64_t> parse_size(std::string_view text);  // "4096" "64K" "1MiB" "2g": powers of 1024

std::string format_size(std::uint64_t bytes);                    // "1 MiB", "17.2 MiB", "64 B"
std::string format_duration(std::chrono::nanoseconds duration);  // "850 ns", "12.3 µs"
std::string format_bandwidth(std::uint64_t bytes,
                             std::chrono::nanoseconds time);  // "3.21 GB/s", powers of 1000

}  // namespace qpair::tool
