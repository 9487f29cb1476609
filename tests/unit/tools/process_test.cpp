// Messages between a demo's processes, and words of a shell.

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string_view>

#include "tools/qpair/channel.hpp"
#include "tools/qpair/emulated_nic.hpp"
#include "tools/qpair/failure.hpp"

namespace qpair::tool {
namespace {

class Channels : public testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    here = Channel(ends[0]);
    there = Channel(ends[1]);
  }

  void write_raw(std::string_view bytes) {
    ASSERT_EQ(::write(there.fd(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }

  Channel here;
  Channel there;
};

TEST_F(Channels, MessagesArriveOneByOneAndInOrder) {
  there.send({{"event", "ready"}});
  there.send({{"event", "progress"}, {"bytes", 7}});
  EXPECT_EQ(here.receive()->at("event"), "ready");
  EXPECT_EQ(here.receive()->at("bytes"), 7);
  EXPECT_EQ(here.receive(), std::nullopt);
  EXPECT_FALSE(here.ended());
}

TEST_F(Channels, HalfALineIsNotYetAMessage) {
  write_raw("{\"event\":");
  EXPECT_EQ(here.receive(), std::nullopt);
  write_raw("\"ready\"}\n");
  EXPECT_EQ(here.receive()->at("event"), "ready");
}

TEST_F(Channels, WhatWasSaidBeforeTheEndIsStillHeard) {
  there.send({{"event", "failed"}});
  { const Channel closed = std::move(there); }
  EXPECT_EQ(here.receive()->at("event"), "failed");
}

TEST_F(Channels, AnEndIsAFailureForWhoWaits) {
  ::shutdown(there.fd(), SHUT_RDWR);
  EXPECT_THROW((void)here.wait(std::chrono::seconds(10), "word"), Failure);
  EXPECT_TRUE(here.ended());
}

TEST_F(Channels, WaitingEndsWithItsTime) {
  try {
    (void)here.wait(std::chrono::milliseconds(1), "word to begin");
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_THAT(failure.what(), testing::HasSubstr("word to begin"));
  }
}

TEST_F(Channels, GarbageIsRefused) {
  write_raw("not json\n");
  EXPECT_THROW((void)here.receive(), Failure);
  write_raw("[1]\n");
  EXPECT_THROW((void)here.receive(), Failure);
}

TEST(ShellQuoting, SurvivesQuotesAndSpaces) {
  EXPECT_EQ(shell_quoted("plain"), "'plain'");
  EXPECT_EQ(shell_quoted("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_quoted(""), "''");
}

}  // namespace
}  // namespace qpair::tool
