#pragma once
// Management datagrams that two kernel rxe devices exchanged (Linux 6.1, 10.78.0.1 and 10.78.0.2): one
// connection made and ended, one datagram service resolved. Zeros at the end are left out.

#include <array>
#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "softnic/cm/messages.hpp"

namespace qpair::softnic::cm::test {

inline Mad from_hex(std::string_view hex) {
  Mad mad{};
  for (std::size_t i = 0; i * 2 + 1 < hex.size(); ++i) {
    const char digits[3] = {hex[i * 2], hex[i * 2 + 1], '\0'};
    mad[i] = static_cast<std::byte>(std::strtoul(digits, nullptr, 16));
  }
  return mad;
}

// 10.78.0.1 asks 10.78.0.2, port 7174.
inline constexpr std::string_view kReq =
    "0107020300000000000000022607ea29001000000000000029ea0726000000000000000001061c06"
    "dcf439fffe46f746000000000000000000001c0100000001000000a02ad2aba7ffff37f0ffffffff"
    "00000000000000000000ffff0a4e000100000000000000000000ffff0a4e00023968b00000400098"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "000000000040a0db0000000000000000000000000a4e00010000000000000000000000000a4e0002";

// The answer.
inline constexpr std::string_view kRep =
    "0107020300000000000000022607ea2900130000000000002aea072629ea07260000000000001c00"
    "00000000aa133400010178e0600a63fffe66d253";

// And the last word.
inline constexpr std::string_view kRtu = "0107020300000000000000022607ea29001400000000000029ea07262aea0726";

// 10.78.0.1 ends it.
inline constexpr std::string_view kDreq =
    "0107020300000000000000022607ea29001500000000000029ea07262aea072600001c";

// And 10.78.0.2 lets it.
inline constexpr std::string_view kDrep = "0107020300000000000000022607ea2900160000000000002aea072629ea0726";

// 10.78.0.1 asks for the datagram service at port 7174.
inline constexpr std::string_view kSidrReq =
    "0107020300000000000000022607ea2c00170000000000002cea0726ffff00000000000001111c06"
    "0040e8760000000000000000000000000a4e00010000000000000000000000000a4e0002";

// Which is queue pair 0x1d.
inline constexpr std::string_view kSidrRep =
    "0107020300000000000000022607ea2c00180000000000002cea07260000000000001d0000000000"
    "01111c0601234567";

}  // namespace qpair::softnic::cm::test
