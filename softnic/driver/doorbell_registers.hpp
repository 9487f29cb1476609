#pragma once
// The doorbell registers that a context is given at once when libmlx5 does not ask for UARs one by one
// (before rdma-core 31, or when the kernel has no ioctl interface): bfregs, two in each 4 KiB page.
//
// Register 0 is shared by all; then come "medium" ones, shared by the least used; then "high" ones, each for
// one queue pair. As alloc_bfreg() in the kernel's drivers/infiniband/hw/mlx5/qp.c.

#include <cstdint>
#include <vector>

namespace qpair::softnic::driver {

inline constexpr std::uint32_t kRegistersPerPage = 2;        // MLX5_NON_FP_BFREGS_PER_UAR
inline constexpr std::uint32_t kMaxDynamicRegisters = 1024;  // MLX5_MAX_DYNAMIC_BFREGS

class DoorbellRegisters {
 public:
  DoorbellRegisters() = default;
  DoorbellRegisters(std::uint32_t total, std::uint32_t low_latency);

  std::uint32_t total() const { return static_cast<std::uint32_t>(uses_.size()); }
  std::uint32_t pages() const { return total() / kRegistersPerPage; }

  int take();  // -1: there are none
  void give_back(int index);
  // As libmlx5 counts, four registers in a page (adjust_bfregn()).
  static std::uint32_t as_libmlx5(int index);

 private:
  std::uint32_t first_high_ = 0;
  std::vector<std::uint32_t> uses_;
};

}  // namespace qpair::softnic::driver
