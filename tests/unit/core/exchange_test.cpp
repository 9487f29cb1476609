#include "qpair/exchange.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <future>
#include <thread>

namespace qpair {
namespace {

using std::chrono::milliseconds;

class ExchangeTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets_.data()), 0); }
  void TearDown() override {
    for (const int fd : sockets_) {
      if (fd >= 0) close(fd);
    }
  }
  int mine() const { return sockets_[0]; }
  int theirs() const { return sockets_[1]; }
  void peer_sends(std::string_view bytes) const {
    ASSERT_EQ(write(theirs(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  void peer_closes() {
    close(sockets_[1]);
    sockets_[1] = -1;
  }

  std::array<int, 2> sockets_{-1, -1};
};

RdmaQpInfo info_of(std::uint32_t number) {
  RdmaQpInfo info;
  info.qp_num = number;
  info.gid = *Gid::parse("10.0.0.1");
  return info;
}

// A header as the protocol has it, written by hand.
std::string header(std::string_view magic, std::uint8_t version, std::uint8_t kind, std::uint32_t length) {
  std::string bytes(magic);
  bytes += {'\0', static_cast<char>(version), '\0', static_cast<char>(kind)};
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(length >> shift);
  return bytes + std::string(4, '\0');
}

TEST_F(ExchangeTest, BothSidesGetTheOthersQueuePair) {
  std::future<Result<RdmaQpInfo>> other =
      std::async(std::launch::async, [&] { return exchange_qp_info(theirs(), info_of(2)); });
  const Result<RdmaQpInfo> got = exchange_qp_info(mine(), info_of(1));
  ASSERT_TRUE(got) << got.error();
  EXPECT_EQ(*got, info_of(2));
  const Result<RdmaQpInfo> other_got = other.get();
  ASSERT_TRUE(other_got);
  EXPECT_EQ(*other_got, info_of(1));
}

TEST_F(ExchangeTest, ExchangesFollowOneAnotherOnOneSocket) {
  std::future<bool> other = std::async(std::launch::async, [&] {
    for (std::uint32_t i = 0; i != 10; ++i) {
      if (exchange_qp_info(theirs(), info_of(i)).value().qp_num != i + 100) return false;
      if (exchange_value(theirs(), RdmaBuffer{i, 0, 0, 0, 0}).value().mr_id != i + 100) return false;
    }
    return true;
  });
  for (std::uint32_t i = 0; i != 10; ++i) {
    ASSERT_EQ(exchange_qp_info(mine(), info_of(i + 100)).value().qp_num, i);
    ASSERT_EQ(exchange_value(mine(), RdmaBuffer{i + 100, 0, 0, 0, 0}).value().mr_id, i);
  }
  EXPECT_TRUE(other.get());
}

TEST_F(ExchangeTest, TwoLargeMessagesDoNotBlockEachOther) {
  const std::string large(kMaxExchangeBytes, 'x');
  std::future<Result<std::string>> other =
      std::async(std::launch::async, [&] { return exchange(theirs(), large + ""); });
  const Result<std::string> got = exchange(mine(), large);
  ASSERT_TRUE(got) << got.error();
  EXPECT_EQ(*got, large);
  EXPECT_TRUE(other.get());
}

TEST_F(ExchangeTest, EmptyMessagesAreMessages) {
  std::future<Result<std::string>> other =
      std::async(std::launch::async, [&] { return exchange(theirs(), ""); });
  const Result<std::string> got = exchange(mine(), "");
  ASSERT_TRUE(got) << got.error();
  EXPECT_EQ(*got, "");
  EXPECT_TRUE(other.get());
}

TEST_F(ExchangeTest, SilentPeerIsAnErrorWithinTheTimeout) {
  const Result<RdmaQpInfo> got = exchange_qp_info(mine(), info_of(1), milliseconds(20));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), ErrorCode::transport_retry_exceeded);
  EXPECT_NE(got.error().message().find("within 20 ms"), std::string::npos) << got.error();
}

TEST_F(ExchangeTest, PeerThatStopsInTheMiddleIsAnErrorWithinTheTimeout) {
  peer_sends(header("QPXC", 1, 2, 100) + "only this");
  EXPECT_EQ(exchange_qp_info(mine(), info_of(1), milliseconds(20)).error().code(),
            ErrorCode::transport_retry_exceeded);
}

TEST_F(ExchangeTest, TimeoutOfZeroStillTakesWhatIsThere) {
  EXPECT_FALSE(exchange(mine(), "hello", milliseconds(0)));
  // The message was sent all the same; the other side finds it without waiting.
  const Result<std::string> got = exchange(theirs(), "", milliseconds(0));
  ASSERT_TRUE(got) << got.error();
  EXPECT_EQ(*got, "hello");
}

TEST_F(ExchangeTest, PeerThatClosesIsAnError) {
  peer_closes();
  const Result<RdmaQpInfo> got = exchange_qp_info(mine(), info_of(1));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), ErrorCode::system);
}

TEST_F(ExchangeTest, BytesOfAnotherProtocolAreRefused) {
  peer_sends("HTTP/1.1 400 Bad Request\r\n");
  const Result<RdmaQpInfo> got = exchange_qp_info(mine(), info_of(1));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), ErrorCode::corrupt_message);
  EXPECT_NE(got.error().message().find("not a message of qpair"), std::string::npos);
}

TEST_F(ExchangeTest, AnotherVersionIsRefusedByName) {
  peer_sends(header("QPXC", 9, 2, 0));
  const Result<RdmaQpInfo> got = exchange_qp_info(mine(), info_of(1));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), ErrorCode::corrupt_message);
  EXPECT_NE(got.error().message().find("version 9"), std::string::npos);
}

TEST_F(ExchangeTest, OversizedMessageIsRefusedBeforeItIsRead) {
  peer_sends(header("QPXC", 1, 2, 0xffffffff));
  EXPECT_EQ(exchange_qp_info(mine(), info_of(1)).error().code(), ErrorCode::corrupt_message);
}

TEST_F(ExchangeTest, OversizedMessageOfOurOwnIsNotSent) {
  EXPECT_EQ(exchange(mine(), std::string(kMaxExchangeBytes + 1, 'x')).error().code(),
            ErrorCode::invalid_argument);
}

TEST_F(ExchangeTest, GarbledBodyIsRefused) {
  peer_sends(header("QPXC", 1, 1, 4) + "abcd");  // the check sum is not that of "abcd"
  const Result<std::string> got = exchange(mine(), "");
  ASSERT_FALSE(got);
  EXPECT_NE(got.error().message().find("garbled"), std::string::npos);
}

TEST_F(ExchangeTest, MessageOfAnotherKindIsRefused) {
  std::future<Result<std::string>> other =
      std::async(std::launch::async, [&] { return exchange(theirs(), "bytes"); });
  EXPECT_EQ(exchange_qp_info(mine(), info_of(1)).error().code(), ErrorCode::corrupt_message);
  EXPECT_EQ(other.get().error().code(), ErrorCode::corrupt_message);
}

TEST(Exchange, DescriptorThatIsNoneIsAnError) {
  EXPECT_EQ(exchange(-1, "x", milliseconds(10)).error().system_errno(), EBADF);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_EQ(exchange(pipe_ends[1], "x", milliseconds(10)).error().code(), ErrorCode::system);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace qpair
