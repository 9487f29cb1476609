// A worker of `qpair demo`: gets the server's file, puts it back elsewhere, notifies, puts batches, and
// measures. One operation (or one batch) is under way at a time, so that what is measured is its latency.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "checksum.hpp"
#include "command.hpp"
#include "demo.hpp"
#include "latencies.hpp"
#include "units.hpp"

namespace qpair::tool {
namespace {

struct WorkerOptions {
  RoleOptions role;
  std::uint16_t port = 0;
};

int connect_to_loopback(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    throw Failure(
        fmt::format("cannot connect to the server at 127.0.0.1:{}: {}", port, std::strerror(error)));
  }
  return fd;
}

class Worker {
 public:
  Worker(const WorkerOptions& options, Channel& channel)
      : options_(options),
        channel_(channel),
        plan_(options.role.size),
        domain_(need(RdmaDomain::create(options.role.device), "opening the device")),
        // What the server has for this worker is also what the worker needs for itself.
        memory_(need(domain_.allocate(plan_.desk_bytes()), "memory for the file")),
        queue_pair_(need(RdmaQueuePair::create(domain_, {}), "making a queue pair")) {
    std::memset(memory_.data(), 0xa5, memory_.size());
    connect();
  }

  void work() {
    for (std::size_t phase = 0; phase < kPhases.size(); ++phase) {
      channel_.send({{"event", "ready"}});
      const nlohmann::json go = channel_.wait(std::chrono::hours(1), "word to begin");
      const Phase what = go.at("phase");
      switch (what) {
        case Phase::Get:
          get_file(go.at("checksum"));
          break;
        case Phase::Put:
          put_file();
          break;
        case Phase::Notify:
          notify();
          break;
        case Phase::Batch:
          put_batches();
          break;
      }
      channel_.send({{"event", "measured"}, {"phase", what}, {"measurement", measurement_}});
      // The server looks at what came before when this arrives: all of it, since a queue pair keeps its
      // order.
      if (what != Phase::Get) put_notice(what, Last::Yes);
    }
    // Nothing of this worker is under way: the server may go.
    channel_.send({{"event", "ready"}});
    (void)channel_.wait(std::chrono::hours(1), "word to end");
  }

 private:
  enum class Last : std::uint32_t { No, Yes };

  void connect() {
    const auto timeout = options_.role.timeout();
    const int fd = connect_to_loopback(options_.port);
    const std::unique_ptr<const int, void (*)(const int*)> closer(&fd,
                                                                  [](const int* open) { ::close(*open); });
    const RdmaQpInfo mine = need(queue_pair_.get_qp_info(), "asking for the queue pair's address");
    need(queue_pair_.connect(need(exchange_qp_info(fd, mine, timeout), "the server")),
         "connecting to the server");
    file_ = need(exchange_value(fd, memory_.buffer(), timeout), "the server");
    desk_ = need(exchange_value(fd, memory_.buffer(), timeout), "the server");
    if (file_.size != plan_.size() || desk_.size != plan_.desk_bytes()) {
      throw Failure(fmt::format("the server has {} bytes and a desk of {}; expected are {} and {}",
                                file_.size, desk_.size, plan_.size(), plan_.desk_bytes()));
    }
  }

  void wait_for_completions(std::uint64_t count, Phase phase) {
    Patience patience(options_.role.timeout());
    while (count > 0) {
      if (need(queue_pair_.poll_send_completion(), std::string(phase_operation(phase)))) {
        patience.reset();
        --count;
      } else if (!patience.wait()) {
        throw Failure(fmt::format("{}: no completion within {} s", phase_operation(phase),
                                  options_.role.timeout_seconds));
      }
    }
  }

  // The first `length` bytes from `offset` of a buffer that is known to have them.
  static RdmaBuffer part(const RdmaBuffer& buffer, std::uint64_t offset, std::uint64_t length) {
    return need(buffer.slice(offset, length), "a slice");
  }

  void begin(std::uint64_t operation_size) {
    measurement_ = {};
    measurement_.operation_size = operation_size;
    measurement_.begin = monotonic_now();
  }

  // Runs `post`, waits for its completions, and notes how long that took.
  template <typename Post>
  void measure(Phase phase, std::uint64_t bytes, std::uint64_t operations, Post post) {
    const std::int64_t start = monotonic_now();
    post();
    wait_for_completions(operations, phase);
    measurement_.end = monotonic_now();
    measurement_.samples.push_back(static_cast<std::uint64_t>(measurement_.end - start));
    measurement_.bytes += bytes;
    measurement_.operations += operations;
  }

