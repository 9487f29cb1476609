#include "softnic/driver/private_fd.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "softnic/driver/system.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr int kTrackedDescriptors = kPrivateFdLimit;
std::array<std::atomic<unsigned>, kTrackedDescriptors / 32> tracked{};

void track(int fd, bool ours) {
  if (fd < 0 || fd >= kTrackedDescriptors) return;
  const unsigned bit = 1U << (fd % 32);
  auto& word = tracked[static_cast<std::size_t>(fd / 32)];
  if (ours) {
    word.fetch_or(bit, std::memory_order_acq_rel);
  } else {
    word.fetch_and(~bit, std::memory_order_acq_rel);
  }
}

// Three quarters up the program's limit, so that select() and small tables of the program's are left alone.
int lowest_number() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 3;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, kTrackedDescriptors)) / 4 * 3;
}

}  // namespace

PrivateFd::PrivateFd(int fd) {
  fd_ = system::duplicate_above(fd, lowest_number());
  if (fd_ < 0) fd_ = system::duplicate_above(fd, 3);
  track(fd_, true);
}

void PrivateFd::reset() {
  if (fd_ < 0) return;
  track(fd_, false);
  system::close(fd_);
  fd_ = -1;
}

bool is_private_fd(int fd) {
  if (fd < 0 || fd >= kTrackedDescriptors) return false;
  return (tracked[static_cast<std::size_t>(fd / 32)].load(std::memory_order_acquire) >> (fd % 32) & 1U) != 0;
}

}  // namespace qpair::softnic::driver
