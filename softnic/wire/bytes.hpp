#pragma once
// Big-endian fields at unaligned places of a packet.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "qpair/mlx5/endian.hpp"

namespace qpair::softnic::wire {

template <typename T>
T load_be(const std::byte* from) {
  T raw;
  std::memcpy(&raw, from, sizeof raw);
  return mlx5::byte_swap(raw);
}

template <typename T>
void store_be(std::byte* to, T value) {
  const T raw = mlx5::byte_swap(value);
  std::memcpy(to, &raw, sizeof raw);
}

}  // namespace qpair::softnic::wire
