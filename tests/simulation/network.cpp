#include "tests/simulation/network.hpp"

#include <cstring>
#include <deque>

#include "softnic/roce/packet.hpp"

namespace qpair::simulation {
namespace {

using softnic::wire::Endpoint;
using softnic::wire::Frame;
using std::chrono::microseconds;

constexpr unsigned kStranger = 99;

std::uint64_t hash(const std::vector<std::byte>& bytes) {
  std::uint64_t value = bytes.size();
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    value = (value ^ word) * 0x9e37'79b9'7f4a'7c15U;
    value ^= value >> 32;
  }
  return value;
}

}  // namespace

class Network::Port final : public softnic::wire::Link {
 public:
  Port(Network& network, unsigned machine) : network_(network), machine_(machine) {}
  ~Port() override { network_.ports_[machine_] = nullptr; }

  Endpoint local() const override { return address(machine_); }
  std::span<std::byte> reserve(const Endpoint& destination, std::size_t size) override {
    destination_ = destination;
    open_.resize(size);
    return open_;
  }
  void commit() override {
    const unsigned to = destination_.address[15];
    if (to < network_.ports_.size() && destination_ == address(to)) network_.send(machine_, to, open_);
  }
  void flush() override {}
  std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint) override {
    std::size_t count = 0;
    for (; count < limit && !arrived_.empty(); ++count) {
      Packet packet = std::move(arrived_.front());
      arrived_.pop_front();
      receiver({packet.source, local(), packet.bytes});
    }
    return count;
  }
  bool ready() const override { return !arrived_.empty(); }

  void arrive(Packet packet) { arrived_.push_back(std::move(packet)); }

 private:
  Network& network_;
  unsigned machine_;
  Endpoint destination_;
  Bytes open_;
  std::deque<Packet> arrived_;
};

Network::Network(const Weather& weather, unsigned machines, Random random, Log& log)
    : weather_(weather), random_(random), log_(log), ports_(machines, nullptr) {}
Network::~Network() = default;

Endpoint Network::address(unsigned machine) {
  Endpoint endpoint;
  endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, static_cast<std::uint8_t>(machine)};
  endpoint.port = softnic::wire::kRoceUdpPort;
  return endpoint;
}

std::unique_ptr<softnic::wire::Link> Network::plug(unsigned machine) {
  auto port = std::make_unique<Port>(*this, machine);
  ports_[machine] = port.get();
  return port;
}

std::vector<bool> Network::deliver() {
  std::vector<bool> got(ports_.size(), false);
  while (next() <= log_.now) {
    Packet packet = flying_.top();
    flying_.pop();
    const bool lost = ports_[packet.to] == nullptr || cut_off_.contains(packet.to) ||
                      (cut_off_.contains(packet.from) && packet.from != packet.to);
    log_.digest(static_cast<std::uint64_t>((packet.at - kStart).count()) * 2 + (lost ? 1 : 0));
    if (lost) {
      ++lost_;
      continue;
    }
    got[packet.to] = true;
    ports_[packet.to]->arrive(std::move(packet));
  }
  return got;
}

Duration Network::travel_time() {
  const auto jitter = weather_.jitter.count();
  return weather_.latency + Duration(jitter == 0 ? 0 : random_.below(static_cast<std::uint64_t>(jitter)));
}

void Network::send(unsigned from, unsigned to, const Bytes& bytes) {
  ++packets_;
  log_.digest(hash(bytes));
  const auto note = [&](const char* what) {
    if (log_.readable()) log_.say("{}{}", text(from, to, bytes), what);
  };
  if (random_.chance(weather_.stranger)) send_as_stranger(from, to, bytes);
  if (random_.chance(weather_.ghost)) {
    const microseconds later(random_.between(100, 100'000));
    let_fly(from, to, later, address(from), bytes);
    note("  (and again much later)");
  }
  if (random_.chance(weather_.loss)) {
    ++lost_;
    return note("  LOST");
  }
  const unsigned copies = random_.chance(weather_.duplicate) ? 2 : 1;
  if (copies == 2) note("  TWICE");
  for (unsigned copy = 0; copy < copies; ++copy) {
    Bytes sent = bytes;
    Duration after = travel_time();
    if (random_.chance(weather_.corrupt)) {
      damage(sent);
      note("  DAMAGED");
    }
    if (random_.chance(weather_.reorder)) {
      after += microseconds(random_.between(1, 500));
      note("  LATE");
    } else if (copies == 1) {
      note("");
    }
    let_fly(from, to, after, address(from), std::move(sent));
  }
}

void Network::let_fly(unsigned from, unsigned to, Duration after, const Endpoint& source, Bytes bytes) {
  flying_.push({log_.now + after, order_++, from, to, source, std::move(bytes)});
}

// Whatever a cable or a router may do; the invariant CRC finds every such change.
void Network::damage(Bytes& bytes) {
  switch (random_.below(4)) {
    case 0:
      bytes.resize(random_.below(bytes.size()));
      return;
    case 1:
      bytes.resize(bytes.size() + random_.between(1U, 64U), std::byte{0x5a});
      return;
    default:
      for (unsigned flips = random_.between(1U, 3U); flips > 0; --flips) {
        const std::uint64_t bit = random_.below(bytes.size() * 8);
        bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      }
  }
}

// Right in everything but where it comes from.
void Network::send_as_stranger(unsigned from, unsigned to, Bytes bytes) {
  const auto packet = softnic::roce::Packet::parse(bytes);
  if (!packet) return;
  for (std::byte& byte : packet->payload()) byte ^= std::byte{0xff};
  softnic::roce::set_icrc(Frame{address(kStranger), address(to), bytes});
  let_fly(from, to, travel_time(), address(kStranger), std::move(bytes));
}

std::string Network::text(unsigned from, unsigned to, const Bytes& bytes) const {
  Bytes copy = bytes;
  const auto packet = softnic::roce::Packet::parse(copy);
  if (!packet) return fmt::format("{} -> {}  {} bytes that are no packet", from, to, bytes.size());
  std::string line = fmt::format("{} -> {}  {} QP {:#x} PSN {:#x}", from, to, packet->info().name,
                                 packet->destination_qpn(), packet->psn());
  if (!packet->payload().empty()) line += fmt::format(" {} bytes", packet->payload().size());
  if (packet->info().has(softnic::roce::OpcodeInfo::kAeth)) {
    line += fmt::format(" syndrome {:#x} MSN {}", packet->aeth().syndrome, packet->aeth().msn);
  }
  if (packet->ack_request()) line += " AckReq";
  return line;
}

}  // namespace qpair::simulation
