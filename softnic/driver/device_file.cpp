#include "softnic/driver/device_file.hpp"

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/sysmacros.h>

#include <cerrno>

#include "softnic/driver/guarded.hpp"
#include "softnic/driver/ioctl.hpp"
#include "softnic/driver/sysfs.hpp"
#include "softnic/driver/system.hpp"
#include "softnic/driver/write.hpp"

namespace qpair::softnic::driver {

DeviceFile::DeviceFile(std::unique_ptr<Context> context)
    : context_(std::move(context)), generation_(fork_generation()) {}

bool DeviceFile::inherited() const {
  return generation_ != fork_generation();
}

DeviceFile::~DeviceFile() {
  if (inherited()) {
    static_cast<void>(context_.release());
    return;
  }
  shut_down();
}

dev_t DeviceFile::device_number() const {
  return makedev(kDeviceMajor, kDeviceMinor);
}

void DeviceFile::shut_down() {
  if (inherited()) return;
  const nic::OnlyFaultSignals signals;
  std::unique_ptr<Context> last;
  const std::scoped_lock lock(mutex_);
  last.swap(context_);
}

namespace {

// ibv_query_device_ex(), which asks for nothing but what the device says about itself.
bool queries_device(const ib_uverbs_ioctl_hdr& header, std::uint64_t attributes) {
  constexpr auto kExtended = static_cast<std::uint32_t>(IB_USER_VERBS_CMD_FLAG_EXTENDED);
  constexpr std::uint32_t kQuery = kExtended | static_cast<std::uint32_t>(IB_USER_VERBS_EX_CMD_QUERY_DEVICE);
  if (header.object_id != UVERBS_OBJECT_DEVICE || header.method_id != UVERBS_METHOD_INVOKE_WRITE)
    return false;
  for (std::uint64_t i = 0; i < header.num_attrs; ++i) {
    ib_uverbs_attr attribute{};
    if (!copy_from_user(&attribute, attributes + i * sizeof attribute, sizeof attribute)) return false;
    if (attribute.attr_id == UVERBS_ATTR_WRITE_CMD) return attribute.data == kQuery;
  }
  return false;
}

}  // namespace

// What a child of fork() may do with its parent's device: device memory is a matter of the file, which they
// share.
int DeviceFile::ioctl_of_child(unsigned long request, void* argument) {
  return guarded([&] {
    const nic::OnlyFaultSignals signals;
    const std::unique_lock lock(mutex_, std::try_to_lock);  // a thread that is not here may hold it for ever
    ib_uverbs_ioctl_hdr header{};
    const auto address = reinterpret_cast<std::uintptr_t>(argument);
    if (!lock || !context_ || request != RDMA_VERBS_IOCTL ||
        !copy_from_user(&header, address, sizeof header)) {
      return -EIO;
    }
    const bool allowed =
        header.object_id == UVERBS_OBJECT_DM || queries_device(header, address + sizeof header);
    if (!allowed) return -EIO;
    return ioctl_command(*context_, address);
  });
}

int DeviceFile::ioctl(unsigned long request, void* argument) {
  if (inherited()) return ioctl_of_child(request, argument);
  if (request != RDMA_VERBS_IOCTL || current_config().write_abi) return -ENOTTY;
  return guarded([&] {
    const nic::OnlyFaultSignals signals;
    const std::scoped_lock lock(mutex_);
    return context_ ? ioctl_command(*context_, reinterpret_cast<std::uintptr_t>(argument)) : -EIO;
  });
}

ssize_t DeviceFile::write(const void* bytes, std::size_t size) {
  if (inherited()) return -EIO;
  return guarded([&]() -> ssize_t {
    const nic::OnlyFaultSignals signals;
    const std::scoped_lock lock(mutex_);
    return context_ ? write_command(*context_, bytes, size) : -EIO;
  });
}

int DeviceFile::before_mmap(std::size_t length, int protection, int flags, off_t offset) {
  const bool of_child = inherited();
  if (of_child && MmapOffset::from_bytes(offset).command != MLX5_IB_MMAP_DEVICE_MEM) return -EIO;
  return guarded([&] {
    const nic::OnlyFaultSignals signals;
    std::unique_lock lock(mutex_, std::defer_lock);
    if (of_child && !lock.try_lock()) return -EIO;
    if (!of_child) lock.lock();
    return context_ ? driver::before_mmap(*context_, length, protection, flags, offset) : -EIO;
  });
}

void DeviceFile::after_mmap(void* address, std::size_t length, off_t offset) {
  if (inherited()) return;
  static_cast<void>(guarded([&] {
    const nic::OnlyFaultSignals signals;
    const std::scoped_lock lock(mutex_);
    if (!context_) return 0;
    // A child's doorbells must not ring here: rdma_umap_open() in the kernel takes the page from it too.
    system::not_in_children(address, length);
    if (const auto page = context_->page_at(offset)) context_->nic->uar_mapped(page->id(), address);
    return 0;
  }));
}

int open_device(std::shared_ptr<File>& file) {
  return guarded([&] {
    auto nic = share_nic();
    if (!nic) return -ENODEV;
    nic::install_fault_handler();
    int fd = -1;
    auto pages = UarPages::create(fd);
    if (!pages) return fd;
    auto device = std::make_shared<DeviceFile>(std::make_unique<Context>(std::move(nic), std::move(pages)));
    close_at_shut_down(device);
    file = std::move(device);
    return fd;
  });
}

}  // namespace qpair::softnic::driver
