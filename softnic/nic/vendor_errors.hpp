#pragma once
// What a ConnectX puts into vendor_err next to the syndrome. NVIDIA does not publish the list; these are the
// pairs that users of real cards report (UCX prints them as "synd 0x4 vend 0x51"; perftest as "syndrom
// 0x51").

#include <cstdint>

namespace qpair::softnic::nic {

inline constexpr std::uint8_t kVendorLocalQpOperation = 0x68;  // with syndrome 0x02
inline constexpr std::uint8_t kVendorLocalKey =
    0x51;  // with 0x04: no such key, or of another protection domain
inline constexpr std::uint8_t kVendorLocalTranslation = 0x52;  // with 0x04: the page is not there
inline constexpr std::uint8_t kVendorLocalAccess = 0x53;       // with 0x04: bounds or rights
inline constexpr std::uint8_t kVendorMemoryWindowBind = 0x78;  // with 0x06
inline constexpr std::uint8_t kVendorFlushed = 0xf9;           // with 0x05
inline constexpr std::uint8_t kVendorRemoteAccess = 0x88;      // with 0x13
inline constexpr std::uint8_t kVendorRemoteOperation = 0x89;   // with 0x14
inline constexpr std::uint8_t kVendorRemoteRequest = 0x8a;     // with 0x12

}  // namespace qpair::softnic::nic
