#pragma once
// What a NIC shows to the others of this host (wire/shared_memory_link.hpp): its memory regions, and its
// reliable connections that are ready to be written to. With them another NIC can check a request as the
// responder would, and carry it out itself.
//
//   keys[kShownKeys]          by memory key, its index modulo the size
//   queue pairs[kShownQps]    by queue pair number, modulo the size
//
// Numbers are handed out upwards, so neighbours in number lie together and pages stay untouched. Where two
// fall on one place the second is not shown, and its requests take packets. What is shown may be used until
// it is taken back: HostMemory::hide_key() and hide_queue_pair() return when nobody does any more.
//
// Written by its owner under the engine lock; `number` last, and first to go.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace qpair::softnic::nic {

struct ShownKey {
  static constexpr std::uint64_t kNotAsked = 0;
  static constexpr std::uint64_t kNoFile = ~std::uint64_t{0};

  alignas(64) std::atomic<std::uint32_t> number{0};  // 0: nothing here
  std::uint32_t pd = 0;
  std::uint32_t access = 0;  // ibv_access_flags
  std::uint64_t iova = 0;
  std::uint64_t length = 0;
  std::uint64_t address = 0;                   // in the owner's process
  std::atomic<std::uint64_t> file{kNotAsked};  // in which the memory lies
  std::atomic<std::uint64_t> file_offset{0};   // of the first byte
};
static_assert(sizeof(ShownKey) == 64);

struct ShownQueuePair {
  alignas(64) std::atomic<std::uint32_t> number{0};
  std::uint32_t pd = 0;
  std::uint32_t access = 0;  // ibv_access_flags that it gives its peer
  std::uint32_t peer = 0;
  std::uint32_t path_mtu = 0;  // enum ibv_mtu
  std::uint32_t max_dest_rd_atomic = 0;
  std::array<std::uint8_t, 16> peer_address{};
};
static_assert(sizeof(ShownQueuePair) == 64);

inline constexpr std::size_t kShownKeys = std::size_t{1} << 17;
inline constexpr std::size_t kShownQps = std::size_t{1} << 14;
inline constexpr std::size_t kShownBytes = kShownKeys * sizeof(ShownKey) + kShownQps * sizeof(ShownQueuePair);

inline const ShownKey& shown_key(std::span<const std::byte> shown, std::uint32_t key) {
  return reinterpret_cast<const ShownKey*>(shown.data())[(key >> 8) & (kShownKeys - 1)];
}
inline const ShownQueuePair& shown_queue_pair(std::span<const std::byte> shown, std::uint32_t qpn) {
  const std::byte* const begin = shown.data() + kShownKeys * sizeof(ShownKey);
  return reinterpret_cast<const ShownQueuePair*>(begin)[qpn & (kShownQps - 1)];
}

}  // namespace qpair::softnic::nic
