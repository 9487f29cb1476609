// What people type and read.

#include "tools/qpair/units.hpp"

#include <gmock/gmock.h>

namespace qpair::tool {
namespace {

using std::chrono::nanoseconds;

TEST(Probability, IsAFractionOrAPercentage) {
  EXPECT_EQ(parse_probability("0.01"), 0.01);
  EXPECT_EQ(parse_probability("1%"), 0.01);
  EXPECT_EQ(parse_probability("0"), 0.0);
  EXPECT_EQ(parse_probability("100%"), 1.0);
}

TEST(Probability, IsNothingElse) {
  for (const char* text : {"", "x", "1.01", "101%", "-1%", "-0", "1 %", "1%%", "nan", "inf", "0.5x"}) {
    EXPECT_EQ(parse_probability(text), std::nullopt) << text;
  }
}

TEST(Duration, NeedsItsUnit) {
  EXPECT_EQ(parse_duration("800ns"), nanoseconds(800));
  EXPECT_EQ(parse_duration("1.5us"), nanoseconds(1500));
  EXPECT_EQ(parse_duration("1ms"), nanoseconds(1'000'000));
  EXPECT_EQ(parse_duration("10s"), nanoseconds(10'000'000'000));
  for (const char* text : {"", "5", "5 ms", "-1ms", "ms", "11s", "1m", "1e30s"}) {
    EXPECT_EQ(parse_duration(text), std::nullopt) << text;
  }
}

TEST(Size, CountsInPowersOf1024) {
  EXPECT_EQ(parse_size("4096"), 4096U);
  EXPECT_EQ(parse_size("64K"), 65536U);
  EXPECT_EQ(parse_size("1.5m"), 1572864U);
  EXPECT_EQ(parse_size("2GiB"), 2147483648U);
  EXPECT_EQ(parse_size("7B"), 7U);
}

TEST(Size, IsAWholeNumberOfBytes) {
  for (const char* text : {"", "-1", "1.5", "0.0001K", "1KB", "K", "1T2", "99999999999999999999"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << text;
  }
}

TEST(Formats, HaveThreeDigitsAndAUnit) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1U << 20), "1 MiB");
  EXPECT_EQ(format_size(18035507), "17.2 MiB");
  EXPECT_EQ(format_duration(nanoseconds(850)), "850 ns");
  EXPECT_EQ(format_duration(nanoseconds(12345)), "12.3 µs");
  EXPECT_EQ(format_duration(nanoseconds(1'500'000)), "1.50 ms");
  EXPECT_EQ(format_bandwidth(3'210'000'000, nanoseconds(1'000'000'000)), "3.21 GB/s");
  EXPECT_EQ(format_bandwidth(64, nanoseconds(1'000'000)), "64.0 kB/s");
  EXPECT_EQ(format_bandwidth(64, nanoseconds(0)), "-");
}

}  // namespace
}  // namespace qpair::tool
