#include "nic_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <qpair/qpair.hpp>

#include "emulated_nic.hpp"
#include "failure.hpp"

namespace qpair::tool {
namespace {

NicChoice emulated_nic(const std::string& why, const std::string& device) {
  return {true, device, why + "every process gets an emulated mlx5 NIC of its own."};
}

bool has_active_port(const RdmaDevice& device) {
  return std::any_of(device.ports.begin(), device.ports.end(),
                     [](const RdmaPort& port) { return port.is_active(); });
}

}  // namespace

NicChoice choose_nic(const std::string& name, bool emulated) {
  if (emulated || on_emulated_nic()) return emulated_nic("As asked: ", name);
  const auto device = name.empty() ? RdmaDevice::first_available() : RdmaDevice::find(name);
  if (!device && !name.empty()) throw Failure(fmt::format("--device {}: {}", name, device.error().message()));
  if (!device && device.error().code() == ErrorCode::no_device)
    return emulated_nic("No RDMA device here: ", "");
  if (!device) return emulated_nic(fmt::format("No use of RDMA here ({}): ", device.error().message()), "");
  if (!has_active_port(*device) && name.empty()) {
    return emulated_nic(fmt::format("{} has no active port: ", device->name), "");
  }
  return {false, device->name,
          fmt::format("On {}, a real device. (--emulated takes the emulated NIC.)", device->name)};
}

void add_process_options(CLI::App& app, ProcessOptions& options) {
  app.add_option("--timeout", options.timeout_seconds, "Seconds that one operation may take (default: 30)")
      ->check(CLI::Range(1U, 3600U).description(""))
      ->type_name("S");
  app.add_option("--device", options.device, "The RDMA device (default: the first with an active port)")
      ->type_name("NAME");
  app.add_flag("--emulated", options.emulated, "Use the emulated NIC though there is a real one");
}

void refuse_nic_options(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group() != kNicOptionGroup || option->count() == 0 || option->check_lname("quiet"))
      continue;
    throw Failure(
        fmt::format("{}: {} is for the emulated NIC: add --emulated", app.get_name(), option->get_name()),
        kUsage);
  }
}

}  // namespace qpair::tool
