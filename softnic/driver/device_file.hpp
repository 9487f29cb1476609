#pragma once
// The open device: /dev/infiniband/uverbs0. One lock for all of its commands, which never wait for anything.

#include <memory>
#include <mutex>

#include "softnic/driver/context.hpp"
#include "softnic/driver/file.hpp"
#include "softnic/driver/runtime.hpp"

namespace qpair::softnic::driver {

class DeviceFile final : public File, public Closable {
 public:
  explicit DeviceFile(std::unique_ptr<Context> context);
  ~DeviceFile() override;

  int ioctl(unsigned long request, void* argument) override;
  ssize_t write(const void* bytes, std::size_t size) override;
  int before_mmap(std::size_t length, int protection, int flags, off_t offset) override;
  void after_mmap(void* address, std::size_t length, off_t offset) override;
  dev_t device_number() const override;

  // Releases everything now; every later call answers EIO.
  void shut_down() override;

 private:
  // In a child of fork() the locks may be held by threads that are not here, and the NIC is the parent's.
  bool inherited() const;
  int ioctl_of_child(unsigned long request, void* argument);

  std::mutex mutex_;
  std::unique_ptr<Context> context_;  // guarded by mutex_; null once shut down
  const unsigned generation_;
};

}  // namespace qpair::softnic::driver
