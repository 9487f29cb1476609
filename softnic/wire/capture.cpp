#include "softnic/wire/capture.hpp"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>

#include "softnic/explain/explain.hpp"
#include "softnic/wire/address.hpp"
#include "softnic/wire/pcapng.hpp"

namespace qpair::softnic::wire {
namespace {

constexpr std::chrono::seconds kAskAgain{1};

// The name that a recorder of that file with that address holds, in the abstract namespace: it goes with the
// process.
socklen_t recorder_name(dev_t device, ino_t inode, const Endpoint& endpoint, sockaddr_un& out) {
  out = {};
  out.sun_family = AF_UNIX;
  const auto end = fmt::format_to_n(out.sun_path + 1, sizeof(out.sun_path) - 1, "qpair-capture/{:x}/{:x}/{}",
                                    device, inode, to_string(endpoint));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + end.size);
}

std::uint64_t wall_clock() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

tl::expected<std::unique_ptr<CaptureFile>, std::string> CaptureFile::open(const std::string& path,
                                                                          const Endpoint& local) {
  // It holds the program's data: it is for nobody else to read, and nobody else chooses where it lies.
  constexpr int kFlags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW;
  Descriptor fd(::open(path.c_str(), kFlags, 0600));
  if (!fd) {
    if (errno == ELOOP) {
      return tl::unexpected(fmt::format("will not capture to '{}': it is a symbolic link", path));
    }
    return tl::unexpected(fmt::format("cannot capture to '{}': {}", path, std::strerror(errno)));
  }
  std::unique_ptr<CaptureFile> capture(new CaptureFile(std::move(fd), path));
  if (const auto begun = capture->begin(); !begun) {
    return tl::unexpected(begun.error());
  }
  capture->announce(local);
  return capture;
}

CaptureFile::CaptureFile(Descriptor file, std::string path)
    : file_(std::move(file)), path_(std::move(path)), owner_(::getpid()), buffer_(kBuffer) {}

CaptureFile::~CaptureFile() {
  if (owner_ == ::getpid()) {  // what a forked child inherited has been or will be written by its parent
    flush();
  }
}

// Writes the file's header if nobody has, and makes sure that it is ours to append to.
tl::expected<void, std::string> CaptureFile::begin() {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return tl::unexpected(fmt::format("cannot capture to '{}': it is not a regular file", path_));
  }
  if (status.st_uid != ::geteuid()) {
    return tl::unexpected(
        fmt::format("will not capture to '{}': it belongs to another user ({})", path_, status.st_uid));
  }
  if (buffer_.size() == 0) {
    return tl::unexpected(fmt::format("cannot capture to '{}': there is no memory for its buffer", path_));
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
  const auto header = pcapng::file_header();
  while (::flock(file_.get(), LOCK_EX) != 0) {
    if (errno != EINTR) {
      return tl::unexpected(fmt::format("cannot lock capture file '{}': {}", path_, std::strerror(errno)));
    }
  }
  tl::expected<void, std::string> result;
  std::array<std::byte, 256> first{};
  const ssize_t got = ::pread(file_.get(), first.data(), header.size(), 0);
  if (got == 0) {
    if (::write(file_.get(), header.data(), header.size()) != static_cast<ssize_t>(header.size())) {
      result =
          tl::unexpected(fmt::format("cannot write to capture file '{}': {}", path_, std::strerror(errno)));
    }
  } else if (got != static_cast<ssize_t>(header.size()) ||
             !std::equal(header.begin(), header.end(), first.begin())) {
    result = tl::unexpected(fmt::format(
        "will not capture to '{}': it holds something other than an emulated NIC's capture", path_));
  }
  ::flock(file_.get(), LOCK_UN);
  return result;
}

void CaptureFile::announce(const Endpoint& local) {
  announcement_ = Descriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  question_ = Descriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un name;
  const socklen_t length = recorder_name(device_, inode_, local, name);
  // If that fails, packets may appear twice: a pity, no more.
  static_cast<void>(::bind(announcement_.get(), reinterpret_cast<const sockaddr*>(&name), length));
}

bool CaptureFile::is_recorded_by(const Endpoint& other, TimePoint now) {
  Peer& peer = peers_[(other.address[15] ^ other.address[14] ^ other.address[12]) % peers_.size()];
  if (peer.endpoint.address == other.address && now - peer.asked < kAskAgain) {
    return peer.recording;
  }
  sockaddr_un name;
  const socklen_t length = recorder_name(device_, inode_, other, name);
  peer.endpoint = other;
  peer.asked = now;
  peer.recording = ::connect(question_.get(), reinterpret_cast<const sockaddr*>(&name), length) == 0;
  return peer.recording;
}

void CaptureFile::record(const Frame& frame) {
  const std::size_t size = pcapng::packet_block_size(frame.source, frame.bytes.size());
  if (used_ + size > buffer_.size()) {
    flush();
  }
  if (!is_open() || size > buffer_.size()) {
    return;
  }
  pcapng::write_packet_block(frame, wall_clock(), buffer_.bytes().subspan(used_, size));
  used_ += size;
}

// A program that closes every descriptor and opens files of its own must not find our packets in them.
bool CaptureFile::is_still_ours() const {
  struct stat status {};
  return ::fstat(file_.get(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

void CaptureFile::flush() {
  if (used_ == 0 || !is_open()) {
    return;
  }
  if (!is_still_ours()) {
    file_.forget();
    end("the program closed or replaced its descriptor");
    return;
  }
  ssize_t written = 0;
  do {
    written = ::write(file_.get(), buffer_.data(), used_);
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<ssize_t>(used_)) {
    end(written < 0 ? std::strerror(errno) : "only part of it could be written");
  }
  used_ = 0;
}

void CaptureFile::end(const std::string& reason) {
  explain::say(explain::Kind::Notice, fmt::format("the capture to '{}' ends here: {}", path_, reason));
  file_ = Descriptor();
  announcement_ = Descriptor();  // from now on the receivers record what we send
  used_ = 0;
}

void CaptureFile::abandon() {
  file_.abandon();
  announcement_.abandon();
  question_.abandon();
}

// ---- The link
// --------------------------------------------------------------------------------------------------

std::span<std::byte> Capture::reserve(const Endpoint& destination, std::size_t size) {
  open_ = {inner_->local(), destination, inner_->reserve(destination, size)};
  return open_.bytes;
}

void Capture::commit() {
  if (file_->is_open()) {
    file_->record(open_);
  }
  inner_->commit();
}

void Capture::abandon() {
  inner_->abandon();
  file_->abandon();
}

void Capture::flush() {
  inner_->flush();
  file_->flush();
}

std::size_t Capture::poll(const Receiver& receiver, std::size_t limit, TimePoint now) {
  if (!file_->is_open()) {
    return inner_->poll(receiver, limit, now);
  }
  const Endpoint self = inner_->local();
  const auto record_and_deliver = [&](const Frame& frame) {
    if (frame.source.address != self.address && !file_->is_recorded_by(frame.source, now)) {
      file_->record(frame);
    }
    receiver(frame);
  };
  // By reference: so many captures would not fit in a std::function without memory of its own.
  const std::size_t delivered = inner_->poll(std::cref(record_and_deliver), limit, now);
  file_->flush();
  return delivered;
}

}  // namespace qpair::softnic::wire
