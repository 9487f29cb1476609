// What `qpair top` says about two readings of the counters.

#include "tools/qpair/top_report.hpp"

#include <gmock/gmock.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace qpair::tool {
namespace {

using namespace std::chrono_literals;
using softnic::observe::Counters;
using softnic::observe::NicReading;
using testing::HasSubstr;
using testing::Not;

const std::chrono::system_clock::time_point kStart{1'000'000s};

NicReading nic(pid_t pid, std::uint64_t wqes, std::vector<std::uint32_t> qpns = {}) {
  NicReading reading;
  reading.pid = pid;
  reading.process = "ib_write_bw";
  reading.inode = static_cast<std::uint64_t>(pid);
  reading.address = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 71, 1, 2}, 4791};
  reading.queue_pairs = qpns.size();
  reading.totals.send_wqes = wqes;
  reading.totals.bytes_sent = 1000 * wqes;
  for (const std::uint32_t qpn : qpns) reading.listed.push_back({{qpn, 0x99, IBV_QPT_RC, IBV_QPS_RTS}, {}});
  return reading;
}

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

TEST(TopReport, RatesAreOfTheTimeBetween) {
  const auto reports = compare({kStart, {nic(7, 100)}}, {kStart + 2s, {nic(7, 300)}});
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_DOUBLE_EQ(reports[0].rates.wqes, 100);
  EXPECT_DOUBLE_EQ(reports[0].rates.bytes_sent, 100'000);
  EXPECT_DOUBLE_EQ(reports[0].rates.packets(), 0);
}

TEST(TopReport, ANewNicIsComparedWithZeroSinceItWasMade) {
  NicReading young = nic(7, 50);
  young.started =
      static_cast<std::uint64_t>(std::chrono::nanoseconds((kStart + 1s).time_since_epoch()).count());
  const auto reports = compare({kStart, {}}, {kStart + 2s, {young}});
  EXPECT_DOUBLE_EQ(reports.at(0).rates.wqes, 50);
}

TEST(TopReport, TheSameProcessNumberWithAnotherNicIsAnother) {
  NicReading other = nic(7, 10);
  other.inode = 8;
  EXPECT_DOUBLE_EQ(compare({kStart, {nic(7, 1000)}}, {kStart + 1s, {other}}).at(0).rates.wqes, 10);
}

TEST(TopReport, TheBusiestQueuePairComesFirst) {
  NicReading before = nic(7, 0, {1, 2, 3});
  NicReading now = before;
  now.listed[1].counters.packets_sent = 5;
  now.listed[2].counters.packets_received = 9;
  const auto reports = compare({kStart, {before}}, {kStart + 1s, {now}});
  EXPECT_EQ(reports[0].queue_pairs[0].reading.who.qpn, 3U);
  EXPECT_EQ(reports[0].queue_pairs[1].reading.who.qpn, 2U);
  EXPECT_EQ(reports[0].queue_pairs[2].reading.who.qpn, 1U);
}

TEST(TopReport, TheTableNamesProcessAddressAndPeers) {
  const std::string text = top_text(compare({kStart, {}}, {kStart + 1s, {nic(4711, 3, {0x12})}}), 50);
  EXPECT_THAT(text, HasSubstr("4711 ib_write_bw 127.71.1.2"));
  EXPECT_THAT(text, HasSubstr("RC 0x12 → 0x99 RTS"));
  EXPECT_THAT(text, Not(HasSubstr("more")));
}

TEST(TopReport, WhatDoesNotFitIsSaid) {
  std::vector<std::uint32_t> many(100);
  for (std::uint32_t i = 0; i < many.size(); ++i) many[i] = i + 1;
  const auto reports = compare({kStart, {}}, {kStart + 1s, {nic(1, 0, many), nic(2, 0, many)}});
  for (const std::size_t lines : {2UL, 3UL, 8UL, 24UL, 250UL}) {
    const std::string text = top_text(reports, lines);
    EXPECT_LE(lines_of(text), std::max(lines, 3UL)) << text;
    if (lines == 24) {
      EXPECT_THAT(text, HasSubstr("and 91 more"));
    }
    if (lines == 2) {
      EXPECT_THAT(text, HasSubstr("more NIC"));
    }
    if (lines == 250) {
      EXPECT_THAT(text, Not(HasSubstr("more")));
    }
  }
}

TEST(TopReport, NoNicIsASentence) {
  EXPECT_THAT(top_text({}, 24), HasSubstr("No emulated NIC is running"));
}

TEST(TopReport, JsonHasEverything) {
  NicReading reading = nic(7, 20, {0x12});
  reading.unlisted_queue_pairs = 4;
  reading.totals.rnr_nak_retry_err = 3;
  const auto report = top_json(compare({kStart, {}}, {kStart + 1s, {reading}}), 1s);
  EXPECT_EQ(report["interval_seconds"], 1.0);
  const auto& one = report["nics"][0];
  EXPECT_EQ(one["pid"], 7);
  EXPECT_EQ(one["process"], "ib_write_bw");
  EXPECT_EQ(one["address"], "127.71.1.2");
  EXPECT_EQ(one["unlisted_queue_pairs"], 4);
  EXPECT_EQ(one["counters"]["rnr_nak_retry_err"], 3);
  EXPECT_EQ(one["counters"]["send_wqes"], 20);
  EXPECT_EQ(one["listed"][0]["qpn"], 0x12);
  EXPECT_EQ(one["listed"][0]["type"], "RC");
  EXPECT_EQ(one["listed"][0]["state"], "RTS");
  EXPECT_EQ(one["listed"][0]["peer_qpn"], 0x99);
}

TEST(ShortNumber, HasThreeDigitsAndAUnit) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(0.4), "0");
  EXPECT_EQ(short_number(999), "999");
  EXPECT_EQ(short_number(1000), "1.00k");
  EXPECT_EQ(short_number(99'950), "100k");
  EXPECT_EQ(short_number(12'345), "12.3k");
  EXPECT_EQ(short_number(3.456e9), "3.46G");
  EXPECT_EQ(short_number(5e15), "5000T");
}

}  // namespace
}  // namespace qpair::tool
