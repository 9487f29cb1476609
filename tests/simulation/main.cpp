// Runs schedules, one for each seed, until one fails:
//   simulation --first 1 --count 10000      all of them, quietly
//   simulation --seed 4711 --log            one of them, with a line for everything that happens

#include <CLI/CLI.hpp>

#include "softnic/explain/explain.hpp"
#include "tests/simulation/simulation.hpp"

namespace {

using namespace qpair::simulation;

void add(Result& sum, const Result& more) {
  sum.totals.lives += more.totals.lives;
  sum.totals.broken_lives += more.totals.broken_lives;
  sum.totals.done += more.totals.done;
  sum.totals.failed += more.totals.failed;
  sum.totals.flushed += more.totals.flushed;
  sum.totals.messages += more.totals.messages;
  sum.packets += more.packets;
  sum.lost += more.lost;
  sum.restarts += more.restarts;
  sum.took += more.took;
}

// Every so many seeds are run twice, to see that a seed decides everything.
constexpr std::uint64_t kRunTwice = 50;

Result run_seed(std::uint64_t seed, bool readable) {
  const Schedule schedule = make_schedule(seed);
  if (readable) fmt::print(stderr, "{}", describe(schedule));
  Log log(readable);
  const Result result = run(schedule, log);
  if (seed % kRunTwice == 0) {
    Log again(false);
    if (run(schedule, again).digest != result.digest) {
      throw Violation("the same seed gave another run the second time");
    }
  }
  return result;
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("The emulated NIC under schedules of faults, each from one seed.");
  std::uint64_t first = 1;
  std::uint64_t runs = 1000;
  std::uint64_t seed = 0;
  bool readable = false;
  app.add_option("--first", first, "the first seed");
  app.add_option("--count", runs, "how many seeds");
  app.add_option("--seed", seed, "this one alone");
  app.add_flag("--log", readable, "print everything that happens");
  CLI11_PARSE(app, count, arguments);
  if (app.count("--seed") != 0) {
    first = seed;
    runs = 1;
  }
  qpair::softnic::explain::configure({.quiet = !readable});

  Result sum;
  for (std::uint64_t at = first; at < first + runs; ++at) {
    try {
      add(sum, run_seed(at, readable));
    } catch (const std::exception& violation) {
      fmt::print(stderr, "seed {}: {}\nreplay it with: {} --seed {} --log\n", at, violation.what(),
                 arguments[0], at);
      return 1;
    }
  }
  fmt::print(
      "{} schedules: {} lives of connections ({} broken), {} operations done, {} failed, {} flushed; {} "
      "messages; "
      "{} packets, {} lost; {} machines killed; {:.1f} s of virtual time\n",
      runs, sum.totals.lives, sum.totals.broken_lives, sum.totals.done, sum.totals.failed, sum.totals.flushed,
      sum.totals.messages, sum.packets, sum.lost, sum.restarts,
      std::chrono::duration<double>(sum.took).count());
  return 0;
}
