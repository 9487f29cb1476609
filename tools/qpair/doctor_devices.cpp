// What `qpair doctor` finds out about each RDMA device: its link, its ports, and whether a queue pair moves
// bytes on it.

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <qpair/qpair.hpp>
#include <string>

#include "check.hpp"
#include "emulated_nic.hpp"

namespace qpair::tool {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// A NIC in a slower slot than it was made for is the usual reason for half of the bandwidth.
void check_pci_link(Checks& checks, const RdmaDevice& device) {
  const std::string folder = "/sys/class/infiniband/" + device.name + "/device/";
  const std::string speed = first_line(folder + "current_link_speed");
  const std::string width = first_line(folder + "current_link_width");
  if (speed.empty() || width.empty()) return;  // not on PCI
  const std::string best_speed = first_line(folder + "max_link_speed");
  const std::string best_width = first_line(folder + "max_link_width");
  const bool best = speed == best_speed && width == best_width;
  checks.push_back({device.name + " PCIe link", best ? Verdict::Ok : Verdict::Warn,
                    best
                        ? fmt::format("{} x{}", speed, width)
                        : fmt::format("{} x{}, the card can do {} x{}", speed, width, best_speed, best_width),
                    best ? "" : "move the card to a faster slot; check the BIOS"});
}

void check_gids(Checks& checks, const std::string& name, const RdmaPort& port) {
  const bool routable = std::any_of(port.gids.begin(), port.gids.end(), [](const GidEntry& entry) {
    return entry.type == GidType::RoceV2 && !entry.gid.is_link_local();
  });
  if (routable) {
    checks.push_back({name + " GID", Verdict::Ok,
                      fmt::format("{} by default, {} in all", port.gid, port.gids.size()), ""});
  } else if (port.gids.empty()) {
    checks.push_back({name + " GID", Verdict::Fail, "the table is empty",
                      "bring the network interface up and give it an IP address"});
  } else {
    checks.push_back({name + " GID", Verdict::Warn, "no RoCE v2 address that can be routed",
                      "give the network interface an IPv4 or IPv6 address"});
  }
}

void check_port(Checks& checks, const RdmaDevice& device, const RdmaPort& port) {
  const std::string name = fmt::format("{}:{}", device.name, port.port_num);
  checks.push_back(
      {name, port.is_active() ? Verdict::Ok : Verdict::Warn,
       fmt::format("{}, {}, {}", port_state_name(port.state), physical_state_name(port.physical_state),
                   to_string(port.link_layer)),
       port.is_active() ? "" : "check the cable, the switch, and that the interface is up (ip link)"});
  if (!port.is_active()) return;
  const std::uint32_t mtu = mtu_bytes(port.active_mtu);
  const bool large = port.active_mtu == port.max_mtu;
  checks.push_back({name + " MTU", large ? Verdict::Ok : Verdict::Warn,
                    fmt::format("{} of {} bytes", mtu, mtu_bytes(port.max_mtu)),
                    large ? ""
                    : port.link_layer == LinkLayer::Ethernet
                        ? "ip link set dev INTERFACE mtu 9000, here, in the switch and at the peer"
                        : "raise the partition's MTU in the subnet manager"});
  if (port.link_layer == LinkLayer::Ethernet) {
    check_gids(checks, name, port);
  } else if (port.base_lid == 0) {
    checks.push_back({name + " LID", Verdict::Fail, "none", "start a subnet manager (opensm)"});
  }
}

// The kernel knows dma-buf registration when it complains about the descriptor and not about the request.
void check_dmabuf(Checks& checks, const RdmaDevice& device, const RdmaDomain& domain) {
  ibv_mr* region = ibv_reg_dmabuf_mr(domain.pd(), 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  const int error = errno;
  if (region != nullptr) ibv_dereg_mr(region);
  const bool supported = region != nullptr || error == EBADF;
  checks.push_back({device.name + " dma-buf", supported ? Verdict::Ok : Verdict::Warn,
                    supported ? "supported" : std::strerror(error),
                    supported ? "" : "GPU memory as dma-buf needs Linux 5.12 and a driver that takes it"});
}

// Two queue pairs of this process, connected to each other; one puts and the bytes are looked at.
Result<void> put_to_self(const RdmaDomain& domain, const RdmaPort& port) {
  IbverbsConfig config;
  config.port_num = port.port_num;
  auto left = RdmaQueuePair::create(domain, config);
  if (!left) return tl::unexpected(left.error());
  auto right = RdmaQueuePair::create(domain, config);
  if (!right) return tl::unexpected(right.error());
  auto memory = domain.allocate(8192);
  if (!memory) return tl::unexpected(memory.error());
  auto left_info = left->get_qp_info();
  if (!left_info) return tl::unexpected(left_info.error());
  auto right_info = right->get_qp_info();
  if (!right_info) return tl::unexpected(right_info.error());
  if (auto done = left->connect(*right_info); !done) return done;
  if (auto done = right->connect(*left_info); !done) return done;
  std::memset(memory->data(), 0x5a, 4096);
  if (auto posted = left->put(*memory->slice(0, 4096), *memory->slice(4096, 4096)); !posted) {
    return tl::unexpected(posted.error());
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < deadline) {
    auto completion = left->poll_send_completion();
    if (!completion) return tl::unexpected(completion.error());
    if (!*completion) continue;
    if (std::memcmp(memory->data(), memory->data() + 4096, 4096) == 0) return {};
    return tl::unexpected(Error::make(ErrorCode::system, "the put completed, but its bytes are not there"));
  }
  return tl::unexpected(Error::make(ErrorCode::transport_retry_exceeded, "no completion within 10 s"));
}

std::string advice_for(const Error& error) {
  if (error.code() == ErrorCode::out_of_resources)
    return "raise the locked memory limit: ulimit -l unlimited";
  return "";
}

void check_device(Checks& checks, const RdmaDevice& device) {
  checks.push_back(
      {device.name, Verdict::Ok,
       fmt::format("{}, firmware {}", device.mlx5 ? "mlx5, posted to directly" : "through libibverbs",
                   device.fw_ver),
       ""});
  check_pci_link(checks, device);
  for (const RdmaPort& port : device.ports) check_port(checks, device, port);
  const auto domain = RdmaDomain::create(device);
  if (!domain) {
    checks.push_back({device.name + " open", Verdict::Fail, domain.error().message(), ""});
    return;
  }
  check_dmabuf(checks, device, *domain);
  for (const RdmaPort& port : device.ports) {
    if (!port.is_active()) continue;
    const std::string name = fmt::format("{}:{} put", device.name, port.port_num);
    const Result<void> result = put_to_self(*domain, port);
    checks.push_back(result
                         ? Check{name, Verdict::Ok, "4 KiB from a queue pair of this process to another", ""}
                         : Check{name, Verdict::Fail, result.error().message(), advice_for(result.error())});
  }
}

}  // namespace

void check_devices(Checks& checks) {
  const auto devices = RdmaDevice::all();
  if (!devices) {
    checks.push_back({"RDMA device", Verdict::Fail, devices.error().message(), ""});
    return;
  }
  if (devices->empty()) {
    checks.push_back({"RDMA device", Verdict::Fail, "none",
                      on_emulated_nic() ? "the emulated NIC says why on stderr"
                                        : "qpair run and qpair demo need none: they bring the emulated NIC"});
    return;
  }
  for (const RdmaDevice& device : *devices) check_device(checks, device);
  const bool active = std::any_of(devices->begin(), devices->end(), [](const RdmaDevice& device) {
    return std::any_of(device.ports.begin(), device.ports.end(),
                       [](const RdmaPort& port) { return port.is_active(); });
  });
  if (!active)
    checks.push_back({"active port", Verdict::Fail, "no port of any device is active", "see above"});
}

}  // namespace qpair::tool
