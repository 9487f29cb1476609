#pragma once
// A subcommand: its options are declared on `app` when it is made; `run` does the work and returns the exit
// status, or throws Failure. One file makes each.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace qpair::tool {

struct Command {
  CLI::App* app;
  std::function<int()> run;
};

Command devices_command(CLI::App& root);
Command env_command(CLI::App& root);
// `program`: what followed "--", which is not parsed.
Command run_command(CLI::App& root, const std::vector<std::string>& program);
Command demo_command(CLI::App& root);
Command bench_command(CLI::App& root);
Command doctor_command(CLI::App& root);
Command top_command(CLI::App& root);

// The processes of a demo and of a benchmark; not for people.
Command demo_server_command(CLI::App& root);
Command demo_worker_command(CLI::App& root);
Command bench_initiator_command(CLI::App& root);
Command bench_target_command(CLI::App& root);

}  // namespace qpair::tool
