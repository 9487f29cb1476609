// qpair: RDMA queue pairs, with or without the hardware. Each subcommand has a file of its own.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "command.hpp"
#include "failure.hpp"

namespace qpair::tool {
namespace {

// The arguments up to the first "--" of `qpair run`, and the program after it, which is nobody's business
// here.
struct Arguments {
  std::vector<std::string> own;
  std::vector<std::string> program;
};

Arguments split_arguments(int argc, char** argv) {
  const std::vector<std::string> all(argv + 1, argv + argc);
  if (all.empty() || all.front() != "run") return {all, {}};
  const auto dashes = std::find(all.begin(), all.end(), "--");
  if (dashes == all.end()) return {all, {}};
  return {{all.begin(), dashes}, {dashes + 1, all.end()}};
}

// One line, whatever it was made of.
int report(std::string sentence, int status) {
  std::replace(sentence.begin(), sentence.end(), '\n', ' ');
  fmt::print(stderr, "qpair: {}\n", sentence);
  return status;
}

int tool_main(int argc, char** argv) {
  CLI::App app{"RDMA queue pairs, with or without the hardware.", "qpair"};
  app.set_version_flag("--version", "qpair " QPAIR_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(42);
  app.failure_message(CLI::FailureMessage::simple);
  app.footer(
      "Examples:\n"
      "  qpair demo                       move a file between processes, every byte checked\n"
      "  qpair run -- ibv_devinfo -v      any verbs program on the emulated NIC\n"
      "  qpair bench                      latency and bandwidth, between processes or hosts\n"
      "  qpair doctor                     why RDMA does not work here\n\n"
      "`qpair COMMAND --help` tells more.");
  Arguments arguments = split_arguments(argc, argv);
  const std::vector<Command> commands{
      demo_command(app),         run_command(app, arguments.program),
      env_command(app),          devices_command(app),
      bench_command(app),        doctor_command(app),
      top_command(app),          demo_server_command(app),
      demo_worker_command(app),  bench_initiator_command(app),
      bench_target_command(app),
  };
  if (!arguments.own.empty() && !arguments.own.front().starts_with("-") &&
      std::none_of(commands.begin(), commands.end(), [&arguments](const Command& command) {
        return command.app->get_name() == arguments.own.front();
      })) {
    throw Failure("unknown command '" + arguments.own.front() + "'; `qpair --help` lists them", kUsage);
  }
  try {
    std::reverse(arguments.own.begin(), arguments.own.end());  // as CLI11 takes a vector
    app.parse(arguments.own);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::RequiredError&) {
    return report("no command given; `qpair --help` lists them", kUsage);
  } catch (const CLI::ParseError& error) {
    return report(error.what(), kUsage);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return kUsage;
}

}  // namespace
}  // namespace qpair::tool

int main(int argc, char** argv) {
  try {
    const int status = qpair::tool::tool_main(argc, argv);
    if (std::fflush(stdout) != 0)
      return qpair::tool::report("cannot write to standard output", qpair::tool::kFailed);
    return status;
  } catch (const qpair::tool::Failure& failure) {
    std::fflush(stdout);
    return qpair::tool::report(failure.what(), failure.status());
  } catch (const std::exception& error) {
    return qpair::tool::report(error.what(), qpair::tool::kFailed);
  }
}
