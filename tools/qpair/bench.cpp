// qpair bench: the coordinator. It starts the process that measures and, unless another host has it, the one
// that things are done to, each with a NIC of its own; collects what was measured, prints it, and ends
// everything on every path.

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "bench_plan.hpp"
#include "bench_report.hpp"
#include "bench_sockets.hpp"
#include "command.hpp"
#include "emulated_nic.hpp"
#include "failure.hpp"
#include "nic_choice.hpp"
#include "process.hpp"
#include "units.hpp"

namespace qpair::tool {
namespace {

struct BenchOptions : ProcessOptions {
  std::string host;
  std::uint16_t port = kBenchPort;  // of --listen
  std::string operation = "put";
  std::vector<std::string> measures{"latency", "bandwidth"};
  std::string sizes;
  std::string duration = "500ms";
  std::string memory = "allocated";
  BenchPlan plan;
  bool once = false;
  bool json = false;
  NicOptions nic;
};

BenchPlan make_plan(const BenchOptions& options) {
  BenchPlan plan = options.plan;
  plan.operation = parse_operation(options.operation);
  plan.measures.clear();
  for (const std::string& measure : options.measures) {
    if (!plan.has(parse_measure(measure))) plan.measures.push_back(parse_measure(measure));
  }
  const std::string default_sizes = is_atomic(plan.operation) ? "8" : "8,64,1K,16K,256K,4M";
  plan.sizes = parse_sizes(options.sizes.empty() ? default_sizes : options.sizes);
  const auto duration = parse_duration(options.duration);
  if (!duration) {
    throw Failure(
        fmt::format("--duration '{}': write a number and its unit, ns, us, ms or s, as in 500ms, at most 10s",
                    options.duration),
        kUsage);
  }
  plan.duration = *duration;
  plan.memory = parse_memory_kind(options.memory);
  plan.timeout = std::chrono::seconds(options.timeout_seconds);
  plan.validate();
  return plan;
}

Environment environment_of(const BenchOptions& options, const NicChoice& choice) {
  if (!choice.emulated) return {};
  Environment environment = nic_environment(options.nic);
  if (options.nic.address.empty() && options.nic.interface.empty()) {
    environment.emplace_back("QPAIR_NIC_ADDRESS", "");
    environment.emplace_back("QPAIR_NIC_INTERFACE", "");
  }
  return environment;
}

// One side of a benchmark as a process. Takes `peer`, the socket to the other side.
ChildProcess start(const std::string& command, const std::string& name, std::vector<std::string> arguments,
                   int peer, const NicChoice& choice, const Environment& environment) {
  arguments.insert(arguments.begin(), command);
  arguments.insert(arguments.end(), {"--peer", std::to_string(peer)});
  if (!choice.device.empty()) arguments.insert(arguments.end(), {"--device", choice.device});
  ChildProcess child(name, arguments, environment, {peer});
  ::close(peer);
  return child;
}

[[noreturn]] void end_by_signal(int signal) {
  throw Failure(fmt::format("ended by {}", ::strsignal(signal)), 128 + signal);
}

// --- the side that measures
// ------------------------------------------------------------------------------------------

class Bench {
 public:
  Bench(const BenchOptions& options, const BenchPlan& plan, const NicChoice& choice) : plan_(plan) {
    report_.plan = plan;
    report_.version = QPAIR_VERSION;
    report_.emulated = choice.emulated;
    report_.peer = options.host.empty() ? "this host" : options.host;
    const Environment environment = environment_of(options, choice);
    int ours = -1;
    if (options.host.empty()) {
      const auto [one, other] = connected_pair();
      ours = one;
      children_.push_back(start("bench-target", "the target", {}, other, choice, environment));
    } else {
      ours = connect_to(parse_host(options.host));
    }
    const std::string text = nlohmann::json(plan).dump();
    children_.push_back(
        start("bench-initiator", "the initiator", {"--plan", text}, ours, choice, environment));
  }

  const BenchReport& run() {
    while (report_.results.size() < expected_results()) wait_for_news();
    for (ChildProcess& child : children_) {
      if (const auto how = child.finish(std::chrono::seconds(10)))
        throw Failure(*how + " after its work was done");
    }
    return report_;
  }

 private:
  std::size_t expected_results() const { return plan_.sizes.size() * plan_.measures.size(); }

