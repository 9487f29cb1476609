#include "units.hpp"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

namespace qpair::tool {
namespace {

// The number at the start of `text`, and what follows it.
struct NumberAndRest {
  double number;
  std::string_view rest;
};

std::optional<NumberAndRest> split_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number) || number < 0 || std::signbit(number))
    return std::nullopt;
  return NumberAndRest{number, text.substr(static_cast<std::size_t>(end - text.data()))};
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& letter : result) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return result;
}

// Three significant digits, without a trailing ".0" for whole numbers.
std::string three_digits(double value) {
  if (value == std::floor(value) && value < 1e6) return fmt::format("{:.0f}", value);
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

}  // namespace

std::optional<double> parse_probability(std::string_view text) {
  const auto parts = split_number(text);
  if (!parts || (!parts->rest.empty() && parts->rest != "%")) return std::nullopt;
  const double probability = parts->rest.empty() ? parts->number : parts->number / 100;
  if (probability > 1) return std::nullopt;
  return probability;
}

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  const auto parts = split_number(text);
  if (!parts) return std::nullopt;
  double unit = 0;
  if (parts->rest == "ns") unit = 1;
  if (parts->rest == "us") unit = 1e3;
  if (parts->rest == "ms") unit = 1e6;
  if (parts->rest == "s") unit = 1e9;
  const double nanoseconds = parts->number * unit;
  constexpr double kLongest = 10e9;  // what the NIC allows
  if (unit == 0 || nanoseconds > kLongest) return std::nullopt;
  return std::chrono::nanoseconds(std::llround(nanoseconds));
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const auto parts = split_number(text);
  if (!parts) return std::nullopt;
  const std::string suffix = lower(parts->rest);
  unsigned shift = 0;
  if (suffix == "k" || suffix == "kib") {
    shift = 10;
  } else if (suffix == "m" || suffix == "mib") {
    shift = 20;
  } else if (suffix == "g" || suffix == "gib") {
    shift = 30;
  } else if (!suffix.empty() && suffix != "b") {
    return std::nullopt;
  }
  const double bytes = std::ldexp(parts->number, static_cast<int>(shift));
  constexpr double kExact = 9007199254740992.0;  // 2^53: beyond it a double skips integers
  if (bytes > kExact || bytes != std::floor(bytes)) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::string format_size(std::uint64_t bytes) {
  static constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string format_duration(std::chrono::nanoseconds duration) {
  static constexpr std::array kUnits{"ns", "µs", "ms", "s"};
  auto value = static_cast<double>(duration.count());
  std::size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string format_bandwidth(std::uint64_t bytes, std::chrono::nanoseconds time) {
  if (time.count() <= 0) return "-";
  const double per_second = static_cast<double>(bytes) * 1e9 / static_cast<double>(time.count());
  if (per_second >= 1e9) return fmt::format("{:.2f} GB/s", per_second / 1e9);
  if (per_second >= 1e6) return fmt::format("{:.1f} MB/s", per_second / 1e6);
  return fmt::format("{:.1f} kB/s", per_second / 1e3);
}

}  // namespace qpair::tool
