// What the engine learns about waiting. Time is a number here.

#include "softnic/nic/patience.hpp"

#include <gtest/gtest.h>

namespace qpair::softnic::nic {
namespace {

using namespace std::chrono_literals;

class PatienceTest : public testing::Test {
 protected:
  static Chip::Work packets() { return {.packets = true}; }
  static Chip::Work doorbells() { return {.doorbells = true}; }
  static Chip::Work sent() { return {.doorbells = true, .awaiting = true}; }
  // Looks for work until it would rest; how long that took.
  std::chrono::nanoseconds spin() {
    const auto start = now;
    while (!patience.is_over(now)) now += 100ns;
    return now - start;
  }
  Patience patience{false};
  Patience::Clock::time_point now{};
};

TEST_F(PatienceTest, SpinningThatFindsNothingIsGivenUp) {
  for (int i = 0; i < 10; ++i) {
    patience.worked(packets(), now);
    spin();
    patience.rested();
    now += 50us;
  }
  patience.worked(packets(), now);
  EXPECT_EQ(spin(), 0ns);
}

TEST_F(PatienceTest, SpinningThatFindsDoorbellsIsKept) {
  for (int i = 0; i < 100; ++i) {
    patience.worked(packets(), now);
    EXPECT_FALSE(patience.is_over(now));
    now += 2us;
    EXPECT_FALSE(patience.is_over(now));
    patience.worked(doorbells(), now);
  }
  patience.worked(packets(), now);
  EXPECT_EQ(spin(), kLongestSpin);
}

TEST_F(PatienceTest, WhatWasGivenUpIsTriedAgainOnceInAWhile) {
  bool tried = false;
  for (unsigned i = 0; i < 3 * kSpinAgainAfter; ++i) {
    patience.worked(packets(), now);
    tried |= i > 20 && spin() > 0ns;
    patience.rested();
    now += 50us;
  }
  EXPECT_TRUE(tried);
}

TEST_F(PatienceTest, DoorbellsMayWaitForAnAnswerButNotForALateOne) {
  patience.worked(sent(), now);
  EXPECT_TRUE(patience.awaits_packet());
  spin();
  patience.rested();
  now += 30us;  // the answer was quick
  patience.worked(sent(), now);
  EXPECT_TRUE(patience.awaits_packet());
  spin();
  patience.rested();
  now += 5ms;  // a doorbell had to wait
  patience.worked(sent(), now);
  EXPECT_FALSE(patience.awaits_packet());
}

}  // namespace
}  // namespace qpair::softnic::nic
