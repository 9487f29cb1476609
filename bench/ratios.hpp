#pragma once
// What the benchmarks that compare contenders have in common: medians, turns at random, and the ratios at the
// end.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace qpair::bench {

// 0 of none. Reorders them.
inline double median(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// `times`: seconds that so many operations took, again and again. The mean would count the times that the
// scheduler took the processor away.
inline void report(benchmark::State& state, std::vector<double>& times, std::size_t operations) {
  state.counters["ns_per_op"] = median(times) / static_cast<double>(operations) * 1e9;
}

// Prints the usual table, and the ratios after it.
class RatioReporter : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
      times_[run.run_name.function_name].push_back(run.counters.at("ns_per_op"));
    }
  }
  void Finalize() override {
    ConsoleReporter::Finalize();
    print_ratios();
  }

 protected:
  virtual void print_ratios() = 0;
  // Nothing where one of them did not run.
  void compare(const std::string& mine, const std::string& theirs) {
    const double a = median(times_[mine]);
    const double b = median(times_[theirs]);
    if (a <= 0 || b <= 0) return;
    fmt::print("ratio {} / {}: {:.3f} ({:.2f} ns / {:.2f} ns)\n", mine, theirs, a / b, a, b);
  }

 private:
  std::map<std::string, std::vector<double>> times_;
};

// With the arguments of Google Benchmark. `enter` registers the contenders.
template <typename Reporter, typename Enter>
int run_benchmarks(int argc, char** argv, Enter enter) {
  std::vector<char*> arguments(argv, argv + argc);
  const bool other_format = std::any_of(arguments.begin(), arguments.end(), [](std::string_view argument) {
    return argument.starts_with("--benchmark_format=") && !argument.ends_with("=console");
  });
  char interleave[] = "--benchmark_enable_random_interleaving=true";
  arguments.insert(arguments.begin() + 1, interleave);
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  enter();
  Reporter reporter;
  benchmark::RunSpecifiedBenchmarks(other_format ? nullptr : &reporter);
  benchmark::Shutdown();
  return 0;
}

}  // namespace qpair::bench
