#pragma once
// Objects by their 24-bit number, as the device numbers queue pairs, completion queues and memory keys: two
// loads to find one, whatever their count. Numbers are handed out upwards from a start that differs in each
// process, so that a number of an earlier process, or of a destroyed object, is not soon valid again.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace qpair::softnic::nic {

inline constexpr std::uint32_t kIdMask = 0xff'ffff;

template <typename T>
class IdTable {
 public:
  // Numbers below `lowest` are never handed out (queue pairs 0 and 1 are special, IBTA vol. 1 3.5.4).
  IdTable(std::uint32_t first, std::uint32_t lowest) : next_(first & kIdMask), lowest_(lowest) {}

  T* find(std::uint32_t id) const {
    if (id > kIdMask) return nullptr;
    const auto& leaf = root_[id >> kLeafBits];
    return leaf ? (*leaf)[id & kLeafMask].get() : nullptr;
  }

  // A free number, or nothing when all are taken.
  std::optional<std::uint32_t> allocate() {
    if (size_ >= kIdMask - lowest_) return std::nullopt;
    for (;;) {
      if (next_ < lowest_) next_ = lowest_;
      const std::uint32_t id = next_;
      next_ = (next_ + 1) & kIdMask;
      if (find(id) == nullptr) return id;
    }
  }

  T& insert(std::uint32_t id, std::unique_ptr<T> object) {
    auto& leaf = root_[id >> kLeafBits];
    if (!leaf) leaf = std::make_unique<Leaf>();
    auto& slot = (*leaf)[id & kLeafMask];
    if (!slot) ++size_;
    slot = std::move(object);
    return *slot;
  }

  std::unique_ptr<T> remove(std::uint32_t id) {
    if (find(id) == nullptr) return nullptr;
    --size_;
    return std::move((*root_[id >> kLeafBits])[id & kLeafMask]);
  }

  std::size_t size() const { return size_; }

 private:
  static constexpr unsigned kLeafBits = 12;
  static constexpr std::uint32_t kLeafMask = (1U << kLeafBits) - 1;
  using Leaf = std::array<std::unique_ptr<T>, std::size_t{1} << kLeafBits>;

  std::array<std::unique_ptr<Leaf>, std::size_t{1} << (24 - kLeafBits)> root_;
  std::uint32_t next_;
  std::uint32_t lowest_;
  std::size_t size_ = 0;
};

}  // namespace qpair::softnic::nic
