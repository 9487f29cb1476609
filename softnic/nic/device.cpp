#include "softnic/nic/device.hpp"

#include <net/if.h>

#include <algorithm>
#include <cstring>

#include "qpair/mlx5/endian.hpp"
#include "softnic/nic/address_resolution.hpp"

namespace qpair::softnic::nic {
namespace {

constexpr std::uint32_t kInfiniBandVendor = 0x02c9;  // vendor_id of verbs is the OUI, not the PCI vendor
constexpr std::uint8_t kWidth4x = 2;                 // IB_WIDTH_4X
constexpr std::uint8_t kSpeedNdr = 128;              // IB_SPEED_NDR: 100 Gb/s for each lane
constexpr std::uint8_t kPhysicalLinkUp = 5;
constexpr int kGidTableLength = 16;  // a ConnectX has 255; every entry is a file in sysfs, and 4 are used

constexpr int kInfiniBandGidTableLength = 8;
constexpr std::uint16_t kSubnetManagerLid = 1;
constexpr std::uint8_t kFourVirtualLanes = 3;  // VLCap, IBTA vol. 1 table 149 (PortInfo)

std::uint64_t guid_of(const PortAddress& address) {
  const ibv_gid gid = link_local(port_mac(address));
  std::uint64_t guid = 0;
  std::memcpy(&guid, gid.raw + 8, sizeof guid);
  return mlx5::byte_swap(guid);
}

ibv_mtu mtu_of(std::uint32_t bytes) {
  if (bytes >= 4096) return IBV_MTU_4096;
  if (bytes >= 2048) return IBV_MTU_2048;
  if (bytes >= 1024) return IBV_MTU_1024;
  return bytes >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

}  // namespace

DeviceIdentity make_identity(const PortAddress& address) {
  DeviceIdentity identity;
  identity.node_guid = identity.system_image_guid = guid_of(address);
  return identity;
}

// As `ibv_devinfo -v` prints them for a ConnectX-7, without what this device does not have (raw packets): a
// limit of 0 says so.
DeviceLimits make_limits() {
  DeviceLimits limits;
  ibv_device_attr& is = limits.attributes;
  const std::string firmware = DeviceIdentity{}.firmware;
  std::copy_n(firmware.c_str(), std::min(firmware.size() + 1, sizeof is.fw_ver), is.fw_ver);
  is.max_mr_size = ~std::uint64_t{0};
  is.page_size_cap = 0xffff'ffff'ffff'f000;
  is.vendor_id = kInfiniBandVendor;
  is.vendor_part_id = DeviceIdentity{}.device_id;
  is.max_qp = 131'072;
  is.max_qp_wr = 32'768;
  is.device_cap_flags = IBV_DEVICE_BAD_PKEY_CNTR | IBV_DEVICE_BAD_QKEY_CNTR | IBV_DEVICE_CHANGE_PHY_PORT |
                        IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN |
                        IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_MGT_EXTENSIONS |
                        IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_XRC;
  is.max_sge = 30;
  is.max_sge_rd = 30;
  is.max_cq = 16'777'216;
  is.max_cqe = 4'194'303;
  is.max_mr = 16'777'216;
  is.max_mw = 16'777'216;
  is.max_pd = 8'388'608;
  is.max_qp_rd_atom = 16;
  is.max_res_rd_atom = 131'072 * 16;
  is.max_qp_init_rd_atom = 16;
  is.atomic_cap = IBV_ATOMIC_HCA;
  is.max_mcast_grp = 2'097'152;
  is.max_mcast_qp_attach = 240;
  is.max_total_mcast_qp_attach = 503'316'480;
  is.max_ah = 2'147'483'647;
  is.max_srq = 8'388'608;
  is.max_srq_wr = 32'767;
  is.max_srq_sge = 31;
  is.max_pkeys = 128;
  is.local_ca_ack_delay = 16;
  is.phys_port_cnt = 1;
  return limits;
}

std::vector<GidEntry> make_gids(const PortAddress& address, const std::string& net_device) {
  const ibv_gid local = link_local(port_mac(address));
  ibv_gid routable{};
  std::ranges::copy(address, routable.raw);
  const unsigned net_device_index = if_nametoindex(net_device.c_str());
  return {
      {0, local, false, net_device, net_device_index},
      {1, local, true, net_device, net_device_index},
      {2, routable, false, net_device, net_device_index},
      {3, routable, true, net_device, net_device_index},
  };
}

std::vector<GidEntry> make_infiniband_gids(const PortAddress& address) {
  return {{0, link_local(port_mac(address)), false, {}, 0, true}};
}

ibv_port_attr make_infiniband_port(std::uint32_t mtu, const PortAddress& address) {
  ibv_port_attr port = make_port(mtu);
  port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  port.gid_tbl_len = kInfiniBandGidTableLength;
  port.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_SYS_IMAGE_GUID_SUP | IBV_PORT_AUTO_MIGR_SUP;
  port.lid = lid_of(address);
  port.sm_lid = kSubnetManagerLid;
  port.max_vl_num = kFourVirtualLanes;
  return port;
}

ibv_port_attr make_port(std::uint32_t mtu) {
  ibv_port_attr port{};
  port.state = IBV_PORT_ACTIVE;
  port.max_mtu = IBV_MTU_4096;
  port.active_mtu = mtu_of(mtu);
  port.gid_tbl_len = kGidTableLength;
  port.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
  port.max_msg_sz = DeviceLimits{}.max_message;
  port.pkey_tbl_len = 1;
  port.max_vl_num = 0;
  port.active_width = kWidth4x;
  port.active_speed = kSpeedNdr;
  port.phys_state = kPhysicalLinkUp;
  port.link_layer = IBV_LINK_LAYER_ETHERNET;
  return port;
}

}  // namespace qpair::softnic::nic
