#include "softnic/nic/address_resolution.hpp"

#include <algorithm>
#include <cstring>

namespace qpair::softnic::nic {
namespace {
constexpr std::uint8_t kLocallyAdministered =
    0x02;  // bit of a MAC address's first byte; inverted in an EUI-64
constexpr std::uint8_t kVendor = 0x71;
}  // namespace

std::array<std::uint8_t, 6> port_mac(const std::array<std::uint8_t, 16>& address) {
  return {kLocallyAdministered, kVendor, address[12], address[13], address[14], address[15]};
}

ibv_gid link_local(const std::array<std::uint8_t, 6>& mac) {
  ibv_gid gid{};
  const std::array<std::uint8_t, 16> raw{
      0xfe,   0x80,   0,
      0,      0,      0,
      0,      0,      static_cast<std::uint8_t>(mac[0] ^ kLocallyAdministered),
      mac[1], mac[2], 0xff,
      0xfe,   mac[3], mac[4],
      mac[5]};
  std::ranges::copy(raw, gid.raw);
  return gid;
}

ibv_gid routable(const ibv_gid& gid) {
  const std::array<std::uint8_t, 6> mac{static_cast<std::uint8_t>(gid.raw[8] ^ kLocallyAdministered),
                                        gid.raw[9],
                                        gid.raw[10],
                                        gid.raw[13],
                                        gid.raw[14],
                                        gid.raw[15]};
  const ibv_gid same = link_local(mac);
  if (mac[0] != kLocallyAdministered || mac[1] != kVendor ||
      std::memcmp(same.raw, gid.raw, sizeof gid.raw) != 0) {
    return gid;
  }
  ibv_gid mapped{};
  mapped.raw[10] = mapped.raw[11] = 0xff;
  std::copy(mac.begin() + 2, mac.end(), mapped.raw + 12);
  return mapped;
}

std::uint16_t lid_of(const std::array<std::uint8_t, 16>& address) {
  return static_cast<std::uint16_t>((address[14] << 8) | address[15]);
}

ibv_gid address_of_lid(std::uint16_t lid, const std::array<std::uint8_t, 16>& own_address) {
  ibv_gid address{};
  std::ranges::copy(own_address, address.raw);
  address.raw[14] = static_cast<std::uint8_t>(lid >> 8);
  address.raw[15] = static_cast<std::uint8_t>(lid);
  return address;
}

}  // namespace qpair::softnic::nic
