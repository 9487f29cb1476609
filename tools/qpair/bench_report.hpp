#pragma once
// The results of `qpair bench` for people and for programs. docs/benchmarks.md describes the JSON.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench_measurement.hpp"
#include "bench_plan.hpp"

namespace qpair::tool {

inline constexpr int kBenchSchemaVersion = 1;  // changes when a field changes its meaning or goes

struct BenchReport {
  BenchPlan plan;
  std::string version;      // of qpair
  std::string peer;         // "this host", or the name and port that was connected to
  std::string device;       // the initiator's
  std::string peer_device;  // the target's
  std::string data_path;    // "mlx5" or "verbs"
  bool emulated = false;
  std::vector<BenchResult> results;
};

nlohmann::ordered_json to_document(const BenchReport& report);
std::string to_tables(const BenchReport& report);

}  // namespace qpair::tool
