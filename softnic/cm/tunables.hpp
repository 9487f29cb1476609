#pragma once
// The kernel's numbers (drivers/infiniband/core/cma.c), in IBTA's logarithmic time: 4.096 us * 2^n.

#include <chrono>
#include <cstdint>

namespace qpair::softnic::cm {

inline constexpr std::uint8_t kResponseTimeout = 20;  // CMA_CM_RESPONSE_TIMEOUT: 4.3 s to answer a message
inline constexpr std::uint8_t kMaxRetries = 15;       // CMA_MAX_CM_RETRIES
inline constexpr std::uint8_t kPacketLifetime = 16;   // CMA_IBOE_PACKET_LIFETIME
inline constexpr std::uint8_t kServiceTimeout = 24;   // CMA_CM_MRA_SETTING: 69 s for a program to accept
inline constexpr std::uint8_t kHopLimit = 64;
inline constexpr std::uint32_t kUdpQkey = 0x0123'4567;  // RDMA_UDP_QKEY
inline constexpr int kMaxBacklog = 1024;                // ucma.c, max_backlog

// cm.c, cm_convert_to_ms(): milliseconds, rounded to a power of two.
constexpr std::chrono::milliseconds to_milliseconds(std::uint8_t time) {
  return std::chrono::milliseconds(std::int64_t{1} << (time > 8 ? time - 8 : 0));
}

// cm.c, cm_ack_timeout(): how long an acknowledgment may take, by the way there and back and the peer's
// delay.
constexpr std::uint8_t ack_timeout(unsigned ack_delay, unsigned packet_lifetime) {
  unsigned timeout = packet_lifetime + 1;
  if (timeout >= ack_delay) {
    timeout += ack_delay >= timeout - 1 ? 1 : 0;
  } else {
    timeout = ack_delay + (timeout >= ack_delay - 1 ? 1 : 0);
  }
  return static_cast<std::uint8_t>(timeout < 31 ? timeout : 31);
}

}  // namespace qpair::softnic::cm
