#pragma once
// The network between the simulated machines: a packet that is sent arrives never, once or several times, at
// times that the weather decides, whole or damaged.

#include <memory>
#include <queue>
#include <set>
#include <vector>

#include "softnic/wire/link.hpp"
#include "tests/simulation/log.hpp"
#include "tests/simulation/schedule.hpp"

namespace qpair::simulation {

class Network {
 public:
  Network(const Weather& weather, unsigned machines, Random random, Log& log);
  ~Network();

  // The machine's way to the network; it is unplugged when it goes.
  std::unique_ptr<softnic::wire::Link> plug(unsigned machine);
  static softnic::wire::Endpoint address(unsigned machine);

  void cut_off(unsigned machine) { cut_off_.insert(machine); }
  void heal(unsigned machine) { cut_off_.erase(machine); }

  // When the next packet arrives; max() when none is on its way.
  TimePoint next() const { return flying_.empty() ? TimePoint::max() : flying_.top().at; }
  // Hands over what has arrived by now: for each machine, whether it got something.
  std::vector<bool> deliver();

  std::uint64_t packets() const { return packets_; }
  std::uint64_t lost() const { return lost_; }

 private:
  class Port;
  using Bytes = std::vector<std::byte>;
  struct Packet {
    TimePoint at;
    std::uint64_t order;
    unsigned from;
    unsigned to;
    softnic::wire::Endpoint source;
    Bytes bytes;
    friend bool operator>(const Packet& a, const Packet& b) {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };

  void send(unsigned from, unsigned to, const Bytes& bytes);
  void let_fly(unsigned from, unsigned to, Duration after, const softnic::wire::Endpoint& source,
               Bytes bytes);
  void damage(Bytes& bytes);
  void send_as_stranger(unsigned from, unsigned to, Bytes bytes);
  Duration travel_time();
  std::string text(unsigned from, unsigned to, const Bytes& bytes) const;

  Weather weather_;
  Random random_;
  Log& log_;
  std::vector<Port*> ports_;
  std::priority_queue<Packet, std::vector<Packet>, std::greater<>> flying_;
  std::set<unsigned> cut_off_;
  std::uint64_t order_ = 0;
  std::uint64_t packets_ = 0;
  std::uint64_t lost_ = 0;
};

}  // namespace qpair::simulation
