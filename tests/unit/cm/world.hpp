#pragma once
// Two connection managers and what lies between them: datagrams that arrive when the test says so, or never,
// or twice, and a clock that the test sets.

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "softnic/cm/manager.hpp"
#include "softnic/wire/address.hpp"

namespace qpair::softnic::cm::test {

using namespace std::chrono_literals;

inline AddressBytes bytes_of(const char* address) {
  return wire::parse_address(address)->address;
}

// What a program sees of its identifiers.
class Program final : public Consumer {
 public:
  void happened(Event event) override { events.push_back(std::move(event)); }
  bool has_room() override { return room; }

  // The events since the last call, by type.
  std::vector<EventType> take() {
    std::vector<EventType> types;
    for (Event& event : events) {
      types.push_back(event.type);
      last = std::move(event);
    }
    events.clear();
    return types;
  }

  std::vector<Event> events;
  Event last;
  bool room = true;
};

class World;

class Host final : public nic::MadSender {
 public:
  Host(World& world, const char* address, std::uint64_t guid, std::uint64_t seed);
  void send(const wire::Endpoint& to, nic::MadView mad) override;

  wire::Endpoint endpoint;
  World& world;
  std::unique_ptr<Manager> manager;
};

class World {
 public:
  struct Datagram {
    wire::Endpoint from;
    wire::Endpoint to;
    Mad mad;
  };

  Host client{*this, "127.71.0.1", 0x1111, 1};
  Host server{*this, "127.71.0.2", 0x2222, 2};
  TimePoint now{};
  std::deque<Datagram> on_the_way;
  std::vector<Attribute> sent;
  // Says whether a datagram is lost.
  std::function<bool(Attribute)> loses = [](Attribute) { return false; };

  void deliver(const Datagram& datagram) {
    for (Host* const host : {&client, &server}) {
      if (host->endpoint == datagram.to) host->manager->receive(datagram.mad, datagram.from, now);
    }
  }
  // Until nobody has anything to say.
  void settle() {
    while (!on_the_way.empty()) {
      const Datagram next = on_the_way.front();
      on_the_way.pop_front();
      deliver(next);
    }
  }
  void pass(std::chrono::milliseconds time) {
    const TimePoint end = now + time;
    for (;;) {
      const TimePoint next = std::min(client.manager->deadline(), server.manager->deadline());
      if (next > end) break;
      now = next;
      client.manager->expire(now);
      server.manager->expire(now);
      settle();
    }
    now = end;
  }
  std::size_t count(Attribute attribute) const {
    return static_cast<std::size_t>(std::count(sent.begin(), sent.end(), attribute));
  }
};

inline Host::Host(World& of, const char* address, std::uint64_t guid, std::uint64_t seed) : world(of) {
  endpoint = *wire::parse_address(address);
  manager = std::make_unique<Manager>(*this,
                                      Port{.address = endpoint,
                                           .gid = endpoint.address,
                                           .gid_index = 3,
                                           .node_guid = guid,
                                           .mtu = 5,
                                           .ack_delay = 16},
                                      seed);
}

inline void Host::send(const wire::Endpoint& to, nic::MadView mad) {
  World::Datagram datagram{.from = endpoint, .to = to, .mad = {}};
  std::copy(mad.begin(), mad.end(), datagram.mad.begin());
  const Attribute attribute = Header::parse(mad)->attribute;
  world.sent.push_back(attribute);
  if (!world.loses(attribute)) world.on_the_way.push_back(datagram);
}

}  // namespace qpair::softnic::cm::test