  void wait_for_news() {
    // A measurement has a sign of life every second, but between operations only; filling and checking the
    // memory of large ones takes its time as well.
    const auto patience = 2 * plan_.timeout + plan_.duration + std::chrono::seconds(10);
    std::vector<pollfd> entries;
    for (ChildProcess& child : children_) entries.push_back({child.channel().fd(), POLLIN, 0});
    entries.push_back({signals_.fd(), POLLIN, 0});
    const auto limit = std::chrono::ceil<std::chrono::milliseconds>(patience);
    const int count = ::poll(entries.data(), entries.size(), static_cast<int>(limit.count()));
    if (const auto signal = signals_.received()) end_by_signal(*signal);
    if (count == 0) throw Failure(fmt::format("no news of the processes within {} s", limit.count() / 1000));
    for (ChildProcess& child : children_) hear(child);
    if (failure_) give_a_moment();
    see_off_the_ended();
    if (failure_) throw Failure(*failure_);
    if (children_.empty() && report_.results.size() < expected_results()) {
      throw Failure("the processes ended before their time");
    }
  }

  void hear(ChildProcess& child) {
    while (const auto message = child.channel().receive()) take(*message);
  }

  void take(const nlohmann::json& message) {
    const std::string event = message.at("event");
    if (event == "failed" && !failure_) {
      failure_ = message.at("message").get<std::string>();
    } else if (event == "connected") {
      report_.device = message.at("device");
      report_.peer_device = message.at("peer_device");
      report_.data_path = message.at("data_path");
    } else if (event == "result") {
      report_.results.push_back(message.at("result"));
    }
  }

  // A process that fails because the other one was killed is not the reason: until the other's end is known.
  void give_a_moment() {
    for (ChildProcess& child : children_) {
      pollfd entry{child.channel().fd(), POLLIN, 0};
      constexpr int kMoment = 200;  // milliseconds
      if (!child.channel().ended()) ::poll(&entry, 1, kMoment);
      hear(child);
    }
  }

  // With their work done, or not. What a process had to say is better than how it ended; that one was killed
  // is better than what the other had to say.
  void see_off_the_ended() {
    std::optional<std::string> reason;
    for (ChildProcess& child : children_) {
      if (!child.channel().ended()) continue;
      const auto how = child.finish(std::chrono::seconds(2));
      if (how && (!reason || how->find("exit status") == std::string::npos)) reason = how;
    }
    children_.remove_if([](ChildProcess& child) { return child.channel().ended(); });
    if (reason) throw Failure(failure_ && reason->ends_with("exit status 1") ? *failure_ : *reason);
  }

