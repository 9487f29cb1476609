#pragma once
// The doorbell pages of one open device: a sparse memory file whose offsets are mlx5's mmap offsets, so that
// the program's plain mmap() of the descriptor maps the very page that the NIC watches.
//
// Offset / 4096 = (index high << 16) | (command << 8) | (index low): get_uar_mmap_offset() in rdma-core
// providers/mlx5/mlx5.c, mlx5_vma_to_pgoff() in the kernel's drivers/infiniband/hw/mlx5/main.c. Commands are
// enum mlx5_ib_mmap_cmd; the offsets of UAR objects are the kernel's to choose, from command 9 up.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "softnic/driver/private_fd.hpp"
#include "softnic/nic/nic.hpp"

namespace qpair::softnic::driver {

inline constexpr std::uint32_t kFirstObjectCommand = 9;  // MLX5_IB_MMAP_OFFSET_START

struct MmapOffset {
  std::uint32_t command;
  std::uint32_t index;

  static MmapOffset from_bytes(off_t offset);
  off_t bytes() const;
};

class UarPages;

// One page, known to the NIC while this lives.
class UarPage {
 public:
  UarPage(std::shared_ptr<nic::Nic> nic, nic::UarId id, std::byte* view);
  ~UarPage();
  UarPage(const UarPage&) = delete;
  UarPage& operator=(const UarPage&) = delete;

  nic::UarId id() const { return id_; }

 private:
  std::shared_ptr<nic::Nic> nic_;
  nic::UarId id_;
  std::byte* view_;
};

class UarPages {
 public:
  // `fd`: the program's descriptor of the file, or a negative errno.
  static std::unique_ptr<UarPages> create(int& fd);
  UarPages(const UarPages&) = delete;
  UarPages& operator=(const UarPages&) = delete;

  // The page at `offset`, for the NIC. Null: no memory.
  std::shared_ptr<UarPage> add(const std::shared_ptr<nic::Nic>& nic, MmapOffset offset) const;
  // The NIC's own mapping of several pages from `offset` on, which must not reach another command's. Null: no
  // memory.
  std::byte* view(MmapOffset offset, std::size_t pages) const;
  // Fills the page at `offset` with something that the program may read. 0 or a negative errno.
  int fill(MmapOffset offset, const void* bytes, std::size_t size) const;

 private:
  explicit UarPages(int program_fd) : file_(program_fd) {}

  PrivateFd file_;  // the program may close its own descriptor, or put another file in its place
};

}  // namespace qpair::softnic::driver
