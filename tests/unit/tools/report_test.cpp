// What a demo says about its measurements, and the checksum that it trusts.

#include <gmock/gmock.h>

#include <string_view>

#include "tools/qpair/checksum.hpp"
#include "tools/qpair/demo_plan.hpp"
#include "tools/qpair/latencies.hpp"
#include "tools/qpair/progress.hpp"
#include "tools/qpair/table.hpp"

namespace qpair::tool {
namespace {

using std::chrono::nanoseconds;

TEST(Percentiles, AreSamplesThatWereMeasured) {
  Measurement measurement;
  for (std::uint64_t sample = 100; sample >= 1; --sample) measurement.samples.push_back(sample);
  EXPECT_EQ(measurement.percentile(0.5), nanoseconds(50));
  EXPECT_EQ(measurement.percentile(0.99), nanoseconds(99));
  EXPECT_EQ(measurement.percentile(1), nanoseconds(100));
  EXPECT_EQ(Measurement{}.percentile(0.5), nanoseconds(0));
}

TEST(Percentiles, OfASingleSampleAreThatSample) {
  Measurement measurement;
  measurement.samples = {7};
  EXPECT_EQ(measurement.percentile(0.5), nanoseconds(7));
  EXPECT_EQ(measurement.percentile(0.99), nanoseconds(7));
}

TEST(MergedMeasurements, CountTimeThatOverlapsOnce) {
  Measurement all;
  all.merge({.operation_size = 64, .bytes = 100, .operations = 1, .samples = {5}, .begin = 10, .end = 30});
  all.merge({.operation_size = 64, .bytes = 200, .operations = 2, .samples = {7}, .begin = 20, .end = 50});
  EXPECT_EQ(all.bytes, 300U);
  EXPECT_EQ(all.operations, 3U);
  EXPECT_EQ(all.elapsed(), nanoseconds(40));
  EXPECT_THAT(all.samples, testing::ElementsAre(5, 7));
}

TEST(TheTable, AlignsByWhatTheEyeSees) {
  Table table({"operation", "median"});
  table.add({"get", "12.3 µs"});
  table.add({"put_with_recv", "9 ms"});
  EXPECT_EQ(table.to_string(),
            "operation       median\n"
            "get            12.3 µs\n"
            "put_with_recv     9 ms\n");
}

TEST(TheProgressBar, StaysWithinItsFrame) {
  EXPECT_EQ(progress_line("get", 0, 1024),
            "get            [..............................]   0%  0 B of 1 KiB");
  EXPECT_EQ(progress_line("get", 2048, 1024),
            "get            [##############################] 100%  1 KiB of 1 KiB");
}

TEST(TheChecksum, IsThatOfZlibAndGzip) {
  constexpr std::string_view kText = "123456789";  // the check value of CRC-32/ISO-HDLC
  EXPECT_EQ(checksum(std::as_bytes(std::span(kText))), 0xcbf43926U);
  EXPECT_EQ(checksum({}), 0U);
}

// The server and a worker both follow the plan: nothing of it may overlap, for any size.
class Plan : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Plan, KeepsItsPartsApart) {
  const DemoPlan plan(GetParam());
  EXPECT_GE(plan.chunk(), 1U);
  EXPECT_LE(plan.chunk(), plan.size());
  EXPECT_GE(plan.batch_count(), 1U);
  EXPECT_LE(plan.batch_bytes(), plan.size());
  EXPECT_GE(plan.batch_offset(), plan.size());
  EXPECT_GE(plan.notice_offset(0), plan.batch_offset() + plan.batch_bytes());
  EXPECT_EQ(plan.notice_offset(0) % alignof(Notice), 0U);
  EXPECT_EQ(plan.notice_offset(kNoticeSlots), plan.desk_bytes());
}

INSTANTIATE_TEST_SUITE_P(AnySize, Plan,
                         testing::Values(1, 2, 63, 64, 65, 4096, 262143, 262144, 262145, (1U << 20) + 1,
                                         (std::uint64_t{1} << 33) + 5));

}  // namespace
}  // namespace qpair::tool
