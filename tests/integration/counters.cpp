// The device's counters in sysfs, read as monitoring reads them, count what the program did.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "tests/integration/core_fixture.hpp"

namespace qpair::test {
namespace {

const std::string kPort = "/sys/class/infiniband/mlx5_0/ports/1";

std::uint64_t read_counter(const std::string& name) {
  std::ifstream file(kPort + "/" + name);
  std::uint64_t value = 0;
  EXPECT_TRUE(file >> value) << name;
  return value;
}

// How much a counter has grown since this was made.
class Since {
 public:
  explicit Since(std::string name) : name_(std::move(name)), before_(read_counter(name_)) {}
  std::uint64_t count() const { return read_counter(name_) - before_; }

 private:
  std::string name_;
  std::uint64_t before_;
};

TEST(Counters, WritesReadsAndAtomicsAreCountedWhereTheyArrive) {
  Pair pair;
  const Since writes("hw_counters/rx_write_requests");
  const Since reads("hw_counters/rx_read_requests");
  const Since atomics("hw_counters/rx_atomic_requests");
  for (int i = 0; i < 100; ++i) {
    MUST(pair.a.queue_pair.put(pair.a.at(0, 8192), pair.b.at(0, 8192)));
    wait_for(pair.a.queue_pair, PollTarget::Send);
  }
  for (int i = 0; i < 7; ++i) {
    MUST(pair.a.queue_pair.get(pair.a.at(0, 100), pair.b.at(0, 100)));
    wait_for(pair.a.queue_pair, PollTarget::Send);
  }
  EXPECT_EQ(writes.count(), 100U);
  EXPECT_EQ(reads.count(), 7U);
  EXPECT_EQ(atomics.count(), 0U);
}

// 100 writes of 8192 bytes are 200 packets of path MTU 4096, and 100 acknowledgments at least come back.
TEST(Counters, ThePortCountsPacketsAndFourByteWords) {
  Pair pair;
  const Since sent("counters/port_xmit_packets");
  const Since unicast("counters/unicast_xmit_packets");
  const Since received("counters/port_rcv_packets");
  const Since sent_words("counters/port_xmit_data");
  const Since received_words("counters/port_rcv_data");
  for (int i = 0; i < 100; ++i) {
    MUST(pair.a.queue_pair.put(pair.a.at(0, 8192), pair.b.at(0, 8192)));
    wait_for(pair.a.queue_pair, PollTarget::Send);
  }
  EXPECT_GE(sent.count(), 300U);
  EXPECT_GE(unicast.count(), 300U);
  EXPECT_GE(received.count(), 300U);
  // BTH, payload and CRC; the first packet of each has a RETH, an acknowledgment an AETH.
  constexpr std::uint64_t kWords = 100 * ((8192 + 2 * 16 + 16) + (16 + 4)) / 4;
  EXPECT_GE(sent_words.count(), kWords);
  EXPECT_GE(received_words.count(), kWords);
  EXPECT_LT(sent_words.count(), 2 * kWords);
  EXPECT_EQ(read_counter("counters/multicast_xmit_packets"), 0U);
}

TEST(Counters, ARefusedWriteCountsOnBothSides) {
  Pair pair;
  const Since requester("hw_counters/req_remote_access_errors");
  const Since responder("hw_counters/resp_remote_access_errors");
  const Since errors("hw_counters/req_cqe_error");
  const Since flushed("hw_counters/req_cqe_flush_error");
  RdmaBuffer wrong = pair.b.at(0, 64);
  wrong.rkey ^= 0xff00;
  MUST(pair.a.queue_pair.put(pair.a.at(0, 64), wrong));
  EXPECT_EQ(wait_for(pair.a.queue_pair, PollTarget::Send).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(requester.count(), 1U);
  EXPECT_EQ(responder.count(), 1U);
  EXPECT_EQ(errors.count(), 1U);
  EXPECT_EQ(flushed.count(), 0U);
  MUST(pair.a.queue_pair.put(pair.a.at(0, 64), pair.b.at(0, 64)));
  EXPECT_EQ(wait_for(pair.a.queue_pair, PollTarget::Send).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(errors.count(), 2U) << "a flushed work request is an error too";
  EXPECT_EQ(flushed.count(), 1U);
}

TEST(Counters, AMessageWithoutAReceiveIsOutOfBuffer) {
  Pair pair;
  const Since out_of_buffer("hw_counters/out_of_buffer");
  const Since naks("hw_counters/rnr_nak_retry_err");
  MUST(pair.a.queue_pair.put_with_recv(pair.a.at(0, 64), pair.b.at(0, 64), 7));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (naks.count() == 0 && std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_GE(naks.count(), 1U);
  EXPECT_GE(out_of_buffer.count(), 1U);
  MUST(pair.b.queue_pair.recv(pair.b.at(0, 0)));
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
}

TEST(Counters, EveryWayToOpenAFileShowsTheValueOfThatMoment) {
  Pair pair;
  const auto put = [&pair] {
    MUST(pair.a.queue_pair.put(pair.a.at(0, 64), pair.b.at(0, 64)));
    wait_for(pair.a.queue_pair, PollTarget::Send);
  };
  const std::string path = kPort + "/hw_counters/rx_write_requests";
  const std::uint64_t before = read_counter("hw_counters/rx_write_requests");
  char text[32] = {};

  put();
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
  ASSERT_GT(read(fd, text, sizeof text - 1), 1);
  EXPECT_EQ(text, std::to_string(before + 1) + "\n");
  EXPECT_EQ(read(fd, text, sizeof text), 0);
  EXPECT_EQ(write(fd, "0", 1), -1);

  put();
  ASSERT_GT(pread(fd, text, sizeof text - 1, 0), 1);
  EXPECT_EQ(text, std::to_string(before + 1) + "\n") << "the value of when it was opened";
  close(fd);

  const int folder = open((kPort + "/hw_counters").c_str(), O_RDONLY | O_DIRECTORY);
  const int relative = openat(folder, "rx_write_requests", O_RDONLY);
  ASSERT_GT(read(relative, text, sizeof text - 1), 1);
  EXPECT_EQ(text, std::to_string(before + 2) + "\n");
  close(relative);
  close(folder);

  put();
  FILE* const stream = fopen(path.c_str(), "r");
  ASSERT_NE(stream, nullptr);
  unsigned long long value = 0;
  EXPECT_EQ(fscanf(stream, "%llu", &value), 1);
  EXPECT_EQ(value, before + 3);
  fclose(stream);
}

}  // namespace
}  // namespace qpair::test
