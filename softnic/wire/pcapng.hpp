#pragma once
// The pcapng file format, as much of it as a capture of RoCEv2 packets needs: one section, one interface of
// raw IP packets, nanosecond timestamps. Facts from the pcapng draft (draft-ietf-opsawg-pcapng) and the
// link-layer header types list (LINKTYPE_RAW). The IP and UDP headers are made up here as the kernel makes
// them for our sockets, identification 0 and Don't Fragment set, so that a reader can check the invariant
// CRC.

#include <cstddef>
#include <cstdint>
#include <span>

#include "softnic/wire/link.hpp"

namespace qpair::softnic::wire::pcapng {

inline constexpr std::uint32_t kSectionHeader = 0x0a0d0d0a;
inline constexpr std::uint32_t kInterfaceDescription = 1;
inline constexpr std::uint32_t kEnhancedPacket = 6;
inline constexpr std::uint32_t kByteOrderMagic = 0x1a2b3c4d;
inline constexpr std::uint16_t kLinkTypeRaw = 101;  // IPv4 or IPv6, by the version field

// Section header and interface description; every file begins with exactly these bytes.
std::span<const std::byte> file_header();

// Bytes of the block that holds a packet of that many RoCE bytes.
std::size_t packet_block_size(const Endpoint& source, std::size_t roce_bytes);

// Writes the block into `out`, which is packet_block_size() long. `nanoseconds` since 1970.
void write_packet_block(const Frame& frame, std::uint64_t nanoseconds, std::span<std::byte> out);

}  // namespace qpair::softnic::wire::pcapng
