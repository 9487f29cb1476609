#include "softnic/driver/device_file.hpp"

#include <rdma/rdma_user_ioctl_cmds.h>

#include <cerrno>
#include <exception>

#include "softnic/driver/ioctl.hpp"
#include "softnic/driver/system.hpp"
#include "softnic/driver/write.hpp"
#include "softnic/explain/explain.hpp"

namespace qpair::softnic::driver {
namespace {

// Nothing that a program does may end it here: an exception is memory that could not be had.
template <typename Command>
auto guarded(Command command) noexcept -> decltype(command()) {
  try {
    return command();
  } catch (const std::exception& failure) {
    explain::say(explain::Kind::Refusal, failure.what());
    return static_cast<decltype(command())>(-ENOMEM);
  }
}

}  // namespace

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
  const UserAccess access;
  shut_down();
}

void DeviceFile::shut_down() {
  if (inherited()) return;
  std::unique_ptr<Context> last;
  const std::scoped_lock lock(mutex_);
  last.swap(context_);
}

int DeviceFile::ioctl(unsigned long request, void* argument) {
  if (inherited()) return -EIO;
  if (request != RDMA_VERBS_IOCTL || current_config().write_abi) return -ENOTTY;
  return guarded([&] {
    const UserAccess access;
    const std::scoped_lock lock(mutex_);
    return context_ ? ioctl_command(*context_, reinterpret_cast<std::uintptr_t>(argument)) : -EIO;
  });
}

ssize_t DeviceFile::write(const void* bytes, std::size_t size) {
  if (inherited()) return -EIO;
  return guarded([&]() -> ssize_t {
    const UserAccess access;
    const std::scoped_lock lock(mutex_);
    return context_ ? write_command(*context_, bytes, size) : -EIO;
  });
}

int DeviceFile::before_mmap(std::size_t length, int protection, int flags, off_t offset) {
  if (inherited()) return -EIO;
  return guarded([&] {
    const std::scoped_lock lock(mutex_);
    return context_ ? driver::before_mmap(*context_, length, protection, flags, offset) : -EIO;
  });
}

void DeviceFile::after_mmap(void* address, std::size_t length, off_t offset) {
  if (inherited()) return;
  static_cast<void>(guarded([&] {
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
