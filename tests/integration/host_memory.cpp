// Memory of another process on this host, reached without its help. That its NIC takes no part is seen from a
// peer that stands still: what is copied completes all the same.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "qpair/qpair.hpp"
#include "tests/support/must.hpp"
#include "tests/support/peer_main.hpp"
#include "tests/support/peer_process.hpp"

namespace {

using qpair::IbvWc;
using qpair::MemoryRegion;
using qpair::PollTarget;
using qpair::RdmaBuffer;
using qpair::RdmaDomain;
using qpair::RdmaQpInfo;
using qpair::RdmaQueuePair;
using qpair::testing::Failed;
using qpair::testing::must;
using qpair::testing::PeerProcess;

constexpr std::size_t kSize = 4U << 20;

bool copies_are_on() {
  const char* const wire = std::getenv("QPAIR_NIC_WIRE");
  return wire == nullptr || std::string(wire) == "auto" || *wire == '\0';
}

// What a program may register.
enum class Kind { Allocated, NamedFile, ClosedFile, Anonymous, Ordinary };
constexpr std::array<const char*, 5> kKinds = {"Allocated", "NamedFile", "ClosedFile", "Anonymous",
                                               "Ordinary"};

class Memory {
 public:
  Memory(const RdmaDomain& domain, Kind kind) {
    if (kind == Kind::Allocated) {
      region_.emplace(must(domain.allocate(kSize), "allocate"));
      return;
    }
    int flags = MAP_SHARED;
    if (kind == Kind::NamedFile || kind == Kind::ClosedFile) {
      // What is registered does not begin where the file does.
      const std::string name = "/dev/shm/qpair-test-" + std::to_string(getpid());
      file_ = open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      unlink(name.c_str());
      if (file_ < 0 || ftruncate(file_, kOffset + kSize) != 0) throw Failed("file");
    } else {
      flags = MAP_ANONYMOUS | (kind == Kind::Anonymous ? MAP_SHARED : MAP_PRIVATE);
    }
    mapped_ = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, flags, file_, file_ < 0 ? 0 : kOffset);
    if (mapped_ == MAP_FAILED) throw Failed("mmap");
    if (kind == Kind::ClosedFile) close(std::exchange(file_, -1));
    region_.emplace(must(domain.register_buffer(mapped_, kSize), "register"));
  }
  ~Memory() {
    region_.reset();
    if (mapped_ != nullptr) munmap(mapped_, kSize);
    if (file_ >= 0) close(file_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  RdmaBuffer buffer() const { return region_->buffer(); }
  std::span<std::byte> bytes() const { return {reinterpret_cast<std::byte*>(buffer().addr), kSize}; }
  void deregister() { region_.reset(); }
  void truncate() {
    if (ftruncate(file_, 0) != 0) throw Failed("truncate");
  }

 private:
  static constexpr off_t kOffset = 3 * 4096;
  std::optional<MemoryRegion> region_;
  void* mapped_ = nullptr;
  int file_ = -1;
};

struct End {
  explicit End(int socket_, Kind kind_, std::uint8_t timeout = 14)
      : socket(socket_),
        memory(domain, kind_),
        queue_pair(must(RdmaQueuePair::create(domain, config(timeout)), "qp")) {
    remote = must(qpair::exchange_value(socket, memory.buffer()), "exchange buffers");
    const RdmaQpInfo peer =
        must(qpair::exchange_qp_info(socket, must(queue_pair.get_qp_info(), "info")), "exchange");
    must(queue_pair.connect(peer), "connect");
    meet();
  }
  static qpair::IbverbsConfig config(std::uint8_t timeout) {
    qpair::IbverbsConfig config;
    config.qp_timeout = timeout;
    config.retry_cnt = 3;
    return config;
  }

  void meet() { must(qpair::exchange(socket, "here"), "meet"); }
  IbvWc completion() {
    IbvWc wc;
    while (must(queue_pair.poll_completions(PollTarget::Send, {&wc, 1}), "poll") == 0)
      std::this_thread::yield();
    return wc;
  }
  RdmaBuffer here(std::size_t at, std::size_t size) { return must(memory.buffer().slice(at, size), "slice"); }
  RdmaBuffer there(std::size_t at, std::size_t size) { return must(remote.slice(at, size), "slice"); }
  IbvWc put(std::size_t at, std::size_t size) {
    must(queue_pair.put(here(at, size), there(at, size)), "put");
    return completion();
  }
  IbvWc get(std::size_t at, std::size_t size) {
    must(queue_pair.get(here(at, size), there(at, size)), "get");
    return completion();
  }

  RdmaDomain domain = must(RdmaDomain::create(), "open the device");
  int socket;
  Memory memory;
  RdmaQueuePair queue_pair;
  RdmaBuffer remote;
};

std::byte pattern(std::size_t at, int round) {
  return static_cast<std::byte>((at * 7 + at / 4096 + static_cast<std::size_t>(round) * 31) % 251);
}
void fill(std::span<std::byte> bytes, int round) {
  for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = pattern(at, round);
}
bool is_filled(std::span<const std::byte> bytes, std::size_t from, int round) {
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (bytes[at] != pattern(from + at, round)) return false;
  }
  return true;
}

// ---- The peer: does as it is told, one letter at a time -----------------------------------------

void be_the_peer(int socket, Kind kind) {
  End end(socket, kind);
  std::vector<std::byte> sink;
  char order = 0;
  while (read(socket, &order, 1) == 1) {
    if (order == 'd') end.memory.deregister();
    if (order == 't') end.memory.truncate();
    if (order == 'v' && !is_filled(end.memory.bytes(), 0, 1)) throw Failed("what was put is not there");
    if (order == 'f') fill(end.memory.bytes(), 2);
    end.meet();
  }
}

class HostMemory : public testing::TestWithParam<Kind> {
 protected:
  static std::string role(Kind kind) { return kKinds.at(static_cast<std::size_t>(kind)); }
  static void tell(End& end, char order) {
    ASSERT_EQ(write(end.socket, &order, 1), 1);
    end.meet();
  }
  static void stop(const PeerProcess& peer) {
    ASSERT_EQ(kill(peer.pid(), SIGSTOP), 0);
    ASSERT_EQ(waitpid(peer.pid(), nullptr, WUNTRACED), peer.pid());
  }
  // The first one asks how the memory can be reached, and travels in packets.
  static void ask(End& end) {
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(end.put(0, 8192).is_valid());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
};

TEST_P(HostMemory, IsReachedWhileItsProcessStandsStill) {
  if (!copies_are_on()) GTEST_SKIP() << "QPAIR_NIC_WIRE says that everything goes in packets";
  try {
    PeerProcess peer(role(GetParam()));
    End end(peer.socket(), Kind::Allocated);
    ask(end);
    fill(end.memory.bytes(), 1);
    stop(peer);
    std::size_t at = 0;
    for (std::size_t size = 1; at + size <= kSize; at += size, size = size * 2 + 1) {
      ASSERT_TRUE(end.put(at, size).is_valid()) << size;
    }
    ASSERT_TRUE(end.put(at, kSize - at).is_valid());
    std::ranges::fill(end.memory.bytes(), std::byte{0});
    ASSERT_TRUE(end.get(0, kSize).is_valid());
    EXPECT_TRUE(is_filled(end.memory.bytes(), 0, 1));
    kill(peer.pid(), SIGCONT);
    tell(end, 'v');
    tell(end, 'f');
    ASSERT_TRUE(end.get(12345, 1'000'000).is_valid());
    EXPECT_TRUE(is_filled(end.memory.bytes().subspan(12345, 1'000'000), 12345, 2));
    shutdown(end.socket, SHUT_RDWR);
    EXPECT_EQ(peer.wait(), 0);
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

// An atomic takes packets. There is always a put on its way then, so no moment without packets at which to
// begin.
TEST_P(HostMemory, IsSoonReachedByAStreamThatBeganInPackets) {
  if (!copies_are_on()) GTEST_SKIP() << "QPAIR_NIC_WIRE says that everything goes in packets";
  constexpr std::size_t kWindow = 32;
  constexpr std::size_t kPiece = kSize / kWindow;
  try {
    PeerProcess peer(role(GetParam()));
    End end(peer.socket(), Kind::Allocated);
    fill(end.memory.bytes(), 1);
    const MemoryRegion counter = must(end.domain.allocate(8), "allocate");
    must(end.queue_pair.fetch_add(counter.buffer(), end.there(0, 8), 0), "fetch_add");
    std::size_t posted = 0;
    const auto post_until = [&](std::size_t count) {
      for (; posted < count; ++posted) {
        if (posted >= kWindow && !end.completion().is_valid()) throw Failed("a put");
        const std::size_t at = posted % kWindow * kPiece;
        must(end.queue_pair.put(end.here(at, kPiece), end.there(at, kPiece)), "put");
      }
    };
    post_until(1000);
    stop(peer);
    post_until(1000 + 2 * kWindow);
    for (std::size_t i = 0; i < kWindow + 1; ++i) ASSERT_TRUE(end.completion().is_valid());
    kill(peer.pid(), SIGCONT);
    tell(end, 'v');
    shutdown(end.socket, SHUT_RDWR);
    EXPECT_EQ(peer.wait(), 0);
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

TEST_P(HostMemory, IsOutOfReachOnceItIsDeregistered) {
  try {
    PeerProcess peer(role(GetParam()));
    End end(peer.socket(), Kind::Allocated);
    ask(end);
    tell(end, 'd');
    const IbvWc wc = end.put(0, 8192);
    EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR) << to_string(wc);
    EXPECT_EQ(must(end.queue_pair.state(), "state"), IBV_QPS_ERR);
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

TEST_P(HostMemory, WhatTheKeyDoesNotCoverIsRefusedAsOnTheNetwork) {
  try {
    PeerProcess peer(role(GetParam()));
    End end(peer.socket(), Kind::Allocated);
    ask(end);
    RdmaBuffer beyond = end.there(0, 8192);
    beyond.addr += kSize - 4096;
    must(end.queue_pair.put(end.here(0, 8192), beyond), "put");
    const IbvWc wc = end.completion();
    EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR) << to_string(wc);
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

INSTANTIATE_TEST_SUITE_P(OfEveryKind, HostMemory,
                         testing::Values(Kind::Allocated, Kind::NamedFile, Kind::ClosedFile, Kind::Anonymous,
                                         Kind::Ordinary),
                         [](const auto& test) { return kKinds.at(static_cast<std::size_t>(test.param)); });

// Files of the library's allocate(): one is our own, the other the peer's.
bool maps_the_peers_file() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int files = 0;
  while (std::getline(maps, line)) files += line.find("memfd:qpair-memory") != std::string::npos ? 1 : 0;
  return files > 1;
}

TEST(HostMemoryOnce, IsLetGoWhenItsOwnerFreesIt) {
  if (!copies_are_on()) GTEST_SKIP() << "QPAIR_NIC_WIRE says that everything goes in packets";
  try {
    PeerProcess peer(kKinds.front());
    End end(peer.socket(), Kind::Allocated);
    for (int i = 0; i < 20 && !maps_the_peers_file(); ++i) {
      ASSERT_TRUE(end.put(0, 64).is_valid());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ASSERT_TRUE(maps_the_peers_file());
    const char order = 'd';
    ASSERT_EQ(write(end.socket, &order, 1), 1);
    end.meet();
    for (int i = 0; i < 5000 && maps_the_peers_file(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_FALSE(maps_the_peers_file()) << "its pages are not kept";
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

// Both have the file mapped, and now neither mapping has a page behind it.
TEST(HostMemoryOnce, AFileThatLostItsPagesFailsTheOperationAndNoProcess) {
  try {
    PeerProcess peer(kKinds.at(static_cast<std::size_t>(Kind::NamedFile)));
    End end(peer.socket(), Kind::Allocated);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(end.put(0, 8192).is_valid());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const char order = 't';
    ASSERT_EQ(write(end.socket, &order, 1), 1);
    end.meet();
    const IbvWc wc = end.put(0, 8192);
    EXPECT_EQ(wc.status, IBV_WC_REM_OP_ERR) << to_string(wc);
    shutdown(end.socket, SHUT_RDWR);
    EXPECT_EQ(peer.wait(), 0);
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

// A queue pair without a timeout waits for ever on a network.
TEST(HostMemoryOnce, ADeathIsNoticedWithoutATimeout) {
  const char* const wire = std::getenv("QPAIR_NIC_WIRE");
  if (wire != nullptr && std::string(wire) == "udp") GTEST_SKIP() << "nobody tells of a death over UDP";
  try {
    PeerProcess peer(kKinds.front());
    End end(peer.socket(), Kind::Allocated, 0);
    ASSERT_TRUE(end.put(0, 64).is_valid());
    ASSERT_EQ(kill(peer.pid(), SIGSTOP), 0);
    ASSERT_EQ(waitpid(peer.pid(), nullptr, WUNTRACED), peer.pid());
    must(end.queue_pair.send(end.here(0, 64)), "send");
    peer.kill();
    peer.wait();
    const IbvWc wc = end.completion();
    EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR) << to_string(wc);
    EXPECT_EQ(must(end.queue_pair.state(), "state"), IBV_QPS_ERR);
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

}  // namespace

int main(int count, char** arguments) {
  return qpair::testing::run_tests_or_peer(count, arguments, [](const std::string& role, int socket) {
    be_the_peer(socket, static_cast<Kind>(std::ranges::find(kKinds, role) - kKinds.begin()));
  });
}
