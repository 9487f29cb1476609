#pragma once
// What `qpair top` shows: the counters of the emulated NICs, and how fast they grew between two readings.

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "softnic/observe/running_nics.hpp"

namespace qpair::tool {

struct NicsReading {
  std::chrono::system_clock::time_point when;
  std::vector<softnic::observe::NicReading> nics;
};

NicsReading read_nics(pid_t pid);  // 0: all of this user's

// For each second of the time between.
struct Rates {
  double wqes = 0;  // of send queues
  double bytes_sent = 0, bytes_received = 0;
  double packets_sent = 0, packets_received = 0;
  double packets() const { return packets_sent + packets_received; }
};

struct QueuePairReport {
  softnic::observe::QueuePairReading reading;
  Rates rates;
};

struct NicReport {
  softnic::observe::NicReading reading;
  Rates rates;
  std::vector<QueuePairReport> queue_pairs;  // the busiest first
};

// A NIC or queue pair that was not there before is compared with zero, since it was made or since `before`,
// whichever is later.
std::vector<NicReport> compare(const NicsReading& before, const NicsReading& now);

// For people: a table with one line for each NIC, and below it one for each of its busiest queue pairs. At
// most `lines` lines; what is left out is said. Every line ends with a newline.
std::string top_text(const std::vector<NicReport>& nics, std::size_t lines);

// For programs: everything, counters since the NIC was made and rates.
nlohmann::json top_json(const std::vector<NicReport>& nics, std::chrono::duration<double> interval);

// "950", "12.3k", "4.56M", "1.2G".
std::string short_number(double value);

}  // namespace qpair::tool
