// What a UDP socket does not show, seen on datagrams of this machine's own kernel.
#include "softnic/wire/header_watch.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/wire/links.hpp"

namespace qpair::softnic::wire {
namespace {

// A sender whose kernel numbers its datagrams, as rdma_rxe does: those of a connected socket count up, Don't
// Fragment or not (kernel include/net/ip.h, ip_select_ident_segs).
class NumberedSender {
 public:
  explicit NumberedSender(const Endpoint& destination) : fd_(::socket(AF_INET, SOCK_DGRAM, 0)) {
    sockaddr_storage address{};
    const socklen_t length = to_sockaddr(destination, 0, address);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), length), 0);
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&own), &size), 0);
    source = from_sockaddr(own);
  }
  NumberedSender(const NumberedSender&) = delete;
  NumberedSender& operator=(const NumberedSender&) = delete;
  ~NumberedSender() { ::close(fd_); }

  void send(const Bytes& bytes) const { ::send(fd_, bytes.data(), bytes.size(), 0); }

  Endpoint source;

 private:
  int fd_;
};

class HeaderWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    // An address of this process's own: tests run side by side.
    const auto number = static_cast<unsigned>(::getpid());
    local_ = endpoint(fmt::format("127.72.{}.{}", (number >> 8) & 0xff, 1 + number % 254).c_str());
    receiver_ = ::socket(AF_INET, SOCK_DGRAM, 0);  // so that nobody is told that the port is closed
    sockaddr_storage address{};
    ASSERT_EQ(::bind(receiver_, reinterpret_cast<const sockaddr*>(&address), to_sockaddr(local_, 0, address)),
              0);
    watch_ = HeaderWatch::open(local_, true);
    if (!watch_) GTEST_SKIP() << "no raw socket may be opened here";
  }
  void TearDown() override { ::close(receiver_); }

  std::vector<std::uint16_t> seen(const Endpoint& source, const Bytes& bytes) {
    const auto found = watch_->identifications(source, bytes);
    return {found.begin(), found.end()};
  }

  Endpoint local_;
  int receiver_ = -1;
  std::optional<HeaderWatch> watch_;
};

TEST_F(HeaderWatchTest, ShowsEachDatagramsOwnNumber) {
  const NumberedSender sender(local_);
  for (std::uint32_t number = 0; number != 200; ++number) sender.send(pattern(100, number));
  const std::vector<std::uint16_t> first = seen(sender.source, pattern(100, 0));
  ASSERT_EQ(first.size(), 1U);
  for (std::uint32_t number = 1; number != 200; ++number) {
    EXPECT_EQ(seen(sender.source, pattern(100, number)),
              std::vector{static_cast<std::uint16_t>(first[0] + number)});
  }
  EXPECT_TRUE(seen(sender.source, pattern(100, 200)).empty()) << "it was never sent";
}

TEST_F(HeaderWatchTest, TellsSourcesAndLengthsApart) {
  const NumberedSender one(local_);
  const NumberedSender two(local_);
  one.send(pattern(64, 1));
  EXPECT_TRUE(seen(two.source, pattern(64, 1)).empty());
  Bytes longer = pattern(64, 1);
  longer.resize(68);
  EXPECT_TRUE(seen(one.source, longer).empty());
  EXPECT_EQ(seen(one.source, pattern(64, 1)).size(), 1U);
  EXPECT_TRUE(seen(one.source, pattern(64, 1)).empty()) << "each is there once";
}

// The UDP socket may have lost any of them.
TEST_F(HeaderWatchTest, OfRepeatedDatagramsAnyMayBeMeant) {
  const NumberedSender sender(local_);
  for (int i = 0; i != 3; ++i) sender.send(pattern(64, 1));
  EXPECT_EQ(seen(sender.source, pattern(64, 1)).size(), 3U);
  EXPECT_EQ(seen(sender.source, pattern(64, 1)).size(), 2U);
}

TEST_F(HeaderWatchTest, LostDatagramsAreForgottenInTime) {
  const NumberedSender sender(local_);
  for (std::uint32_t number = 0; number != 5000; ++number) {
    sender.send(pattern(64, number));
    if (number % 2 == 0) {
      ASSERT_EQ(seen(sender.source, pattern(64, number)).size(), 1U) << number;
    }
  }
  EXPECT_TRUE(seen(sender.source, pattern(64, 1)).empty());
}

TEST_F(HeaderWatchTest, DatagramsTooShortForAHeaderHaveNone) {
  const NumberedSender sender(local_);
  sender.send(pattern(8, 1));
  EXPECT_TRUE(seen(sender.source, pattern(8, 1)).empty());
}

TEST(HeaderWatch, IsForIpv4) {
  EXPECT_FALSE(HeaderWatch::open(endpoint("::1")));
}

}  // namespace
}  // namespace qpair::softnic::wire
