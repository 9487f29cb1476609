// A process that dies, stands still or forks, at every step of its life with a peer. The survivor learns of
// it by the error that a real NIC gives, goes on with another peer, and nothing of the dead one is left.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
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

namespace fs = std::filesystem;

enum class Step { Created, Connected, Posted, Transferring, Completed };
constexpr std::array<const char*, 5> kSteps = {"Created", "Connected", "Posted", "Transferring", "Completed"};
enum class Fate {
  Killed,
  Stopped,
  ForkedAndKilled,
  ForkedAndGoesOn,
  Exits,
  Parts,
  PartsAndExitsAtOnce,
  PartsAndIsKilled
};
constexpr std::array<const char*, 8> kFates = {
    "Killed", "Stopped", "ForkedAndKilled",     "ForkedAndGoesOn",
    "Exits",  "Parts",   "PartsAndExitsAtOnce", "PartsAndIsKilled"};

constexpr std::size_t kSize = 8U << 20;
constexpr std::size_t kLongTransfers = 16;

qpair::IbverbsConfig config() {
  qpair::IbverbsConfig config;
  config.qp_timeout = 14;  // 67 ms, so that a busy machine is not taken for a dead one
  config.retry_cnt = 3;
  return config;
}

// One end, whichever process it lives in.
struct End {
  explicit End(int socket_) : socket(socket_) {}

  RdmaDomain domain = must(RdmaDomain::create(), "open the device");
  MemoryRegion memory = must(domain.allocate(kSize), "allocate");
  RdmaQueuePair queue_pair = must(RdmaQueuePair::create(domain, config()), "create the queue pair");
  int socket;
  RdmaBuffer remote;
  RdmaQpInfo peer;

  void exchange() {
    remote = must(qpair::exchange_value(socket, memory.buffer()), "exchange buffers");
    peer = must(qpair::exchange_qp_info(socket, must(queue_pair.get_qp_info(), "info")), "exchange");
  }
  void connect() { must(queue_pair.connect(peer), "connect"); }
  void meet() { must(qpair::exchange(socket, "here"), "meet"); }

  void put(std::size_t size) {
    must(queue_pair.put(must(memory.buffer().slice(0, size), "slice"), must(remote.slice(0, size), "slice")),
         "put");
  }
  std::vector<IbvWc> completions(std::size_t count) {
    std::vector<IbvWc> all;
    while (all.size() < count) {
      IbvWc wc;
      if (must(queue_pair.poll_completions(PollTarget::Send, {&wc, 1}), "poll") == 1) all.push_back(wc);
    }
    return all;
  }
};

// ---- The one that it happens to -----------------------------------------------------------------

void wait_for_the_end(int socket) {
  char byte = 0;
  while (read(socket, &byte, 1) > 0) {
  }
}

void fork_if(Fate fate, int socket) {
  if (fate != Fate::ForkedAndKilled && fate != Fate::ForkedAndGoesOn) return;
  int ends[2];
  if (pipe(ends) != 0) throw Failed("pipe");
  const pid_t child = fork();
  if (child < 0) throw Failed("fork");
  if (child > 0) {
    // The handlers that give up what the child inherited run in the child.
    close(ends[1]);
    wait_for_the_end(ends[0]);
    close(ends[0]);
    if (fate == Fate::ForkedAndGoesOn) waitpid(child, nullptr, 0);
    return;
  }
  close(ends[0]);
  close(ends[1]);
  if (fate == Fate::ForkedAndKilled) wait_for_the_end(socket);  // it outlives its parent
  _exit(0);
}

void be_the_victim(int socket, Step step, Fate fate) {
  End end(socket);
  end.exchange();
  if (step == Step::Created) {
    fork_if(fate, socket);
    end.meet();
    if (fate != Fate::ForkedAndGoesOn) return wait_for_the_end(socket);
  }
  end.connect();
  if (step != Step::Created) end.meet();
  if (step == Step::Completed) end.meet();  // the survivor's put is complete
  if (step == Step::Posted) {
    for (std::size_t i = 0; i < kLongTransfers; ++i) end.put(kSize);
  }
  if (step != Step::Created) fork_if(fate, socket);
  end.meet();
  if (step == Step::Posted && fate == Fate::ForkedAndGoesOn) {
    for (const IbvWc& wc : end.completions(kLongTransfers)) {
      if (!wc.is_valid()) throw Failed("put: " + to_string(wc));
    }
    end.meet();
  }
  wait_for_the_end(socket);
  if (fate == Fate::Exits) std::exit(0);  // with its queue pair
}

// ---- The survivor -------------------------------------------------------------------------------

