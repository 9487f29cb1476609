// The server of `qpair demo`: has the file's bytes in registered memory, and for each worker a desk to put
// things on. It takes no part in gets and puts; it reads notices, and checks what was put when a notice says
// that a phase is over.

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "checksum.hpp"
#include "command.hpp"
#include "demo.hpp"

namespace qpair::tool {
namespace {

struct ServerOptions {
  RoleOptions role;
  std::string file;
  int listener = -1;
  unsigned workers = 0;
};

// One worker, as the server sees it.
struct Desk {
  MemoryRegion memory;
  RdmaQueuePair queue_pair;
  std::uint32_t notices = 0;  // received
};

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// The file's first bytes; when it has fewer than wanted, again from its start.
void load(const std::string& path, std::span<std::byte> into) {
  std::ifstream file(path, std::ios::binary);
  std::size_t have = 0;
  while (file && have < into.size()) {
    file.read(reinterpret_cast<char*>(into.data()) + have, static_cast<std::streamsize>(into.size() - have));
    have += static_cast<std::size_t>(file.gcount());
    if (file.gcount() == 0) break;
    if (file.eof()) {
      file.clear();
      file.seekg(0);
    }
  }
  if (have < into.size()) throw Failure(fmt::format("cannot read '{}': {}", path, std::strerror(errno)));
}

class Server {
 public:
  Server(const ServerOptions& options, Channel& channel)
      : options_(options),
        channel_(channel),
        plan_(options.role.size),
        domain_(need(RdmaDomain::create(options.role.device), "opening the device")),
        file_(need(domain_.allocate(plan_.size()), "memory for the file")) {
    load(options.file, file_.bytes());
    checksum_ = checksum(file_.bytes());
    channel_.send({{"event", "loaded"}, {"checksum", checksum_}});
  }

  void serve() {
    for (unsigned worker = 0; worker < options_.workers; ++worker) accept_worker();
    for (;;) {
      bool busy = false;
      for (Desk& desk : desks_) {
        while (const auto completion = need(desk.queue_pair.poll_recv_completion(), "receiving a notice")) {
          take_notice(desk, *completion);
          busy = true;
        }
      }
      // The receives that are posted last for longer than this; the cores are for the workers.
      if (!busy) std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (const auto message = channel_.receive(); message && message->at("event") == "stop") return;
      if (channel_.ended()) throw Failure("the coordinator is gone");
    }
  }

 private:
  void accept_worker() {
    pollfd entry{.fd = options_.listener, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, static_cast<int>(options_.role.timeout().count())) == 0) {
      throw Failure(fmt::format("{} of {} workers connected within {} s", desks_.size(), options_.workers,
                                options_.role.timeout_seconds));
    }
    const FileDescriptor socket(::accept4(options_.listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) throw Failure(fmt::format("cannot accept a worker: {}", std::strerror(errno)));

    IbverbsConfig config;
    config.max_recv_wr = kPostedReceives;
    Desk desk{need(domain_.allocate(plan_.desk_bytes()), "memory for a worker"),
              need(RdmaQueuePair::create(domain_, config), "making a queue pair")};
    // So that bytes which never arrive are not right by chance.
    std::memset(desk.memory.data(), 0x5a, desk.memory.size());
    const RdmaQpInfo mine = need(desk.queue_pair.get_qp_info(), "asking for the queue pair's address");
    const auto timeout = options_.role.timeout();
    const std::string context = fmt::format("worker {} of {}", desks_.size() + 1, options_.workers);
    const RdmaQpInfo theirs = need(exchange_qp_info(socket.get(), mine, timeout), context);
    need(desk.queue_pair.connect(theirs), context);
    for (std::uint32_t count = 0; count < kPostedReceives; ++count) post_receive(desk);
    // Each hears of the other's memory after both are connected, and so does not write too early.
    (void)need(exchange_value(socket.get(), file_.buffer(), timeout), context);
    (void)need(exchange_value(socket.get(), desk.memory.buffer(), timeout), context);
    desks_.push_back(std::move(desk));
  }

  // A notice's bytes go to the desk; the receive is only for the immediate value.
  static void post_receive(Desk& desk) {
    (void)need(desk.queue_pair.recv(RdmaBuffer{}), "posting a receive");
  }

  void take_notice(Desk& desk, const IbvWc& completion) {
    const std::uint32_t expected = desk.notices++;
    Notice notice{};
    std::memcpy(&notice, desk.memory.data() + plan_.notice_offset(expected % kNoticeSlots), sizeof notice);
    post_receive(desk);
    const std::uint32_t sum = checksum(std::as_bytes(std::span(notice.text)));
    if (completion.imm_data != expected || notice.sequence != expected || notice.checksum != sum) {
      throw Failure(fmt::format(
          "notice {}: the immediate value is {}, the memory has notice {} with checksum {:08x}, not {:08x}",
          expected, completion.imm_data, notice.sequence, sum, notice.checksum));
    }
    if (notice.is_last == 0) return;
    verify(desk, notice.phase);
    channel_.send({{"event", "verified"}, {"phase", notice.phase}});
  }

  void verify(const Desk& desk, Phase phase) const {
    const std::span<const std::byte> bytes = desk.memory.bytes();
    if (phase == Phase::Put) {
      const std::uint32_t sum = checksum(bytes.first(plan_.size()));
      if (sum != checksum_) {
        throw Failure(fmt::format("the file put back has checksum {:08x}, not {:08x}", sum, checksum_));
      }
    }
    if (phase == Phase::Batch &&
        std::memcmp(bytes.data() + plan_.batch_offset(), file_.data(), plan_.batch_bytes()) != 0) {
      throw Failure("the bytes that enqueue_put wrote are not the file's");
    }
  }

  const ServerOptions& options_;
  Channel& channel_;
  DemoPlan plan_;
  RdmaDomain domain_;
  MemoryRegion file_;
  std::uint32_t checksum_ = 0;
  std::vector<Desk> desks_;
};

}  // namespace

Command demo_server_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("demo-server", "The server of a demo");
  auto options = std::make_shared<ServerOptions>();
  add_role_options(*app, options->role);
  app->add_option("--file", options->file)->required();
  app->add_option("--listener", options->listener)->required();
  app->add_option("--workers", options->workers)->required();
  return {app, [options] {
            return run_role(options->role.channel,
                            [&options](Channel& channel) { Server(*options, channel).serve(); });
          }};
}

}  // namespace qpair::tool
