#include "qpair/device.hpp"

#include <fmt/format.h>
#include <infiniband/mlx5dv.h>
#include <net/if.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "qpair/mlx5/endian.hpp"
#include "src/device_list.hpp"

namespace qpair {

namespace detail {

Result<DeviceList> DeviceList::get() {
  int count = 0;
  errno = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr) {
    const int reason = errno;
    if (reason == ENOSYS || reason == ENOENT) {
      return tl::unexpected(
          Error::make(ErrorCode::no_device, "this kernel has no RDMA support loaded", reason));
    }
    return tl::unexpected(Error::make(ErrorCode::system, "cannot list the RDMA devices", reason));
  }
  return DeviceList(list, static_cast<std::size_t>(count));
}

Result<ContextHandle> open_device(std::string_view name) {
  Result<DeviceList> list = DeviceList::get();
  if (!list) return tl::unexpected(list.error());
  std::string known;
  for (ibv_device* device : list->devices()) {
    const std::string_view candidate = ibv_get_device_name(device);
    if (candidate != name) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", candidate);
      continue;
    }
    ContextHandle context(ibv_open_device(device));
    if (context) return context;
    const int reason = errno;
    return tl::unexpected(Error::make(
        reason == EACCES || reason == EPERM ? ErrorCode::unsupported : ErrorCode::system,
        fmt::format("cannot open RDMA device {}; may this user open /dev/infiniband/uverbs*?", name),
        reason));
  }
  return tl::unexpected(
      Error::make(ErrorCode::no_device, fmt::format("there is no RDMA device '{}'; there is: {}", name,
                                                    known.empty() ? "none at all" : known)));
}

}  // namespace detail

namespace {

using detail::ContextHandle;
using detail::DeviceList;

LinkLayer link_layer_of(std::uint8_t value) {
  switch (value) {
    case IBV_LINK_LAYER_INFINIBAND:
      return LinkLayer::InfiniBand;
    case IBV_LINK_LAYER_ETHERNET:
      return LinkLayer::Ethernet;
    default:
      return LinkLayer::Unspecified;
  }
}

Result<RdmaPort> describe_port(ibv_context* context, std::uint8_t port_num) {
  ibv_port_attr attributes{};
  if (const int failure = ibv_query_port(context, port_num, &attributes); failure != 0) {
    return tl::unexpected(
        Error::make(ErrorCode::system, fmt::format("cannot query port {}", port_num), failure));
  }
  RdmaPort port;
  port.port_num = port_num;
  port.state = attributes.state;
  port.physical_state = attributes.phys_state;
  port.base_lid = attributes.lid;
  port.lmc = attributes.lmc;
  port.sm_lid = attributes.sm_lid;
  port.capability_mask = attributes.port_cap_flags;
  port.link_layer = link_layer_of(attributes.link_layer);
  port.gid_tbl_len = static_cast<std::uint32_t>(std::max(0, attributes.gid_tbl_len));
  port.max_mtu = attributes.max_mtu;
  port.active_mtu = attributes.active_mtu;
  port.max_msg_sz = attributes.max_msg_sz;
  Result<std::vector<GidEntry>> gids = query_gids(context, port_num);
  if (!gids) return tl::unexpected(gids.error());
  port.gids = std::move(*gids);
  if (const std::optional<GidEntry> chosen = choose_gid(port.gids)) port.gid = chosen->gid;
  return port;
}

Result<RdmaDevice> describe(ibv_context* context) {
  ibv_device_attr attributes{};
  const std::string name = ibv_get_device_name(context->device);
  if (const int failure = ibv_query_device(context, &attributes); failure != 0) {
    return tl::unexpected(
        Error::make(ErrorCode::system, fmt::format("cannot query RDMA device {}", name), failure));
  }
  RdmaDevice device;
  device.name = name;
  device.vendor_id = attributes.vendor_id;
  device.vendor_part_id = attributes.vendor_part_id;
  device.hw_ver = attributes.hw_ver;
  device.fw_ver = attributes.fw_ver;
  device.node_guid = mlx5::byte_swap(std::uint64_t{attributes.node_guid});
  device.max_qp = attributes.max_qp;
  device.max_cq = attributes.max_cq;
  device.max_mr = attributes.max_mr;
  device.max_pd = attributes.max_pd;
  device.max_qp_wr = attributes.max_qp_wr;
  device.max_sge = attributes.max_sge;
  device.max_cqe = attributes.max_cqe;
  device.max_rd_atomic = attributes.max_qp_rd_atom;
  device.mlx5 = mlx5dv_is_supported(context->device);
  for (unsigned port = 1; port <= attributes.phys_port_cnt; ++port) {
    Result<RdmaPort> described = describe_port(context, static_cast<std::uint8_t>(port));
    if (!described) return tl::unexpected(described.error().within(name));
    device.ports.push_back(std::move(*described));
  }
  return device;
}

bool has_active_port(const RdmaDevice& device) {
  return std::any_of(device.ports.begin(), device.ports.end(),
                     [](const RdmaPort& port) { return port.is_active(); });
}

}  // namespace

