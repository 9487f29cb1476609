#include "tests/simulation/connection.hpp"

#include <algorithm>
#include <cstring>

namespace qpair::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Far longer than every retry of the least patient and the most patient queue pair together.
constexpr std::chrono::seconds kLongestLife{100};

}  // namespace

Connection::Connection(unsigned number, const ConnectionPlan& plan, const Schedule& schedule,
                       const std::vector<std::unique_ptr<Machine>>& machines, Log& log, Random random)
    : plan_(plan), schedule_(schedule), log_(log), random_(random) {
  for (unsigned i = 0; i < 2; ++i) {
    ends_[i] =
        std::make_unique<End>(fmt::format("connection {} end {} (machine {})", number, i, plan.machines[i]),
                              *machines[plan.machines[i]], plan, log, random_.next());
  }
  begin_at_ = kStart + microseconds(random_.below(100));
}

void Connection::machine_died(const Machine& machine) {
  for (const auto& end : ends_) {
    if (&end->machine() == &machine) end->die();
  }
}

TimePoint Connection::next() const {
  if (phase_ == Phase::Over) return TimePoint::max();
  if (phase_ == Phase::Between) return begin_at_;
  TimePoint next = TimePoint::max();
  for (unsigned i = 0; i < 2; ++i) {
    if (ends_[i]->machine().paused) continue;
    if (ends_[i]->act_at) next = std::min(next, *ends_[i]->act_at);
    const bool to_be_told = phase_ == Phase::Ending && tell_at_[i] && !connect_late_at_;
    if (to_be_told && !ends_[i]->is_broken()) next = std::min(next, *tell_at_[i]);
  }
  if (connect_late_at_) next = std::min(next, *connect_late_at_);
  return next;
}

std::string Connection::state() const {
  constexpr const char* kNames[] = {"between lives", "running", "ending", "over"};
  std::string text = kNames[static_cast<std::size_t>(phase_)];
  for (const auto& end : ends_) {
    text += fmt::format("; {}{}: {} of {} posted, {} completed, {} of {} received", end->name(),
                        end->is_dead()     ? " (dead)"
                        : end->is_broken() ? " (broken)"
                                           : "",
                        end->posted(), end->operations().size(), end->completed(), end->received(),
                        end->receives().size());
  }
  return text;
}

bool Connection::react() {
  if (phase_ == Phase::Over) return false;
  if (phase_ == Phase::Between) {
    if (log_.now < begin_at_ || ends_[0]->machine().paused || ends_[1]->machine().paused) return false;
    begin();
    return true;
  }
  bool any = false;
  if (connect_late_at_ && log_.now >= *connect_late_at_) {
    connect_late_at_.reset();
    any = true;
    if (!ends_[1]->is_dead()) ends_[1]->connect(*ends_[0], psn_);
  }
  any |= poll(*ends_[0], *ends_[1]);
  any |= poll(*ends_[1], *ends_[0]);
  any |= act(*ends_[0]);
  any |= act(*ends_[1]);
  end_if_broken();
  if (phase_ == Phase::Ending) any |= part();
  if (phase_ == Phase::Running && ends_[0]->is_done() && ends_[1]->is_done()) finish();
  if (log_.now - began_ > kLongestLife) throw Violation("it never ends: " + state());
  return any;
}

