#pragma once
// Messages between the processes of a command: one JSON object a line, over a connected stream socket. Both
// ends are this same binary, so a message that does not parse is a bug or a stranger: a Failure.

#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace qpair::tool {

class Channel {
 public:
  static constexpr std::size_t kMaxLine = std::size_t{64} << 20;  // bytes; longer is a Failure

  Channel() = default;
  explicit Channel(int fd) : fd_(fd) {}  // owns fd
  ~Channel();
  Channel(Channel&& other) noexcept { swap(other); }
  Channel& operator=(Channel&& other) noexcept {
    swap(other);
    return *this;
  }

  int fd() const { return fd_; }

  void send(const nlohmann::json& message);

  // The next message; nothing when none is there yet. At the end of the stream `ended()` turns true.
  std::optional<nlohmann::json> receive();
  bool ended() const { return ended_ && lines_.empty(); }

  // Waits for a message; a Failure after `timeout` or at the end of the stream, saying that `what` was
  // awaited.
  nlohmann::json wait(std::chrono::milliseconds timeout, const std::string& what);

 private:
  void read_available();
  void swap(Channel& other) noexcept;

  int fd_ = -1;
  bool ended_ = false;
  std::string partial_;
  std::deque<std::string> lines_;
};

}  // namespace qpair::tool
