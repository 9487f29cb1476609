#include "softnic/wire/pcapng.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cassert>
#include <cstring>

namespace qpair::softnic::wire::pcapng {
namespace {

constexpr std::size_t kIpv4Header = 20;
constexpr std::size_t kIpv6Header = 40;
constexpr std::size_t kUdpHeader = 8;
constexpr std::size_t kBlockFixed = 32;  // of an enhanced packet block: 28 before the packet, 4 after it

std::size_t padded(std::size_t size) {
  return (size + 3) & ~std::size_t{3};
}

// Appends integers and bytes; the caller has made sure that there is room.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}

  template <typename Integer>
  void host(Integer value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  void big16(std::uint16_t value) { host(htons(value)); }
  void big32(std::uint32_t value) { host(htonl(value)); }
  void bytes(std::span<const std::byte> value) {
    assert(value.size() <= out_.size() - used_);
    if (!value.empty()) {
      std::memcpy(out_.data() + used_, value.data(), value.size());
    }
    used_ += value.size();
  }
  void pad() {
    while (used_ % 4 != 0) {
      host(std::uint8_t{0});
    }
  }
  std::size_t used() const { return used_; }

 private:
  std::span<std::byte> out_;
  std::size_t used_ = 0;
};

// The internet checksum (RFC 1071) in host order: sums `bytes` as 16-bit big-endian words onto `sum`.
std::uint32_t add_words(std::uint32_t sum, std::span<const std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    sum += std::to_integer<std::uint32_t>(bytes[i]) << 8;
    if (i + 1 < bytes.size()) {
      sum += std::to_integer<std::uint32_t>(bytes[i + 1]);
    }
  }
  return sum;
}

std::uint16_t fold(std::uint32_t sum) {
  while (sum >> 16 != 0) {
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<std::uint16_t>(~sum);
}

std::span<const std::byte> address_bytes(const Endpoint& endpoint) {
  const auto all = std::as_bytes(std::span(endpoint.address));
  return endpoint.is_ipv4() ? all.last(4) : all;
}

void write_ipv4(Writer& writer, const Frame& frame, std::size_t total) {
  std::array<std::byte, kIpv4Header> header{};
  Writer fields(header);
  fields.host(std::uint8_t{0x45});  // version 4, 5 words
  fields.host(std::uint8_t{0});     // type of service
  fields.big16(static_cast<std::uint16_t>(total));
  fields.big16(0);       // identification
  fields.big16(0x4000);  // Don't Fragment
  fields.host(std::uint8_t{64});
  fields.host(static_cast<std::uint8_t>(IPPROTO_UDP));
  fields.big16(0);  // checksum, below
  fields.bytes(address_bytes(frame.source));
  fields.bytes(address_bytes(frame.destination));
  const std::uint16_t checksum = htons(fold(add_words(0, header)));
  std::memcpy(header.data() + 10, &checksum, sizeof(checksum));
  writer.bytes(header);
}

void write_ipv6(Writer& writer, const Frame& frame, std::size_t payload) {
  writer.big32(0x60000000);  // version 6, no traffic class, no flow label
  writer.big16(static_cast<std::uint16_t>(payload));
  writer.host(static_cast<std::uint8_t>(IPPROTO_UDP));
  writer.host(std::uint8_t{64});
  writer.bytes(address_bytes(frame.source));
  writer.bytes(address_bytes(frame.destination));
}

// UDP over IPv6 may not go without a checksum (RFC 8200 section 8.1); over IPv4 RoCE sends none (annex
// A17.3.2).
std::uint16_t udp_checksum(const Frame& frame, std::size_t length) {
  if (frame.source.is_ipv4()) {
    return 0;
  }
  std::uint32_t sum = add_words(0, address_bytes(frame.source));
  sum = add_words(sum, address_bytes(frame.destination));
  sum += static_cast<std::uint32_t>(length) * 2 + IPPROTO_UDP + frame.source.port + frame.destination.port;
  const std::uint16_t checksum = fold(add_words(sum, frame.bytes));
  return checksum == 0 ? 0xffff : checksum;
}

std::size_t headers_of(const Endpoint& source) {
  return (source.is_ipv4() ? kIpv4Header : kIpv6Header) + kUdpHeader;
}

struct Header {
  std::array<std::byte, 128> bytes{};
  std::size_t size = 0;
};

void option(Writer& writer, std::uint16_t code, std::span<const std::byte> value) {
  writer.host(code);
  writer.host(static_cast<std::uint16_t>(value.size()));
  writer.bytes(value);
  writer.pad();
}

template <std::size_t N>
std::span<const std::byte> text(const char (&literal)[N]) {
  return std::as_bytes(std::span(literal, N - 1));
}

Header make_header() {
  constexpr std::uint16_t kEndOfOptions = 0;
  constexpr std::uint16_t kUserApplication = 4;
  constexpr std::uint16_t kInterfaceName = 2;
  constexpr std::uint16_t kTimestampResolution = 9;
  Header header;
  Writer writer(header.bytes);
  const auto block = [&writer, &header](std::uint32_t type, auto&& body) {
    const std::size_t start = writer.used();
    writer.host(type);
    writer.host(std::uint32_t{0});  // length, below
    body();
    const auto length = static_cast<std::uint32_t>(writer.used() - start + sizeof(std::uint32_t));
    std::memcpy(header.bytes.data() + start + sizeof(type), &length, sizeof(length));
    writer.host(length);
  };
  block(kSectionHeader, [&] {
    writer.host(kByteOrderMagic);
    writer.host(std::uint16_t{1});  // version 1.0
    writer.host(std::uint16_t{0});
    writer.host(std::int64_t{-1});  // section length: not said, the file grows
    option(writer, kUserApplication, text("qpair emulated NIC"));
    option(writer, kEndOfOptions, {});
  });
  block(kInterfaceDescription, [&] {
    writer.host(kLinkTypeRaw);
    writer.host(std::uint16_t{0});
    writer.host(std::uint32_t{0});  // no limit on the length of packets
    option(writer, kInterfaceName, text("mlx5_0"));
    constexpr std::array<std::byte, 1> kNanoseconds{std::byte{9}};  // 10^-9 s
    option(writer, kTimestampResolution, kNanoseconds);
    option(writer, kEndOfOptions, {});
  });
  header.size = writer.used();
  return header;
}

}  // namespace

std::span<const std::byte> file_header() {
  static const Header header = make_header();
  return std::span(header.bytes).first(header.size);
}

std::size_t packet_block_size(const Endpoint& source, std::size_t roce_bytes) {
  return kBlockFixed + padded(headers_of(source) + roce_bytes);
}

void write_packet_block(const Frame& frame, std::uint64_t nanoseconds, std::span<std::byte> out) {
  const std::size_t udp = kUdpHeader + frame.bytes.size();
  const std::size_t packet = headers_of(frame.source) + frame.bytes.size();
  const auto length = static_cast<std::uint32_t>(packet_block_size(frame.source, frame.bytes.size()));
  assert(out.size() == length);
  Writer writer(out);
  writer.host(kEnhancedPacket);
  writer.host(length);
  writer.host(std::uint32_t{0});  // interface
  writer.host(static_cast<std::uint32_t>(nanoseconds >> 32));
  writer.host(static_cast<std::uint32_t>(nanoseconds));
  writer.host(static_cast<std::uint32_t>(packet));  // captured
  writer.host(static_cast<std::uint32_t>(packet));  // original
  if (frame.source.is_ipv4()) {
    write_ipv4(writer, frame, packet);
  } else {
    write_ipv6(writer, frame, udp);
  }
  writer.big16(frame.source.port);
  writer.big16(frame.destination.port);
  writer.big16(static_cast<std::uint16_t>(udp));
  writer.big16(udp_checksum(frame, udp));
  writer.bytes(frame.bytes);
  writer.pad();
  writer.host(length);
}

}  // namespace qpair::softnic::wire::pcapng
