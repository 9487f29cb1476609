#pragma once
// Anonymous pages: reserved at once, resident only where they were touched, so that generous bounds cost an
// idle NIC nothing.

#include <sys/mman.h>

#include <cstddef>
#include <span>
#include <utility>

namespace qpair::softnic::wire {

class Pages {
 public:
  Pages() = default;
  // Empty when the kernel refuses.
  explicit Pages(std::size_t size) {
    void* address =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address != MAP_FAILED) {
      bytes_ = {static_cast<std::byte*>(address), size};
    }
  }
  Pages(Pages&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Pages() {
    if (!bytes_.empty()) {
      ::munmap(bytes_.data(), bytes_.size());
    }
  }

  std::span<std::byte> bytes() const { return bytes_; }
  std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace qpair::softnic::wire
