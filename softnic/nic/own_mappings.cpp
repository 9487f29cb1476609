#include "softnic/nic/own_mappings.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

namespace qpair::softnic::nic {
namespace {

std::string_view take_word(std::string_view& text) {
  const std::size_t length = std::min(text.find(' '), text.size());
  const std::string_view word = text.substr(0, length);
  text.remove_prefix(std::min(length + 1, text.size()));
  return word;
}

std::optional<std::uint64_t> hexadecimal(std::string_view text) {
  std::uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return error == std::errc{} && stop == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// Raw system calls: the interposed libc would take the descriptor for the program's.
std::string read_maps() {
  std::string text;
  const long fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return text;
  constexpr std::size_t kChunk = 1U << 16;
  for (;;) {
    const std::size_t size = text.size();
    text.resize(size + kChunk);
    const long got = syscall(SYS_read, fd, text.data() + size, kChunk);
    text.resize(size + (got > 0 ? static_cast<std::size_t>(got) : 0));
    if (got <= 0) break;
  }
  syscall(SYS_close, fd);
  return text;
}

}  // namespace

bool OwnMappings::parse(std::string_view text, Line& line) {
  const std::string_view range = take_word(text);
  const std::size_t dash = range.find('-');
  if (dash == std::string_view::npos) return false;
  const auto first = hexadecimal(range.substr(0, dash));
  const auto end = hexadecimal(range.substr(dash + 1));
  line.rights = take_word(text);
  const auto offset = hexadecimal(take_word(text));
  const char* const file = text.data();
  take_word(text);
  const std::string_view inode = take_word(text);
  if (!first || !end || !offset || inode.empty()) return false;
  line.file = {file, static_cast<std::size_t>(inode.data() + inode.size() - file)};
  line.first = *first;
  line.end = *end;
  line.offset = *offset;
  return true;
}

OwnMappings::OwnMappings() : text_(read_maps()) {
  std::string_view text = text_;
  while (!text.empty()) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    Line line;
    if (parse(text.substr(0, length), line)) lines_.push_back(line);
    text.remove_prefix(std::min(length + 1, text.size()));
  }
}

std::vector<std::uint64_t> OwnMappings::others_of(const void* page) const {
  const auto own = reinterpret_cast<std::uint64_t>(page);
  std::vector<std::uint64_t> found;
  const auto after = std::ranges::upper_bound(lines_, own, {}, &Line::first);
  if (after == lines_.begin()) return found;
  const Line& ours = *std::prev(after);
  if (own >= ours.end) return found;
  const std::uint64_t offset = ours.offset + (own - ours.first);
  for (const Line& line : lines_) {
    if (line.offset > offset || offset - line.offset >= line.end - line.first) continue;
    if (line.file != ours.file || line.rights.substr(1, 1) != "w" || line.rights.substr(3, 1) != "s")
      continue;
    const std::uint64_t at = line.first + (offset - line.offset);
    if (at != own) found.push_back(at);
  }
  return found;
}

std::optional<OwnMappings::Mapping> OwnMappings::shared_at(std::uint64_t address,
                                                           std::uint64_t length) const {
  const auto after = std::ranges::upper_bound(lines_, address, {}, &Line::first);
  if (after == lines_.begin()) return std::nullopt;
  const Line& line = *std::prev(after);
  if (address >= line.end || length > line.end - address) return std::nullopt;
  if (line.rights.substr(1, 1) != "w" || line.rights.substr(3, 1) != "s") return std::nullopt;
  std::string_view file = line.file;
  const std::string_view device = take_word(file);
  const std::size_t colon = device.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto major = hexadecimal(device.substr(0, colon));
  const auto minor = hexadecimal(device.substr(colon + 1));
  std::uint64_t inode = 0;
  std::from_chars(file.data(), file.data() + file.size(), inode);
  if (!major || !minor || inode == 0) return std::nullopt;
  return Mapping{line.first, line.end, line.offset,
                 makedev(static_cast<unsigned>(*major), static_cast<unsigned>(*minor)), inode};
}

}  // namespace qpair::softnic::nic
