#include "softnic/driver/device_file.hpp"

#include <rdma/rdma_user_ioctl_cmds.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "softnic/driver/ioctl.hpp"
#include "softnic/driver/runtime.hpp"
#include "softnic/driver/system.hpp"
#include "softnic/driver/write.hpp"
#include "softnic/explain/explain.hpp"

namespace qpair::softnic::driver {
namespace {

// What is open, for shut_down() at exit. Never destroyed.
struct OpenDevices {
  std::mutex mutex;
  std::vector<std::weak_ptr<DeviceFile>> files;
  unsigned generation = 0;
};

OpenDevices& open_devices() {
  static OpenDevices& instance = *std::make_unique<OpenDevices>().release();
  return instance;
}

void remember(const std::shared_ptr<DeviceFile>& file) {
  OpenDevices& open = open_devices();
  const std::scoped_lock lock(open.mutex);
  if (open.generation != fork_generation()) {
    open.generation = fork_generation();
    open.files.clear();
  }
  open.files.erase(
      std::remove_if(open.files.begin(), open.files.end(), [](const auto& weak) { return weak.expired(); }),
      open.files.end());
  open.files.push_back(file);
}

void close_all() {
  std::vector<std::weak_ptr<DeviceFile>> files;
  {
    OpenDevices& open = open_devices();
    const std::scoped_lock lock(open.mutex);
    files.swap(open.files);
  }
  for (const auto& weak : files) {
    if (const auto file = weak.lock()) file->shut_down();
  }
}

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
    at_shut_down(close_all);
    int fd = -1;
    auto pages = UarPages::create(fd);
    if (!pages) return fd;
    auto device = std::make_shared<DeviceFile>(std::make_unique<Context>(std::move(nic), std::move(pages)));
    remember(device);
    file = std::move(device);
    return fd;
  });
}

}  // namespace qpair::softnic::driver
