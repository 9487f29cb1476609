#include "softnic/hooks/device_files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>

#include "softnic/driver/runtime.hpp"
#include "softnic/explain/explain.hpp"

namespace qpair::softnic::hooks {
namespace {

struct Files {
  driver::ScratchDirectory directory;
  driver::SysfsTree tree;
  pid_t maker;
};

// Files are never freed: they are looked at until the very end of the process.
constinit std::atomic<Files*> files{nullptr};
// Those that are no longer shown; a leak checker would take them for lost.
constinit std::atomic<Files*> removed_files{nullptr};
constinit std::atomic<bool> no_device{false};
constinit std::mutex making;
constinit thread_local bool making_here = false;

Files* make(const driver::SysfsFacts& facts) {
  auto directory = driver::ScratchDirectory::create();
  if (!directory) {
    explain::say(explain::Kind::Notice, fmt::format("No RDMA device is shown: {}.", directory.error()));
    return nullptr;
  }
  auto tree = driver::SysfsTree::write(facts, directory->path());
  if (!tree) {
    explain::say(explain::Kind::Notice, fmt::format("No RDMA device is shown: {}.", tree.error()));
    return nullptr;
  }
  return std::make_unique<Files>(Files{std::move(*directory), std::move(*tree), getpid()}).release();
}

// The NIC first and without our lock: making it takes a lock of its own, and fork() takes both in the other
// order.
void look_for_device() {
  const nic::Nic* nic = driver::current_nic();
  if (nic == nullptr) {
    no_device = true;
    return;
  }
  const auto facts = driver::SysfsFacts::of(*nic);
  const std::lock_guard lock(making);
  if (files.load() != nullptr || no_device) return;
  Files* made = make(facts);
  if (made == nullptr) no_device = true;
  files.store(made, std::memory_order_release);
  internal::tree.store(made != nullptr ? &made->tree : nullptr, std::memory_order_release);
}

}  // namespace

const driver::SysfsTree* device_files() {
  if (const auto* made = device_files_if_made()) return made;
  if (no_device.load(std::memory_order_relaxed) || making_here) return nullptr;
  const int saved_errno = errno;
  making_here = true;
  try {
    look_for_device();
  } catch (const std::exception&) {  // out of memory: as if there were no device
    no_device = true;
  }
  making_here = false;
  errno = saved_errno;
  return device_files_if_made();
}

std::size_t private_prefix(const char* path, std::size_t length) {
  const driver::SysfsTree* tree = device_files_if_made();
  if (tree == nullptr) return 0;
  const std::size_t size = tree->root().size();
  if (length <= size || path[size] != '/' || std::memcmp(path, tree->root().data(), size) != 0) return 0;
  return size;
}

void remove_device_files() {
  Files* made = files.load(std::memory_order_acquire);
  if (made == nullptr || made->maker != getpid()) return;
  no_device = true;
  internal::tree.store(nullptr, std::memory_order_release);
  files.store(nullptr, std::memory_order_release);
  removed_files.store(made, std::memory_order_release);
  made->directory.remove();
}

void device_files_before_fork() {
  making.lock();
}

void device_files_after_fork_in_parent() {
  making.unlock();
}

void device_files_after_fork_in_child() {
  internal::tree = nullptr;
  if (Files* inherited = files.exchange(nullptr)) {
    inherited->directory.forget();
    removed_files = inherited;
  }
  no_device = false;
  making.unlock();
}

}  // namespace qpair::softnic::hooks
