#include "softnic/driver/handles.hpp"

#include <cerrno>

namespace qpair::softnic::driver {

static_assert(ENOENT == 2 && EINVAL == 22);

std::int64_t HandleTable::insert(std::unique_ptr<Object> object) {
  while (lowest_free_ < slots_.size() && slots_[lowest_free_]) ++lowest_free_;
  if (lowest_free_ >= kMaxHandles) return -ENOMEM;
  if (lowest_free_ == slots_.size()) slots_.emplace_back();
  slots_[lowest_free_] = std::move(object);
  return static_cast<std::int64_t>(lowest_free_++);
}

Object* HandleTable::find(std::uint64_t handle) const {
  return handle < slots_.size() ? slots_[handle].get() : nullptr;
}

void HandleTable::erase(std::uint64_t handle) {
  if (handle >= slots_.size()) return;
  slots_[handle].reset();
  if (handle < lowest_free_) lowest_free_ = handle;
}

std::vector<std::uint32_t> HandleTable::handles_of(ObjectType type) const {
  std::vector<std::uint32_t> handles;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i] && slots_[i]->type == type) handles.push_back(static_cast<std::uint32_t>(i));
  }
  return handles;
}

}  // namespace qpair::softnic::driver
