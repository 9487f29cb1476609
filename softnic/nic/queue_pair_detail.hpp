#pragma once
// What the sources of QueuePair share.

#include <cstdint>

#include "qpair/mlx5/cqe.hpp"

namespace qpair::softnic::nic {

inline std::uint8_t op_own(mlx5::CqeOpcode opcode) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(opcode) << 4);
}

// How far `to` is ahead of `from`, 16-bit indices.
inline std::uint16_t ahead(std::uint16_t to, std::uint16_t from) {
  return static_cast<std::uint16_t>(to - from);
}

}  // namespace qpair::softnic::nic
