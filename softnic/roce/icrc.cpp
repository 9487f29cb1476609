// The invariant CRC: CRC-32 (IEEE 802.3) over 8 bytes of ones in place of the missing local route header,
// then the IP, UDP and base transport headers with what a router may change set to ones, then the rest of the
// packet (annex A17.3.3).

#include <isa-l/crc.h>

#include <algorithm>
#include <cstring>

#include "softnic/roce/packet.hpp"

namespace qpair::softnic::roce {
namespace {

constexpr std::size_t kOnes = 8;
constexpr std::size_t kIpv4Size = 20;
constexpr std::size_t kIpv6Size = 40;
constexpr std::size_t kUdpSize = 8;
constexpr std::uint8_t kUdpProtocol = 17;
constexpr std::size_t kMaskedByte =
    4;  // of the base header: congestion marks and the reserved bits beside them

void store16(std::uint8_t* to, std::size_t value) {
  to[0] = static_cast<std::uint8_t>(value >> 8);
  to[1] = static_cast<std::uint8_t>(value);
}

std::uint32_t crc(std::uint32_t seed, const void* from, std::size_t size) {
  return crc32_gzip_refl(seed, static_cast<const unsigned char*>(from), size);
}

}  // namespace

Icrc::Icrc(const wire::Endpoint& source, const wire::Endpoint& destination, std::uint16_t identification) {
  pseudo_.fill(0xff);
  std::uint8_t* ip = pseudo_.data() + kOnes;
  std::size_t ip_size = kIpv4Size;
  if (source.is_ipv4() && destination.is_ipv4()) {
    ip[0] = 0x45;  // version 4, 5 words; type of service, time to live and checksum stay ones
    ip_length_at_ = kOnes + 2;
    ip_length_counts_header_ = true;
    store16(ip + 4, identification);
    ip[6] = 0x40, ip[7] = 0;  // do not fragment
    ip[9] = kUdpProtocol;
    std::copy_n(source.address.begin() + 12, 4, ip + 12);
    std::copy_n(destination.address.begin() + 12, 4, ip + 16);
  } else {
    ip_size = kIpv6Size;
    ip[0] = 0x6f;  // version 6; traffic class, flow label and hop limit stay ones
    ip_length_at_ = kOnes + 4;
    ip[6] = kUdpProtocol;
    std::copy_n(source.address.begin(), 16, ip + 8);
    std::copy_n(destination.address.begin(), 16, ip + 24);
  }
  std::uint8_t* udp = ip + ip_size;
  store16(udp, source.port);
  store16(udp + 2, destination.port);
  udp_length_at_ = static_cast<std::uint8_t>(kOnes + ip_size + 4);
  size_ = static_cast<std::uint8_t>(kOnes + ip_size + kUdpSize);  // the checksum stays ones
}

std::uint32_t Icrc::compute(std::span<const std::byte> packet) {
  if (packet.size() != prefix_length_) {
    const std::size_t udp_length = kUdpSize + packet.size();
    store16(&pseudo_[udp_length_at_], udp_length);
    store16(&pseudo_[ip_length_at_], udp_length + (ip_length_counts_header_ ? kIpv4Size : 0));
    prefix_ = crc(0, pseudo_.data(), size_);
    prefix_length_ = packet.size();
  }
  std::uint8_t base[kBthSize];
  std::memcpy(base, packet.data(), sizeof base);
  base[kMaskedByte] = 0xff;
  const std::uint32_t so_far = crc(prefix_, base, sizeof base);
  return crc(so_far, packet.data() + kBthSize, packet.size() - kBthSize - kIcrcSize);
}

void Icrc::seal(std::span<std::byte> packet) {
  if (packet.size() < kBthSize + kIcrcSize) return;
  const std::uint32_t value = compute(packet);  // sent least significant byte first
  std::memcpy(packet.data() + packet.size() - kIcrcSize, &value, kIcrcSize);
}

bool Icrc::check(std::span<const std::byte> packet) {
  if (packet.size() < kBthSize + kIcrcSize) return false;
  const std::uint32_t value = compute(packet);
  return std::memcmp(packet.data() + packet.size() - kIcrcSize, &value, kIcrcSize) == 0;
}

void set_icrc(const wire::Frame& frame) {
  Icrc(frame.source, frame.destination).seal(frame.bytes);
}
bool check_icrc(const wire::Frame& frame) {
  return Icrc(frame.source, frame.destination).check(frame.bytes);
}

}  // namespace qpair::softnic::roce
