#include "demo.hpp"

namespace qpair::tool {

void add_role_options(CLI::App& app, RoleOptions& options) {
  app.group("");  // not in the help: for the coordinator
  app.add_option("--device", options.device);
  app.add_option("--size", options.size)->required();
  app.add_option("--timeout", options.timeout_seconds);
  app.add_option("--channel", options.channel)->required();
}

}  // namespace qpair::tool