void Connection::begin() {
  phase_ = Phase::Running;
  began_ = log_.now;
  for (const auto& end : ends_) {
    end->prepare(random_.chance(0.5) ? End::Renewal::Reset : End::Renewal::Another);
    end->act_at = log_.now + microseconds(random_.below(20));
  }
  Plan there = make_plan(plan_, schedule_.mistakes, ends_[1]->source(), ends_[1]->machine(), random_);
  Plan back = make_plan(plan_, schedule_.mistakes, ends_[0]->source(), ends_[0]->machine(), random_);
  ends_[0]->set_plan(std::move(there.operations), std::move(back.receives));
  ends_[1]->set_plan(std::move(back.operations), std::move(there.receives));
  tell_at_ = {};
  psn_ = (plan_.first_psn + life_ * kPsnsOfALife) & 0xff'ffff;
  ends_[0]->connect(*ends_[1], psn_);
  late_ = !schedule_.is_calm() && random_.chance(0.2);
  if (late_) {
    connect_late_at_ = log_.now + microseconds(random_.below(3'000));
  } else {
    ends_[1]->connect(*ends_[0], psn_);
  }
}

bool Connection::act(End& end) {
  if (end.machine().paused || !end.act_at || log_.now < *end.act_at) return false;
  const bool is_connected = !(connect_late_at_ && &end == ends_[1].get());
  const bool more = end.act(random_, is_connected);
  end.act_at.reset();
  if (more) {
    const auto rest = random_.chance(0.9) ? random_.between(0, 60) : random_.between(100, 5'000);
    end.act_at = log_.now + microseconds(rest);
  }
  return true;
}

bool Connection::poll(End& end, End& peer) {
  if (end.machine().paused) return false;
  const Excuses excuses{!schedule_.is_calm() || late_, peer.in_error(), plan_.rnr_retries};
  const std::size_t before = end.completed();
  if (!end.poll(excuses, peer.operations())) return false;
  check_writes(end, before, peer);
  return true;
}

// What a completion says to be written is there, at once.
void Connection::check_writes(const End& from, std::size_t first, const End& to) const {
  for (std::size_t i = first; i < from.completed(); ++i) {
    const Operation& done = from.operations()[i];
    if (done.outcome != Outcome::Done || !done.is_write() || done.hot || done.length == 0) continue;
    if (!std::equal(done.data.data(), done.data.data() + done.length, to.memory().data() + done.remote)) {
      throw Violation(fmt::format("{}: write #{} is complete and its data is not there", from.name(), i));
    }
  }
}

// The other end may hear of it, or find out by itself.
void Connection::end_if_broken() {
  if (phase_ != Phase::Running || (!ends_[0]->is_broken() && !ends_[1]->is_broken())) return;
  phase_ = Phase::Ending;
  for (unsigned i = 0; i < 2; ++i) {
    if (!ends_[i]->is_broken() && random_.chance(0.5)) {
      tell_at_[i] = log_.now + microseconds(random_.below(3'000));
    }
  }
}

bool Connection::part() {
  bool any = false;
  bool over = !connect_late_at_;
  for (unsigned i = 0; i < 2; ++i) {
    End& end = *ends_[i];
    const bool would_find_out = end.has_outstanding() || end.act_at;
    const bool told = tell_at_[i] && log_.now >= *tell_at_[i];
    if (!end.is_broken() && !end.machine().paused && !connect_late_at_ && (told || !would_find_out)) {
      end.give_up();
      any = true;
    }
    over = over && end.is_broken() && end.is_flushed() && !end.act_at;
  }
  if (over) finish();
  return any;
}

void Connection::finish() {
  const std::uint32_t mtu = 128U << plan_.mtu;
  check_direction(*ends_[0], *ends_[1], mtu);
  check_direction(*ends_[1], *ends_[0], mtu);
  ++totals_.lives;
  totals_.broken_lives += phase_ == Phase::Ending ? 1 : 0;
  for (const auto& end : ends_) {
    totals_.messages += end->received();
    for (const Operation& operation : end->operations()) {
      if (operation.outcome == Outcome::Done) ++totals_.done;
      if (operation.outcome != Outcome::Failed) continue;
      ++(operation.syndrome == mlx5::Syndrome::WorkRequestFlushed ? totals_.flushed : totals_.failed);
    }
  }
  log_.say("the life of the connection is over, and all is as it must be: {}", state());
  ++life_;
  phase_ = life_ < plan_.lives ? Phase::Between : Phase::Over;
  begin_at_ = log_.now + microseconds(random_.below(5'000));
}

}  // namespace qpair::simulation
