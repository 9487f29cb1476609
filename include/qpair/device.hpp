#pragma once
// What RDMA devices this machine has, and what they can do.

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qpair/print.hpp"
#include "qpair/result.hpp"

namespace qpair {

// A 16-byte global identifier: on RoCE an IPv6 address, or an IPv4 one mapped into IPv6.
struct Gid {
  std::array<std::uint8_t, 16> raw{};

  static Gid from(const ibv_gid& gid);
  // "fe80::1", "::ffff:10.0.0.1", "10.0.0.1" (becomes the mapped form), or eight groups of four hexadecimal
  // digits.
  static Result<Gid> parse(std::string_view text);

  [[nodiscard]] ibv_gid to_ibv() const;
  [[nodiscard]] std::uint64_t subnet_prefix() const;  // the first eight bytes, as a number in host order
  [[nodiscard]] std::uint64_t interface_id() const;   // the last eight
  [[nodiscard]] bool is_zero() const;
  [[nodiscard]] bool is_ipv4_mapped() const;  // ::ffff:a.b.c.d
  [[nodiscard]] bool is_link_local() const;   // fe80::/10, and IPv4-mapped 169.254.0.0/16

  friend bool operator==(const Gid&, const Gid&) = default;
  friend auto operator<=>(const Gid&, const Gid&) = default;
};
static_assert(sizeof(Gid) == 16);

enum class GidType : std::uint8_t { InfiniBand, RoceV1, RoceV2 };

// One entry of a port's GID table.
struct GidEntry {
  std::uint32_t index = 0;
  Gid gid;
  GidType type = GidType::InfiniBand;
  std::string net_device;  // empty if the kernel does not say

  friend bool operator==(const GidEntry&, const GidEntry&) = default;
};

enum class LinkLayer : std::uint8_t { Unspecified, InfiniBand, Ethernet };

struct RdmaPort {
  std::uint8_t port_num = 0;
  ibv_port_state state = IBV_PORT_NOP;
  std::uint8_t physical_state =
      0;  // IBTA vol. 1, 14.2.5.6: 5 is link up; physical_state_name() says it in words
  std::uint16_t base_lid = 0;
  std::uint8_t lmc = 0;
  std::uint16_t sm_lid = 0;
  std::uint32_t capability_mask = 0;
  LinkLayer link_layer = LinkLayer::Unspecified;
  Gid gid;  // the one that a queue pair takes by default; all zero if there is none
  std::uint32_t gid_tbl_len = 0;
  std::vector<GidEntry> gids;  // the entries that are in use
  ibv_mtu max_mtu = IBV_MTU_1024;
  ibv_mtu active_mtu = IBV_MTU_1024;
  std::uint32_t max_msg_sz = 0;

  [[nodiscard]] bool is_active() const { return state == IBV_PORT_ACTIVE; }
  friend bool operator==(const RdmaPort&, const RdmaPort&) = default;
};

struct RdmaDevice {
  std::string name;
  std::uint32_t vendor_id = 0;
  std::uint32_t vendor_part_id = 0;
  std::uint32_t hw_ver = 0;
  std::string fw_ver;
  std::uint64_t node_guid = 0;  // host order
  std::vector<RdmaPort> ports;
  std::int32_t max_qp = 0;
  std::int32_t max_cq = 0;
  std::int32_t max_mr = 0;
  std::int32_t max_pd = 0;
  std::int32_t max_qp_wr = 0;
  std::int32_t max_sge = 0;
  std::int32_t max_cqe = 0;
  std::int32_t max_rd_atomic = 0;  // reads and atomics that may be under way on one queue pair
  bool mlx5 = false;               // posted to directly; otherwise through libibverbs

  // Every device that can be opened, in the kernel's order. An empty list is not an error; being refused is.
  static Result<std::vector<RdmaDevice>> all();
  // The first one with an active port, or else the first one. no_device if there is none at all.
  static Result<RdmaDevice> first_available();
  static Result<RdmaDevice> find(std::string_view name);

  friend bool operator==(const RdmaDevice&, const RdmaDevice&) = default;
};

// The entries of a port's GID table that are in use.
Result<std::vector<GidEntry>> query_gids(ibv_context* context, std::uint8_t port_num);

// Which entry a queue pair should use when the program does not say: RoCE v2 with a routable IPv4 address,
// then RoCE v2 with a routable IPv6 address, then RoCE v2 link-local, then whatever else there is. Ties: the
// lowest index.
std::optional<GidEntry> choose_gid(std::span<const GidEntry> gids);

// IBV_MTU_4096 → 4096, and back. Nothing for a number that is not a path MTU.
[[nodiscard]] constexpr std::uint32_t mtu_bytes(ibv_mtu mtu) {
  return 128U << static_cast<unsigned>(mtu);
}
[[nodiscard]] std::optional<ibv_mtu> mtu_from_bytes(std::uint64_t bytes);

// "ACTIVE", "LINK UP", …
[[nodiscard]] std::string_view port_state_name(ibv_port_state state);
[[nodiscard]] std::string_view physical_state_name(std::uint8_t physical_state);

[[nodiscard]] std::string to_string(const Gid& gid);
[[nodiscard]] std::string to_string(GidType type);
[[nodiscard]] std::string to_string(LinkLayer layer);
[[nodiscard]] std::string to_string(const GidEntry& entry);
[[nodiscard]] std::string to_string(const RdmaPort& port);
[[nodiscard]] std::string to_string(const RdmaDevice& device);

}  // namespace qpair
