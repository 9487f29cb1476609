#pragma once
// The list of devices of libibverbs, owned, and devices opened by name.

#include <infiniband/verbs.h>

#include <span>
#include <string_view>

#include "qpair/result.hpp"
#include "src/handles.hpp"

namespace qpair::detail {

class DeviceList {
 public:
  static Result<DeviceList> get();
  DeviceList(DeviceList&& other) noexcept : list_(other.list_), size_(other.size_) { other.list_ = nullptr; }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList() {
    if (list_ != nullptr) ibv_free_device_list(list_);
  }
  [[nodiscard]] std::span<ibv_device* const> devices() const { return {list_, size_}; }

 private:
  DeviceList(ibv_device** list, std::size_t size) : list_(list), size_(size) {}
  ibv_device** list_;
  std::size_t size_;
};

Result<ContextHandle> open_device(std::string_view name);

}  // namespace qpair::detail
