#include "softnic/driver/uar_pages.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "softnic/driver/system.hpp"
#include "softnic/explain/explain.hpp"

namespace qpair::softnic::driver {
namespace {

using system::kPageSize;

constexpr std::uint32_t kMaxIndex = 0x1fff;  // 8,192 pages of each kind: libmlx5 puts two queue pairs on one
constexpr off_t kFileSize = off_t{(kMaxIndex >> 8) + 1} << 16 << 12;

}  // namespace

MmapOffset MmapOffset::from_bytes(off_t offset) {
  const auto pages = static_cast<std::uint64_t>(offset) / kPageSize;
  return {.command = static_cast<std::uint32_t>(pages >> 8 & 0xff),
          .index = static_cast<std::uint32_t>((pages & 0xff) | (pages >> 16 & 0xffff) << 8)};
}

off_t MmapOffset::bytes() const {
  const std::uint64_t pages = std::uint64_t{index >> 8} << 16 | std::uint64_t{command} << 8 | (index & 0xff);
  return static_cast<off_t>(pages * kPageSize);
}

UarPage::UarPage(std::shared_ptr<nic::Nic> nic, nic::UarId id, std::byte* view)
    : nic_(std::move(nic)), id_(id), view_(view) {}

UarPage::~UarPage() {
  nic_->remove_uar(id_);
  system::unmap(view_, kPageSize);
}

std::unique_ptr<UarPages> UarPages::create(int& fd) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < static_cast<rlim_t>(kFileSize)) {
    explain::say(
        explain::Kind::Refusal,
        fmt::format("The device cannot be opened: RLIMIT_FSIZE (ulimit -f) is {} bytes and its sparse "
                    "memory file needs {}.",
                    limit.rlim_cur, kFileSize));
    fd = -EFBIG;
    return nullptr;
  }
  fd = system::memory_file("uverbs0");
  if (fd < 0) return nullptr;
  int failure = system::resize_file(fd, kFileSize);
  // A program that shortened it would make the NIC's views fault.
  if (failure == 0) failure = system::seal_file(fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  std::unique_ptr<UarPages> pages;
  if (failure == 0) {
    pages.reset(new UarPages(fd));  // private constructor
    failure = std::min(pages->file_.get(), 0);
  }
  if (failure != 0) {
    system::close(fd);
    fd = failure;
    return nullptr;
  }
  return pages;
}

std::byte* UarPages::view(MmapOffset offset, std::size_t pages) const {
  if (offset.index > kMaxIndex) return nullptr;
  const long mapped =
      system::map(pages * kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), offset.bytes());
  if (mapped < 0) return nullptr;
  auto* const page = reinterpret_cast<std::byte*>(mapped);
  system::not_in_children(page, pages * kPageSize);
  return page;
}

std::shared_ptr<UarPage> UarPages::add(const std::shared_ptr<nic::Nic>& nic, MmapOffset offset) const {
  std::byte* const page = view(offset, 1);
  if (page == nullptr) return nullptr;
  std::memset(page, 0, kPageSize);  // an earlier life of the page may have left a doorbell in it
  const auto id = nic->add_uar(page);
  if (!id) {
    system::unmap(page, kPageSize);
    return nullptr;
  }
  return std::make_shared<UarPage>(nic, *id, page);
}

int UarPages::fill(MmapOffset offset, const void* bytes, std::size_t size) const {
  std::byte* const page = view(offset, 1);
  if (page == nullptr) return -ENOMEM;
  std::memcpy(page, bytes, size);
  system::unmap(page, kPageSize);
  return 0;
}

}  // namespace qpair::softnic::driver
