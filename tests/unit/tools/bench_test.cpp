#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tools/qpair/bench_pattern.hpp"
#include "tools/qpair/bench_plan.hpp"
#include "tools/qpair/bench_sockets.hpp"
#include "tools/qpair/failure.hpp"

namespace qpair::tool {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(BenchSizes, AreOneOrSeveralOrTheDoublingsOfARange) {
  EXPECT_THAT(parse_sizes("4K"), ElementsAre(4096));
  EXPECT_THAT(parse_sizes("0"), ElementsAre(0));
  EXPECT_THAT(parse_sizes("8,1M,3"), ElementsAre(8, 1 << 20, 3));
  EXPECT_THAT(parse_sizes("2..16"), ElementsAre(2, 4, 8, 16));
  EXPECT_THAT(parse_sizes("3..13"), ElementsAre(3, 6, 12));
  EXPECT_EQ(parse_sizes("2..64M").size(), 26U);
}

TEST(BenchSizes, NonsenseIsNamed) {
  for (const char* text : {"", "x", "8,", ",8", "8..", "..8", "0..8", "8..4", "1025G", "8...9", "-1"}) {
    EXPECT_THAT([text] { parse_sizes(text); }, ThrowsMessage<Failure>(HasSubstr(text))) << text;
  }
}

BenchPlan plan_with(std::vector<std::uint64_t> sizes, std::vector<Measure> measures = {Measure::Bandwidth}) {
  BenchPlan plan;
  plan.sizes = std::move(sizes);
  plan.measures = std::move(measures);
  return plan;
}

TEST(BenchPlan, RefusesWhatCannotBeMeasured) {
  const auto refused = [](auto change, const char* word) {
    BenchPlan plan = plan_with({8});
    change(plan);
    EXPECT_THAT([&plan] { plan.validate(); }, ThrowsMessage<Failure>(HasSubstr(word)));
  };
  refused([](BenchPlan& plan) { plan.sizes.clear(); }, "--size");
  refused([](BenchPlan& plan) { plan.measures.clear(); }, "--measure");
  refused([](BenchPlan& plan) { plan.batch = 0; }, "--batch");
  refused([](BenchPlan& plan) { plan.window = 4, plan.batch = 5; }, "--window");
  refused([](BenchPlan& plan) { plan.qps = BenchPlan::kMostQueuePairs + 1; }, "--qps");
  refused([](BenchPlan& plan) { plan.duration = {}; }, "--duration");
  refused(
      [](BenchPlan& plan) {
        plan.measures = {Measure::Latency}, plan.iterations = BenchPlan::kMostSamples + 1;
      },
      "--measure bandwidth");
  refused([](BenchPlan& plan) { plan.operation = Operation::FetchAdd, plan.sizes = {16}; }, "8 bytes");
  refused([](BenchPlan& plan) { plan.operation = Operation::Get, plan.measures = {Measure::PingPong}; },
          "pingpong");
  refused([](BenchPlan& plan) { plan.sizes = {0}, plan.measures = {Measure::PingPong}; }, "--size 0");
}

TEST(BenchPlan, TravelsAsJson) {
  BenchPlan plan = plan_with({8, 1 << 20}, {Measure::PingPong, Measure::Latency});
  plan.batch = 3;
  plan.window = 7;
  plan.qps = 5;
  plan.iterations = 11;
  plan.memory = MemoryKind::Ordinary;
  plan.check = true;
  const nlohmann::json json = plan;
  EXPECT_EQ(nlohmann::json(plan_of(json)), json);
}

TEST(BenchPlan, OfAStrangerIsRefused) {
  const nlohmann::json good = plan_with({8});
  for (const auto& [field, value] : good.items()) {
    nlohmann::json bad = good;
    bad.erase(field);
    EXPECT_THROW(plan_of(bad), Failure) << field;
    bad[field] = {{"an", "object"}};
    EXPECT_THROW(plan_of(bad), Failure) << field;
  }
  nlohmann::json huge = good;
  huge["qps"] = 1'000'000'000;
  EXPECT_THROW(plan_of(huge), Failure);
}

TEST(BenchPlan, KeepsAFewLargeOperationsUnderWayAndManySmallOnes) {
  BenchPlan plan = plan_with({8});
  EXPECT_EQ(plan.window_of(8), 64U);
  EXPECT_EQ(plan.window_of(1 << 20), 4U);
  EXPECT_EQ(plan.window_of(64 << 20), 2U);
  plan.batch = 16;
  EXPECT_EQ(plan.window_of(64 << 20), 16U);
  plan.window = 100;
  EXPECT_EQ(plan.window_of(8), 100U);
}

// Every slot of every queue pair, of what goes out and of what comes in, is inside the memory and none
// overlaps another.
TEST(BenchPlan, GivesEverySlotAPlaceOfItsOwn) {
  for (const bool ping_pong : {false, true}) {
    BenchPlan plan = plan_with({1, 100, 4096, 1 << 20});
    if (ping_pong) plan.measures = {Measure::PingPong, Measure::Bandwidth};
    plan.qps = 3;
    for (const std::uint64_t size : plan.sizes) {
      std::vector<std::uint64_t> starts;
      for (std::uint32_t qp = 0; qp < plan.qps; ++qp) {
        for (std::uint64_t slot = 0; slot < plan.slots(size); ++slot) {
          starts.push_back(plan.incoming_offset(qp) + slot * plan.stride(size));
          if (ping_pong) starts.push_back(plan.outgoing_offset(qp) + slot * plan.stride(size));
        }
      }
      std::sort(starts.begin(), starts.end());
      starts.push_back(plan.memory_bytes());
      for (std::size_t index = 0; index + 1 < starts.size(); ++index) {
        EXPECT_LE(starts[index] + size, starts[index + 1]);
      }
    }
  }
}

TEST(BenchPattern, FindsTheFirstByteThatIsNotIts) {
  std::array<std::byte, 61> bytes{};
  fill_pattern(bytes, 7);
  EXPECT_EQ(find_difference(bytes, 7), std::nullopt);
  EXPECT_NE(find_difference(bytes, 8), std::nullopt);
  for (std::size_t where = 0; where < bytes.size(); ++where) {
    bytes[where] ^= std::byte{1};
    EXPECT_EQ(find_difference(bytes, 7), where);
    bytes[where] ^= std::byte{1};
  }
}

TEST(BenchHost, HasAPortWhenOneIsGiven) {
  const auto check = [](const char* text, const char* host, std::uint16_t port) {
    const HostAndPort parsed = parse_host(text);
    EXPECT_EQ(parsed.host, host) << text;
    EXPECT_EQ(parsed.port, port) << text;
  };
  check("node7", "node7", kBenchPort);
  check("node7:99", "node7", 99);
  check("10.0.0.1:99", "10.0.0.1", 99);
  check("fe80::1", "fe80::1", kBenchPort);
  check("[fe80::1]", "fe80::1", kBenchPort);
  check("[fe80::1]:99", "fe80::1", 99);
}

TEST(BenchHost, NonsenseIsRefused) {
  for (const char* text :
       {"", ":99", "node7:", "node7:0", "node7:65536", "node7:x", "[fe80::1", "[fe80::1]:", "[::1]9"}) {
    EXPECT_THROW(parse_host(text), Failure) << text;
  }
}

}  // namespace
}  // namespace qpair::tool
