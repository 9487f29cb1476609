// qpair demo: the coordinator. It starts a server and workers (this same binary, each with its own NIC), lets
// all workers begin each phase together, collects what they measured, and ends everything on every path.

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <qpair/qpair.hpp>
#include <vector>

#include "available_memory.hpp"
#include "command.hpp"
#include "demo.hpp"
#include "emulated_nic.hpp"
#include "failure.hpp"
#include "latencies.hpp"
#include "nic_choice.hpp"
#include "process.hpp"
#include "progress.hpp"
#include "table.hpp"
#include "units.hpp"

namespace qpair::tool {
namespace {

struct DemoOptions : ProcessOptions {
  std::string file;
  std::string size;
  unsigned processes = 3;
  NicOptions nic;
};

// --- what is moved, and on what
// --------------------------------------------------------------------------------------

struct Source {
  std::string path;
  std::uint64_t size;
};

Source choose_source(const DemoOptions& options) {
  Source source{options.file.empty() ? own_executable().string() : options.file, 0};
  struct stat status {};
  const int fd = ::open(source.path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool known = fd >= 0 && ::fstat(fd, &status) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!known) throw Failure(fmt::format("cannot read '{}': {}", source.path, std::strerror(error)));
  if (!S_ISREG(status.st_mode)) throw Failure(fmt::format("'{}' is not a regular file", source.path));
  if (status.st_size == 0) throw Failure(fmt::format("'{}' is empty: there is nothing to move", source.path));
  source.size = options.size.empty() ? static_cast<std::uint64_t>(status.st_size)
                                     : parse_size(options.size).value_or(0);
  return source;
}

void check_memory(std::uint64_t size, unsigned workers) {
  const std::uint64_t available = available_memory();
  // The server's bytes, and for each worker its copy and the place that it puts them back to.
  const std::uint64_t needed = size * (1 + 2 * std::uint64_t{workers});
  if (available != 0 && needed > available) {
    throw Failure(fmt::format(
        "{} for each of {} workers needs {} of memory, and {} are available: take a smaller --size",
        format_size(size), workers, format_size(needed), format_size(available)));
  }
}

int listen_on_loopback(std::uint16_t& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(fd, SOMAXCONN) != 0 || ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    throw Failure(fmt::format("cannot listen on 127.0.0.1: {}", std::strerror(error)));
  }
  port = ntohs(address.sin_port);
  return fd;
}

// --- the processes
// ---------------------------------------------------------------------------------------------------

class Demo {
 public:
  Demo(const DemoOptions& options, Source source, const NicChoice& choice)
      : plan_(source.size),
        source_(std::move(source)),
        timeout_(options.timeout_seconds),
        workers_(options.processes - 1) {
    start(options, choice);
  }

  void run();

 private:
  void start(const DemoOptions& options, const NicChoice& choice);
  void run_phase(Phase phase);
  void finish();
  void wait_for_news();
  void take(ChildProcess& child, const nlohmann::json& message);
  [[noreturn]] void fail_for(ChildProcess& child);
  void print_results();

  DemoPlan plan_;
  Source source_;
  std::chrono::seconds timeout_;
  unsigned workers_;
  SignalWatch signals_;
  std::vector<ChildProcess> children_;  // the server first
  ProgressBar bar_;

