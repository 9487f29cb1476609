#include "tests/simulation/simulation.hpp"

#include <algorithm>

namespace qpair::simulation {
namespace {

constexpr unsigned kTooLongAtOneMoment = 100'000;

class Simulation {
 public:
  Simulation(const Schedule& schedule, Log& log)
      : schedule_(schedule),
        log_(log),
        random_(schedule.seed ^ 0x5155'4555'4550'4149),
        network_(schedule.weather, schedule.machines, random_.split(), log) {
    for (unsigned i = 0; i < schedule.machines; ++i) {
      machines_.push_back(std::make_unique<Machine>(i, network_, log, random_.next()));
    }
    for (unsigned i = 0; i < schedule.connections.size(); ++i) {
      connections_.emplace_back(i, schedule.connections[i], schedule, machines_, log, random_.split());
    }
  }

  Result run() {
    for (settle(); !std::ranges::all_of(connections_, &Connection::is_over); settle()) advance();
    Result result{.totals = {},
                  .digest = log_.digest(),
                  .packets = network_.packets(),
                  .lost = network_.lost(),
                  .restarts = restarts_,
                  .took = log_.now - kStart};
    for (const Connection& connection : connections_) {
      const Totals& more = connection.totals();
      result.totals.lives += more.lives;
      result.totals.broken_lives += more.broken_lives;
      result.totals.done += more.done;
      result.totals.failed += more.failed;
      result.totals.flushed += more.flushed;
      result.totals.messages += more.messages;
    }
    check_ballots();
    return result;
  }

 private:
  // Everything that happens at this moment.
  void settle() {
    bool more = true;
    std::vector<bool> got = network_.deliver();
    while (more) {
      if (++at_this_moment_ > kTooLongAtOneMoment) throw Violation("time stands still");
      for (const auto& machine : machines_) {
        if (!machine->paused && (more || got[machine->number()])) machine->step();
      }
      more = false;
      for (Connection& connection : connections_) more |= connection.react();
    }
  }

  // To the next moment at which anything happens.
  void advance() {
    TimePoint next = network_.next();
    if (next_event_ < schedule_.events.size()) next = std::min(next, schedule_.events[next_event_].at);
    for (const Connection& connection : connections_) {
      if (connection.next() > log_.now) next = std::min(next, connection.next());
    }
    for (const auto& machine : machines_) {
      if (!machine->paused) next = std::min(next, machine->deadline());
    }
    if (next == TimePoint::max()) {
      std::string states;
      for (const Connection& connection : connections_) states += "\n  " + connection.state();
      throw Violation("nothing will ever happen again:" + states);
    }
    if (next > log_.now) at_this_moment_ = 0;
    log_.now = std::max(log_.now, next);
    while (next_event_ < schedule_.events.size() && schedule_.events[next_event_].at <= log_.now) {
      happen(schedule_.events[next_event_++]);
    }
  }

  void happen(const Event& event) {
    log_.say("{}", describe(event));
    Machine& machine = *machines_[event.machine];
    switch (event.kind) {
      case Event::Kind::Partition:
        network_.cut_off(event.machine);
        break;
      case Event::Kind::Heal:
        network_.heal(event.machine);
        break;
      case Event::Kind::Pause:
        machine.paused = true;
        break;
      case Event::Kind::Resume:
        machine.paused = false;
        break;
      case Event::Kind::Restart:
        ++restarts_;
        for (Connection& connection : connections_) connection.machine_died(machine);
        machine.restart(event.same_numbers);
        break;
    }
  }

  // No addition was carried out twice, and none that nobody asked for.
  void check_ballots() const {
    for (const auto& machine : machines_) {
      for (const Ballot& ballot : machine->ballots()) {
        if (ballot.word >> ballot.given != 0) {
          throw Violation(fmt::format("machine {}: the ballot of {} additions reads {:#x}", machine->number(),
                                      ballot.given, ballot.word));
        }
      }
    }
  }

  const Schedule& schedule_;
  Log& log_;
  Random random_;
  Network network_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::vector<Connection> connections_;
  std::size_t next_event_ = 0;
  std::uint64_t restarts_ = 0;
  unsigned at_this_moment_ = 0;
};

}  // namespace

Result run(const Schedule& schedule, Log& log) {
  return Simulation(schedule, log).run();
}

}  // namespace qpair::simulation
