#pragma once
// How a queue pair is to be made. The defaults are fit for work.

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <string>

#include "qpair/device.hpp"
#include "qpair/print.hpp"
#include "qpair/result.hpp"

namespace qpair {

// Who uses a queue pair. Many: any number of threads post, ring and poll at the same time, without waiting
// for each other; connecting, resetting and destroying are still for one thread while no other uses it. Costs
// each operation a few atomic instructions. mlx5 devices only.
enum class Threads : std::uint8_t { One, Many };

// A field without a value is chosen at creation, as its comment says. RdmaQueuePair::create() checks
// everything against the device's limits; the error names the field, the value and the limit.
struct IbverbsConfig {
  std::string device;            // name; empty: whichever device the context belongs to
  std::uint32_t cq_entries = 0;  // of each completion queue; 0: as many as can never overflow
  std::uint8_t port_num = 1;
  std::optional<std::uint8_t> gid_index;  // RoCE: see choose_gid(); InfiniBand: none, LID routing
  std::uint32_t max_send_wr = 512;        // operations under way; more may fit
  std::uint32_t max_recv_wr = 512;
  std::uint32_t max_send_sge = 1;  // local pieces that one operation can gather or scatter
  std::uint32_t max_recv_sge = 1;
  std::uint32_t max_inline_data = 28;  // bytes of put_inline(); 28 is what costs no room in the send queue
  std::optional<ibv_mtu> path_mtu;     // the port's active MTU; connect() takes the smaller of both sides'
  std::uint8_t retry_cnt = 7;          // 0…7: retransmissions before transport_retry_exceeded
  std::uint8_t rnr_retry = 7;          // 0…7, 7: for ever
  std::uint8_t qp_timeout = 14;        // 0…31: 4.096 µs · 2^n until a retransmission; 0: never
  std::uint8_t min_rnr_timer = 12;  // 0…31: how long the peer waits when no receive is posted; 12: 0.64 ms
  std::optional<std::uint8_t>
      max_dest_rd_atomic;  // reads and atomics of the peer under way: 16, or the device's limit
  std::optional<std::uint8_t> max_rd_atomic;  // …of this side
  std::uint16_t pkey_index = 0;
  std::optional<std::uint32_t> psn;  // 24 bits; random
  bool use_gpu_direct = false;       // refuse to start where GPU memory cannot be registered
  Threads threads = Threads::One;    // see there
  bool completion_events = false;    // make completion_fd() and arm() usable; costs a descriptor

  friend bool operator==(const IbverbsConfig&, const IbverbsConfig&) = default;
};

// What the device allows, for validate(): of ibv_query_device() and ibv_query_port().
struct DeviceLimits {
  ibv_device_attr device{};
  ibv_port_attr port{};
};

// Checks every field that the limits have something to say about. No device is needed.
Result<void> validate(const IbverbsConfig& config, const DeviceLimits& limits);

[[nodiscard]] std::string to_string(Threads threads);
[[nodiscard]] std::string to_string(const IbverbsConfig& config);

}  // namespace qpair
