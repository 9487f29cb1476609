#pragma once
// What the fuzzers that run a script share: the script's bytes, taken one after the other.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace qpair::fuzz {

// What must hold, whatever the input is.
inline void require(bool holds) {
  if (!holds) std::abort();
}

// Past the end everything is zero.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  std::uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  std::uint32_t word() {
    const std::uint32_t high = byte();
    return (high << 8) | byte();
  }
  // As many as there are.
  std::vector<std::byte> bytes(std::size_t count) {
    count = std::min(count, size_);
    std::vector<std::byte> result(count);
    if (count != 0) std::memcpy(result.data(), data_, count);
    data_ += count;
    size_ -= count;
    return result;
  }
  // Exactly so many.
  void bytes(std::byte* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] = std::byte{byte()};
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

}  // namespace qpair::fuzz
