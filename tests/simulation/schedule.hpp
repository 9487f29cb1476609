#pragma once
// Everything that goes wrong in one run, and what is attempted meanwhile, as one seed decides.

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/log.hpp"
#include "tests/simulation/random.hpp"

namespace qpair::simulation {

// What the network does to each packet by itself.
struct Weather {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;  // delayed, so that others overtake it
  double corrupt = 0;  // bits flipped, cut short, or made longer
  double ghost = 0;    // comes once more, much later: after its connection ended, or its machine started anew
  double stranger = 0;  // a third machine sends the same with another payload and a right CRC
  Duration latency{};
  Duration jitter{};  // lets packets overtake each other
  bool is_clear() const {
    return loss == 0 && duplicate == 0 && reorder == 0 && corrupt == 0 && ghost == 0 && stranger == 0 &&
           jitter == Duration{};
  }
};

struct Event {
  enum class Kind : std::uint8_t {
    Partition,  // nothing reaches or leaves the machine
    Heal,
    Pause,  // the machine stands still, its programs too
    Resume,
    Restart,  // killed, and started anew
  };
  TimePoint at;
  Kind kind;
  unsigned machine;
  bool same_numbers = false;  // of a restart: its queue pairs and keys get the numbers that they had before
};

// One connection, made anew after each failure.
struct ConnectionPlan {
  std::array<unsigned, 2> machines{};
  ibv_mtu mtu = IBV_MTU_1024;
  std::uint8_t reads = 16;
  std::uint8_t timeout = 10;
  std::uint8_t retries = 7;
  std::uint8_t rnr_retries = 7;
  std::uint8_t rnr_timer = 1;
  // Of the first life. Every life of every connection has PSNs of its own, as a program achieves it by
  // drawing them at random: a packet says neither which queue pair sent it nor in which life.
  std::uint32_t first_psn = 0;
  bool one_cq = false;  // sends and receives complete in one queue
  unsigned operations = 8;
  unsigned lives = 2;
};

struct Schedule {
  std::uint64_t seed = 0;
  unsigned machines = 2;
  Weather weather;
  std::vector<Event> events;  // by time
  std::vector<ConnectionPlan> connections;
  double mistakes = 0;  // probability of an operation that the NIC must refuse
  // The network never has a reason for a retry that fails.
  bool is_calm() const { return weather.is_clear() && events.empty(); }
};

Schedule make_schedule(std::uint64_t seed);
inline constexpr unsigned kMaxLives = 3;
inline constexpr std::uint32_t kPsnsOfALife = 0x1c'0000;  // nine of them fit the circle

std::string describe(const Schedule& schedule);
std::string describe(const Event& event);

}  // namespace qpair::simulation
