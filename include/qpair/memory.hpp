#pragma once
// Memory that the NIC may reach.

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "qpair/print.hpp"
#include "qpair/result.hpp"

namespace qpair {

namespace detail {
class DomainState;
class SharedMemory;
}  // namespace detail

// A piece of registered memory, of this process or of a peer. A plain value: it owns nothing and may travel.
struct RdmaBuffer {
  std::uint64_t mr_id = 0;  // which MemoryRegion of the process that registered it
  std::uint32_t lkey = 0;
  std::uint32_t rkey = 0;
  std::uint64_t addr = 0;  // address that work requests use
  std::uint64_t size = 0;  // bytes

  // `length` bytes from `offset` on. invalid_argument if they are not all inside.
  [[nodiscard]] Result<RdmaBuffer> slice(std::uint64_t offset, std::uint64_t length) const;

  friend bool operator==(const RdmaBuffer&, const RdmaBuffer&) = default;
};
static_assert(std::is_trivially_copyable_v<RdmaBuffer>);

// One of several operations that are posted together: l.size bytes from l to r.
struct Put {
  RdmaBuffer l;
  RdmaBuffer r;
};

inline constexpr int kAllRights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// Owns a registration, and the memory itself when RdmaDomain::allocate() made it. Keeps its domain alive.
// Movable, not copyable; a moved-from region is empty. Destroy it only when no operation uses its keys any
// more.
class MemoryRegion {
 public:
  MemoryRegion(MemoryRegion&& other) noexcept;
  MemoryRegion& operator=(MemoryRegion&& other) noexcept;
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;
  ~MemoryRegion();

  [[nodiscard]] RdmaBuffer buffer() const { return buffer_; }
  [[nodiscard]] Result<RdmaBuffer> slice(std::uint64_t offset, std::uint64_t length) const {
    return buffer_.slice(offset, length);
  }
  [[nodiscard]] ibv_mr* mr() const { return mr_; }
  [[nodiscard]] std::uint64_t size() const { return buffer_.size; }
  // The bytes, where the program has them. Empty for a dma-buf, which may not be mapped at all.
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  template <typename T = std::byte>
  [[nodiscard]] T* data() const {
    return reinterpret_cast<T*>(bytes_.data());
  }

 private:
  friend class RdmaDomain;
  MemoryRegion(std::shared_ptr<detail::DomainState> domain, ibv_mr* mr, std::uint64_t addr,
               std::uint64_t size, std::span<std::byte> bytes);
  void release() noexcept;

  std::shared_ptr<detail::DomainState> domain_;
  std::unique_ptr<detail::SharedMemory> memory_;  // what allocate() made; null: the memory is someone else's
  ibv_mr* mr_ = nullptr;
  RdmaBuffer buffer_;
  std::span<std::byte> bytes_;
};

[[nodiscard]] std::string to_string(const RdmaBuffer& buffer);
[[nodiscard]] std::string to_string(const MemoryRegion& region);

}  // namespace qpair
