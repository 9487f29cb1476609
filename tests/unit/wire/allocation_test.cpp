// No link allocates for a packet: a NIC that cannot get memory goes on, and its latency is even.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "softnic/wire/capture.hpp"
#include "softnic/wire/fault_injector.hpp"
#include "softnic/wire/loopback_link.hpp"
#include "softnic/wire/routing_link.hpp"
#include "softnic/wire/udp_link.hpp"
#include "tests/unit/wire/links.hpp"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace qpair::softnic::wire {
namespace {

TEST(Allocation, APacketThroughEveryLinkAllocatesNothing) {
  auto one = UdpLink::open_anywhere(static_cast<std::uint64_t>(::getpid()) + 11);
  auto two = UdpLink::open_anywhere(static_cast<std::uint64_t>(::getpid()) + 12);
  ASSERT_TRUE(one && two);
  const Endpoint self = (*one)->local();
  const Endpoint peer = (*two)->local();
  const std::string path = testing::TempDir() + "qpair-allocation-" + std::to_string(::getpid());
  auto file = CaptureFile::open(path, self);
  ASSERT_TRUE(file) << file.error();
  auto routing =
      std::make_unique<RoutingLink>(std::make_unique<LoopbackLink>(self), nullptr, *std::move(one));
  auto capture = std::make_unique<Capture>(std::move(routing), *std::move(file));
  FaultInjector link(std::move(capture), {.drop = 0.01, .duplicate = 0.1, .reorder = 0.1, .seed = 3});

  const Bytes bytes = pattern(1040, 1);
  std::uint64_t received = 0;
  const Link::Receiver count = [&](const Frame&) { ++received; };
  const auto talk = [&] {
    for (int i = 0; i < 20; ++i) {
      send(link, peer, bytes);
      send(link, self, bytes);
      send(**two, self, bytes);
    }
    link.flush();
    (*two)->flush();
    link.poll(count, 100, std::chrono::steady_clock::now());
    (*two)->poll(count, 100, {});
  };
  talk();  // learns the destinations
  const std::uint64_t before = allocations;
  for (int round = 0; round < 100; ++round) {
    talk();
  }
  EXPECT_EQ(allocations - before, 0U);
  EXPECT_GT(received, 5000U);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace qpair::softnic::wire
