// The longest messages: 1 GiB is what a port takes (max_msg_sz), more is split.

#include "tests/integration/core_fixture.hpp"

namespace qpair::test {
namespace {

constexpr std::uint64_t kLongest = std::uint64_t{1} << 30;

void fill_words(const Side& side) {
  auto* words = side.memory.data<std::uint64_t>();
  for (std::uint64_t i = 0; i != side.memory.size() / sizeof *words; ++i) words[i] = i * 0x9e3779b97f4a7c15;
}

TEST(LargeMessages, AGibibyteIsOneMessageBothWays) {
  Pair pair({}, kLongest);
  fill_words(pair.a);
  MUST(pair.a.queue_pair.put(pair.a.memory.buffer(), pair.b.memory.buffer()));
  const IbvWc written = wait_for(pair.a.queue_pair, PollTarget::Send);
  EXPECT_TRUE(written.is_valid()) << to_string(written);
  EXPECT_COUNTERS(pair.a.queue_pair, send, 1, 1, 1);
  EXPECT_TRUE(pair.a.same(pair.b, 0, 0, kLongest));

  std::memset(pair.a.memory.data(), 0, kLongest);
  MUST(pair.a.queue_pair.get(pair.a.memory.buffer(), pair.b.memory.buffer()));
  const IbvWc read = wait_for(pair.a.queue_pair, PollTarget::Send);
  EXPECT_TRUE(read.is_valid()) << to_string(read);
  EXPECT_TRUE(pair.a.same(pair.b, 0, 0, kLongest));
}

TEST(LargeMessages, MoreIsSplitAndCompletesOnce) {
  constexpr std::uint64_t kSize = kLongest + 4097;
  Pair pair({}, kSize);
  fill_words(pair.a);
  MUST(pair.b.queue_pair.recv(RdmaBuffer{}));
  const WrId id = MUST(pair.a.queue_pair.put_with_recv(pair.a.memory.buffer(), pair.b.memory.buffer(), 7));
  const IbvWc sent = wait_for(pair.a.queue_pair, PollTarget::Send);
  EXPECT_TRUE(sent.is_valid()) << to_string(sent);
  EXPECT_EQ(sent.wr_id, id);
  EXPECT_COUNTERS(pair.a.queue_pair, send, 2, 2, 2);
  const IbvWc received = wait_for(pair.b.queue_pair, PollTarget::Recv);
  EXPECT_EQ(received.imm_data, 7U);
  EXPECT_TRUE(pair.a.same(pair.b, 0, 0, kSize));
  EXPECT_FALSE(MUST(pair.a.queue_pair.poll_send_completion())) << "one completion for the whole";
}

}  // namespace
}  // namespace qpair::test
