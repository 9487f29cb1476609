#include "qpair/exchange.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "qpair/mlx5/endian.hpp"

namespace qpair {

namespace {

using Clock = std::chrono::steady_clock;
using mlx5::BigEndian;

enum class Kind : std::uint16_t { Bytes = 1, QpInfo = 2 };

constexpr std::array<char, 4> kMagic = {'Q', 'P', 'X', 'C'};
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kMaxQpInfoBytes = 4096;

struct Header {
  std::array<char, 4> magic;
  BigEndian<std::uint16_t> version;
  BigEndian<std::uint16_t> kind;
  BigEndian<std::uint32_t> length;  // of the body that follows
  BigEndian<std::uint32_t>
      check;  // FNV-1a of the body, so that bytes that are not ours are not taken for ours
};
static_assert(sizeof(Header) == 16);

std::uint32_t check_of(std::string_view body) {
  std::uint32_t hash = 0x811c9dc5;
  for (const char c : body) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x01000193;
  return hash;
}

Error corrupt(std::string message) {
  return Error::make(ErrorCode::corrupt_message, "exchange: " + std::move(message));
}

Error socket_failed(const char* what, int reason) {
  return Error::make(ErrorCode::system, fmt::format("exchange: cannot {} the socket", what), reason);
}

// One message in each direction, interleaved, so that two large ones cannot block each other.
class Exchange {
 public:
  Exchange(int fd, Kind kind, std::string_view body, std::size_t longest)
      : fd_(fd), kind_(kind), longest_(longest) {
    const Header header{kMagic, kVersion, static_cast<std::uint16_t>(kind),
                        static_cast<std::uint32_t>(body.size()), check_of(body)};
    outgoing_.assign(reinterpret_cast<const char*>(&header), sizeof header);
    outgoing_ += body;
  }

  Result<std::string> run(std::chrono::milliseconds timeout) {
    if (fd_ < 0) return tl::unexpected(socket_failed("use", EBADF));  // poll() would just wait
    const auto deadline = Clock::now() + timeout;
    while (sent_ != outgoing_.size() || !complete()) {
      if (const Result<void> ready = wait(deadline, timeout); !ready) return tl::unexpected(ready.error());
      if (const Result<void> sent = send_some(); !sent) return tl::unexpected(sent.error());
      if (const Result<void> received = receive_some(); !received) return tl::unexpected(received.error());
    }
    return std::move(body_);
  }

 private:
  [[nodiscard]] bool complete() const {
    return header_bytes_ == sizeof header_ && body_bytes_ == body_.size();
  }

  Result<void> wait(Clock::time_point deadline, std::chrono::milliseconds timeout) const {
    for (bool looked = false;; looked = true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      if (left.count() < 0 || (looked && left.count() == 0)) {
        return tl::unexpected(Error::make(
            ErrorCode::transport_retry_exceeded,
            fmt::format("exchange: the peer did not answer within {} ms ({} of {} bytes sent, {} received)",
                        timeout.count(), sent_, outgoing_.size(), header_bytes_ + body_bytes_)));
      }
      pollfd waiting{fd_, 0, 0};
      if (sent_ != outgoing_.size()) waiting.events |= POLLOUT;
      if (!complete()) waiting.events |= POLLIN;
      constexpr std::chrono::milliseconds kLongest{60'000};
      const int ready = poll(&waiting, 1, static_cast<int>(std::min(left, kLongest).count()));
      if (ready > 0) {
        if ((waiting.revents & POLLNVAL) != 0) return tl::unexpected(socket_failed("use", EBADF));
        return {};
      }
      if (ready < 0 && errno != EINTR) return tl::unexpected(socket_failed("wait for", errno));
    }
  }

  Result<void> send_some() {
    while (sent_ != outgoing_.size()) {
      const ssize_t count =
          send(fd_, outgoing_.data() + sent_, outgoing_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count >= 0) {
        sent_ += static_cast<std::size_t>(count);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        break;
      } else if (errno != EINTR) {
        return tl::unexpected(socket_failed("write to", errno));
      }
    }
    return {};
  }

  Result<void> receive_some() {
    while (!complete()) {
      const bool in_header = header_bytes_ != sizeof header_;
      char* const to =
          in_header ? reinterpret_cast<char*>(&header_) + header_bytes_ : body_.data() + body_bytes_;
      const std::size_t room = in_header ? sizeof header_ - header_bytes_ : body_.size() - body_bytes_;
      const ssize_t count = recv(fd_, to, room, MSG_DONTWAIT);
      if (count == 0) {
        return tl::unexpected(Error::make(
            ErrorCode::system, fmt::format("exchange: the peer closed the connection after {} bytes",
                                           header_bytes_ + body_bytes_)));
      }
      if (count < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
        if (errno == EINTR) continue;
        return tl::unexpected(socket_failed("read from", errno));
      }
      (in_header ? header_bytes_ : body_bytes_) += static_cast<std::size_t>(count);
      if (in_header && header_bytes_ == sizeof header_) {
        if (Result<void> valid = check_header(); !valid) return valid;
        body_.resize(header_.length);
      }
      if (complete() && check_of(body_) != header_.check) {
        return tl::unexpected(corrupt("the peer's message is garbled: its check sum does not fit"));
      }
    }
    return {};
  }

  [[nodiscard]] Result<void> check_header() const {
    if (header_.magic != kMagic) {
      return tl::unexpected(
          corrupt("what the peer sends is not a message of qpair; is this the right port?"));
    }
    if (header_.version != kVersion) {
      return tl::unexpected(
          corrupt(fmt::format("the peer speaks version {}, this library {}: use the same on both sides",
                              std::uint16_t{header_.version}, kVersion)));
    }
    if (header_.kind != static_cast<std::uint16_t>(kind_)) {
      return tl::unexpected(
          corrupt(fmt::format("the peer sent a message of kind {}, kind {} was expected: do both sides "
                              "make the same calls?",
                              std::uint16_t{header_.kind}, static_cast<std::uint16_t>(kind_))));
    }
    if (header_.length > longest_) {
      return tl::unexpected(corrupt(fmt::format("the peer announces {} bytes; at most {} are read",
                                                std::uint32_t{header_.length}, longest_)));
    }
    return {};
  }

  int fd_;
  Kind kind_;
  std::size_t longest_;
  std::string outgoing_;
  std::size_t sent_ = 0;
  Header header_{};
  std::size_t header_bytes_ = 0;
  std::string body_;
  std::size_t body_bytes_ = 0;
};

}  // namespace

Result<std::string> exchange(int fd, std::string_view mine, std::chrono::milliseconds timeout) {
  if (mine.size() > kMaxExchangeBytes) {
    return tl::unexpected(Error::make(
        ErrorCode::invalid_argument,
        fmt::format("exchange: {} bytes to send; at most {} are allowed", mine.size(), kMaxExchangeBytes)));
  }
  return Exchange(fd, Kind::Bytes, mine, kMaxExchangeBytes).run(timeout);
}

Result<RdmaQpInfo> exchange_qp_info(int fd, const RdmaQpInfo& mine, std::chrono::milliseconds timeout) {
  const Result<std::string> theirs =
      Exchange(fd, Kind::QpInfo, serialize(mine, Format::Cbor), kMaxQpInfoBytes).run(timeout);
  if (!theirs) return tl::unexpected(theirs.error());
  Result<RdmaQpInfo> info = deserialize<RdmaQpInfo>(*theirs);
  if (!info) return tl::unexpected(info.error().within("exchange"));
  return info;
}

}  // namespace qpair
