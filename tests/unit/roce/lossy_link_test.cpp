// Two queue pairs over a network that loses, repeats and reorders, in virtual time, from one seed. Thousands
// of random operations are checked against what they should have done: every byte, every completion exactly
// once and in order.

#include <queue>
#include <random>

#include "tests/unit/roce/support.hpp"

namespace qpair::softnic::roce::test {
namespace {

struct Weather {
  double loss = 0, duplicate = 0, reorder = 0;
  std::uint64_t seed = 1;
  Settings settings{};
  friend void PrintTo(const Weather& w, std::ostream* out) {
    *out << fmt::format("loss {} duplicate {} reorder {} seed {} mtu {}", w.loss, w.duplicate, w.reorder,
                        w.seed, w.settings.mtu);
  }
};

// One side: a host, a queue pair, and what it has asked for.
struct Side {
  static constexpr std::uint64_t kSlotSize = 32 * 1024;
  static constexpr std::uint64_t kSlots = 48;
  // Memory: local slots, slots that the peer writes to and reads from, receive slots, and some words for
  // atomics.
  static constexpr std::uint64_t kRemote = kSlots * kSlotSize;
  static constexpr std::uint64_t kReceive = 2 * kRemote;
  static constexpr std::uint64_t kWords = 3 * kRemote;

  struct Expected {
    Operation operation{};
    std::uint64_t length = 0, seed = 0, slot = 0, original = 0;
  };

  explicit Side(std::uint8_t number) : host(kWords + 4096), link(endpoint(number)), qp(number, host, link) {
    host.queue_pair = &qp;
  }

  FakeHost host;
  HandLink link;
  RcQueuePair qp;
  std::deque<Expected> asked;     // by this side, in order
  std::deque<Expected> arriving;  // at this side, in order: sends and immediates of the peer
  std::size_t completed = 0, received = 0;
  std::uint64_t counter = 0, cell = 0;  // what the peer's words hold after everything that was posted
  std::uint16_t receives_posted = 0;
  std::size_t posted = 0;
};

class World {
 public:
  explicit World(const Weather& weather) : weather_(weather), random_(weather.seed) {
    for (Side* side : {&a, &b}) {
      side->link.on_commit = [this, side](std::vector<std::byte> bytes) { send(*side, std::move(bytes)); };
    }
    to_rtr(a.qp, endpoint(2), 2, weather.settings, now);
    to_rtr(b.qp, endpoint(1), 1, weather.settings, now);
    to_rts(a.qp, weather.settings, now);
    to_rts(b.qp, weather.settings, now);
  }

  Side a{1}, b{2};
  wire::TimePoint now = wire::TimePoint{} + 1h;
  std::uint64_t packets = 0;

  double chance() { return std::uniform_real_distribution<>(0, 1)(random_); }
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  void step() {
    for (Side* side : {&a, &b}) {
      while (side->qp.transmit(16, now)) {
      }
    }
    wire::TimePoint next = std::min(a.qp.deadline(), b.qp.deadline());
    if (!network_.empty()) next = std::min(next, network_.top().at);
    if (next == wire::TimePoint::max()) {
      ASSERT_TRUE(a.asked.empty() && b.asked.empty()) << "nothing will ever happen again";
      return;
    }
    now = std::max(now, next);
    while (!network_.empty() && network_.top().at <= now) {
      Flight flight = network_.top();
      network_.pop();
      Side& to = flight.from == &a ? b : a;
      const auto packet = Packet::parse(flight.bytes);
      ASSERT_TRUE(packet.has_value());
      to.qp.receive(*packet, flight.from->link.local(), now);
    }
    for (Side* side : {&a, &b}) {
      if (side->qp.deadline() <= now) side->qp.expire(now);
    }
  }

 private:
  struct Flight {
    wire::TimePoint at;
    std::uint64_t order;
    Side* from;
    std::vector<std::byte> bytes;
    bool operator<(const Flight& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };

  void send(Side& from, std::vector<std::byte> bytes) {
    ++packets;
    if (chance() < weather_.loss) return;
    const unsigned copies = chance() < weather_.duplicate ? 2 : 1;
    for (unsigned i = 0; i < copies; ++i) {
      wire::TimePoint at = now + 10us;
      if (chance() < weather_.reorder) at += std::chrono::microseconds(below(200));
      network_.push({at, order_++, &from, bytes});
    }
  }

  Weather weather_;
  std::mt19937_64 random_;
  std::priority_queue<Flight> network_;
  std::uint64_t order_ = 0;
};

class Storm : public ::testing::TestWithParam<Weather> {
 protected:
  static constexpr std::size_t kOperations = 3000;  // from each side

  std::uint64_t random_length() {
    switch (world.below(8)) {
      case 0:
        return 0;
      case 1:
        return mtu * world.below(5);
      case 2:
        return world.below(Side::kSlotSize) + 1;
      case 3:
        return 1 + world.below(4 * mtu);
      default:
        return world.below(300);
    }
  }