// Files of that process, wherever the emulated NIC may keep some.
std::vector<std::string> left_behind(pid_t pid) {
  std::vector<std::string> found;
  const std::array<const char*, 4> bases = {std::getenv("XDG_RUNTIME_DIR"), "/dev/shm", std::getenv("TMPDIR"),
                                            "/tmp"};
  for (const char* base : bases) {
    if (base == nullptr) continue;
    std::error_code ignored;
    const fs::path parent = fs::path(base) / ("qpair-" + std::to_string(geteuid()));
    for (const auto& entry : fs::directory_iterator(parent, ignored)) {
      if (entry.path().filename().string().starts_with(std::to_string(pid) + "-"))
        found.push_back(entry.path());
    }
  }
  return found;
}

bool address_is_free(const RdmaQpInfo& info) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(4791);
  const auto& bytes = info.gid.value().raw;
  std::memcpy(&address.sin_addr, bytes.data() + 12, sizeof address.sin_addr);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return free;
}

class Deaths : public ::testing::TestWithParam<std::tuple<Step, Fate>> {
 protected:
  Step step() const { return std::get<Step>(GetParam()); }
  Fate fate() const { return std::get<Fate>(GetParam()); }
  static std::string role(Step step, Fate fate) {
    return std::string(kSteps.at(static_cast<std::size_t>(step))) + "/" +
           kFates.at(static_cast<std::size_t>(fate));
  }

  // Until the victim has reached the step at which it happens.
  void reach_the_step(End& end) {
    end.exchange();
    end.connect();
    end.meet();
    if (step() == Step::Created) return;
    if (step() == Step::Completed) {
      end.put(4096);
      ASSERT_TRUE(end.completions(1)[0].is_valid());
      end.meet();
    }
    if (step() == Step::Transferring) {
      for (std::size_t i = 0; i < kLongTransfers; ++i) end.put(kSize);
      posted_ = kLongTransfers;
    }
    end.meet();
  }

  void happen(PeerProcess& victim) {
    switch (fate()) {
      case Fate::Killed:
      case Fate::ForkedAndKilled:
        victim.kill();
        victim.wait();
        break;
      case Fate::Stopped:
        ASSERT_EQ(kill(victim.pid(), SIGSTOP), 0);
        ASSERT_EQ(waitpid(victim.pid(), nullptr, WUNTRACED), victim.pid());
        break;
      case Fate::ForkedAndGoesOn:
      case Fate::Exits:
      case Fate::Parts:
      case Fate::PartsAndExitsAtOnce:
      case Fate::PartsAndIsKilled:
        break;
    }
  }

  // One failure says that nobody answers; what was posted after it is flushed. A put may succeed: the memory
  // of a process that stands still is there, and a NIC of the same host, as every real one, may reach it.
  void expect_retries_exceeded(End& end) {
    end.put(4096);
    must(end.queue_pair.send(must(end.memory.buffer().slice(0, 64), "slice")), "send");
    const std::vector<IbvWc> all = end.completions(posted_ + 2);
    const auto failure = std::ranges::find_if_not(all, &IbvWc::is_valid);
    ASSERT_NE(failure, all.end());
    EXPECT_EQ(failure->status, IBV_WC_RETRY_EXC_ERR) << to_string(*failure);
    EXPECT_TRUE(std::all_of(failure + 1, all.end(),
                            [](const IbvWc& wc) { return wc.status == IBV_WC_WR_FLUSH_ERR; }));
    EXPECT_EQ(must(end.queue_pair.state(), "state"), IBV_QPS_ERR);
  }

  static void expect_it_works(End& end) {
    std::ranges::fill(end.memory.bytes(), std::byte{0x5a});
    end.put(kSize);
    ASSERT_TRUE(end.completions(1)[0].is_valid());
    std::ranges::fill(end.memory.bytes(), std::byte{0});
    must(end.queue_pair.get(end.memory.buffer(), end.remote), "get");
    ASSERT_TRUE(end.completions(1)[0].is_valid());
    EXPECT_TRUE(
        std::ranges::all_of(end.memory.bytes(), [](std::byte byte) { return byte == std::byte{0x5a}; }));
  }

  void go_on_with_another(End& end) {
    must(end.queue_pair.reset(), "reset");
    PeerProcess other(role(Step::Connected, Fate::ForkedAndGoesOn));
    end.socket = other.socket();
    end.exchange();
    end.connect();
    end.meet();
    end.meet();
    expect_it_works(end);
    close_and_expect_a_good_end(other);
  }

  static void close_and_expect_a_good_end(PeerProcess& peer) {
    shutdown(peer.socket(), SHUT_RDWR);
    const pid_t pid = peer.pid();
    EXPECT_EQ(peer.wait(), 0);
    EXPECT_EQ(left_behind(pid), std::vector<std::string>{});
  }

