#pragma once
// What the emulated device is: identity, limits, port and GID table. Read by the driver's queries and by the
// sysfs tree, so that both always agree. Modelled on a ConnectX-7 (PCI 15b3:1021).

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace qpair::softnic::nic {

struct GidEntry {
  unsigned index;  // place in the table
  ibv_gid gid;
  bool roce_v2;               // otherwise RoCE v1
  std::string net_device;     // name for gid_attrs/ndevs
  unsigned net_device_index;  // if_nametoindex
  bool infiniband = false;    // neither RoCE v1 nor v2
};

struct DeviceIdentity {
  std::string name = "mlx5_0";
  std::uint16_t vendor_id = 0x15b3;
  std::uint16_t device_id = 0x1021;
  std::uint64_t node_guid = 0;  // host order
  std::uint64_t system_image_guid = 0;
  std::string firmware = "28.39.1002";
  std::string board_id = "MT_0000000838";
  std::uint32_t hardware_revision = 0;
};

struct DeviceLimits {  // a ConnectX-7's, as ibv_devinfo -v prints them
  ibv_device_attr attributes{};
  std::uint32_t max_inline = 1024;
  std::uint32_t max_message = 1U << 30;  // bytes
};

// What a NIC with this address is. `address`: 16 bytes of its RoCE v2 GID.
using PortAddress = std::array<std::uint8_t, 16>;
DeviceIdentity make_identity(const PortAddress& address);
DeviceLimits make_limits();
// Entries as a card has them for an interface with one IP address: 0 and 1 link-local (RoCE v1, v2), 2 and 3
// the address (v1, v2).
std::vector<GidEntry> make_gids(const PortAddress& address, const std::string& net_device);
// With InfiniBand's link layer there is one, made of the subnet prefix and the port's GUID, and no net
// device.
std::vector<GidEntry> make_infiniband_gids(const PortAddress& address);
// An active 400 Gb/s port. `mtu`: path MTU in bytes.
ibv_port_attr make_port(std::uint32_t mtu);
ibv_port_attr make_infiniband_port(std::uint32_t mtu, const PortAddress& address);

}  // namespace qpair::softnic::nic
