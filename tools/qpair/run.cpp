// qpair run: a program on the emulated NIC.

#include <fmt/format.h>

#include <memory>

#include "command.hpp"
#include "emulated_nic.hpp"
#include "failure.hpp"
#include "preload.hpp"

namespace qpair::tool {

Command run_command(CLI::App& root, const std::vector<std::string>& program) {
  CLI::App* app = root.add_subcommand(
      "run", "Run a program on the emulated NIC: qpair run [OPTIONS] -- PROGRAM [ARGS...]");
  app->prefix_command();  // the "--" may be left out
  auto options = std::make_shared<NicOptions>();
  add_nic_options(*app, *options);
  add_address_options(*app, *options);
  app->footer(
      "PROGRAM gets this process: its exit status is the exit status; 127 when there is no such program.\n\n"
      "Examples:\n"
      "  qpair run -- ibv_devinfo -v\n"
      "  qpair run -- ib_write_bw & qpair run -- ib_write_bw localhost\n"
      "  qpair run --loss 1% --seed 7 --capture lossy.pcapng -- ./my_program --its --options");
  return {app, [app, options, &program] {
            std::vector<std::string> command = app->remaining();
            if (!command.empty() && command.front().starts_with("-")) {
              throw Failure("run: unknown option " + command.front() + "; `qpair run --help` lists them",
                            kUsage);
            }
            if (!command.empty() && !program.empty()) command.emplace_back("--");  // it was the program's own
            command.insert(command.end(), program.begin(), program.end());
            if (command.empty()) {
              throw Failure("run: no program given; qpair run [OPTIONS] -- PROGRAM [ARGS...]", kUsage);
            }
            if (command.front().empty()) throw Failure("run: the program's name is empty", kUsage);
            if (const auto why = why_not_preloaded(command.front())) {
              fmt::print(stderr, "qpair: {}: it will not see the emulated NIC\n", *why);
            }
            check_address_is_free(*options);
            exec_program(command, nic_environment(*options));
            return 0;
          }};
}

}  // namespace qpair::tool
