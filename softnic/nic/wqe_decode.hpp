#pragma once
// Work queue entries, read out of the program's rings and proved well formed: everything later code takes
// from a decoded WQE is in bounds. Layout: rdma-core providers/mlx5/qp.c (_mlx5_post_send), wqe.h and
// mlx5dv.h.

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "qpair/mlx5/wqe.hpp"
#include "softnic/roce/host.hpp"

namespace qpair::softnic::nic {

// One piece of the program's memory that a work request names.
struct ScatterEntry {
  std::uint64_t address = 0;
  std::uint32_t length = 0;  // at most 2 GiB
  std::uint32_t lkey = 0;
  bool in_ring = false;  // inline data: `address` is in the send ring itself, no key
};

struct ScatterList {
  // 63 segments of which each may be inline data that wraps the ring's end into two pieces; only one can.
  static constexpr std::size_t kMax = mlx5::kMaxSegments + 1;
  std::array<ScatterEntry, kMax> entries;
  std::uint32_t count = 0;
  std::uint64_t length = 0;

  std::span<const ScatterEntry> view() const { return {entries.data(), count}; }
  void clear() {
    count = 0;
    length = 0;
  }
  void add(const ScatterEntry& entry) {
    entries.at(count) = entry;
    ++count;
    length += entry.length;
  }
};

struct SendRing {
  std::uint64_t base = 0;            // program's address
  std::uint32_t basic_blocks = 0;    // power of two, or 0
  ibv_qp_type service = IBV_QPT_RC;  // which decides what lies between the control segment and the data
};

struct ReceiveRing {
  std::uint64_t base = 0;
  std::uint32_t count = 0;  // power of two, or 0
  std::uint32_t shift = 4;  // log2 of the bytes of an entry
  // The first segment is no data: a signature (mlx5_rwqe_sig), or the link of a shared receive queue's WQE.
  bool headed = false;
};

// The control segment alone: enough to walk a ring.
struct WqeHead {
  mlx5::Opcode opcode{};
  std::uint8_t opcode_modifier = 0;
  std::uint16_t index = 0;
  std::uint32_t qpn = 0;
  std::uint32_t segments = 0;
  std::uint32_t blocks = 1;     // at least 1, so that a walk always ends
  std::uint8_t flags = 0;       // fm_ce_se
  std::uint32_t immediate = 0;  // as it lies in memory

  bool signaled() const { return ((flags >> 2) & 3U) >= 2; }  // completion always, or always with an event
  bool fenced() const { return (flags >> 5) >= 2; }           // fence modes 2 to 4; 1 orders key updates only
  bool solicited() const { return (flags & mlx5::kSolicited) != 0; }
};

struct DecodeError {
  enum class Kind : std::uint8_t {
    Unreadable,   // the ring is not mapped
    Malformed,    // the WQE contradicts itself or its place: the program broke the hardware protocol
    Unsupported,  // a good WQE that this device does not execute
    TooLong,      // longer than a message may be
    Overwritten,  // the record is ahead of it by more than the ring: said when the record was read
  };
  Kind kind = Kind::Malformed;
  std::string reason;
};

// Carried out by the queue pair itself, in its turn; the transport never sees it.
bool is_local(mlx5::Opcode opcode);

// Copies `to.size()` bytes of the ring from block `index` on, around its end. False: it is not mapped.
bool copy_out(const SendRing& ring, std::uint16_t index, std::span<std::byte> to);

// Reads the control segment at `index`. Nothing: the ring is not mapped there.
std::optional<WqeHead> read_head(const SendRing& ring, std::uint16_t index);

// The address vector of the send WQE at `index`, which was decoded before. Nothing: the ring is not mapped
// there.
std::optional<mlx5::DatagramSegment> read_datagram_segment(const SendRing& ring, std::uint16_t index);

// Decodes the send WQE at `index`, of which `available` basic blocks were rung. `request` and `list` are
// filled, `head` too unless the ring is unreadable. A NOP has an empty list, and so has what is_local().
// Nothing: well formed.
std::optional<DecodeError> decode_send(const SendRing& ring, std::uint32_t qpn, std::uint16_t index,
                                       std::uint32_t available, std::uint64_t max_message, WqeHead& head,
                                       roce::SendRequest& request, ScatterList& list);

// Decodes the receive WQE at `index`.
std::optional<DecodeError> decode_receive(const ReceiveRing& ring, std::uint16_t index, ScatterList& list);

// "RDMA WRITE", for sentences.
const char* opcode_name(mlx5::Opcode opcode);

}  // namespace qpair::softnic::nic
