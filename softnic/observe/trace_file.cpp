#include "softnic/observe/trace_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "softnic/explain/explain.hpp"

// Descriptors are used by raw system calls where the interposed libc would have to look first.

namespace qpair::softnic::observe {
namespace {

// How every such file begins. Readers ignore metadata that they do not know.
constexpr std::string_view kBeginning =
    "[\n{\"ph\":\"M\",\"name\":\"emulated_nic_trace\",\"pid\":0,\"tid\":0,\"args\":{\"version\":1}},\n";

std::string with_process_number(std::string path) {
  for (std::size_t at = path.find("%p"); at != std::string::npos; at = path.find("%p", at)) {
    path.replace(at, 2, std::to_string(::getpid()));
  }
  return path;
}

}  // namespace

tl::expected<std::unique_ptr<TraceFile>, std::string> TraceFile::open(const std::string& pattern) {
  const std::string path = with_process_number(pattern);
  // As a capture: nobody else chooses where it lies, nor reads what a program does.
  constexpr int kFlags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW;
  wire::Descriptor fd(::open(path.c_str(), kFlags, 0600));
  if (!fd) {
    return tl::unexpected(errno == ELOOP
                              ? fmt::format("will not trace to '{}': it is a symbolic link", path)
                              : fmt::format("cannot trace to '{}': {}", path, std::strerror(errno)));
  }
  std::unique_ptr<TraceFile> trace(new TraceFile(std::move(fd), path));
  if (const auto begun = trace->begin(); !begun) return tl::unexpected(begun.error());
  return trace;
}

TraceFile::TraceFile(wire::Descriptor file, std::string path)
    : file_(std::move(file)), path_(std::move(path)), owner_(::getpid()), buffer_(kBuffer) {}

TraceFile::~TraceFile() {
  if (owner_ == ::getpid()) flush();  // what a forked child inherited is written by its parent
}

// Writes the beginning if nobody has, and makes sure that the file is ours to append to.
tl::expected<void, std::string> TraceFile::begin() {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return tl::unexpected(fmt::format("cannot trace to '{}': it is not a regular file", path_));
  }
  if (status.st_uid != ::geteuid()) {
    return tl::unexpected(
        fmt::format("will not trace to '{}': it belongs to another user ({})", path_, status.st_uid));
  }
  if (buffer_.size() == 0) {
    return tl::unexpected(fmt::format("cannot trace to '{}': there is no memory for its buffer", path_));
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
  while (::flock(file_.get(), LOCK_EX) != 0) {
    if (errno != EINTR) {
      return tl::unexpected(fmt::format("cannot lock trace file '{}': {}", path_, std::strerror(errno)));
    }
  }
  tl::expected<void, std::string> result;
  std::array<char, kBeginning.size()> first{};
  const ssize_t got = ::pread(file_.get(), first.data(), first.size(), 0);
  if (got == 0) {
    if (::write(file_.get(), kBeginning.data(), kBeginning.size()) !=
        static_cast<ssize_t>(kBeginning.size())) {
      result =
          tl::unexpected(fmt::format("cannot write to trace file '{}': {}", path_, std::strerror(errno)));
    }
  } else if (std::string_view(first.data(), first.size()) != kBeginning) {
    result = tl::unexpected(
        fmt::format("will not trace to '{}': it holds something other than an emulated NIC's trace", path_));
  }
  ::flock(file_.get(), LOCK_UN);
  return result;
}

// A program that closes every descriptor and opens files of its own must not find our events in them.
bool TraceFile::is_still_ours() const {
  struct stat status {};
  return ::fstat(file_.get(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

void TraceFile::flush() {
  if (used_ == 0 || !file_) return;
  if (!is_still_ours()) {
    file_.forget();
    return end("the program closed or replaced its descriptor");
  }
  long written = 0;
  do {
    written = ::syscall(SYS_write, file_.get(), buffer_.data(), used_);
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<long>(used_)) {
    end(written < 0 ? std::strerror(errno) : "only part of it could be written");
  }
  used_ = 0;
}

void TraceFile::end(const std::string& reason) {
  explain::say(explain::Kind::Notice, fmt::format("the trace to '{}' ends here: {}", path_, reason));
  file_ = wire::Descriptor();
  used_ = 0;
}

std::string plain_text(std::string_view text) {
  std::string plain(text);
  for (char& c : plain) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f || c == '"' ||
        c == '\\') {
      c = '?';
    }
  }
  return plain;
}

}  // namespace qpair::softnic::observe
