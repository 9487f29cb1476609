#include "channel.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "failure.hpp"

namespace qpair::tool {

Channel::~Channel() {
  if (fd_ >= 0) ::close(fd_);
}

void Channel::swap(Channel& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(ended_, other.ended_);
  std::swap(partial_, other.partial_);
  std::swap(lines_, other.lines_);
}

void Channel::send(const nlohmann::json& message) {
  const std::string line = message.dump() + "\n";
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t count = ::send(fd_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Failure(fmt::format("cannot send to the other process: {}", std::strerror(errno)));
    sent += static_cast<std::size_t>(count);
  }
}

void Channel::read_available() {
  std::array<char, 65536> chunk{};
  while (!ended_) {
    const ssize_t count = ::recv(fd_, chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count <= 0) {  // a killed peer resets the connection: an end like any other
      ended_ = true;
      break;
    }
    partial_.append(chunk.data(), static_cast<std::size_t>(count));
    std::size_t start = 0;
    for (std::size_t end = 0; (end = partial_.find('\n', start)) != std::string::npos; start = end + 1) {
      lines_.push_back(partial_.substr(start, end - start));
    }
    partial_.erase(0, start);
    if (partial_.size() > kMaxLine) throw Failure("the other process sends a line without end");
  }
}

std::optional<nlohmann::json> Channel::receive() {
  if (lines_.empty()) read_available();
  if (lines_.empty()) return std::nullopt;
  const std::string line = std::move(lines_.front());
  lines_.pop_front();
  nlohmann::json message = nlohmann::json::parse(line, nullptr, false);
  if (!message.is_object()) throw Failure("the other process sent a line that is not a JSON object");
  return message;
}

nlohmann::json Channel::wait(std::chrono::milliseconds timeout, const std::string& what) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    if (auto message = receive()) return *std::move(message);
    if (ended()) throw Failure(fmt::format("the other process ended while {} was awaited", what));
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) throw Failure(fmt::format("no {} within {} ms", what, timeout.count()));
    pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
    ::poll(&entry, 1, static_cast<int>(left.count()));
  }
}

}  // namespace qpair::tool