  void post_one(Side& from, Side& to) {
    Side::Expected e;
    e.operation = static_cast<Operation>(world.below(8));
    e.slot = from.posted++ % Side::kSlots;
    e.seed = world.below(~0ULL) | 1;
    e.length = random_length();
    const std::uint64_t local = e.slot * Side::kSlotSize;
    const std::uint64_t remote = Side::kRemote + local;
    SendRequest request = make(e.operation, e.length, remote);
    request.fence = world.below(10) == 0;
    request.immediate = static_cast<std::uint32_t>(e.seed);
    std::uint64_t at = local;
    switch (e.operation) {
      case Operation::Read:
        to.host.fill(remote, e.length, e.seed);
        break;
      case Operation::FetchAdd:
        e.length = request.length = 8;
        e.original = from.counter;
        request.swap_add = e.seed;
        request.remote_address = kBase + Side::kWords;
        from.counter += e.seed;
        break;
      case Operation::CompareSwap:
        e.length = request.length = 8;
        e.original = from.cell;
        request.remote_address = kBase + Side::kWords + 8;
        request.compare = world.below(4) == 0 ? from.cell + 1 : from.cell;  // some are to fail
        request.swap_add = e.seed;
        if (request.compare == from.cell) from.cell = e.seed;
        break;
      default:
        from.host.fill(local, e.length, e.seed);
        break;
    }
    from.host.post(request, at);
    from.asked.push_back(e);
    const bool takes_receive = e.operation != Operation::Write && e.operation != Operation::Read &&
                               e.operation != Operation::FetchAdd && e.operation != Operation::CompareSwap;
    if (takes_receive) to.arriving.push_back(e);
  }

  void check_completions(Side& side, Side& peer) {
    for (; side.completed < side.host.completions.size(); ++side.completed) {
      const auto& done = side.host.completions[side.completed];
      ASSERT_TRUE(done.ok) << done.why.reason;
      ASSERT_EQ(done.index, static_cast<std::uint16_t>(side.completed)) << "each once, in order";
      ASSERT_FALSE(side.asked.empty());
      const Side::Expected e = side.asked.front();
      side.asked.pop_front();
      const std::uint64_t local = e.slot * Side::kSlotSize;
      switch (e.operation) {
        case Operation::Write:
        case Operation::WriteImm:
          ASSERT_TRUE(peer.host.holds(Side::kRemote + local, e.length, e.seed)) << side.completed;
          break;
        case Operation::Read:
          ASSERT_TRUE(side.host.holds(local, e.length, e.seed)) << side.completed;
          break;
        case Operation::FetchAdd:
        case Operation::CompareSwap:
          ASSERT_EQ(side.host.word(local), e.original) << side.completed;
          break;
        default:
          break;
      }
    }
  }

  void check_receipts(Side& side) {
    for (; side.received < side.host.receipts.size(); ++side.received) {
      const auto& receipt = side.host.receipts[side.received];
      ASSERT_TRUE(receipt.ok) << receipt.why.reason;
      ASSERT_EQ(receipt.index, static_cast<std::uint16_t>(side.received));
      ASSERT_FALSE(side.arriving.empty());
      const Side::Expected e = side.arriving.front();
      side.arriving.pop_front();
      ASSERT_EQ(receipt.what.byte_count, e.length);
      if (e.operation != Operation::Send) {
        ASSERT_EQ(receipt.what.immediate, static_cast<std::uint32_t>(e.seed));
      }
      if (e.operation != Operation::WriteImm) {
        const std::uint64_t at = Side::kReceive + receipt.index % Side::kSlots * Side::kSlotSize;
        ASSERT_TRUE(side.host.holds(at, e.length, e.seed));
      }
    }
  }

  void post_receives(Side& side) {
    // Now and then too late, so that the peer meets RNR.
    if (world.below(3) != 0) return;
    while (side.host.receives_left() < Side::kSlots / 2) {
      side.host.post_receive(Side::kReceive + side.receives_posted % Side::kSlots * Side::kSlotSize,
                             Side::kSlotSize);
      ++side.receives_posted;
    }
  }

