// One queue pair used by many threads, on the emulated NIC.
#include <atomic>
#include <thread>

#include "tests/integration/core_fixture.hpp"

namespace qpair::test {
namespace {

IbverbsConfig many() {
  IbverbsConfig config;
  config.threads = Threads::Many;
  config.max_send_wr = 64;
  return config;
}

TEST(Threads, ManyNeedAnMlx5Device) {
  const Side ordinary(4096);
  if (is_mlx5(ordinary.queue_pair)) GTEST_SKIP() << "this is one";
  const Result<RdmaQueuePair> refused = RdmaQueuePair::create(shared_domain(), many());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::unsupported);
}

// Each thread writes its own part of the peer's memory, one word after the other, while two threads poll.
CONNECTED_TEST(Threads, WriteTogetherAndEveryByteArrives) {
  if (!is_mlx5(Side(4096).queue_pair)) GTEST_SKIP() << "only mlx5 devices have such queue pairs";
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP()
      << "that a place in the ring is free again comes from the NIC, whose accesses ThreadSanitizer does not "
         "see; mlx5_many_test.cpp runs threads under it against a NIC of plain arrays";
#endif
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kWords = 2000;
  constexpr std::uint64_t kPart = kWords * 8;
  Pair pair(many(), kThreads * kPart);
  pair.a.fill(0, kThreads * kPart, 3);
  RdmaQueuePair& queue_pair = pair.a.queue_pair;
  std::atomic<std::uint64_t> completed = 0;
  std::atomic<std::uint64_t> failed = 0;
  std::atomic<bool> stop = false;
  const auto poll = [&] {
    IbvWc wcs[16];
    const std::size_t count = MUST(queue_pair.poll_completions(PollTarget::Send, wcs));
    for (std::size_t i = 0; i != count; ++i) failed += wcs[i].is_valid() ? 0 : 1;
    completed += count;
    if (count == 0) std::this_thread::yield();
  };
  const auto write = [&](std::uint64_t thread) {
    for (std::uint64_t word = 0; word != kWords && failed == 0;) {
      const std::uint64_t offset = thread * kPart + word * 8;
      // Some wait for the doorbell of another, whosever it is.
      const RdmaBuffer from = pair.a.at(offset, 8);
      const RdmaBuffer to = pair.b.at(offset, 8);
      const Result<WrId> id = word % 3 == 0 ? queue_pair.enqueue_put(from, to) : queue_pair.put(from, to);
      if (id) {
        ++word;
        continue;
      }
      if (id.error().code() != ErrorCode::queue_full) ++failed;
      MUST(queue_pair.ring_doorbell());
      poll();
    }
    MUST(queue_pair.ring_doorbell());
  };
  std::vector<std::thread> pollers;
  for (int i = 0; i != 2; ++i)
    pollers.emplace_back([&] {
      while (!stop) poll();
    });
  std::vector<std::thread> writers;
  for (std::uint64_t i = 0; i != kThreads; ++i) writers.emplace_back(write, i);
  for (std::thread& writer : writers) writer.join();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (completed != kThreads * kWords && failed == 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  stop = true;
  for (std::thread& poller : pollers) poller.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(completed, kThreads * kWords);
  EXPECT_TRUE(pair.a.same(pair.b, 0, 0, kThreads * kPart));
  EXPECT_COUNTERS(queue_pair, send, kThreads * kWords, kThreads * kWords, kThreads * kWords);
}

CONNECTED_TEST(Threads, AQueuePairForManyConnectsAgainAfterAFailure) {
  if (!is_mlx5(Side(4096).queue_pair)) GTEST_SKIP() << "only mlx5 devices have such queue pairs";
  Pair pair(many());
  RdmaBuffer wrong = pair.b.at(0, 8);
  wrong.rkey = 0;
  MUST(pair.a.queue_pair.put(pair.a.at(0, 8), wrong));
  EXPECT_EQ(wait_for(pair.a.queue_pair, PollTarget::Send).error()->code(), ErrorCode::remote_access);
  EXPECT_EQ(pair.a.queue_pair.get_doorbell().error().code(), ErrorCode::unsupported);
  MUST(pair.a.queue_pair.reset());
  MUST(pair.b.queue_pair.reset());
  connect(pair.a, pair.b);
  MUST(pair.b.queue_pair.recv(pair.b.at(0, 8)));
  MUST(pair.a.queue_pair.put_with_recv(pair.a.at(0, 8), pair.b.at(0, 8), 7));
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  EXPECT_EQ(wait_for(pair.b.queue_pair, PollTarget::Recv).imm_data, 7);
}

}  // namespace
}  // namespace qpair::test