  const BenchPlan& plan_;
  SignalWatch signals_;
  std::list<ChildProcess> children_;  // the target first, if it is here
  BenchReport report_;
  std::optional<std::string> failure_;
};

int measure(const CLI::App* app, const BenchOptions& options) {
  const BenchPlan plan = make_plan(options);
  const NicChoice choice = choose_nic(options.device, options.emulated);
  if (!choice.emulated) refuse_nic_options(*app);
  check_address_is_free(options.nic);
  if (options.host.empty() && !(options.nic.address.empty() && options.nic.interface.empty())) {
    throw Failure(
        "bench: one address cannot serve both processes of this host: leave out --address and --interface, "
        "or use --listen in another terminal",
        kUsage);
  }
  if (!options.json) {
    fmt::print("{}\n", choice.sentence);
    std::fflush(stdout);
  }
  Bench bench(options, plan, choice);
  const BenchReport& report = bench.run();
  if (options.json) {
    fmt::print("{}\n", to_document(report).dump(2));
  } else {
    fmt::print("\n{}", to_tables(report));
  }
  return 0;
}

// --- the side that waits for others
// ----------------------------------------------------------------------------------

class Listener {
 public:
  explicit Listener(const BenchOptions& options, const NicChoice& choice)
      : options_(options),
        choice_(choice),
        environment_(environment_of(options, choice)),
        fd_(listen_on(options.port)) {
    fmt::print("Listening on port {}. On the other host: qpair bench HOST{}\n", port_of(fd_),
               port_of(fd_) == kBenchPort ? "" : fmt::format(":{}", port_of(fd_)));
    std::fflush(stdout);
  }
  ~Listener() { ::close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // One after another, until somebody ends it.
  int serve() {
    for (;;) {
      wait_for(fd_);
      const auto [socket, who] = accept_from(fd_);
      const std::string outcome = serve_one(socket);
      fmt::print("{}: {}\n", who, outcome);
      std::fflush(stdout);
      if (options_.once) return outcome.starts_with("failed") ? kFailed : 0;
    }
  }

 private:
  // A process of its own for each, so that what one leaves behind ends with it.
  std::string serve_one(int socket) {
    ChildProcess child =
        start("bench-target", "the target", {"--timeout", std::to_string(options_.timeout_seconds)}, socket,
              choice_, environment_);
    std::string what = "nothing";
    std::optional<std::string> failure;
    while (!child.channel().ended()) {
      wait_for(child.channel().fd());
      while (const auto message = child.channel().receive()) {
        if (message->at("event") == "failed") failure = message->at("message").get<std::string>();
        if (message->at("event") == "plan") what = message->at("plan").at("operation").get<std::string>();
      }
    }
    const auto how = child.finish(std::chrono::seconds(10));
    if (failure || how) return "failed: " + failure.value_or(how.value_or(""));
    return what;
  }

  void wait_for(int fd) {
    std::vector<pollfd> entries{{fd, POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
    ::poll(entries.data(), entries.size(), -1);
    if (const auto signal = signals_.received()) end_by_signal(*signal);
  }

  const BenchOptions& options_;
  const NicChoice& choice_;
  Environment environment_;
  SignalWatch signals_;
  int fd_;
};

int listen(const CLI::App* app, const BenchOptions& options) {
  if (!options.host.empty()) throw Failure("bench: --listen waits for others; it takes no HOST", kUsage);
  for (const char* name : {"--operation", "--measure", "--size", "--batch", "--window", "--qps",
                           "--iterations", "--duration", "--memory", "--check", "--json"}) {
    if (app->count(name) == 0) continue;
    throw Failure(
        fmt::format("bench: {} is for the side that measures; --listen does what it asks for", name), kUsage);
  }
  const NicChoice choice = choose_nic(options.device, options.emulated);
  if (!choice.emulated) refuse_nic_options(*app);
  check_address_is_free(options.nic);
  fmt::print("{}\n", choice.sentence);
  return Listener(options, choice).serve();
}

void add_plan_options(CLI::App& app, BenchOptions& options) {
  app.add_option("-o,--operation", options.operation,
                 "put (default), get, put_with_recv, send, fetch_add, compare_swap")
      ->type_name("OP");
  app.add_option("--measure", options.measures,
                 "latency and bandwidth (default); pingpong: puts that are answered, seen in memory")
      ->delimiter(',')
      ->type_name("WHAT,...");
  app.add_option("-s,--size,--sizes", options.sizes,
                 "Bytes of an operation: 4K, several as 8,4K,1M or 2..64M")
      ->type_name("SIZE");
  app.add_option("--batch", options.plan.batch, "Operations to a doorbell (default: 1)")->type_name("N");
  app.add_option("--window", options.plan.window,
                 "Operations under way on a queue pair, at most (default: 64, fewer when they are large)")
      ->check(CLI::Range(1U, BenchPlan::kMostUnderWay).description(""))
      ->type_name("N");
  app.add_option("--qps", options.plan.qps, "Queue pairs (default: 1)")->type_name("N");
  app.add_option("-n,--iterations", options.plan.iterations,
                 "Operations of each measurement, in place of a time")
      ->check(CLI::Range(std::uint64_t{1}, BenchPlan::kMostIterations).description(""))
      ->type_name("N");
  app.add_option("--duration", options.duration, "Of each measurement (default: 500ms)")->type_name("TIME");
  app.get_option("--iterations")->excludes(app.get_option("--duration"));
  app.add_option("--memory", options.memory,
                 "allocated: by RdmaDomain::allocate() (default); ordinary: by malloc(), then registered")
      ->type_name("KIND");
  app.add_flag("--check", options.plan.check, "Compare what arrived with what was sent");
  app.add_flag("--json", options.json, "Print the results as JSON");
}

}  // namespace

Command bench_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("bench", "Measure one operation between two processes or hosts");
  auto options = std::make_shared<BenchOptions>();
  app->add_option("HOST", options->host,
                  "Where `qpair bench --listen` runs, as HOST or HOST:PORT (default: it is "
                  "started here)");
  // Without a value CLI11 would make it 0, which is any free port.
  app->add_option_function<std::string>(
         "--listen",
         [options](const std::string& port) {
           if (!port.empty()) static_cast<void>(CLI::detail::lexical_cast(port, options->port));  // checked
         },
         "Wait for others (default port: 18586)")
      ->expected(0, 1)
      ->check(CLI::Range(0, 65535).description(""))
      ->type_name("[PORT]");
  app->add_flag("--once", options->once, "With --listen: end after the first")
      ->needs(app->get_option("--listen"));
  add_plan_options(*app, *options);
  add_process_options(*app, *options);
  add_nic_options(*app, options->nic);
  add_address_options(*app, options->nic);
  app->footer(
      "Latency is that of one operation at a time, from before it is posted until its completion was "
      "polled.\n"
      "Bandwidth is from the first post to the last completion, with as many under way as --window says.\n\n"
      "Examples:\n"
      "  qpair bench                                    put, between two processes of this host\n"
      "  qpair bench -o send -s 2..64M --json\n"
      "  qpair bench -s 8 --measure bandwidth --batch 32 --qps 100\n"
      "  qpair bench --listen                           on one host…\n"
      "  qpair bench otherhost -o get                   …and on the other");
  return {app, [app, options] {
            return app->count("--listen") != 0 ? listen(app, *options) : measure(app, *options);
          }};
}

}  // namespace qpair::tool
