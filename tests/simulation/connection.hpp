#pragma once
// Two ends, connected again and again: the programs' part of a schedule, and after each life the comparison
// of both memories with what the completions promised.

#include <array>
#include <memory>
#include <vector>

#include "tests/simulation/end.hpp"

namespace qpair::simulation {

struct Totals {
  std::uint64_t lives = 0, broken_lives = 0;
  std::uint64_t done = 0, failed = 0, flushed = 0, messages = 0;
};

class Connection {
 public:
  Connection(unsigned number, const ConnectionPlan& plan, const Schedule& schedule,
             const std::vector<std::unique_ptr<Machine>>& machines, Log& log, Random random);

  void machine_died(const Machine& machine);
  // What its programs do at this moment. True: something, so that the machines should be looked at again.
  bool react();
  // When they do the next thing by themselves; max() when they only wait.
  TimePoint next() const;
  bool is_over() const { return phase_ == Phase::Over; }
  std::string state() const;
  const Totals& totals() const { return totals_; }

 private:
  enum class Phase : std::uint8_t { Between, Running, Ending, Over };

  void begin();
  bool act(End& end);
  bool poll(End& end, End& peer);
  void end_if_broken();
  bool part();
  void finish();
  void check_writes(const End& from, std::size_t first, const End& to) const;

  const ConnectionPlan& plan_;
  const Schedule& schedule_;
  Log& log_;
  Random random_;
  std::array<std::unique_ptr<End>, 2> ends_;
  std::array<std::optional<TimePoint>, 2> tell_at_;
  std::optional<TimePoint> connect_late_at_;
  std::uint32_t psn_ = 0;
  Phase phase_ = Phase::Between;
  TimePoint begin_at_ = kStart;
  TimePoint began_ = kStart;
  unsigned life_ = 0;
  bool late_ = false;  // one end was connected after the other: packets were lost meanwhile
  Totals totals_;
};

// Both memories are as some first part of what `from` posted leaves them, one that holds everything that was
// completed or received. Throws Violation.
void check_direction(const End& from, const End& to, std::uint32_t mtu);

}  // namespace qpair::simulation
