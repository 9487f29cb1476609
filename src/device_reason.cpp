#include "src/device_reason.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <string_view>

namespace qpair::detail {

namespace {

constexpr const char* kDevices = "/sys/class/infiniband";
constexpr std::size_t kLongest = 1U << 20;  // more is not from a device that we know

std::string read_attribute(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string text;
  std::array<char, 4096> piece{};
  ssize_t size = 0;
  while (text.size() < kLongest && (size = read(fd, piece.data(), piece.size())) > 0) {
    text.append(piece.data(), static_cast<std::size_t>(size));
  }
  close(fd);
  return text;
}

// Cuts the next word off.
std::string_view take_word(std::string_view& line) {
  const std::size_t end = line.find(' ');
  const std::string_view word = line.substr(0, end);
  line = end == std::string_view::npos ? std::string_view{} : line.substr(end + 1);
  return word;
}

std::optional<std::uint32_t> number(std::string_view text) {
  const bool hexadecimal = text.starts_with("0x");
  if (hexadecimal) text.remove_prefix(2);
  std::uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, hexadecimal ? 16 : 10);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

bool explains(std::string_view side, std::string_view status, std::string_view vendor_err,
              std::string_view when, const IbvWc& wc) {
  // What was flushed failed for the reason that its queue pair failed for.
  if (wc.status == IBV_WC_WR_FLUSH_ERR) return when == "now";
  return side == (wc.is_receive() ? "receive" : "send") &&
         number(status) == static_cast<std::uint32_t>(wc.status) && number(vendor_err) == wc.vendor_err;
}

}  // namespace

std::string reason_in(std::string_view failures, const IbvWc& wc) {
  while (!failures.empty()) {
    const std::size_t end = failures.find('\n');
    std::string_view line = failures.substr(0, end);
    failures = end == std::string_view::npos ? std::string_view{} : failures.substr(end + 1);
    const auto qpn = number(take_word(line));
    const std::string_view side = take_word(line);
    const std::string_view status = take_word(line);
    const std::string_view vendor_err = take_word(line);
    const std::string_view when = take_word(line);
    if (qpn == wc.qp_num && explains(side, status, vendor_err, when, wc)) return std::string(line);
  }
  return {};
}

std::string device_reason(const IbvWc& wc) {
  const std::unique_ptr<DIR, int (*)(DIR*)> devices(opendir(kDevices), closedir);
  if (!devices) return {};
  while (const dirent* const device =
             readdir(devices.get())) {  // NOLINT(concurrency-mt-unsafe): a stream of our own
    if (device->d_name[0] == '.') continue;
    const std::string text = read_attribute(std::string(kDevices) + "/" + device->d_name + "/failures");
    if (std::string reason = reason_in(text, wc); !reason.empty()) return reason;
  }
  return {};
}

}  // namespace qpair::detail
