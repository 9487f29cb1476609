#include "softnic/roce/psn.hpp"

#include <gtest/gtest.h>

namespace qpair::softnic::roce {
namespace {

TEST(Psn, WrapsAtTwentyFourBits) {
  EXPECT_EQ(Psn(0xffffff) + 1, Psn(0));
  EXPECT_EQ(Psn(0) - 1, Psn(0xffffff));
  EXPECT_EQ(Psn(0x5000001), Psn(1)) << "higher bits of an attribute do not count";
  Psn psn(0xfffffe);
  ++psn;
  psn += 3;
  EXPECT_EQ(psn.value(), 2U);
}

TEST(Psn, LaterIsTheShorterWayAround) {
  EXPECT_TRUE(Psn(5).is_before(Psn(6)));
  EXPECT_FALSE(Psn(5).is_before(Psn(5)));
  EXPECT_TRUE(Psn(0xfffff0).is_before(Psn(3)));
  EXPECT_FALSE(Psn(3).is_before(Psn(0xfffff0)));
  EXPECT_EQ(Psn::distance(Psn(0xfffff0), Psn(0x10)), 0x20);
  EXPECT_EQ(Psn::distance(Psn(0x10), Psn(0xfffff0)), -0x20);
}

TEST(Psn, HalfwayAroundCountsAsEarlier) {
  EXPECT_EQ(Psn::distance(Psn(0), Psn(0x7fffff)), Psn::kMaxSpan);
  EXPECT_EQ(Psn::distance(Psn(0), Psn(0x800000)), -0x800000);
  EXPECT_EQ(Psn::distance(Psn(0x900000), Psn(0x100000)), -0x800000);
}

TEST(Psn, RangesMayWrap) {
  EXPECT_TRUE(Psn(0xffffff).is_within(Psn(0xfffffe), Psn(2)));
  EXPECT_TRUE(Psn(1).is_within(Psn(0xfffffe), Psn(2)));
  EXPECT_FALSE(Psn(2).is_within(Psn(0xfffffe), Psn(2)));
  EXPECT_FALSE(Psn(7).is_within(Psn(7), Psn(7))) << "an empty range holds nothing";
}

}  // namespace
}  // namespace qpair::softnic::roce
