// qpair doctor: why RDMA works on this machine, or why it does not.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "check.hpp"
#include "command.hpp"
#include "emulated_nic.hpp"
#include "failure.hpp"
#include "table.hpp"

namespace qpair::tool {
namespace {

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::Ok:
      return "ok";
    case Verdict::Warn:
      return "warn";
    case Verdict::Fail:
      return "fail";
  }
  return "";
}

void print_text(const Checks& checks) {
  std::size_t width = 0;
  for (const Check& check : checks) width = std::max(width, display_width(check.name));
  for (const Check& check : checks) {
    const std::string padding(width - display_width(check.name), ' ');
    fmt::print("{:<4}  {}{}  {}\n", word(check.verdict), check.name, padding, check.detail);
    if (!check.advice.empty()) fmt::print("      {}  -> {}\n", std::string(width, ' '), check.advice);
  }
}

void print_json(const Checks& checks, bool healthy) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    list.push_back({{"check", check.name},
                    {"status", word(check.verdict)},
                    {"detail", check.detail},
                    {"advice", check.advice}});
  }
  fmt::print("{}\n", nlohmann::ordered_json{{"healthy", healthy}, {"checks", list}}.dump(2));
}

struct DoctorOptions {
  bool json = false;
  bool emulated = false;
};

int examine(const DoctorOptions& options) {
  if (options.emulated) ensure_emulated_nic({});
  Checks checks;
  check_system(checks);
  check_devices(checks);
  const auto failed = std::count_if(checks.begin(), checks.end(),
                                    [](const Check& check) { return check.verdict == Verdict::Fail; });
  if (options.json) {
    print_json(checks, failed == 0);
  } else {
    print_text(checks);
  }
  return failed == 0 ? 0 : kFailed;
}

}  // namespace

Command doctor_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("doctor", "Find out why RDMA works here, or does not");
  auto options = std::make_shared<DoctorOptions>();
  app->add_flag("--json", options->json, "Print the findings as JSON");
  app->add_flag("--emulated", options->emulated, "Examine the emulated NIC");
  app->footer(
      "Each line is ok, warn or fail, and says what to do. Exit status 1 when something failed.\n\n"
      "Examples:\n"
      "  qpair doctor\n"
      "  qpair doctor --emulated\n"
      "  qpair doctor --json | jq '.checks[] | select(.status != \"ok\")'");
  return {app, [options] { return examine(*options); }};
}

}  // namespace qpair::tool
