#include "softnic/wire/private_descriptors.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>

namespace qpair::softnic::wire {
namespace {

constexpr std::size_t kBits = 32;
std::array<std::atomic<unsigned>, kPrivateDescriptorLimit / kBits> tracked{};

bool is_tracked(int fd) {
  return fd >= 0 && fd < kPrivateDescriptorLimit;
}
std::atomic<unsigned>& word_of(int fd) {
  return tracked[static_cast<std::size_t>(fd) / kBits];
}
unsigned bit_of(int fd) {
  return 1U << (static_cast<std::size_t>(fd) % kBits);
}

}  // namespace

void set_private_descriptor(int fd) {
  if (is_tracked(fd)) {
    word_of(fd).fetch_or(bit_of(fd), std::memory_order_acq_rel);
  }
}

void unset_private_descriptor(int fd) {
  if (is_tracked(fd)) {
    word_of(fd).fetch_and(~bit_of(fd), std::memory_order_acq_rel);
  }
}

bool is_private_descriptor(int fd) {
  return is_tracked(fd) && (word_of(fd).load(std::memory_order_acquire) & bit_of(fd)) != 0;
}

int lowest_private_descriptor() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return 3;
  }
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, kPrivateDescriptorLimit)) / 4 * 3;
}

}  // namespace qpair::softnic::wire