Result<std::vector<RdmaDevice>> RdmaDevice::all() {
  Result<DeviceList> list = DeviceList::get();
  if (!list) {
    if (list.error().code() == ErrorCode::no_device) return std::vector<RdmaDevice>{};
    return tl::unexpected(list.error());
  }
  std::vector<RdmaDevice> devices;
  std::optional<Error> refused;
  for (ibv_device* candidate : list->devices()) {
    const std::string name = ibv_get_device_name(candidate);
    ContextHandle context(ibv_open_device(candidate));
    if (!context) {
      refused = Error::make(
          ErrorCode::system,
          fmt::format("cannot open RDMA device {}; may this user open /dev/infiniband/uverbs*?", name),
          errno);
      continue;
    }
    Result<RdmaDevice> device = describe(context.get());
    if (device) {
      devices.push_back(std::move(*device));
    } else {
      refused = device.error();
    }
  }
  // One broken device does not hide the others; when there is nothing but broken ones, say why.
  if (devices.empty() && refused) return tl::unexpected(*refused);
  return devices;
}

Result<RdmaDevice> RdmaDevice::first_available() {
  Result<std::vector<RdmaDevice>> devices = all();
  if (!devices) return tl::unexpected(devices.error());
  if (devices->empty()) {
    return tl::unexpected(
        Error::make(ErrorCode::no_device,
                    "this machine has no RDMA device; 'qpair run' gives a program an emulated one"));
  }
  const auto active = std::find_if(devices->begin(), devices->end(), has_active_port);
  return active != devices->end() ? std::move(*active) : std::move(devices->front());
}

Result<RdmaDevice> RdmaDevice::find(std::string_view name) {
  Result<ContextHandle> context = detail::open_device(name);
  if (!context) return tl::unexpected(context.error());
  return describe(context->get());
}

Result<std::vector<GidEntry>> query_gids(ibv_context* context, std::uint8_t port_num) {
  ibv_port_attr attributes{};
  if (const int failure = ibv_query_port(context, port_num, &attributes); failure != 0) {
    return tl::unexpected(
        Error::make(ErrorCode::system, fmt::format("cannot query port {}", port_num), failure));
  }
  std::vector<GidEntry> entries;
  for (int index = 0; index < attributes.gid_tbl_len; ++index) {
    ibv_gid_entry raw{};
    // An unused entry is ENODATA; tables are mostly unused.
    if (ibv_query_gid_ex(context, port_num, static_cast<std::uint32_t>(index), &raw, 0) != 0) continue;
    GidEntry entry;
    entry.index = static_cast<std::uint32_t>(index);
    entry.gid = Gid::from(raw.gid);
    if (entry.gid.is_zero()) continue;
    switch (raw.gid_type) {
      case IBV_GID_TYPE_ROCE_V1:
        entry.type = GidType::RoceV1;
        break;
      case IBV_GID_TYPE_ROCE_V2:
        entry.type = GidType::RoceV2;
        break;
      default:
        entry.type = GidType::InfiniBand;
    }
    std::array<char, IF_NAMESIZE> interface {};
    if (raw.ndev_ifindex != 0 && if_indextoname(raw.ndev_ifindex, interface.data()) != nullptr) {
      entry.net_device = interface.data();
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::optional<ibv_mtu> mtu_from_bytes(std::uint64_t bytes) {
  for (const ibv_mtu mtu : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (mtu_bytes(mtu) == bytes) return mtu;
  }
  return {};
}

std::string_view port_state_name(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_NOP:
      return "NOP";
    case IBV_PORT_DOWN:
      return "DOWN";
    case IBV_PORT_INIT:
      return "INIT";
    case IBV_PORT_ARMED:
      return "ARMED";
    case IBV_PORT_ACTIVE:
      return "ACTIVE";
    case IBV_PORT_ACTIVE_DEFER:
      return "ACTIVE_DEFER";
  }
  return "UNKNOWN";
}

std::string_view physical_state_name(std::uint8_t physical_state) {
  constexpr std::array<std::string_view, 8> kNames = {
      "NOP", "SLEEP", "POLLING", "DISABLED", "TRAINING", "LINK UP", "LINK ERROR RECOVERY", "PHY TEST"};
  return physical_state < kNames.size() ? kNames[physical_state] : "UNKNOWN";
}

std::string to_string(LinkLayer layer) {
  switch (layer) {
    case LinkLayer::Unspecified:
      return "Unspecified";
    case LinkLayer::InfiniBand:
      return "InfiniBand";
    case LinkLayer::Ethernet:
      return "Ethernet";
  }
  return fmt::format("LinkLayer({})", static_cast<unsigned>(layer));
}

std::string to_string(const RdmaPort& port) {
  return fmt::format("port {}: {}, {}, {}, MTU {}, LID {}, GID {}", port.port_num,
                     port_state_name(port.state), physical_state_name(port.physical_state), port.link_layer,
                     mtu_bytes(port.active_mtu), port.base_lid, port.gid);
}

std::string to_string(const RdmaDevice& device) {
  std::string text = fmt::format("{}: vendor {:#x}, part {}, firmware {}, node GUID {:016x}", device.name,
                                 device.vendor_id, device.vendor_part_id, device.fw_ver, device.node_guid);
  for (const RdmaPort& port : device.ports) text += fmt::format("; {}", port);
  return text;
}

}  // namespace qpair
