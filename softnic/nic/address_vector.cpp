#include "softnic/nic/address_vector.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "softnic/nic/address_resolution.hpp"
#include "softnic/nic/id_table.hpp"

namespace qpair::softnic::nic {

roce::AddressVector decode_address(const mlx5::DatagramSegment& segment, const wire::Endpoint& local) {
  const std::uint64_t key = segment.key;
  const std::uint32_t routing = segment.grh_gid_fl;
  ibv_gid gid{};
  std::memcpy(gid.raw, segment.rgid, sizeof gid.raw);
  roce::AddressVector vector;
  vector.destination = is_multicast(gid) ? group_of(gid, local) : endpoint_of(gid);
  vector.remote_qpn = segment.dqp_dct & kIdMask;
  vector.qkey = static_cast<std::uint32_t>(key >> 32);
  vector.dc_key = key;
  vector.service_level = static_cast<std::uint8_t>((segment.stat_rate_sl >> 1) & 7);  // Ethernet's priority
  vector.sgid_index = static_cast<std::uint8_t>(routing >> 20);
  vector.traffic_class = segment.tclass;
  vector.hop_limit = segment.hop_limit;
  vector.flow_label = routing & 0xf'ffff;
  return vector;
}

std::optional<std::uint16_t> lid_in(const mlx5::DatagramSegment& segment) {
  constexpr std::uint32_t kHasGrh = 1U << 30;
  if ((segment.grh_gid_fl & kHasGrh) != 0) return std::nullopt;
  return segment.rlid;
}

namespace {

// ff0e::ffff:a.b.c.d, the form of an IPv4 group that RoCE v1 has and that applications use for both
// (cma_iboe_set_mgid() in the kernel's drivers/infiniband/core/cma.c).
bool is_ipv4_group(const ibv_gid& gid) {
  constexpr std::array<std::uint8_t, 12> kPrefix{0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kPrefix.begin(), kPrefix.end(), gid.raw);
}

}  // namespace

wire::Endpoint endpoint_of(const ibv_gid& gid) {
  ibv_gid where = routable(gid);
  if (is_ipv4_group(gid)) where.raw[0] = where.raw[1] = 0;
  wire::Endpoint endpoint;
  std::copy_n(where.raw, sizeof where.raw, endpoint.address.begin());
  endpoint.port = wire::kRoceUdpPort;
  return endpoint;
}

wire::Endpoint group_of(const ibv_gid& gid, const wire::Endpoint& local) {
  wire::Endpoint group = endpoint_of(gid);
  if (group.is_ipv4() == local.is_ipv4()) return group;
  std::array<std::uint8_t, 16>& ip = group.address;
  if (local.is_ipv4()) {
    ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, ip[13], ip[14], ip[15]};
  } else {
    ip[0] = 0xff;
    ip[1] = 0x0e;
  }
  return group;
}

bool is_multicast(const ibv_gid& gid) {
  const wire::Endpoint where = endpoint_of(gid);
  return where.is_ipv4() ? (where.address[12] & 0xf0) == 0xe0 : where.address[0] == 0xff;
}

std::array<std::uint8_t, 6> ethernet_address(const ibv_gid& gid) {
  const wire::Endpoint where = endpoint_of(gid);
  const auto& ip = where.address;
  if (!is_multicast(gid)) return port_mac(ip);
  // RFC 1112 6.4 and RFC 2464 7.
  if (where.is_ipv4()) return {0x01, 0x00, 0x5e, static_cast<std::uint8_t>(ip[13] & 0x7f), ip[14], ip[15]};
  return {0x33, 0x33, ip[12], ip[13], ip[14], ip[15]};
}

}  // namespace qpair::softnic::nic
