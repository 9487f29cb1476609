#include "latencies.hpp"

#include <algorithm>
#include <cmath>

namespace qpair::tool {

void Measurement::merge(const Measurement& other) {
  if (samples.empty()) {
    *this = other;
    return;
  }
  if (operation_size != other.operation_size) operation_size = 0;
  bytes += other.bytes;
  operations += other.operations;
  samples.insert(samples.end(), other.samples.begin(), other.samples.end());
  begin = std::min(begin, other.begin);
  end = std::max(end, other.end);
}

std::chrono::nanoseconds Measurement::percentile(double fraction) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(samples.size())));
  return std::chrono::nanoseconds(samples[std::clamp<std::size_t>(rank, 1, samples.size()) - 1]);
}

std::int64_t monotonic_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace qpair::tool
