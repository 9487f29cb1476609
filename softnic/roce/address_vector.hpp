#pragma once
// Where one message of a datagram service goes: an address handle, and what its work request adds to it.

#include <cstdint>

#include "softnic/wire/link.hpp"

namespace qpair::softnic::roce {

struct AddressVector {
  wire::Endpoint destination{};  // a multicast group or another NIC
  std::uint32_t remote_qpn = 0;  // of a dynamically connected target: its DCT number
  std::uint32_t qkey = 0;        // as the work request has it
  std::uint64_t dc_key = 0;      // the same bytes, for a dynamically connected target
  std::uint8_t service_level = 0;
  std::uint8_t sgid_index = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;
  std::uint32_t flow_label = 0;

  // With the upper bit set the queue pair's own Q_Key is sent (IBTA vol. 1 10.2.5): a program without
  // privileges cannot make up a controlled one.
  static constexpr std::uint32_t kControlledQkey = 0x8000'0000;
  std::uint32_t qkey_on_wire(std::uint32_t own) const { return (qkey & kControlledQkey) != 0 ? own : qkey; }
};

// The queue pair number of packets to a multicast group (IBTA vol. 1 9.2.1).
inline constexpr std::uint32_t kMulticastQpn = 0xff'ffff;

}  // namespace qpair::softnic::roce
