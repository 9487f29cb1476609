#pragma once
// The invariant CRC of RoCEv2 packets (IBTA vol. 1 annex A17.3.3): over what of the IP and UDP headers no
// router changes, and over the rest of the packet.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "softnic/wire/link.hpp"

namespace qpair::softnic::wire {

inline constexpr std::size_t kBthSize = 12;  // base transport header (IBTA vol. 1 9.2)
inline constexpr std::size_t kIcrcSize = 4;

// The invariant CRC of a frame whose last 4 bytes are room for it (annex A17.3.3). set_icrc() takes the IP
// identification to be 0, as an unconnected UDP socket with IP_PMTUDISC_DO sends. check_icrc() takes what the
// frame may have had; where that was not seen, the CRC is right if it is with any identification, which 1 in
// 65536 damaged packets is.
void set_icrc(const Frame& frame);
bool check_icrc(const Frame& frame);

// The same for many packets of one direction: what the addresses contribute is computed once, and once more
// when the packet length changes.
class Icrc {
 public:
  Icrc() = default;
  // `identification` of the IPv4 header: 0 in everything that is sent here; captured packets may have
  // another.
  Icrc(const Endpoint& source, const Endpoint& destination, std::uint16_t identification = 0);
  // `packet` ends with room for the CRC and has at least a base header.
  void seal(std::span<std::byte> packet);
  bool check(std::span<const std::byte> packet);
  // The identification with which the CRC over IPv4 is right, if there is one.
  std::optional<std::uint16_t> identification(std::span<const std::byte> packet);

 private:
  std::uint32_t compute(std::span<const std::byte> packet);

  // 8 bytes of ones, the IP header and the UDP header, with what routers may change set to ones.
  std::array<std::uint8_t, 8 + 40 + 8> pseudo_{};
  std::uint8_t size_ = 0;
  std::uint8_t ip_length_at_ = 0;
  std::uint16_t identification_ = 0;
  std::uint8_t udp_length_at_ = 0;
  bool ip_length_counts_header_ = false;
  std::size_t prefix_length_ = 0;  // packet length that prefix_ holds for
  std::uint32_t prefix_ = 0;
};

}  // namespace qpair::softnic::wire