  // `post(local, remote)` for one chunk after the other.
  template <typename Post>
  void move_file(Phase phase, const RdmaBuffer& remote, Post post) {
    begin(plan_.chunk());
    std::int64_t told = measurement_.begin;
    for (std::uint64_t offset = 0; offset < plan_.size(); offset += plan_.chunk()) {
      const std::uint64_t length = std::min(plan_.chunk(), plan_.size() - offset);
      measure(phase, length, 1, [&] {
        (void)need(post(part(memory_.buffer(), offset, length), part(remote, offset, length)),
                   std::string(phase_operation(phase)));
      });
      constexpr std::int64_t kInterval = 50'000'000;
      if (measurement_.end - told < kInterval) continue;
      told = measurement_.end;
      channel_.send({{"event", "progress"}, {"bytes", measurement_.bytes}});
    }
  }

  void get_file(std::uint32_t expected) {
    move_file(Phase::Get, file_, [this](const RdmaBuffer& local, const RdmaBuffer& remote) {
      return queue_pair_.get(local, remote);
    });
    const std::uint32_t sum = checksum(memory_.bytes().first(plan_.size()));
    if (sum != expected) {
      throw Failure(fmt::format("the file that get fetched has checksum {:08x}, not {:08x}", sum, expected));
    }
  }

  void put_file() {
    move_file(Phase::Put, desk_, [this](const RdmaBuffer& local, const RdmaBuffer& remote) {
      return queue_pair_.put(local, remote);
    });
  }

  void put_notice(Phase phase, Last last) {
    const std::uint32_t sequence = notices_++;
    Notice notice{};
    notice.sequence = sequence;
    notice.is_last = static_cast<std::uint32_t>(last);
    notice.phase = phase;
    fmt::format_to_n(notice.text.data(), notice.text.size(), "notice {} of process {}", sequence, ::getpid());
    notice.checksum = checksum(std::as_bytes(std::span(notice.text)));
    const std::uint64_t offset = plan_.notice_offset(sequence % kNoticeSlots);
    std::memcpy(memory_.data() + offset, &notice, sizeof notice);
    (void)need(queue_pair_.put_with_recv(part(memory_.buffer(), offset, sizeof notice),
                                         part(desk_, offset, sizeof notice), sequence),
               "put_with_recv");
    if (last == Last::Yes) wait_for_completions(1, Phase::Notify);
  }

  void notify() {
    begin(sizeof(Notice));
    for (std::uint32_t count = 0; count < kNotices; ++count) {
      measure(Phase::Notify, sizeof(Notice), 1, [this] { put_notice(Phase::Notify, Last::No); });
    }
  }

  void put_batches() {
    const std::uint64_t slice = plan_.batch_slice();
    begin(slice);
    for (std::uint32_t round = 0; round < kBatchRounds; ++round) {
      measure(Phase::Batch, plan_.batch_bytes(), plan_.batch_count(), [&] {
        for (std::uint64_t index = 0; index < plan_.batch_count(); ++index) {
          const RdmaBuffer local = part(memory_.buffer(), index * slice, slice);
          const RdmaBuffer remote = part(desk_, plan_.batch_offset() + index * slice, slice);
          (void)need(queue_pair_.enqueue_put(local, remote), "enqueue_put");
        }
        need(queue_pair_.ring_doorbell(), "ring_doorbell");
      });
    }
  }

  const WorkerOptions& options_;
  Channel& channel_;
  DemoPlan plan_;
  RdmaDomain domain_;
  MemoryRegion memory_;
  RdmaQueuePair queue_pair_;
  RdmaBuffer file_;  // the server's
  RdmaBuffer desk_;
  std::uint32_t notices_ = 0;
  Measurement measurement_;
};

}  // namespace

Command demo_worker_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("demo-worker", "A worker of a demo");
  auto options = std::make_shared<WorkerOptions>();
  add_role_options(*app, options->role);
  app->add_option("--port", options->port)->required();
  return {app, [options] {
            return run_role(options->role.channel,
                            [&options](Channel& channel) { Worker(*options, channel).work(); });
          }};
}

}  // namespace qpair::tool
