#pragma once
// What `qpair run` can say about the emulated NIC: the QPAIR_NIC_* environment variables, parsed and checked.

#include <chrono>
#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace qpair::softnic {

struct NicConfig {
  std::string
      address;  // QPAIR_NIC_ADDRESS: an IPv4 or IPv6 address of this machine; empty: one of 127.71.0.0/16
  std::string interface;  // QPAIR_NIC_INTERFACE: take this interface's address instead
  // QPAIR_NIC_WIRE: how to reach the other NICs of this user on this host. udp: as all others. ring: in
  // packets, through shared memory. auto: the same, and what can be copied from memory to memory is.
  enum class Wire : std::uint8_t { Auto, Ring, Udp };
  Wire wire = Wire::Auto;
  std::uint32_t mtu = 4096;           // QPAIR_NIC_MTU: path MTU in bytes, 256 512 1024 2048 4096
  double loss = 0;                    // QPAIR_NIC_LOSS: probability, "0.01" or "1%"
  double duplicate = 0;               // QPAIR_NIC_DUPLICATE
  double reorder = 0;                 // QPAIR_NIC_REORDER
  double corrupt = 0;                 // QPAIR_NIC_CORRUPT: one bit of a packet flipped
  std::chrono::nanoseconds delay{0};  // QPAIR_NIC_DELAY: "50us", "1ms", up to 10 s
  std::uint64_t seed = 0;             // QPAIR_NIC_SEED: 0 takes one from the clock
  std::string capture;                // QPAIR_NIC_CAPTURE: pcapng file
  std::string trace;                  // QPAIR_NIC_TRACE: timeline for Perfetto
  bool strict = false;                // QPAIR_NIC_STRICT=1: protocol findings are fatal
  bool quiet = false;                 // QPAIR_NIC_QUIET=1: nothing on stderr
  bool infiniband = false;            // QPAIR_NIC_LINK_LAYER=infiniband: LIDs and no RoCE GIDs
  bool write_abi = false;             // QPAIR_NIC_ABI=write: behave as a kernel without the ioctl interface

  // The error is a sentence that names the variable, its value and what is allowed.
  static tl::expected<NicConfig, std::string> from_environment();
};

// The variables that give this configuration, those with their default value left out.
std::vector<std::pair<std::string, std::string>> to_environment(const NicConfig& config);

}  // namespace qpair::softnic
