#pragma once
// A progress bar on stderr; nothing at all when that is not a terminal.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace qpair::tool {

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(std::string_view label, std::uint64_t done, std::uint64_t total);
  void clear();  // leaves an empty line, for what is printed next

 private:
  bool terminal_;
  bool drawn_ = false;
  std::string label_;
  std::chrono::steady_clock::time_point last_{};
};

// The bar's text, without the terminal's control sequences.
std::string progress_line(std::string_view label, std::uint64_t done, std::uint64_t total);

}  // namespace qpair::tool
