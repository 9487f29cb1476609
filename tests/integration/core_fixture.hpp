#pragma once
// Two connected queue pairs in this process, with memory on both sides.

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "qpair/qpair.hpp"

namespace qpair::test {

// Nothing on one machine takes longer than this; a test that waits so long has failed.
inline constexpr std::chrono::seconds kPatience{30};

// Unwraps a result or ends the test with the error's message.
template <typename T>
T value_of(Result<T> result, const char* what) {
  if (!result) throw std::runtime_error(std::string(what) + ": " + to_string(result.error()));
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}
#define MUST(expression) ::qpair::test::value_of((expression), #expression)

// The tests run on the kernel's rxe too (tests/kernel), which leaves to the standard what a ConnectX defines.
inline bool is_mlx5(const RdmaQueuePair& queue_pair) {
  return queue_pair.dv_qp() != nullptr;
}

// Polls until there is a completion; failures are returned as values.
inline IbvWc wait_for(RdmaQueuePair& queue_pair, PollTarget target) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  IbvWc wc;
  while (MUST(queue_pair.poll_completions(target, {&wc, 1})) == 0) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("no completion came");
  }
  return wc;
}

inline RdmaDomain& shared_domain() {
  static RdmaDomain domain = MUST(RdmaDomain::create());
  return domain;
}

// iWARP devices (the kernel's siw) are connected by librdmacm only.
inline bool is_iwarp() {
  return shared_domain().context()->device->transport_type == IBV_TRANSPORT_IWARP;
}

struct Side {
  explicit Side(std::size_t size = 1 << 20, const IbverbsConfig& config = {})
      : memory(MUST(shared_domain().allocate(size))),
        queue_pair(MUST(RdmaQueuePair::create(shared_domain(), config))) {}

  RdmaBuffer at(std::uint64_t offset, std::uint64_t size) const { return MUST(memory.slice(offset, size)); }
  void fill(std::uint64_t offset, std::uint64_t size, unsigned seed) {
    for (std::uint64_t i = 0; i != size; ++i) {
      memory.bytes()[offset + i] = static_cast<std::byte>((i * 31 + (i >> 8) * 7 + seed) & 0xff);
    }
  }
  bool same(const Side& other, std::uint64_t mine, std::uint64_t theirs, std::uint64_t size) const {
    return std::memcmp(memory.data() + mine, other.memory.data() + theirs, size) == 0;
  }

  MemoryRegion memory;
  RdmaQueuePair queue_pair;
};

inline void connect(Side& a, Side& b) {
  const RdmaQpInfo of_a = MUST(a.queue_pair.get_qp_info());
  const RdmaQpInfo of_b = MUST(b.queue_pair.get_qp_info());
  MUST(a.queue_pair.connect(of_b));
  MUST(b.queue_pair.connect(of_a));
}

// What is to be seen where queue pairs cannot be connected: a clear refusal that leaves the queue pair as it
// was.
inline void expect_connecting_is_refused() {
  const Side a(4096);
  Side b(4096);
  const Result<void> refused = b.queue_pair.connect(MUST(a.queue_pair.get_qp_info()));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::unsupported);
  EXPECT_NE(refused.error().message().find("is an iWARP device: those are connected by librdmacm only"),
            std::string::npos)
      << refused.error();
  EXPECT_EQ(MUST(b.queue_pair.state()), IBV_QPS_RESET);
  EXPECT_EQ(b.queue_pair.put(b.at(0, 8), a.at(0, 8)).error().code(), ErrorCode::not_connected);
}

// A test that needs connected queue pairs.
#define CONNECTED_TEST(suite, name)                                                         \
  void suite##_##name();                                                                    \
  TEST(suite, name) {                                                                       \
    if (is_iwarp()) {                                                                       \
      expect_connecting_is_refused();                                                       \
      GTEST_SKIP() << "iWARP queue pairs are connected by librdmacm, and this one said so"; \
    }                                                                                       \
    suite##_##name();                                                                       \
  }                                                                                         \
  void suite##_##name()

struct Pair {
  explicit Pair(const IbverbsConfig& config = {}, std::size_t size = 1 << 20)
      : a(size, config), b(size, config) {
    connect(a, b);
  }
  Side a;
  Side b;
};

#define EXPECT_COUNTERS(queue_pair, side, wqe, db, cq)                         \
  do {                                                                         \
    EXPECT_EQ((queue_pair).side##_wqe_idx(), static_cast<std::uint64_t>(wqe)); \
    EXPECT_EQ((queue_pair).side##_db_idx(), static_cast<std::uint64_t>(db));   \
    EXPECT_EQ((queue_pair).side##_cq_idx(), static_cast<std::uint64_t>(cq));   \
  } while (false)

}  // namespace qpair::test
