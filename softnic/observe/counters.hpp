#pragma once
// What the NIC counts, for every queue pair and in sum. Plain numbers that one thread counts up;
// counter_page.hpp shows them to other processes.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace qpair::softnic::observe {

struct Counters {
  // Packets of RoCE, bytes from the base transport header to the CRC.
  std::uint64_t packets_sent = 0, packets_received = 0, bytes_sent = 0, bytes_received = 0;
  std::uint64_t multicast_packets_sent = 0, multicast_packets_received = 0;
  std::uint64_t send_wqes = 0;     // work requests that were fetched from send queues
  std::uint64_t receive_wqes = 0;  // work requests of receive queues that messages consumed
  std::uint64_t retransmitted_packets = 0;

  // As a ConnectX counts them, under its names (kernel, hw/mlx5/counters.c; meanings: NVIDIA, "Understanding
  // mlx5 Linux Counters").
  std::uint64_t rx_write_requests = 0, rx_read_requests = 0, rx_atomic_requests = 0;
  std::uint64_t out_of_buffer = 0;          // a message found no receive
  std::uint64_t out_of_sequence = 0;        // responder: packets behind a gap
  std::uint64_t duplicate_request = 0;      // responder
  std::uint64_t rnr_nak_retry_err = 0;      // requester: RNR NAKs that were received
  std::uint64_t packet_seq_err = 0;         // requester: sequence error NAKs that were received
  std::uint64_t implied_nak_seq_err = 0;    // requester: a read or atomic response was passed over
  std::uint64_t local_ack_timeout_err = 0;  // requester
  std::uint64_t resp_local_length_error = 0, resp_remote_access_errors = 0;
  std::uint64_t req_remote_access_errors = 0, req_remote_invalid_request = 0;
  std::uint64_t req_transport_retries_exceeded = 0, req_rnr_retries_exceeded = 0;
  std::uint64_t req_cqe_error = 0, req_cqe_flush_error = 0;    // error completions; flushed ones are in both
  std::uint64_t resp_cqe_error = 0, resp_cqe_flush_error = 0;  // …of receives
  std::uint64_t rx_icrc_encapsulated = 0;                      // packets with a wrong CRC; of no queue pair

  friend bool operator==(const Counters&, const Counters&) = default;
};

inline constexpr std::size_t kCounters = sizeof(Counters) / sizeof(std::uint64_t);
using CounterValues = std::array<std::uint64_t, kCounters>;

inline CounterValues values_of(const Counters& counters) {
  return std::bit_cast<CounterValues>(counters);
}
inline Counters counters_of(const CounterValues& values) {
  return std::bit_cast<Counters>(values);
}

inline Counters operator+(const Counters& left, const Counters& right) {
  CounterValues sum = values_of(left);
  const CounterValues add = values_of(right);
  for (std::size_t i = 0; i < kCounters; ++i) sum[i] += add[i];
  return counters_of(sum);
}

// Error completions, on either side.
inline std::uint64_t errors(const Counters& counters) {
  return counters.req_cqe_error + counters.resp_cqe_error + counters.resp_remote_access_errors;
}

// A file of sysfs below ports/1. Without a value it is one that never counts here, and shows 0.
struct CounterFile {
  std::string_view name;
  std::uint64_t (*value)(const Counters&);
};

