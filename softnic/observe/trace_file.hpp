#pragma once
// A timeline in the format that Perfetto and Chrome's about:tracing read: an array of JSON objects, one event
// on each line ("Trace Event Format", JSON Array Format). The array is never closed, which the format allows,
// so that a process may be killed and the NICs of several may write to one file: lines are appended whole,
// many at a time, by one write().
//
// This class knows lines; which events there are is the NIC's business (nic/tracer.hpp). One thread.

#include <fmt/format.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "softnic/wire/descriptor.hpp"
#include "softnic/wire/pages.hpp"

namespace qpair::softnic::observe {

class TraceFile {
 public:
  // Creates the file, or goes on with one that an emulated NIC began. "%p" in the path is this process's
  // number. The error is a sentence.
  static tl::expected<std::unique_ptr<TraceFile>, std::string> open(const std::string& path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // One line: a JSON object without line breaks. The arguments are formatted into the buffer; no memory is
  // allocated.
  template <typename... Arguments>
  void line(fmt::format_string<Arguments...> format, const Arguments&... arguments) {
    if (!file_) return;
    if (kLongestLine > buffer_.size() - used_) flush();
    char* const start = reinterpret_cast<char*>(buffer_.data()) + used_;
    const auto end = fmt::vformat_to_n(start, kLongestLine - 2, fmt::string_view(format),
                                       fmt::make_format_args(arguments...));
    if (end.size > kLongestLine - 2) return;  // half an object would spoil the file
    start[end.size] = ',';
    start[end.size + 1] = '\n';
    used_ += end.size + 2;
  }

  // Writes what is buffered. On failure says so and ends the trace.
  void flush();
  bool is_nearly_full() const { return used_ > buffer_.size() / 2; }

  // In a child of fork().
  void abandon() { file_.abandon(); }

 private:
  static constexpr std::size_t kBuffer = 256U << 10;
  static constexpr std::size_t kLongestLine = 512;

  TraceFile(wire::Descriptor file, std::string path);
  tl::expected<void, std::string> begin();
  bool is_still_ours() const;
  void end(const std::string& reason);

  wire::Descriptor file_;
  std::string path_;
  pid_t owner_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  wire::Pages buffer_;
  std::size_t used_ = 0;
};

// `text` without what would have to be escaped in a JSON string.
std::string plain_text(std::string_view text);

}  // namespace qpair::softnic::observe
