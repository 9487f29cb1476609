#pragma once
// A bad network on demand: wraps any link and drops, duplicates, reorders, delays and corrupts what is sent
// through it, as one seed decides; and, by calls, cuts peers off or stands still. The same seed, faults and
// packets give the same decisions. Bounded: packets that find the waiting room full are lost.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "softnic/wire/forwarding_link.hpp"
#include "softnic/wire/pages.hpp"

namespace qpair::softnic::wire {

struct Faults {
  double drop = 0;                    // probabilities, for each packet by itself
  double duplicate = 0;               // sent twice
  double reorder = 0;                 // held back until a few later packets have gone, or a moment has passed
  double corrupt = 0;                 // one bit flipped
  std::chrono::nanoseconds delay{0};  // of every packet
  std::uint64_t seed = 1;

  bool any() const { return drop > 0 || duplicate > 0 || reorder > 0 || corrupt > 0 || delay.count() > 0; }
};

struct FaultCounters {
  std::uint64_t packets = 0;  // that the NIC sent
  std::uint64_t dropped = 0, duplicated = 0, reordered = 0, corrupted = 0, delayed = 0;
  std::uint64_t cut_off = 0;     // to or from a partitioned peer
  std::uint64_t overflowed = 0;  // the waiting room was full
};

class FaultInjector final : public ForwardingLink {
 public:
  using Clock = std::function<TimePoint()>;

  FaultInjector(std::unique_ptr<Link> inner, const Faults& faults,
                Clock clock = &std::chrono::steady_clock::now);

  // From the next packet on; the seed starts anew.
  void set_faults(const Faults& faults);
  // Nothing passes between us and that address, in either direction, until heal().
  void partition(const Endpoint& peer);
  void heal(const Endpoint& peer);
  // Nothing leaves and nothing is delivered; what is sent meanwhile leaves on resume().
  void pause();
  void resume();

  const FaultCounters& counters() const { return counters_; }

  std::span<std::byte> reserve(const Endpoint& destination, std::size_t size) override;
  void commit() override;
  void flush() override;
  bool has_room(const Endpoint& destination, std::size_t size) override {
    return paused_ || inner_->has_room(destination, size);
  }
  std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint now) override;
  bool ready() const override { return !paused_ && inner_->ready(); }
  int descriptor() const override { return paused_ ? -1 : inner_->descriptor(); }
  int second_descriptor() const override { return paused_ ? -1 : inner_->second_descriptor(); }
  bool is_full(const Endpoint& destination, std::size_t size) override {
    return !paused_ && inner_->is_full(destination, size);
  }
  std::optional<TimePoint> deadline() const override;

 private:
  static constexpr std::size_t kSlots = 1024;     // packets that can wait
  static constexpr std::size_t kSlotSize = 4608;  // the longest RoCE packet, and more

  // A packet in the waiting room.
  struct Waiting {
    TimePoint due;
    std::uint64_t order;  // of those due at one time, and for packets that wait for later packets
    std::uint16_t slot;
    std::uint16_t size;
    Endpoint destination;
  };
  struct Later {  // the order of std::push_heap, so that the earliest is in front
    bool operator()(const Waiting& a, const Waiting& b) const {
      return a.due != b.due ? a.due > b.due : a.order > b.order;
    }
  };
  struct Draw {
    double drop, duplicate, reorder, corrupt;
    std::uint64_t bit, distance;
  };

  Draw draw();
  bool is_partitioned(const Endpoint& peer) const;
  bool passes_through() const {
    return !paused_ && !faults_.any() && partitioned_.empty() && held_back_.empty();
  }
  void send_now(const Endpoint& destination, std::span<const std::byte> packet);
  bool wait(std::vector<Waiting>& room, TimePoint due, std::uint64_t order);
  void release(const Waiting& waiting);
  void release_overtaken();
  bool release_due(TimePoint now);

  Clock clock_;
  Faults faults_;
  FaultCounters counters_;
  std::mt19937_64 random_;
  bool paused_ = false;
  std::vector<Endpoint> partitioned_;

  Pages scratch_;  // the open reservation, unless the packet goes straight through
  std::size_t reserved_ = 0;
  bool straight_ = false;
  Endpoint destination_;

  Pages slots_;
  std::vector<std::uint16_t> free_;
  std::vector<Waiting> delayed_;    // heap by time
  std::vector<Waiting> held_back_;  // until packet number `order` has been sent, or `due`
  std::vector<Waiting> stopped_;    // by pause(), in order
};

}  // namespace qpair::softnic::wire
