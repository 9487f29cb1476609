// The invariant CRC: CRC-32 (IEEE 802.3) over 8 bytes of ones in place of the missing local route header,
// then the IP, UDP and base transport headers with what a router may change set to ones, then the rest of the
// packet (annex A17.3.3).

#include "softnic/wire/icrc.hpp"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstring>

namespace qpair::softnic::wire {
namespace {

constexpr std::size_t kOnes = 8;
constexpr std::size_t kIpv4Size = 20;
constexpr std::size_t kIpv6Size = 40;
constexpr std::size_t kUdpSize = 8;
constexpr std::size_t kIdentificationAt = 4;  // in an IPv4 header
constexpr std::uint8_t kUdpProtocol = 17;
constexpr std::size_t kMaskedByte =
    4;  // of the base header: congestion marks and the reserved bits beside them

void store16(std::uint8_t* to, std::size_t value) {
  to[0] = static_cast<std::uint8_t>(value >> 8);
  to[1] = static_cast<std::uint8_t>(value);
}

// Polynomials modulo the CRC's, with bit 31 for x^0 and bit 0 for x^31, as the CRC register has them.
constexpr std::uint32_t kPolynomial = 0xedb88320;
constexpr std::uint32_t kOne = 0x80000000;

constexpr std::uint32_t times_x(std::uint32_t a) {
  return (a >> 1) ^ ((a & 1) != 0 ? kPolynomial : 0);
}
constexpr std::uint32_t divided_by_x(std::uint32_t a) {
  return (a & kOne) != 0 ? ((a ^ kPolynomial) << 1) | 1 : a << 1;
}
static_assert(divided_by_x(times_x(0x12345679)) == 0x12345679);

constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1, b = times_x(b)) {
    if ((a & bit) != 0) product ^= b;
  }
  return product;
}

constexpr std::uint32_t x_to_minus(unsigned bits) {
  std::uint32_t power = kOne;
  for (std::uint32_t base = divided_by_x(kOne); bits != 0; bits >>= 1, base = multiply(base, base)) {
    if ((bits & 1) != 0) power = multiply(power, base);
  }
  return power;
}

std::uint32_t crc(std::uint32_t seed, const void* from, std::size_t size) {
  return crc32_gzip_refl(seed, static_cast<const unsigned char*>(from), size);
}

}  // namespace

Icrc::Icrc(const Endpoint& source, const Endpoint& destination, std::uint16_t identification) {
  pseudo_.fill(0xff);
  std::uint8_t* ip = pseudo_.data() + kOnes;
  std::size_t ip_size = kIpv4Size;
  if (source.is_ipv4() && destination.is_ipv4()) {
    ip[0] = 0x45;  // version 4, 5 words; type of service, time to live and checksum stay ones
    ip_length_at_ = kOnes + 2;
    ip_length_counts_header_ = true;
    store16(ip + kIdentificationAt, identification);
    identification_ = identification;
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

// A CRC is linear: what it is wrong by depends on nothing but what the identification is wrong by and how far
// before the CRC it stands. Brought back to there, the difference is that of the 16 bits, or else something
// other than they is wrong.
std::optional<std::uint16_t> Icrc::identification(std::span<const std::byte> packet) {
  if (packet.size() < kBthSize + kIcrcSize || !ip_length_counts_header_) return std::nullopt;
  std::uint32_t found = 0;
  std::memcpy(&found, packet.data() + packet.size() - kIcrcSize, kIcrcSize);
  const std::uint32_t wrong_by = found ^ compute(packet);
  if (wrong_by == 0) return identification_;
  const std::size_t behind = size_ - (kOnes + kIdentificationAt + 2) + packet.size() - kIcrcSize;
  const std::uint32_t there = multiply(wrong_by, x_to_minus(static_cast<unsigned>(8 * (behind + kIcrcSize))));
  if ((there & 0xffff) != 0) return std::nullopt;
  const std::uint32_t first = (there >> 16) & 0xff;  // the byte sent first has the higher powers
  const std::uint32_t second = there >> 24;
  return static_cast<std::uint16_t>(identification_ ^ (first << 8 | second));
}

void set_icrc(const Frame& frame) {
  Icrc(frame.source, frame.destination).seal(frame.bytes);
}
bool check_icrc(const Frame& frame) {
  const std::span<const std::uint16_t> seen = frame.identifications;
  Icrc icrc(frame.source, frame.destination, seen.empty() ? std::uint16_t{0} : seen.front());
  if (icrc.check(frame.bytes)) return true;
  if (seen.size() == 1) return false;
  const std::optional needed = icrc.identification(frame.bytes);
  return needed && (seen.empty() || std::ranges::find(seen, *needed) != seen.end());
}

}  // namespace qpair::softnic::wire
