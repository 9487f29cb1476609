#include "softnic/driver/user_memory.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "softnic/driver/system.hpp"

namespace qpair::softnic::driver {
namespace {

void* pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

constexpr std::size_t kChunk = 256;

}  // namespace

bool copy_from_user(void* to, std::uint64_t from, std::size_t size) {
  return size == 0 || nic::guarded_copy(to, pointer(from), size);
}

bool copy_to_user(std::uint64_t to, const void* from, std::size_t size) {
  return size == 0 || nic::guarded_copy(pointer(to), from, size);
}

bool clear_user(std::uint64_t at, std::size_t size) {
  static constexpr std::array<std::byte, kChunk> kZeros{};
  for (std::size_t done = 0; done < size; done += kChunk) {
    if (!copy_to_user(at + done, kZeros.data(), std::min(kChunk, size - done))) return false;
  }
  return true;
}

Cleared is_cleared(std::uint64_t at, std::size_t size) {
  std::array<std::byte, kChunk> bytes;
  for (std::size_t done = 0; done < size; done += kChunk) {
    const std::size_t part = std::min(kChunk, size - done);
    if (!copy_from_user(bytes.data(), at + done, part)) return Cleared::Fault;
    if (std::any_of(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(part),
                    [](std::byte b) { return b != std::byte{0}; })) {
      return Cleared::No;
    }
  }
  return Cleared::Yes;
}

int copy_out(const UserBuffer& to, const void* from, std::size_t size) {
  const std::size_t part = std::min(to.size, size);
  if (!copy_to_user(to.address, from, part)) return -EFAULT;
  return clear_user(to.address + part, to.size - part) ? 0 : -EFAULT;
}

int copy_in(void* to, std::size_t size, const UserBuffer& from) {
  const std::size_t part = std::min(from.size, size);
  if (!copy_from_user(to, from.address, part)) return -EFAULT;
  std::memset(static_cast<std::byte*>(to) + part, 0, size - part);
  switch (is_cleared(from.address + part, from.size - part)) {
    case Cleared::Yes:
      return 0;
    case Cleared::No:
      return -EOPNOTSUPP;
    case Cleared::Fault:
      break;
  }
  return -EFAULT;
}

namespace {

// An aligned word in the page of `at`, and if there is one in [first, last]: the bytes beside a small range
// are another's.
std::uint64_t word_within(std::uint64_t at, std::uint64_t first, std::uint64_t last) {
  const std::uint64_t up = (at + 7) & ~std::uint64_t{7};
  const bool same_page = up / system::kPageSize == at / system::kPageSize;
  return same_page && up >= first && up + 7 <= last ? up : at & ~std::uint64_t{7};
}

}  // namespace

int check_range(std::uint64_t address, std::uint64_t size, Use use) {
  if (size == 0) return 0;
  if (address + size < address) return -EINVAL;
  const std::uint64_t page_mask = ~std::uint64_t{system::kPageSize - 1};
  const std::uint64_t first = address & page_mask;
  const std::uint64_t last_byte = address + size - 1;
  const std::uint64_t length = (last_byte & page_mask) - first + system::kPageSize;
  if (system::is_mapped(pointer(first), length) != 0) return -EFAULT;
  // The mapping is there; its rights show at the ends. What lies between fails when the device gets there.
  for (const std::uint64_t at : {word_within(address, address, last_byte),
                                 word_within(std::max(address, last_byte & page_mask), address, last_byte)}) {
    std::uint64_t value = 0;
    const bool reachable = use == Use::Write ? nic::guarded_fetch_add64(pointer(at), 0, value)
                                             : nic::guarded_load64(pointer(at), value);
    if (!reachable) return -EFAULT;
  }
  return 0;
}

}  // namespace qpair::softnic::driver
