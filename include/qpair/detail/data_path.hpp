#pragma once
// How a queue pair posts and polls; not for programs, but public so that the common operations can be
// inlined.
//
// A data path is one of two: mlx5 (src/datapath/mlx5.*), which writes WQEs itself, and verbs
// (src/datapath/verbs.*) for every other device. What is common to both is here: the counters, and the fast
// path for a put or get of one registered piece, which on mlx5 is three comparisons and seven stores.
// Whatever does not fit that path fails the comparisons and goes through the virtual functions. A verbs data
// path simply never has room in `send_.limit`.

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "qpair/completion.hpp"
#include "qpair/memory.hpp"
#include "qpair/mlx5/doorbell.hpp"
#include "qpair/mlx5/wqe.hpp"
#include "qpair/result.hpp"

namespace qpair::detail {

// An operation in general form.
struct Work {
  mlx5::Opcode opcode = mlx5::Opcode::Nop;
  std::span<const RdmaBuffer> local;
  const RdmaBuffer* remote = nullptr;      // nothing for send
  std::span<const std::byte> inline_data;  // instead of `local`
  bool is_inline = false;
  std::uint32_t imm = 0;       // host order
  std::uint64_t swap_add = 0;  // atomics
  std::uint64_t compare = 0;
  Signal signal = Signal::Yes;
};

// Where a send queue stands. Positions count basic blocks since creation, in 64 bits; what the hardware sees
// of them is their low 16. The first members are what the fast path reads.
struct SendRing {
  std::byte* ring = nullptr;
  std::uint64_t position = 0;     // where the next WQE goes
  std::uint64_t limit = 0;        // where it must not reach beyond; 0: the fast path is closed
  std::uint64_t byte_mask = 0;    // bytes of the ring - 1
  std::uint64_t max_message = 0;  // bytes in one WQE
  // The first 8 bytes of a one-block put or get, as they lie in memory, for index 0: opcode; QPN, 3 segments.
  std::uint64_t put_word = 0;
  std::uint64_t get_word = 0;
  std::uint64_t surplus = 0;     // position - surplus is the number of WQEs: most take one block, some more
  std::uint64_t long_begin = 0;  // the last WQE of more than one block…
  std::uint64_t long_end = 0;    // …and where it ends
  // Ringing.
  mlx5::be32* record = nullptr;  // entry kSendRecord of the queue pair's doorbell record
  std::byte* reg = nullptr;      // doorbell register
  std::uint32_t reg_offset = 0;  // alternates between 0 and blue_flame
  std::uint32_t blue_flame = 0;  // bytes of a BlueFlame buffer; 0: doorbells are 8-byte stores

  [[nodiscard]] std::uint64_t index() const { return position - surplus; }
  [[nodiscard]] std::byte* block(std::uint64_t at) const {
    return ring + ((at << mlx5::kBasicBlockShift) & byte_mask);
  }
  [[nodiscard]] std::uint64_t last_begin() const { return position == long_end ? long_begin : position - 1; }
  // Where the doorbell record says that the NIC may run to: the truth about what was rung, whoever rang.
  [[nodiscard]] std::uint64_t rung() const {
    return position - ((position - mlx5::load_record(record)) & mlx5::kIndexMask);
  }
  // Makes everything before `position` visible to the NIC.
  inline void ring_doorbell();
};

struct Counters {
  std::uint64_t wqe = 0;  // written
  std::uint64_t db = 0;   // made visible to the NIC
  std::uint64_t cq = 0;   // completed
};

class alignas(64) DataPath {
 public:
  virtual ~DataPath() = default;
  DataPath(const DataPath&) = delete;
  DataPath& operator=(const DataPath&) = delete;

  // One put or get of one piece: the fast path. `enqueue` only writes; `post` also rings.
  Result<WrId> enqueue_put(const RdmaBuffer& local, const RdmaBuffer& remote, Signal signal) {
    if (write_plain(send_.put_word, local, remote, signal)) [[likely]]
      return last();
    return enqueue_one(mlx5::Opcode::RdmaWrite, local, remote, signal);
  }
  Result<WrId> enqueue_get(const RdmaBuffer& local, const RdmaBuffer& remote, Signal signal) {
    if (write_plain(send_.get_word, local, remote, signal)) [[likely]]
      return last();
    return enqueue_one(mlx5::Opcode::RdmaRead, local, remote, signal);
  }
  Result<WrId> post_put(const RdmaBuffer& local, const RdmaBuffer& remote, Signal signal) {
    if (write_plain(send_.put_word, local, remote, signal)) [[likely]] {
      send_.ring_doorbell();
      return last();
    }
    return post_one(mlx5::Opcode::RdmaWrite, local, remote, signal);
  }
  Result<WrId> post_get(const RdmaBuffer& local, const RdmaBuffer& remote, Signal signal) {
    if (write_plain(send_.get_word, local, remote, signal)) [[likely]] {
      send_.ring_doorbell();
      return last();
    }
    return post_one(mlx5::Opcode::RdmaRead, local, remote, signal);
  }

