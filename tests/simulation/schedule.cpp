#include "tests/simulation/schedule.hpp"

#include <fmt/ranges.h>

#include <algorithm>

namespace qpair::simulation {
namespace {

using std::chrono::microseconds;

constexpr double kCalmRuns = 0.1;
constexpr microseconds kEventsWithin{20'000};

Weather make_weather(Random& random) {
  Weather weather;
  weather.latency = microseconds(random.between(1, 30));
  if (random.chance(kCalmRuns)) return weather;
  weather.jitter = microseconds(random.pick({0, 0, 5, 50}));
  // Each plague by itself and all together; mild and wild.
  const auto plague = [&random](double wild) {
    return random.chance(0.5) ? 0.0 : random.chance(0.5) ? 0.01 : wild;
  };
  weather.loss = plague(0.15);
  weather.duplicate = plague(0.3);
  weather.reorder = plague(0.3);
  weather.corrupt = plague(0.1);
  weather.ghost = plague(0.05);
  weather.stranger = plague(0.1);
  return weather;
}

TimePoint moment(Random& random) {
  return kStart + Duration(random.below(Duration(kEventsWithin).count()));
}

void add_spell(Random& random, std::vector<Event>& events, Event::Kind begin, Event::Kind end,
               unsigned machine) {
  const TimePoint at = moment(random);
  const microseconds length(random.chance(0.5) ? random.between(10, 2'000) : random.between(2'000, 400'000));
  events.push_back({at, begin, machine});
  events.push_back({at + length, end, machine});
}

std::vector<Event> make_events(Random& random, unsigned machines) {
  std::vector<Event> events;
  const auto some_machine = [&] { return static_cast<unsigned>(random.below(machines)); };
  if (random.chance(0.2))
    add_spell(random, events, Event::Kind::Partition, Event::Kind::Heal, some_machine());
  if (random.chance(0.2)) add_spell(random, events, Event::Kind::Pause, Event::Kind::Resume, some_machine());
  if (random.chance(0.3)) {
    for (unsigned i = random.between(1U, 2U); i > 0; --i) {
      events.push_back({moment(random), Event::Kind::Restart, some_machine(), random.chance(0.5)});
    }
  }
  std::ranges::stable_sort(events, {}, &Event::at);
  return events;
}

ConnectionPlan make_connection(Random& random, unsigned machines) {
  ConnectionPlan plan;
  plan.machines[0] = static_cast<unsigned>(random.below(machines));
  // Mostly two machines; sometimes one that talks to itself.
  plan.machines[1] = random.chance(0.9) ? (plan.machines[0] + 1) % machines : plan.machines[0];
  plan.mtu = random.pick(
      {IBV_MTU_256, IBV_MTU_256, IBV_MTU_512, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096});
  plan.reads = random.pick<std::uint8_t>({1, 2, 4, 16});
  plan.timeout = random.between<std::uint8_t>(8, 13);
  plan.retries = random.pick<std::uint8_t>({7, 7, 7, 3, 1, 0});
  plan.rnr_retries = random.pick<std::uint8_t>({7, 7, 7, 2, 0});
  plan.rnr_timer = random.pick<std::uint8_t>({1, 2, 6, 12});
  plan.one_cq = random.chance(0.3);
  plan.operations = random.between(1U, 10U);
  plan.lives = random.between(1U, kMaxLives);
  return plan;
}

const char* name(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::Partition:
      return "is cut off";
    case Event::Kind::Heal:
      return "is reachable again";
    case Event::Kind::Pause:
      return "stands still";
    case Event::Kind::Resume:
      return "goes on";
    case Event::Kind::Restart:
      return "is killed and starts anew";
  }
  return "";
}

}  // namespace

Schedule make_schedule(std::uint64_t seed) {
  Random random(seed);
  Schedule schedule;
  schedule.seed = seed;
  schedule.machines = random.chance(0.8) ? 2 : 3;
  schedule.weather = make_weather(random);
  if (!schedule.weather.is_clear() || random.chance(0.5)) {
    schedule.events = make_events(random, schedule.machines);
  }
  const std::uint32_t psn = random.chance(0.5) ? 0xff'ffff - random.between(0U, 16U)
                                               : static_cast<std::uint32_t>(random.below(1U << 24));
  const unsigned connections = random.between(1U, 3U);
  for (unsigned i = 0; i < connections; ++i) {
    ConnectionPlan& plan = schedule.connections.emplace_back(make_connection(random, schedule.machines));
    plan.first_psn = (psn + i * kMaxLives * kPsnsOfALife) & 0xff'ffff;
  }
  schedule.mistakes = random.chance(0.3) ? 0.1 : 0;
  return schedule;
}

std::string describe(const Event& event) {
  return fmt::format("machine {} {}{}", event.machine, name(event.kind),
                     event.same_numbers ? " with the numbers that it had" : "");
}

std::string describe(const Schedule& schedule) {
  const Weather& w = schedule.weather;
  std::string text = fmt::format(
      "seed {}: {} machines; loss {} duplicate {} reorder {} corrupt {} ghost {} stranger {}, latency {} us, "
      "jitter {} us; mistakes {}\n",
      schedule.seed, schedule.machines, w.loss, w.duplicate, w.reorder, w.corrupt, w.ghost, w.stranger,
      w.latency / microseconds(1), w.jitter / microseconds(1), schedule.mistakes);
  for (const Event& event : schedule.events) {
    text += fmt::format("  at {} us {}\n", (event.at - kStart) / microseconds(1), describe(event));
  }
  for (std::size_t i = 0; i < schedule.connections.size(); ++i) {
    const ConnectionPlan& c = schedule.connections[i];
    text += fmt::format(
        "  connection {}: machine {} to {}, MTU {}, {} reads, timeout {}, retries {}, RNR retries {}, RNR "
        "timer "
        "{}, PSN {:#x}, {}, {} operations each way, up to {} lives\n",
        i, c.machines[0], c.machines[1], 128U << c.mtu, c.reads, c.timeout, c.retries, c.rnr_retries,
        c.rnr_timer, c.first_psn, c.one_cq ? "one CQ" : "two CQs", c.operations, c.lives);
  }
  return text;
}

}  // namespace qpair::simulation
