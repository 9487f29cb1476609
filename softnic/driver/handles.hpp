#pragma once
// Numbers for objects: one space for each open device, lowest free number first, as the kernel's xarray of an
// ib_uverbs_file (drivers/infiniband/core/rdma_core.c).

#include <cstdint>
#include <memory>
#include <vector>

#include "softnic/driver/objects.hpp"

namespace qpair::softnic::driver {

class HandleTable {
 public:
  static constexpr std::uint32_t kMaxHandles = 1U << 20;

  // Negative when the table is full: -ENOMEM.
  std::int64_t insert(std::unique_ptr<Object> object);
  Object* find(std::uint64_t handle) const;
  void erase(std::uint64_t handle);

  // T or null; `failure` then says what the kernel's lookup would: -ENOENT nothing there, -EINVAL another
  // type.
  template <typename T>
  T* get(std::uint64_t handle, int& failure) const {
    Object* const object = find(handle);
    failure = object == nullptr ? kNothingThere : kOtherType;
    return object != nullptr && object->type == T::kType ? static_cast<T*>(object) : nullptr;
  }

  std::vector<std::uint32_t> handles_of(ObjectType type) const;

 private:
  static constexpr int kNothingThere = -2;  // -ENOENT
  static constexpr int kOtherType = -22;    // -EINVAL

  std::vector<std::unique_ptr<Object>> slots_;
  std::size_t lowest_free_ = 0;  // no free slot below
};

}  // namespace qpair::softnic::driver