// ports/1/counters: core/sysfs.c. Data are counted in units of four bytes (IBTA vol. 1 16.1.3.5).
inline constexpr std::array<CounterFile, 21> kPortCounters{{
    {"VL15_dropped", nullptr},
    {"excessive_buffer_overrun_errors", nullptr},
    {"link_downed", nullptr},
    {"link_error_recovery", nullptr},
    {"local_link_integrity_errors", nullptr},
    {"multicast_rcv_packets", [](const Counters& c) { return c.multicast_packets_received; }},
    {"multicast_xmit_packets", [](const Counters& c) { return c.multicast_packets_sent; }},
    {"port_rcv_constraint_errors", nullptr},
    {"port_rcv_data", [](const Counters& c) { return c.bytes_received / 4; }},
    {"port_rcv_errors", [](const Counters& c) { return c.rx_icrc_encapsulated; }},
    {"port_rcv_packets", [](const Counters& c) { return c.packets_received; }},
    {"port_rcv_remote_physical_errors", nullptr},
    {"port_rcv_switch_relay_errors", nullptr},
    {"port_xmit_constraint_errors", nullptr},
    {"port_xmit_data", [](const Counters& c) { return c.bytes_sent / 4; }},
    {"port_xmit_discards", nullptr},
    {"port_xmit_packets", [](const Counters& c) { return c.packets_sent; }},
    {"port_xmit_wait", nullptr},
    {"symbol_error", nullptr},
    {"unicast_rcv_packets",
     [](const Counters& c) { return c.packets_received - c.multicast_packets_received; }},
    {"unicast_xmit_packets", [](const Counters& c) { return c.packets_sent - c.multicast_packets_sent; }},
}};

// ports/1/hw_counters: hw/mlx5/counters.c, without those of virtual ports. Congestion control and adaptive
// retransmission do not exist here.
inline constexpr std::array<CounterFile, 31> kHardwareCounters{{
    {"duplicate_request", [](const Counters& c) { return c.duplicate_request; }},
    {"implied_nak_seq_err", [](const Counters& c) { return c.implied_nak_seq_err; }},
    {"local_ack_timeout_err", [](const Counters& c) { return c.local_ack_timeout_err; }},
    {"np_cnp_sent", nullptr},
    {"np_ecn_marked_roce_packets", nullptr},
    {"out_of_buffer", [](const Counters& c) { return c.out_of_buffer; }},
    {"out_of_sequence", [](const Counters& c) { return c.out_of_sequence; }},
    {"packet_seq_err", [](const Counters& c) { return c.packet_seq_err; }},
    {"req_cqe_error", [](const Counters& c) { return c.req_cqe_error; }},
    {"req_cqe_flush_error", [](const Counters& c) { return c.req_cqe_flush_error; }},
    {"req_remote_access_errors", [](const Counters& c) { return c.req_remote_access_errors; }},
    {"req_remote_invalid_request", [](const Counters& c) { return c.req_remote_invalid_request; }},
    {"req_rnr_retries_exceeded", [](const Counters& c) { return c.req_rnr_retries_exceeded; }},
    {"req_transport_retries_exceeded", [](const Counters& c) { return c.req_transport_retries_exceeded; }},
    {"resp_cqe_error", [](const Counters& c) { return c.resp_cqe_error; }},
    {"resp_cqe_flush_error", [](const Counters& c) { return c.resp_cqe_flush_error; }},
    {"resp_local_length_error", [](const Counters& c) { return c.resp_local_length_error; }},
    {"resp_remote_access_errors", [](const Counters& c) { return c.resp_remote_access_errors; }},
    {"rnr_nak_retry_err", [](const Counters& c) { return c.rnr_nak_retry_err; }},
    {"roce_adp_retrans", nullptr},
    {"roce_adp_retrans_to", nullptr},
    {"roce_slow_restart", nullptr},
    {"roce_slow_restart_cnps", nullptr},
    {"roce_slow_restart_trans", nullptr},
    {"rp_cnp_handled", nullptr},
    {"rp_cnp_ignored", nullptr},
    {"rx_atomic_requests", [](const Counters& c) { return c.rx_atomic_requests; }},
    {"rx_dct_connect", nullptr},
    {"rx_icrc_encapsulated", [](const Counters& c) { return c.rx_icrc_encapsulated; }},
    {"rx_read_requests", [](const Counters& c) { return c.rx_read_requests; }},
    {"rx_write_requests", [](const Counters& c) { return c.rx_write_requests; }},
}};

}  // namespace qpair::softnic::observe