  std::size_t posted_ = 0;
};

TEST_P(Deaths, LeaveTheSurvivorAnErrorAndNothingElse) {
  try {
    PeerProcess victim(role(step(), fate()));
    const pid_t pid = victim.pid();
    End end(victim.socket());
    reach_the_step(end);
    happen(victim);
    if (HasFatalFailure()) return;
    if (fate() == Fate::ForkedAndGoesOn) {
      for (const IbvWc& wc : end.completions(posted_)) EXPECT_TRUE(wc.is_valid()) << to_string(wc);
      if (step() == Step::Posted || step() == Step::Created) end.meet();
      expect_it_works(end);
      close_and_expect_a_good_end(victim);
      EXPECT_TRUE(address_is_free(end.peer));
      return;
    }
    EXPECT_EQ(address_is_free(end.peer), fate() != Fate::Stopped);
    expect_retries_exceeded(end);
    const RdmaQpInfo gone = end.peer;
    go_on_with_another(end);
    if (fate() == Fate::Stopped) {
      EXPECT_NE(left_behind(pid), std::vector<std::string>{}) << "it is alive, and its files are its own";
      kill(pid, SIGCONT);
      close_and_expect_a_good_end(victim);
    }
    EXPECT_EQ(left_behind(pid), std::vector<std::string>{}) << "the next process cleans up";
    EXPECT_TRUE(address_is_free(gone));
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

INSTANTIATE_TEST_SUITE_P(AtEveryStep, Deaths,
                         ::testing::Combine(::testing::Values(Step::Created, Step::Connected, Step::Posted,
                                                              Step::Transferring, Step::Completed),
                                            ::testing::Values(Fate::Killed, Fate::Stopped,
                                                              Fate::ForkedAndKilled, Fate::ForkedAndGoesOn)),
                         [](const auto& test) {
                           return std::string(
                                      kFates.at(static_cast<std::size_t>(std::get<Fate>(test.param)))) +
                                  "When" + kSteps.at(static_cast<std::size_t>(std::get<Step>(test.param)));
                         });

// What a request to a connected peer says that finds its process ended.
std::string reason_after(Fate fate) {
  PeerProcess peer("Connected/" + std::string(kFates.at(static_cast<std::size_t>(fate))));
  End end(peer.socket());
  end.exchange();
  end.connect();
  end.meet();
  end.put(4096);
  EXPECT_TRUE(end.completions(1)[0].is_valid());
  end.meet();
  if (fate == Fate::Killed) peer.kill();
  shutdown(peer.socket(), SHUT_RDWR);
  peer.wait();
  must(end.queue_pair.send(must(end.memory.buffer().slice(0, 64), "slice")), "send");
  const IbvWc wc = end.completions(1)[0];
  EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR) << to_string(wc);
  return wc.error()->message();
}

TEST(Ends, WithAQueuePairAreToldToItsPeer) {
  const char* const wire = std::getenv("QPAIR_NIC_WIRE");
  if (wire != nullptr && std::string_view(wire) == "udp") GTEST_SKIP() << "nobody tells of it on a network";
  for (const Fate fate : {Fate::Killed, Fate::Exits}) {
    try {
      EXPECT_THAT(reason_after(fate), testing::HasSubstr("and never will: its process has ended"));
    } catch (const Failed& failure) {
      FAIL() << failure.what();
    }
  }
}

// Programs end like that which know that the other one has all it needs, while the other still waits for ACKs
// that it does not need (ibv_srq_pingpong). It is done before it misses them, unless it is told.
TEST(Ends, AfterItsQueuePairAreSilent) {
  for (const Fate fate : {Fate::Parts, Fate::PartsAndExitsAtOnce, Fate::PartsAndIsKilled}) {
    try {
      EXPECT_THAT(reason_after(fate), testing::HasSubstr(": 3 retries of "));
    } catch (const Failed& failure) {
      FAIL() << failure.what();
    }
  }
}

void be_somebody(const std::string& role, int socket) {
  const std::size_t slash = role.find('/');
  const auto step = std::ranges::find(kSteps, role.substr(0, slash));
  const auto fate = std::ranges::find(kFates, role.substr(slash + 1));
  const auto its_fate = static_cast<Fate>(fate - kFates.begin());
  be_the_victim(socket, static_cast<Step>(step - kSteps.begin()), its_fate);
  if (its_fate == Fate::PartsAndExitsAtOnce) _exit(0);
  if (its_fate == Fate::PartsAndIsKilled) raise(SIGKILL);
}

}  // namespace

int main(int count, char** arguments) {
  return qpair::testing::run_tests_or_peer(count, arguments, be_somebody);
}