  std::uint64_t mtu = GetParam().settings.mtu;
  World world{GetParam()};
};

TEST_P(Storm, EverythingArrivesOnceAndWhole) {
  const wire::TimePoint start = world.now;
  while (world.a.completed < kOperations || world.b.completed < kOperations) {
    for (auto [from, to] : {std::pair{&world.a, &world.b}, std::pair{&world.b, &world.a}}) {
      while (from->posted < kOperations && from->asked.size() < Side::kSlots && world.below(4) != 0) {
        post_one(*from, *to);
      }
      post_receives(*from);
    }
    world.step();
    for (auto [side, peer] : {std::pair{&world.a, &world.b}, std::pair{&world.b, &world.a}}) {
      check_completions(*side, *peer);
      check_receipts(*side);
    }
    if (HasFatalFailure()) return;
    ASSERT_LT(world.now - start, 1h);
  }
  for (const Side* side : {&world.a, &world.b}) {
    EXPECT_TRUE(side->arriving.empty());
    EXPECT_EQ(side->qp.state(), IBV_QPS_RTS);
  }
  EXPECT_EQ(world.b.host.word(Side::kWords), world.a.counter);
  EXPECT_EQ(world.a.host.word(Side::kWords), world.b.counter);
  EXPECT_EQ(world.b.host.word(Side::kWords + 8), world.a.cell);
  RecordProperty("virtual_ms", static_cast<int>((world.now - start) / 1ms));
  RecordProperty("packets", static_cast<int>(world.packets));
}

INSTANTIATE_TEST_SUITE_P(Weather, Storm,
                         ::testing::Values(Weather{0, 0, 0, 1, {}}, Weather{0.01, 0.01, 0.01, 2, {}},
                                           Weather{0.01, 0.01, 0.01, 3, {.mtu = 4096}},
                                           Weather{0.05, 0, 0, 4, {.mtu = 1024, .max_reads = 1}},
                                           Weather{0, 0.2, 0, 5, {}}, Weather{0, 0, 0.2, 6, {}},
                                           Weather{
                                               0.05, 0.05, 0.05, 7, {.first_psn = 0xfffff0, .max_reads = 16}},
                                           Weather{0.1, 0.1, 0.1, 8, {.mtu = 512, .max_reads = 2}},
                                           Weather{0.02, 0.02, 0.5, 9, {.mtu = 2048, .first_psn = 0x7fffe0}},
                                           Weather{0.01, 0.3, 0.01, 10, {.first_psn = 0xfff000}}));

// A transfer with one lost packet now and then takes milliseconds, not the local ACK timeout for each.
TEST(LossyLink, LossCostsRoundTripsNotTimeouts) {
  World world({.loss = 0.01, .seed = 11, .settings = {.mtu = 1024, .timeout = 18}});
  const wire::TimePoint start = world.now;
  std::size_t posted = 0;
  while (world.a.host.completions.size() < 2000) {
    // One at a time: each loss of a request or an acknowledgment is a lost tail.
    if (posted == world.a.host.completions.size()) {
      world.a.host.post(make(posted % 2 == 0 ? Operation::Write : Operation::Read, 100, Side::kRemote), 0);
      ++posted;
    }
    world.step();
    ASSERT_FALSE(::testing::Test::HasFatalFailure());
  }
  EXPECT_LT(world.now - start, 2000 * 20us + 200 * 1ms);
  EXPECT_EQ(world.a.qp.counters().local_ack_timeout_err, 0U);
}

// The peer is killed in the middle of a transfer.
TEST(LossyLink, TheSurvivorLearnsInTheTimeThatTheAttributesImply) {
  World world({.seed = 12, .settings = {.mtu = 256, .timeout = 12, .retry_count = 5}});
  world.a.host.post(make(Operation::Write, 1 << 20, Side::kRemote), 0);
  for (int i = 0; i < 5; ++i) world.step();
  ASSERT_TRUE(world.a.host.completions.empty());
  world.b.qp.set_state(IBV_QPS_ERR);
  const wire::TimePoint death = world.now;
  while (world.a.host.completions.empty()) world.step();
  EXPECT_EQ(world.a.host.completions[0].why.syndrome, mlx5::Syndrome::TransportRetryExceeded);
  EXPECT_GE(world.now - death, 6 * ack_timeout(12));
  EXPECT_LE(world.now - death, 6 * ack_timeout(12) + 1ms);
}

TEST(LossyLink, TheReasonOfARefusalTravels) {
  World world({.seed = 13});
  SendRequest request = make(Operation::Write, 100, 0);
  request.rkey = 0xbad;
  world.a.host.post(request, 0);
  while (world.a.host.completions.empty()) world.step();
  EXPECT_EQ(world.a.host.completions[0].why.reason, "remote side refused: no key 0xbad");
  EXPECT_EQ(world.a.host.completions[0].why.vendor_err, 0x88);
  EXPECT_EQ(world.b.qp.state(), IBV_QPS_ERR);
}

// However lossy the network, it is the reason that arrives and not silence.
TEST(LossyLink, TheReasonOfARefusalArrivesThroughLoss) {
  unsigned with_reason = 0;
  for (std::uint64_t seed = 100; seed < 200; ++seed) {
    World world({.loss = 0.2, .seed = seed});
    SendRequest request = make(Operation::Write, 100, 0);
    request.rkey = 0xbad;
    world.a.host.post(request, 0);
    while (world.a.host.completions.empty()) world.step();
    ASSERT_EQ(world.a.host.completions[0].why.syndrome, mlx5::Syndrome::RemoteAccess) << seed;
    with_reason += world.a.host.completions[0].why.reason == "remote side refused: no key 0xbad" ? 1 : 0;
  }
  EXPECT_GT(with_reason, 70U);
}

}  // namespace
}  // namespace qpair::softnic::roce::test
