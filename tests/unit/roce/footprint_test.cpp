// What a connected queue pair costs, and that the data path allocates nothing once it is warm. Counts what
// operator new hands out in this program.

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/unit/roce/support.hpp"

namespace {
std::atomic<std::int64_t> live_bytes{0};
std::atomic<std::int64_t> allocations{0};
constexpr std::size_t kHeader = alignof(std::max_align_t);
}  // namespace

// NOLINTBEGIN: replacing the global operators is the point
void* operator new(std::size_t size) {
  auto* block = static_cast<std::byte*>(std::malloc(size + kHeader));
  if (block == nullptr) std::abort();
  std::memcpy(block, &size, sizeof size);
  live_bytes += static_cast<std::int64_t>(size);
  ++allocations;
  return block + kHeader;
}
void operator delete(void* at) noexcept {
  if (at == nullptr) return;
  auto* block = static_cast<std::byte*>(at) - kHeader;
  std::size_t size;
  std::memcpy(&size, block, sizeof size);
  live_bytes -= static_cast<std::int64_t>(size);
  std::free(block);
}
void operator delete(void* at, std::size_t) noexcept {
  operator delete(at);
}
// NOLINTEND

namespace qpair::softnic::roce::test {
namespace {

// Takes everything and says yes; allocates nothing.
class QuietHost : public Host {
 public:
  std::uint64_t to_send = 0;
  SendRequest request;
  std::uint64_t done = 0;
  bool next_send(SendRequest& out) override {
    if (to_send == 0) return false;
    --to_send;
    out = request;
    return true;
  }
  Check gather(const SendRequest&, std::uint64_t, std::span<std::byte>) override { return {}; }
  Check scatter(const SendRequest&, std::uint64_t, std::span<const std::byte>) override { return {}; }
  void send_done(const SendRequest&) override { ++done; }
  void send_failed(const SendRequest&, const Refusal&) override { FAIL(); }
  bool next_receive(ReceiveRequest& out) override {
    out = {0, 1 << 20};
    return true;
  }
  Check scatter_receive(const ReceiveRequest&, std::uint64_t, std::span<const std::byte>) override {
    return {};
  }
  void receive_done(const ReceiveRequest&, const Received&) override {}
  void receive_failed(const ReceiveRequest&, const Refusal&) override { FAIL(); }
  Check check_remote(RemoteAccess, std::uint32_t, std::uint64_t, std::uint64_t) override { return {}; }
  Check write(std::uint32_t, std::uint64_t, std::span<const std::byte>) override { return {}; }
  Check read(std::uint32_t, std::uint64_t, std::span<std::byte>) override { return {}; }
  Check compare_swap(std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t&) override {
    return {};
  }
  Check fetch_add(std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t&) override { return {}; }
  Check invalidate(std::uint32_t) override { return {}; }
  void responder_failed(ibv_event_type, const Refusal&) override { FAIL(); }
  void raise(ibv_event_type) override {}
};

// A link with room for a burst, in memory that was there before.
class ArenaLink : public wire::Link {
 public:
  explicit ArenaLink(wire::Endpoint local) : local_(local), arena_(1 << 20), packets_(512) {}
  wire::Endpoint local() const override { return local_; }
  std::span<std::byte> reserve(const wire::Endpoint&, std::size_t size) override {
    if (count_ == packets_.size() || used_ + size > arena_.size()) return {};
    return packets_[count_] = std::span(arena_).subspan(used_, size);
  }
  void commit() override { used_ += packets_[count_++].size(); }
  void flush() override {}
  std::size_t poll(const Receiver& receiver, std::size_t, wire::TimePoint) override {
    for (std::size_t i = 0; i < count_; ++i) receiver({local_, {}, packets_[i]});
    count_ = used_ = 0;
    return 0;
  }

 private:
  wire::Endpoint local_;
  std::vector<std::byte> arena_;
  std::vector<std::span<std::byte>> packets_;
  std::size_t count_ = 0, used_ = 0;
};

TEST(Footprint, AConnectedQueuePairCostsAtMostEightKibibytes) {
  const Settings settings{.mtu = 4096, .max_reads = 16};
  const wire::TimePoint now = wire::TimePoint{} + 1h;
  QuietHost host_a, host_b;
  ArenaLink link_a(endpoint(1)), link_b(endpoint(2));
  const std::int64_t before = live_bytes;
  RcQueuePair a(1, host_a, link_a);
  to_rtr(a, endpoint(2), 2, settings, now);
  to_rts(a, settings, now);
  EXPECT_LE(live_bytes - before, 2048) << "connected and not used yet";

  RcQueuePair b(2, host_b, link_b);
  to_rtr(b, endpoint(1), 1, settings, now);
  to_rts(b, settings, now);
  const auto exchange = [&](Operation operation, std::uint64_t length) {
    for (auto* host : {&host_a, &host_b}) {
      host->request = make(operation, length);
      host->to_send = 100;
      host->done = 0;
    }
    while (host_a.done < 100 || host_b.done < 100) {
      a.transmit(128, now);
      b.transmit(128, now);
      link_a.poll([&](const wire::Frame& f) { b.receive(*Packet::parse(f.bytes), endpoint(1), now); }, 0,
                  now);
      link_b.poll([&](const wire::Frame& f) { a.receive(*Packet::parse(f.bytes), endpoint(2), now); }, 0,
                  now);
    }
  };
  for (const Operation operation :
       {Operation::Write, Operation::Read, Operation::FetchAdd, Operation::Send}) {
    exchange(operation, 8);
  }
  EXPECT_LE(live_bytes - before, 2 * 8192) << "both, after everything was in use";

  const std::int64_t warm = allocations;
  for (const Operation operation :
       {Operation::Write, Operation::Read, Operation::FetchAdd, Operation::SendImm}) {
    exchange(operation, operation == Operation::FetchAdd ? 8 : 20000);
  }
  EXPECT_EQ(allocations - warm, 0) << "the data path allocates nothing";
}

}  // namespace
}  // namespace qpair::softnic::roce::test