  std::uint32_t checksum_ = 0;
  bool server_ready_ = false;
  unsigned ready_ = 0;
  unsigned measured_ = 0;
  unsigned verified_ = 0;
  std::map<std::string, std::uint64_t> progress_;  // bytes of this phase, by process
  std::map<Phase, Measurement> results_;
  std::string doing_ = "the processes start";
};

void Demo::start(const DemoOptions& options, const NicChoice& choice) {
  Environment environment;
  if (choice.emulated) {
    environment = nic_environment(options.nic);
    // One address cannot serve several NICs; each takes a free one.
    environment.emplace_back("QPAIR_NIC_ADDRESS", "");
    environment.emplace_back("QPAIR_NIC_INTERFACE", "");
  }
  std::uint16_t port = 0;
  const int listener = listen_on_loopback(port);
  std::vector<std::string> common{"--size", std::to_string(plan_.size()), "--timeout",
                                  std::to_string(timeout_.count())};
  if (!choice.device.empty()) common.insert(common.end(), {"--device", choice.device});

  std::vector<std::string> arguments{
      "demo-server",           "--file", source_.path, "--listener", std::to_string(listener), "--workers",
      std::to_string(workers_)};
  arguments.insert(arguments.end(), common.begin(), common.end());
  children_.reserve(workers_ + 1);
  children_.emplace_back("server", arguments, environment, std::vector<int>{listener});
  ::close(listener);
  for (unsigned worker = 1; worker <= workers_; ++worker) {
    arguments = {"demo-worker", "--port", std::to_string(port)};
    arguments.insert(arguments.end(), common.begin(), common.end());
    children_.emplace_back(fmt::format("worker {}", worker), arguments, environment);
  }
}

void Demo::fail_for(ChildProcess& child) {
  bar_.clear();
  const auto how = child.finish(std::chrono::seconds(2));
  throw Failure(how ? fmt::format("{} while {}", *how, doing_)
                    : fmt::format("{} ended before its time, while {}", child.name(), doing_));
}

void Demo::take(ChildProcess& child, const nlohmann::json& message) {
  const std::string event = message.at("event");
  if (event == "failed") {
    bar_.clear();
    throw Failure(fmt::format("{}: {}", child.name(), message.at("message").get<std::string>()));
  }
  if (event == "loaded") {
    checksum_ = message.at("checksum");
    server_ready_ = true;
    fmt::print("The server has {} ({}, CRC-32 {:08x}); {} worker{}.\n", source_.path,
               format_size(plan_.size()), checksum_, workers_, workers_ == 1 ? "" : "s");
    std::fflush(stdout);
  } else if (event == "ready") {
    ++ready_;
  } else if (event == "progress") {
    progress_[child.name()] = message.at("bytes");
  } else if (event == "measured") {
    ++measured_;
    results_[message.at("phase").get<Phase>()].merge(message.at("measurement").get<Measurement>());
  } else if (event == "verified") {
    ++verified_;
  }
}

// Returns when at least one message was taken.
void Demo::wait_for_news() {
  const auto patience = std::chrono::milliseconds(2 * timeout_);
  std::vector<pollfd> entries;
  for (ChildProcess& child : children_) entries.push_back({child.channel().fd(), POLLIN, 0});
  entries.push_back({signals_.fd(), POLLIN, 0});
  const int count = ::poll(entries.data(), entries.size(), static_cast<int>(patience.count()));
  if (const auto signal = signals_.received()) {
    bar_.clear();
    throw Failure(fmt::format("ended by {} while {}", ::strsignal(*signal), doing_), 128 + *signal);
  }
  if (count == 0) {
    bar_.clear();
    throw Failure(fmt::format("no process had news within {} s while {}", 2 * timeout_.count(), doing_));
  }
  for (ChildProcess& child : children_) {
    while (const auto message = child.channel().receive()) take(child, *message);
    if (child.channel().ended()) fail_for(child);
  }
}

void Demo::run_phase(Phase phase) {
  doing_ = phase == Phase::Get      ? "the workers fetch the file"
           : phase == Phase::Put    ? "the workers put the file back"
           : phase == Phase::Notify ? "the workers notify the server"
                                    : "the workers put batches";
  while (ready_ < workers_ || !server_ready_) wait_for_news();
  ready_ = measured_ = verified_ = 0;
  progress_.clear();
  for (std::size_t worker = 1; worker < children_.size(); ++worker) {
    children_[worker].channel().send({{"event", "go"}, {"phase", phase}, {"checksum", checksum_}});
  }
  const unsigned verifications = phase == Phase::Get ? 0 : workers_;  // what is fetched the workers check
  while (measured_ < workers_ || verified_ < verifications) {
    wait_for_news();
    std::uint64_t done = 0;
    for (const auto& [name, bytes] : progress_) done += bytes;
    if (phase == Phase::Get || phase == Phase::Put) {
      bar_.show(phase_operation(phase), done, plan_.size() * workers_);
    }
  }
  bar_.clear();
}

// Everybody goes by himself; who does not is killed, and named.
void Demo::finish() {
  doing_ = "the processes end";
  while (ready_ < workers_) wait_for_news();
  for (ChildProcess& child : children_) child.channel().send({{"event", "stop"}});
  for (ChildProcess& child : children_) {
    if (const auto how = child.finish(std::chrono::seconds(10)))
      throw Failure(*how + " after its work was done");
  }
}

void Demo::print_results() {
  Table table({"operation", "size", "count", "median", "99th pct", "bandwidth"});
  for (const Phase phase : kPhases) {
    Measurement& result = results_[phase];
    std::string size = format_size(result.operation_size);
    if (phase == Phase::Batch)
      size = fmt::format("{} x {}", plan_.batch_count(), format_size(plan_.batch_slice()));
    table.add({std::string(phase_operation(phase)), size, std::to_string(result.operations),
               format_duration(result.percentile(0.5)), format_duration(result.percentile(0.99)),
               format_bandwidth(result.bytes, result.elapsed())});
  }
  fmt::print("\n{}\nEvery byte was checked. enqueue_put: {} operations and one doorbell at a time.\n",
             table.to_string(), plan_.batch_count());
}

void Demo::run() {
  for (const Phase phase : kPhases) run_phase(phase);
  finish();
  print_results();
}

int demo(const CLI::App* app, const DemoOptions& options) {
  Source source = choose_source(options);
  check_memory(source.size, options.processes - 1);
  const NicChoice choice = choose_nic(options.device, options.emulated);
  if (!choice.emulated) refuse_nic_options(*app);
  fmt::print("{}\n", choice.sentence);
  std::fflush(stdout);
  Demo(options, std::move(source), choice).run();
  return 0;
}

std::string check_size(std::string& text) {
  const auto size = parse_size(text);
  if (size && *size > 0) return {};
  return fmt::format("'{}' is not a size; write a number of bytes, at least 1, as in 4096, 64K, 16M or 1G",
                     text);
}

}  // namespace

Command demo_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("demo", "Move a file between processes and check every byte");
  auto options = std::make_shared<DemoOptions>();
  app->add_option("--file", options->file, "The file to move (default: the qpair binary)")->type_name("PATH");
  app->add_option("--size", options->size, "Bytes to move: the file's first ones, repeated when it has fewer")
      ->check(CLI::Validator(check_size, ""))
      ->type_name("SIZE");
  app->add_option("--processes", options->processes, "One server and the others workers (default: 3)")
      ->check(CLI::Range(2U, 65U).description(""))
      ->type_name("N");
  add_process_options(*app, *options);
  add_nic_options(*app, options->nic);
  app->footer(
      "A server holds the file's bytes. Workers get them, put them back elsewhere, notify the server with\n"
      "put_with_recv, and put batches with one doorbell each; checksums (CRC-32) are compared on the way.\n\n"
      "Examples:\n"
      "  qpair demo\n"
      "  qpair demo --file /usr/bin/gdb --processes 5\n"
      "  qpair demo --size 1G\n"
      "  qpair demo --emulated --loss 1% --capture demo.pcapng");
  return {app, [app, options] { return demo(app, *options); }};
}

}  // namespace qpair::tool
