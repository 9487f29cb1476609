#include "bench_report.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <string_view>

#include "table.hpp"
#include "units.hpp"

namespace qpair::tool {
namespace {

double per_second(std::uint64_t count, std::uint64_t elapsed_ns) {
  return static_cast<double>(count) * 1e9 / static_cast<double>(elapsed_ns);
}

nlohmann::ordered_json to_document(const BenchResult& result) {
  nlohmann::ordered_json json{{"measure", result.measure},
                              {"size", result.size},
                              {"operations", result.operations},
                              {"elapsed_ns", result.elapsed_ns},
                              {"under_way", result.under_way}};
  if (result.measure == name_of(Measure::Bandwidth)) {
    json["bytes_per_second"] = per_second(result.operations * result.size, result.elapsed_ns);
    json["operations_per_second"] = per_second(result.operations, result.elapsed_ns);
  } else {
    json["ns"] = {{"min", result.ns.min}, {"median", result.ns.median}, {"mean", result.ns.mean},
                  {"p99", result.ns.p99}, {"p999", result.ns.p999},     {"max", result.ns.max}};
  }
  return json;
}

std::string format_rate(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.2f} M/s", per_second / 1e6);
  if (per_second >= 1e3) return fmt::format("{:.1f} k/s", per_second / 1e3);
  return fmt::format("{:.1f} /s", per_second);
}

std::string latency_table(const BenchReport& report, std::string_view measure) {
  Table table({"size", "operations", "median", "99 %", "99.9 %", "min", "max"});
  const auto time = [](std::uint64_t ns) { return format_duration(std::chrono::nanoseconds(ns)); };
  for (const BenchResult& result : report.results) {
    if (result.measure != measure) continue;
    table.add({format_size(result.size), std::to_string(result.operations), time(result.ns.median),
               time(result.ns.p99), time(result.ns.p999), time(result.ns.min), time(result.ns.max)});
  }
  return table.to_string();
}

std::string bandwidth_table(const BenchReport& report) {
  Table table({"size", "operations", "under way", "bandwidth", "rate"});
  for (const BenchResult& result : report.results) {
    if (result.measure != name_of(Measure::Bandwidth)) continue;
    const std::string bandwidth =
        format_bandwidth(result.operations * result.size, std::chrono::nanoseconds(result.elapsed_ns));
    const std::string under_way = report.plan.qps == 1
                                      ? std::to_string(result.under_way)
                                      : fmt::format("{} x {}", report.plan.qps, result.under_way);
    table.add({format_size(result.size), std::to_string(result.operations), under_way, bandwidth,
               format_rate(per_second(result.operations, result.elapsed_ns))});
  }
  return table.to_string();
}

std::string_view title(Measure measure) {
  switch (measure) {
    case Measure::Latency:
      return "latency, from posting to completion";
    case Measure::PingPong:
      return "half a ping-pong, seen in memory";
    case Measure::Bandwidth:
      return "bandwidth";
  }
  return "";
}

}  // namespace

nlohmann::ordered_json to_document(const BenchReport& report) {
  const BenchPlan& plan = report.plan;
  utsname system{};
  ::uname(&system);
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const BenchResult& result : report.results) results.push_back(to_document(result));
  return {
      {"schema", "qpair-bench"},
      {"version", kBenchSchemaVersion},
      {"qpair", report.version},
      {"host",
       {{"name", system.nodename}, {"kernel", system.release}, {"cpus", ::sysconf(_SC_NPROCESSORS_ONLN)}}},
      {"device", {{"name", report.device}, {"emulated", report.emulated}, {"data_path", report.data_path}}},
      {"peer", {{"where", report.peer}, {"device", report.peer_device}}},
      {"parameters",
       {{"operation", name_of(plan.operation)},
        {"memory", name_of(plan.memory)},
        {"batch", plan.batch},
        {"qps", plan.qps},
        {"iterations", plan.iterations},
        {"duration_ns", plan.duration.count()},
        {"checked", plan.check}}},
      {"results", std::move(results)}};
}

std::string to_tables(const BenchReport& report) {
  const BenchPlan& plan = report.plan;
  std::string text =
      fmt::format("{} to {}, {} queue pair{}, {} memory, batches of {}\n", name_of(plan.operation),
                  report.peer, plan.qps, plan.qps == 1 ? "" : "s", name_of(plan.memory), plan.batch);
  for (const Measure measure : plan.measures) {
    text += fmt::format("\n{}\n", title(measure));
    text += measure == Measure::Bandwidth ? bandwidth_table(report) : latency_table(report, name_of(measure));
  }
  if (plan.check) text += "\nThe bytes were checked.\n";
  return text;
}

}  // namespace qpair::tool
