#pragma once
// Memory that another process can map too, given a descriptor of the file behind it: what
// RdmaDomain::allocate() hands out. An emulated NIC finds the file in /proc/self/fd by its device and inode.

#include <cstddef>

#include "qpair/result.hpp"

namespace qpair::detail {

enum class PageSize { Ordinary, Huge };

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

class SharedMemory {
 public:
  // Zeroed, and present to the last page: memory that is not to be had is an error here and never SIGBUS
  // later. Huge pages have to be free.
  static Result<SharedMemory> make(std::size_t size, PageSize page_size);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  [[nodiscard]] std::byte* address() const { return address_; }

 private:
  SharedMemory(std::byte* address, std::size_t length, int file)
      : address_(address), length_(length), file_(file) {}

  std::byte* address_;
  std::size_t length_;  // of the mapping
  int file_;            // -1: there was no descriptor left for it
};

}  // namespace qpair::detail
