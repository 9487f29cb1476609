#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "qpair/device.hpp"

namespace qpair {

namespace {

constexpr std::array<std::uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

std::uint64_t number(const std::uint8_t* bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i != 8; ++i) value = (value << 8) | bytes[i];
  return value;
}

// Lower is better.
int rank(const GidEntry& entry) {
  if (entry.type != GidType::RoceV2) return 4;
  if (entry.gid.is_link_local()) return 3;
  return entry.gid.is_ipv4_mapped() ? 0 : 1;
}

}  // namespace

Gid Gid::from(const ibv_gid& gid) {
  Gid result;
  std::memcpy(result.raw.data(), gid.raw, sizeof gid.raw);
  return result;
}

Result<Gid> Gid::parse(std::string_view text) {
  Gid gid;
  const std::string terminated(text.substr(0, INET6_ADDRSTRLEN));
  // inet_pton() stops at a zero byte; text that has one is not an address.
  if (text.size() < INET6_ADDRSTRLEN && text.find('\0') == std::string_view::npos) {
    if (inet_pton(AF_INET6, terminated.c_str(), gid.raw.data()) == 1) return gid;
    std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), gid.raw.begin());
    if (inet_pton(AF_INET, terminated.c_str(), gid.raw.data() + kMappedPrefix.size()) == 1) return gid;
  }
  return tl::unexpected(Error::make(ErrorCode::invalid_argument,
                                    fmt::format("'{}' is not a GID: an IPv6 or IPv4 address is expected",
                                                text.substr(0, INET6_ADDRSTRLEN))));
}

ibv_gid Gid::to_ibv() const {
  ibv_gid gid{};
  std::memcpy(gid.raw, raw.data(), sizeof gid.raw);
  return gid;
}

std::uint64_t Gid::subnet_prefix() const {
  return number(raw.data());
}

std::uint64_t Gid::interface_id() const {
  return number(raw.data() + 8);
}

bool Gid::is_zero() const {
  return std::all_of(raw.begin(), raw.end(), [](std::uint8_t byte) { return byte == 0; });
}

bool Gid::is_ipv4_mapped() const {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), raw.begin());
}

bool Gid::is_link_local() const {
  if (is_ipv4_mapped()) return raw[12] == 169 && raw[13] == 254;
  return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80;
}

std::optional<GidEntry> choose_gid(std::span<const GidEntry> gids) {
  const GidEntry* best = nullptr;
  for (const GidEntry& entry : gids) {
    if (entry.gid.is_zero()) continue;
    if (best == nullptr || rank(entry) < rank(*best) ||
        (rank(entry) == rank(*best) && entry.index < best->index)) {
      best = &entry;
    }
  }
  if (best == nullptr) return {};
  return *best;
}

std::string to_string(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(AF_INET6, gid.raw.data(), text.data(), text.size());
  return text.data();
}

std::string to_string(GidType type) {
  switch (type) {
    case GidType::InfiniBand:
      return "InfiniBand";
    case GidType::RoceV1:
      return "RoceV1";
    case GidType::RoceV2:
      return "RoceV2";
  }
  return fmt::format("GidType({})", static_cast<unsigned>(type));
}

std::string to_string(const GidEntry& entry) {
  return fmt::format("GID {}: {}, {}{}{}", entry.index, entry.gid, entry.type,
                     entry.net_device.empty() ? "" : ", ", entry.net_device);
}

}  // namespace qpair
