#pragma once
// Reading and writing what a command points at, as the kernel's copy_from_user() and copy_to_user() do: a bad
// pointer is EFAULT, never a fault. All of these need the calling thread's fault signals unblocked
// (UserAccess).

#include <cstddef>
#include <cstdint>

#include "softnic/nic/guarded_memory.hpp"

namespace qpair::softnic::driver {

using UserAccess = nic::FaultSignalsUnblocked;  // hold one, or OnlyFaultSignals, while a command runs

struct UserBuffer {
  std::uint64_t address = 0;
  std::size_t size = 0;
};

[[nodiscard]] bool copy_from_user(void* to, std::uint64_t from, std::size_t size);
[[nodiscard]] bool copy_to_user(std::uint64_t to, const void* from, std::size_t size);
[[nodiscard]] bool clear_user(std::uint64_t at, std::size_t size);

enum class Cleared { Yes, No, Fault };
Cleared is_cleared(std::uint64_t at, std::size_t size);

// Copies `size` bytes and clears what the program gave beyond, or as much as it gave room for. 0 or -EFAULT.
// As uverbs_copy_to_struct_or_zero() and uverbs_response() in drivers/infiniband/core.
[[nodiscard]] int copy_out(const UserBuffer& to, const void* from, std::size_t size);
// Copies as much as both have and zeroes the rest of `to`. What the program sent beyond `size` must be zero:
// -EOPNOTSUPP. As uverbs_request() in drivers/infiniband/core/uverbs_cmd.c.
[[nodiscard]] int copy_in(void* to, std::size_t size, const UserBuffer& from);

// May the device read (and write) these bytes? 0, -EINVAL when the range wraps, -EFAULT when it is not there:
// what pinning the pages answers (ib_umem_get() in drivers/infiniband/core/umem.c).
enum class Use { Read, Write };
[[nodiscard]] int check_range(std::uint64_t address, std::uint64_t size, Use use);

}  // namespace qpair::softnic::driver