  // Anything. All or nothing: when it fails, not a byte was written and no counter has moved.
  virtual Result<WrId> enqueue(const Work& work) = 0;
  virtual Result<WrId> post(const Work& work) = 0;
  virtual Result<void> ring_doorbell() = 0;
  virtual Result<DoorBell> doorbell() const = 0;
  virtual Result<WrId> receive(std::span<const RdmaBuffer> pieces) = 0;

  // One completion into `wc`: 1, none: 0, or negative errno when the completion queue itself cannot be
  // polled.
  virtual int poll_send(IbvWc& wc) = 0;
  virtual int poll_receive(IbvWc& wc) = 0;

  [[nodiscard]] virtual Counters send_counters() const = 0;
  [[nodiscard]] virtual Counters receive_counters() const = 0;

  // Asks for an event at the next completion of that side.
  virtual Result<void> arm(PollTarget side, bool solicited_only) = 0;
  // Such an event was taken from the channel. `side`: Send or Recv.
  virtual void event_taken(PollTarget side) = 0;

  virtual void open_receive() = 0;  // the queue pair is in INIT or beyond
  virtual void open_send() = 0;     // …in RTS
  // The queue pair is in RESET: whatever was posted or completed is forgotten, posting is refused, and the
  // hardware's indices start again at zero. The counters go on: all three are what wqe was.
  virtual void reset() = 0;

 protected:
  DataPath() = default;
  SendRing send_;

 private:
  [[nodiscard]] WrId last() const { return WrId{send_.index() - 1}; }
  inline bool write_plain(std::uint64_t word, const RdmaBuffer& local, const RdmaBuffer& remote,
                          Signal signal);
  Result<WrId> enqueue_one(mlx5::Opcode opcode, const RdmaBuffer& local, const RdmaBuffer& remote,
                           Signal signal);
  Result<WrId> post_one(mlx5::Opcode opcode, const RdmaBuffer& local, const RdmaBuffer& remote,
                        Signal signal);
};

// A one-block WQE: control, remote address and one data segment. False, with nothing written, when the
// operation needs more than that, is wrong, or finds no room.
inline bool DataPath::write_plain(std::uint64_t word, const RdmaBuffer& local, const RdmaBuffer& remote,
                                  Signal signal) {
  const std::uint64_t at = send_.position;
  const std::uint64_t size = local.size;
  // size - 1: zero takes the general path too.
  if (at >= send_.limit || size - 1 >= send_.max_message || size > remote.size || signal != Signal::Yes)
      [[unlikely]] {
    return false;
  }
  // The index is the 16 bits from the second byte on, high byte first: everything else of `at` is shifted
  // out.
  const std::uint64_t first = word | (mlx5::byte_swap(at << 48) << 8);
  const std::uint64_t address = mlx5::byte_swap(remote.addr);
  const std::uint64_t key = mlx5::byte_swap(remote.rkey);  // the four bytes after it are zero
  const std::uint64_t piece = mlx5::byte_swap((size << 32) | local.lkey);
  const std::uint64_t source = mlx5::byte_swap(local.addr);
  auto* const wqe = reinterpret_cast<std::uint64_t*>(send_.block(at));
  wqe[0] = first;
  wqe[1] = std::uint64_t{mlx5::kCqUpdate} << 24;
  wqe[2] = address;
  wqe[3] = key;
  wqe[4] = piece;
  wqe[5] = source;
  send_.position = at + 1;
  return true;
}

inline void SendRing::ring_doorbell() {
  const std::uint64_t from = rung();
  if (from == position) return;
  const std::uint64_t begin = last_begin();
  mlx5::to_device_barrier();
  mlx5::store_record(record, static_cast<std::uint32_t>(position) & mlx5::kIndexMask);
  mlx5::flush_write_combining();
  const std::byte* const wqe = block(begin);
  std::byte* const target = reg + reg_offset;
  const auto blocks = static_cast<std::uint32_t>(position - begin);
  if (begin == from && blocks * mlx5::kBasicBlockSize <= blue_flame) {
    mlx5::copy_blue_flame(target, wqe, blocks, ring, ring + byte_mask + 1);
  } else {
    std::uint64_t first = 0;
    std::memcpy(&first, wqe, sizeof first);
    mlx5::store_register(target, first);
  }
  mlx5::flush_write_combining();
  reg_offset ^= blue_flame;
}

}  // namespace qpair::detail
