#pragma once
// Big-endian integers as they lie in memory that an mlx5 NIC reads or writes. C++17; compiles under nvcc.

#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define QPAIR_HOST_DEVICE __host__ __device__
#else
#define QPAIR_HOST_DEVICE
#endif

namespace qpair::mlx5 {

QPAIR_HOST_DEVICE constexpr std::uint8_t byte_swap(std::uint8_t v) {
  return v;
}
QPAIR_HOST_DEVICE constexpr std::uint16_t byte_swap(std::uint16_t v) {
  return static_cast<std::uint16_t>((v << 8) | (v >> 8));
}
QPAIR_HOST_DEVICE constexpr std::uint32_t byte_swap(std::uint32_t v) {
  return (v << 24) | ((v & 0xff00U) << 8) | ((v >> 8) & 0xff00U) | (v >> 24);
}
QPAIR_HOST_DEVICE constexpr std::uint64_t byte_swap(std::uint64_t v) {
  return (static_cast<std::uint64_t>(byte_swap(static_cast<std::uint32_t>(v))) << 32) |
         byte_swap(static_cast<std::uint32_t>(v >> 32));
}

// An unsigned integer stored most significant byte first. Trivial, so that it may stand in wire structures.
template <typename T>
struct BigEndian {
  static_assert(std::is_unsigned_v<T>);
  T raw;

  BigEndian() = default;
  QPAIR_HOST_DEVICE constexpr BigEndian(T value) : raw(byte_swap(value)) {}  // NOLINT: conversion wanted
  QPAIR_HOST_DEVICE constexpr operator T() const { return byte_swap(raw); }  // NOLINT: conversion wanted
};

using be16 = BigEndian<std::uint16_t>;
using be32 = BigEndian<std::uint32_t>;
using be64 = BigEndian<std::uint64_t>;

#if defined(__BYTE_ORDER__)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "qpair supports little-endian hosts");
#endif
static_assert(std::is_trivial_v<be64> && sizeof(be64) == 8 && sizeof(be16) == 2);

}  // namespace qpair::mlx5
