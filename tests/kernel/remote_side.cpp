// A side on the other end of a TCP connection, and the server there.
//
// A call is a Header and its argument, an answer a Header and its result, or the sentence of an exception.
// One kind of call has no answer of that form: Run starts a shell command over there, whose output comes back
// as it is, followed by a line with its exit status.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "tests/kernel/side.hpp"

namespace qpair::kernel_test {
namespace {

using Bytes = std::vector<std::byte>;

enum class Call : std::uint32_t {
  Create,
  Connect,
  Destroy,
  Write,
  Read,
  Send,
  Receive,
  Wait,
  State,
  Event,
  Counter,
  Run,
  Stop,
};
enum class Outcome : std::uint32_t { Fine, Failed };

struct Header {
  std::uint32_t what = 0;  // Call or Outcome
  std::uint32_t size = 0;
};
constexpr std::uint32_t kLongest = 2 * kMemorySize;

struct Range {
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
};

template <typename T>
Bytes pack(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  Bytes bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

template <typename T>
T unpack(const Bytes& bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() < sizeof(T)) throw std::runtime_error("a call or an answer is too short");
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

Bytes pack_text(const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}
std::string unpack_text(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Connection {
 public:
  explicit Connection(int fd) : fd_(fd) {
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { ::close(fd_); }

  int descriptor() const { return fd_; }

  void put(std::uint32_t what, const Bytes& body) const {
    Bytes message = pack(Header{what, static_cast<std::uint32_t>(body.size())});
    message.insert(message.end(), body.begin(), body.end());
    for (std::size_t sent = 0; sent != message.size();) {
      const ssize_t count = ::send(fd_, message.data() + sent, message.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) throw std::runtime_error("the other side of the test is gone");
      sent += static_cast<std::size_t>(count);
    }
  }

  // Nothing: the other side closed the connection.
  std::optional<std::pair<std::uint32_t, Bytes>> get() const {
    Bytes raw(sizeof(Header));
    if (!fill(raw)) return std::nullopt;
    const auto header = unpack<Header>(raw);
    if (header.size > kLongest) throw std::runtime_error("a message of the test is too long");
    Bytes body(header.size);
    if (!fill(body)) return std::nullopt;
    return std::pair(header.what, std::move(body));
  }

 private:
  bool fill(Bytes& bytes) const {
    return bytes.empty() ||
           ::recv(fd_, bytes.data(), bytes.size(), MSG_WAITALL) == static_cast<ssize_t>(bytes.size());
  }

  int fd_;
};

class RemoteSide final : public Side {
 public:
  explicit RemoteSide(int fd) : connection_(fd) {}

  QpInfo create(const QpOptions& options) override {
    return unpack<QpInfo>(call(Call::Create, pack(options)));
  }
  void connect(const QpInfo& peer) override { call(Call::Connect, pack(peer)); }
  void destroy() override { call(Call::Destroy, {}); }
  void write(std::uint32_t offset, const Bytes& bytes) override {
    Bytes body = pack(offset);
    body.insert(body.end(), bytes.begin(), bytes.end());
    call(Call::Write, body);
  }
  Bytes read(std::uint32_t offset, std::uint32_t size) override {
    return call(Call::Read, pack(Range{offset, size}));
  }
  void send(const std::vector<Work>& list) override {
    Bytes body;
    for (const Work& work : list) {
      const Bytes one = pack(work);
      body.insert(body.end(), one.begin(), one.end());
    }
    call(Call::Send, body);
  }
  void receive(const Work& work) override { call(Call::Receive, pack(work)); }
  Completion wait(Queue queue) override { return unpack<Completion>(call(Call::Wait, pack(queue))); }
  ibv_qp_state state() override { return unpack<ibv_qp_state>(call(Call::State, {})); }
  ibv_event_type event() override { return unpack<ibv_event_type>(call(Call::Event, {})); }
  std::uint64_t counter(const std::string& name) override {
    return unpack<std::uint64_t>(call(Call::Counter, pack_text(name)));
  }

 private:
  Bytes call(Call what, const Bytes& body) {
    connection_.put(static_cast<std::uint32_t>(what), body);
    auto answer = connection_.get();
    if (!answer) throw std::runtime_error("the other side of the test is gone");
    if (answer->first != static_cast<std::uint32_t>(Outcome::Fine)) {
      throw std::runtime_error("the kernel's side: " + unpack_text(answer->second));
    }
    return std::move(answer->second);
  }

  Connection connection_;
};

Bytes carry_out(Side& side, Call what, const Bytes& body) {
  switch (what) {
    case Call::Create:
      return pack(side.create(unpack<QpOptions>(body)));
    case Call::Connect:
      side.connect(unpack<QpInfo>(body));
      return {};
    case Call::Destroy:
      side.destroy();
      return {};
    case Call::Write:
      side.write(unpack<std::uint32_t>(body), {body.begin() + sizeof(std::uint32_t), body.end()});
      return {};
    case Call::Read:
      return side.read(unpack<Range>(body).offset, unpack<Range>(body).size);
    case Call::Send: {
      std::vector<Work> list(body.size() / sizeof(Work));
      std::memcpy(list.data(), body.data(), list.size() * sizeof(Work));
      side.send(list);
      return {};
    }
    case Call::Receive:
      side.receive(unpack<Work>(body));
      return {};
    case Call::Wait:
      return pack(side.wait(unpack<Queue>(body)));
    case Call::State:
      return pack(side.state());
    case Call::Event:
      return pack(side.event());
    case Call::Counter:
      return pack(side.counter(unpack_text(body)));
    case Call::Run:
    case Call::Stop:
      break;
  }
  throw std::runtime_error("there is no such call");
}

// Becomes the command, with its output to the connection.
[[noreturn]] void run(const Connection& connection, const std::string& command) {
  ::dup2(connection.descriptor(), STDOUT_FILENO);
  ::dup2(connection.descriptor(), STDERR_FILENO);
  const std::string whole = command + "\necho \"exit status $?\"";
  ::execl("/bin/sh", "sh", "-c", whole.c_str(), nullptr);
  std::_Exit(127);
}

// Returns true when it was asked to stop.
bool answer(const Connection& connection) {
  std::unique_ptr<Side> side;
  while (const auto call = connection.get()) {
    const auto what = static_cast<Call>(call->first);
    if (what == Call::Stop) return true;
    if (what == Call::Run) run(connection, unpack_text(call->second));
    try {
      if (!side) side = make_local_side();
      connection.put(static_cast<std::uint32_t>(Outcome::Fine), carry_out(*side, what, call->second));
    } catch (const std::exception& error) {
      connection.put(static_cast<std::uint32_t>(Outcome::Failed), pack_text(error.what()));
    }
  }
  return false;
}

int listen_on(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd, 8) != 0) {
    throw std::runtime_error(fmt::format("cannot listen on port {}: {}", port, std::strerror(errno)));
  }
  return fd;
}

}  // namespace

std::unique_ptr<Side> make_remote_side(const std::string& host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    throw std::runtime_error("'" + host + "' is no IPv4 address");
  }
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error(fmt::format("cannot connect to {}:{}: {}", host, port, std::strerror(errno)));
  }
  return std::make_unique<RemoteSide>(fd);
}

int serve(std::uint16_t port) {
  const int listening = listen_on(port);
  ::signal(SIGUSR1, [](int) { std::_Exit(0); });
  ::signal(SIGCHLD, SIG_IGN);  // nobody asks how they ended
  for (;;) {
    const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return 1;
    if (::fork() != 0) {
      ::close(fd);
      continue;
    }
    ::signal(SIGCHLD, SIG_DFL);
    try {
      if (answer(Connection(fd))) ::kill(::getppid(), SIGUSR1);
    } catch (const std::exception& error) {
      fmt::print(stderr, "serve: {}\n", error.what());
    }
    std::_Exit(0);
  }
}

}  // namespace qpair::kernel_test
