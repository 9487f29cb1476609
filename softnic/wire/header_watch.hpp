#pragma once
// The IPv4 identifications that datagrams came with, which a UDP socket does not show and the invariant CRC
// covers. A raw socket beside it shows them, where the process may open one (CAP_NET_RAW): it gets a copy of
// the headers of everything that the UDP socket gets, after the firewall and before the UDP socket does.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "softnic/wire/descriptor.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::wire {

class HeaderWatch {
 public:
  // Of datagrams for this address and port from other machines, and with `own_host` also from this one.
  // Nothing where that is not permitted, or not IPv4.
  static std::optional<HeaderWatch> open(const Endpoint& local, bool own_host = false);

  // Of datagrams from `source` that begin as `datagram` does and are as long, received lately. Mostly one;
  // several where one was repeated; none where the headers were not seen. Valid until the next call.
  std::span<const std::uint16_t> identifications(const Endpoint& source, std::span<const std::byte> datagram);

  void abandon() { fd_.abandon(); }

 private:
  static constexpr std::size_t kIpSize = 20;
  static constexpr std::size_t kUdpSize = 8;
  static constexpr std::size_t kBeginning = 12;  // a base transport header: operation, queue pair and PSN
  static constexpr std::size_t kHeaders = kIpSize + kUdpSize + kBeginning;
  static constexpr std::size_t kReadAtOnce = 32;
  static constexpr std::size_t kKept = 1024;
  // Headers whose datagrams are overdue by so many were lost on the way to the UDP socket.
  static constexpr std::size_t kOverdue = 64;
  static constexpr std::size_t kMostCandidates = 8;

  struct Header {
    std::array<std::byte, 6> source{};  // address and port, as in the packet
    std::uint16_t length = 0;           // of the datagram
    std::uint16_t identification = 0;
    std::array<std::byte, kBeginning> beginning{};
  };

  explicit HeaderWatch(Descriptor fd);
  bool read_more();
  bool take_matches(const Header& sought);

  Descriptor fd_;
  std::vector<Header> kept_;  // a ring, kKept long
  std::uint64_t first_ = 0;   // of those in it, counted from the beginning
  std::uint64_t end_ = 0;
  std::array<std::uint16_t, kMostCandidates> found_{};
  std::size_t found_count_ = 0;
};

}  // namespace qpair::softnic::wire
