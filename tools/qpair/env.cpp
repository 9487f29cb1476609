// qpair env: what `qpair run` sets, for debuggers, IDEs and scripts.

#include <fmt/format.h>

#include <memory>

#include "command.hpp"
#include "emulated_nic.hpp"

namespace qpair::tool {

Command env_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("env", "Print what `qpair run` sets, as shell exports");
  auto options = std::make_shared<NicOptions>();
  add_nic_options(*app, *options);
  add_address_options(*app, *options);
  app->footer(
      "Examples:\n"
      "  eval \"$(qpair env --loss 1%)\"      every program of this shell has the NIC\n"
      "  (eval \"$(qpair env)\"; ibv_devinfo)  only that one");
  return {app, [options] {
            for (const auto& [name, value] : nic_environment(*options)) {
              fmt::print("export {}={}\n", name, shell_quoted(value));
            }
            return 0;
          }};
}

}  // namespace qpair::tool
