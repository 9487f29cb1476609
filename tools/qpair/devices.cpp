// qpair devices: what RDMA devices there are, and what they can do.

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <qpair/qpair.hpp>

#include "command.hpp"
#include "emulated_nic.hpp"
#include "failure.hpp"
#include "units.hpp"

namespace qpair::tool {
namespace {

std::string_view name_of(GidType type) {
  switch (type) {
    case GidType::InfiniBand:
      return "InfiniBand";
    case GidType::RoceV1:
      return "RoCE v1";
    case GidType::RoceV2:
      return "RoCE v2";
  }
  return "";
}

void print_port(const RdmaPort& port) {
  fmt::print("  port {}: {}, {}, {}, MTU {} (of {}), messages up to {}\n", port.port_num,
             port_state_name(port.state), physical_state_name(port.physical_state),
             to_string(port.link_layer), mtu_bytes(port.active_mtu), mtu_bytes(port.max_mtu),
             format_size(port.max_msg_sz));
  if (port.link_layer == LinkLayer::InfiniBand) {
    fmt::print("    LID {} (LMC {}), subnet manager at LID {}\n", port.base_lid, port.lmc, port.sm_lid);
  }
  const auto chosen = choose_gid(port.gids);
  for (const GidEntry& entry : port.gids) {
    fmt::print("    GID {:<3} {}  {}{}{}\n", entry.index, to_string(entry.gid), name_of(entry.type),
               entry.net_device.empty() ? "" : "  " + entry.net_device,
               chosen && entry.index == chosen->index ? "  (default)" : "");
  }
}

void print_device(const RdmaDevice& device) {
  fmt::print("{}{}\n", device.name, on_emulated_nic() ? "  (emulated)" : "");
  fmt::print("  vendor 0x{:04x}, part {}, hardware {:#x}, firmware {}, node GUID {:016x}\n", device.vendor_id,
             device.vendor_part_id, device.hw_ver, device.fw_ver, device.node_guid);
  fmt::print("  data path: {}\n", device.mlx5 ? "mlx5, posted to directly" : "verbs, through libibverbs");
  fmt::print(
      "  limits: {} queue pairs of {} work requests and {} pieces, {} completion queues of {}, {} memory "
      "regions, {} protection domains, {} reads under way\n",
      device.max_qp, device.max_qp_wr, device.max_sge, device.max_cq, device.max_cqe, device.max_mr,
      device.max_pd, device.max_rd_atomic);
  for (const RdmaPort& port : device.ports) print_port(port);
}

struct DevicesOptions {
  bool json = false;
  bool emulated = false;
};

int list_devices(const DevicesOptions& options) {
  if (options.emulated) ensure_emulated_nic({});
  const auto devices = RdmaDevice::all();
  if (!devices) throw Failure(devices.error().message());
  if (options.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const RdmaDevice& device : *devices)
      list.push_back(nlohmann::ordered_json::parse(serialize(device)));
    fmt::print("{}\n", list.dump(2));
  } else {
    for (const RdmaDevice& device : *devices) print_device(device);
  }
  if (devices->empty()) {
    throw Failure(options.emulated
                      ? "the emulated NIC did not start"
                      : "no RDMA device here; `qpair devices --emulated` shows the emulated one");
  }
  return 0;
}

}  // namespace

Command devices_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("devices", "List RDMA devices and their ports");
  auto options = std::make_shared<DevicesOptions>();
  app->add_flag("--json", options->json, "Print an array of devices as JSON");
  app->add_flag("--emulated", options->emulated, "Show the emulated NIC");
  app->footer(
      "Exit status 1 when there is no device.\n\n"
      "Examples:\n"
      "  qpair devices\n"
      "  qpair devices --emulated --json | jq '.[0].ports[0].gids'");
  return {app, [options] { return list_devices(*options); }};
}

}  // namespace qpair::tool
