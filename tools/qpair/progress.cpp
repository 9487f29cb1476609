#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "units.hpp"

namespace qpair::tool {

ProgressBar::ProgressBar() : terminal_(::isatty(STDERR_FILENO) == 1) {}

void ProgressBar::show(std::string_view label, std::uint64_t done, std::uint64_t total) {
  if (!terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && label == label_ && done < total && now - last_ < std::chrono::milliseconds(50)) return;
  label_ = label;
  last_ = now;
  drawn_ = true;
  fmt::print(stderr, "\r{}\033[K", progress_line(label, done, total));
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (!drawn_) return;
  drawn_ = false;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

std::string progress_line(std::string_view label, std::uint64_t done, std::uint64_t total) {
  constexpr std::size_t kWidth = 30;
  const double fraction =
      total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const auto filled = static_cast<std::size_t>(fraction * kWidth);
  return fmt::format("{:<14} [{}{}] {:>3.0f}%  {} of {}", label, std::string(filled, '#'),
                     std::string(kWidth - filled, '.'), fraction * 100, format_size(std::min(done, total)),
                     format_size(total));
}

}  // namespace qpair::tool
