#pragma once
// What a program asks of its queue pair in one life of a connection, and what that does to the peer. The peer
// is to be left as if it had carried out some first part of the list, packet by packet, and nothing else: so
// the model is a list and a position in it.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "qpair/mlx5/cqe.hpp"
#include "tests/simulation/machine.hpp"
#include "tests/simulation/random.hpp"
#include "tests/simulation/schedule.hpp"

namespace qpair::simulation {

using Bytes = std::vector<std::byte>;

// Where things lie in the memory that an end of a connection registers. Addresses in work requests and
// packets are offsets from kMemoryAddress, so that they are the same in every run.
namespace layout {
inline constexpr std::uint64_t kMemoryAddress = 0x1000'0000;
inline constexpr std::uint32_t kLocal = 0;  // sources and sinks of this end's operations
inline constexpr std::uint32_t kLocalSize = 48 << 10;
inline constexpr std::uint32_t kTarget = kLocal + kLocalSize;  // what the peer writes
inline constexpr std::uint32_t kCounter = kTarget + 8;
inline constexpr std::uint32_t kCell = kTarget + 24;
inline constexpr std::uint32_t kHot = kTarget + 64;  // written again and again
inline constexpr std::uint32_t kHotSize = 1500;
inline constexpr std::uint32_t kSlots = kHot + kHotSize + 52;  // written once each
inline constexpr std::uint32_t kTargetSize = 48 << 10;
inline constexpr std::uint32_t kSource = kTarget + kTargetSize;  // what the peer reads
inline constexpr std::uint32_t kSourceSize = 12 << 10;
inline constexpr std::uint32_t kReceive = kSource + kSourceSize;
inline constexpr std::uint32_t kReceiveSize = 48 << 10;
inline constexpr std::uint32_t kSize = kReceive + kReceiveSize;
inline constexpr std::byte kUntouched{0xee};
}  // namespace layout

struct Piece {
  std::uint32_t offset;
  std::uint32_t length;
};

enum class Kind : std::uint8_t { Send, SendImm, Write, WriteImm, Read, FetchAdd, CompareSwap };
std::string_view name(Kind kind);

// What the program does wrong.
enum class Mistake : std::uint8_t {
  None,
  WrongRkey,
  BeyondRegion,
  WrongLkey,
  ReceiveTooShort,   // the peer's receive for this message
  ReceiveWrongLkey,  // likewise
};
std::string_view name(Mistake mistake);

enum class Outcome : std::uint8_t { Pending, Done, Failed };

struct Operation {
  Kind kind{};
  Mistake mistake = Mistake::None;
  bool hot = false;          // a write to, or a read of, the place that is written again and again
  bool read_back = false;    // a read of what an earlier operation of the list wrote
  Ballot* ballot = nullptr;  // an addition to the peer machine's ballot…
  unsigned bit = 0;          // …of this bit
  bool fence = false, signaled = true, solicited = false, inlined = false;
  std::vector<Piece> pieces;  // local: source, or sink
  std::uint32_t length = 0;
  std::uint32_t remote = 0;  // offset in the peer's memory
  std::uint32_t immediate = 0;
  std::uint64_t swap_add = 0, compare = 0;
  std::uint64_t original = 0;  // what the atomic finds
  Bytes data;                  // what is sent, or what is to be read

  // Set when it is posted, and later.
  std::uint16_t index = 0;
  std::uint16_t blocks = 0;
  Outcome outcome = Outcome::Pending;
  mlx5::Syndrome syndrome{};

  bool takes_receive() const { return kind == Kind::Send || kind == Kind::SendImm || kind == Kind::WriteImm; }
  bool is_write() const { return kind == Kind::Write || kind == Kind::WriteImm; }
  bool is_send() const { return kind == Kind::Send || kind == Kind::SendImm; }
  bool is_atomic() const { return kind == Kind::FetchAdd || kind == Kind::CompareSwap; }
  std::uint32_t packets(std::uint32_t mtu) const { return length == 0 ? 1 : (length + mtu - 1) / mtu; }
  // Bytes that the first `packets` packets bring.
  std::uint32_t bytes_of(std::uint32_t packets, std::uint32_t mtu) const {
    return packets * mtu < length ? packets * mtu : length;
  }
  // Does to the peer's memory what its first `size` bytes do, the whole operation when that is all of it.
  void apply(std::span<std::byte> memory, std::uint32_t size) const;
};

struct Receive {
  Piece buffer{};  // where it lies in this end's memory
  bool wrong_lkey = false;
  Outcome outcome = Outcome::Pending;
};

// What both ends need for one direction of a life.
struct Plan {
  std::vector<Operation> operations;
  std::vector<Receive> receives;  // that the peer posts for them
};

Plan make_plan(const ConnectionPlan& connection, double mistakes, const Bytes& peer_source, Machine& peer,
               Random& random);

Bytes make_data(std::uint32_t size, std::uint64_t seed);

}  // namespace qpair::simulation
