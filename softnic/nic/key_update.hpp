#pragma once
// Work queue entries that the queue pair carries out by itself, read out of the ring and proved well formed:
// changes of memory keys, and copies within the program's memory.

#include <cstdint>
#include <optional>

#include "softnic/nic/memory_key.hpp"
#include "softnic/nic/wqe_decode.hpp"

namespace qpair::softnic::nic {

// Entries that are not in the WQE: where they are, to be read through a key of the program's.
struct KeyEntriesElsewhere {
  std::uint32_t lkey = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  // 0: the WQE has them, or there are none
};

// One copy within the program's memory.
struct MemoryCopy {
  ScatterEntry from;
  ScatterEntry to;
};

// A change of a key (opcode UMR) at `index`, where `head` was read.
std::optional<DecodeError> decode_key_update(const SendRing& ring, std::uint16_t index, const WqeHead& head,
                                             KeyUpdate& update, KeyEntriesElsewhere& elsewhere);
// The entries of a list or of an interleaved layout, as the WQE or the program's memory has them.
std::optional<DecodeError> decode_key_entries(std::span<const std::byte> entries, KeyLayout& layout);

std::optional<DecodeError> decode_memory_copy(const SendRing& ring, std::uint16_t index, const WqeHead& head,
                                              MemoryCopy& copy);

}  // namespace qpair::softnic::nic
