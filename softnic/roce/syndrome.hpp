#pragma once
// The ACK extended transport header's syndromes (IBTA vol. 1 9.7.5.1, table 44), the RNR timer (table 45),
// and what a ConnectX's error completion says for each. Everything about "which number" is here and in
// syndrome.cpp.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "softnic/roce/host.hpp"

namespace qpair::softnic::roce {

enum class NakCode : std::uint8_t {
  SequenceError = 0,
  InvalidRequest = 1,
  RemoteAccess = 2,
  RemoteOperation = 3,
};

enum class AckKind : std::uint8_t { Ack, Rnr, Nak, Reserved };

struct Aeth {
  // An ACK without a credit limit: the responder does not use end-to-end flow control (IBTA vol. 1 9.7.7.2).
  static constexpr std::uint8_t kAck = 0x1f;
  static constexpr std::uint8_t rnr(std::uint8_t timer) {
    return static_cast<std::uint8_t>(0x20 | (timer & 31));
  }
  static constexpr std::uint8_t nak(NakCode code) {
    return static_cast<std::uint8_t>(0x60 | static_cast<std::uint8_t>(code));
  }

  std::uint8_t syndrome = kAck;
  std::uint32_t msn = 0;  // 24 bits: messages completed by the responder

  constexpr AckKind kind() const {
    if ((syndrome & 0x80) != 0) return AckKind::Reserved;
    switch (syndrome >> 5) {
      case 0:
        return AckKind::Ack;
      case 1:
        return AckKind::Rnr;
      case 3:
        return AckKind::Nak;
      default:
        return AckKind::Reserved;
    }
  }
  constexpr std::uint8_t value() const { return syndrome & 31; }
};

// How long a requester waits after an RNR NAK with this timer value (0 to 31).
std::chrono::nanoseconds rnr_delay(std::uint8_t timer);
// 4.096 µs · 2^timeout (IBTA vol. 1 9.7.6.1.3); 0 means no timeout and must not be asked for.
std::chrono::nanoseconds ack_timeout(std::uint8_t timeout);

std::string_view name(NakCode code);

// What a requester's error completion says, with ConnectX's vendor error code.
namespace vendor_error {
inline constexpr std::uint8_t kRetryExceeded = 0x81;
inline constexpr std::uint8_t kRnrRetryExceeded = 0x87;
inline constexpr std::uint8_t kRemoteAccess = 0x88;
inline constexpr std::uint8_t kRemoteOperation = 0x89;
inline constexpr std::uint8_t kRemoteInvalidRequest = 0x8a;
inline constexpr std::uint8_t kReceiveTooShort = 0x69;
inline constexpr std::uint8_t kUnknown = 0x00;
}  // namespace vendor_error

Refusal refusal_of(NakCode code, std::string reason);
// The NAK that tells the requester about a refusal by the responder's own host.
NakCode nak_for(const Refusal& why);

}  // namespace qpair::softnic::roce
