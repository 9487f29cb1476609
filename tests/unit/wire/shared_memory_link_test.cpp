// Two links of one process are as good as two processes: they meet through sockets and mapped files only.

#include "softnic/wire/shared_memory_link.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "softnic/wire/address.hpp"

namespace qpair::softnic::wire {
namespace {

using namespace std::chrono_literals;

Endpoint address(int last) {
  // Of a block that no NIC of the machine takes; the process makes it one of this test alone.
  return *parse_address("127.99." + std::to_string(::getpid() % 250 + 1) + "." + std::to_string(last));
}

bool is_readable(int fd) {
  pollfd one{fd, POLLIN, 0};
  return ::poll(&one, 1, 0) == 1;
}

class SharedMemoryLinkTest : public testing::Test {
 protected:
  using Text = std::string;

  static void send(SharedMemoryLink& from, const Endpoint& to, const Text& text) {
    const auto packet = from.reserve(to, text.size());
    ASSERT_EQ(packet.size(), text.size());
    std::memcpy(packet.data(), text.data(), text.size());
    from.commit();
    from.flush();
  }
  std::vector<Text> poll(SharedMemoryLink& link, std::size_t limit = 100) {
    now += 1ms;
    std::vector<Text> texts;
    link.poll(
        [&](const Frame& frame) {
          texts.emplace_back(reinterpret_cast<const char*>(frame.bytes.data()), frame.bytes.size());
          source = frame.source;
          destination = frame.destination;
        },
        limit, now);
    return texts;
  }
  // Each has seen what the other has to say.
  void meet() {
    send(*one, two->local(), "hello");
    send(*two, one->local(), "hello");
    for (int i = 0; i < 3; ++i) poll(*one), poll(*two);
    ASSERT_FALSE(one->find(two->local())->shown().empty());
    ASSERT_FALSE(two->find(one->local())->shown().empty());
  }

  std::unique_ptr<SharedMemoryLink> one = SharedMemoryLink::open(address(1), 4096);
  std::unique_ptr<SharedMemoryLink> two = SharedMemoryLink::open(address(2), 4096);
  TimePoint now = std::chrono::steady_clock::now();
  Endpoint source, destination;
};

TEST_F(SharedMemoryLinkTest, PacketsArriveInOrderFromTheFirstOn) {
  send(*one, two->local(), "a");
  send(*one, two->local(), "bc");
  EXPECT_EQ(poll(*two), (std::vector<Text>{"a", "bc"}));
  EXPECT_EQ(source.address, one->local().address);
  EXPECT_EQ(destination, two->local());
  send(*two, one->local(), "d");
  EXPECT_EQ(poll(*one), (std::vector<Text>{"d"}));
}

TEST_F(SharedMemoryLinkTest, ReachesOnlyWhoIsThere) {
  poll(*one);
  EXPECT_TRUE(one->reaches(two->local()));
  EXPECT_FALSE(one->reaches(address(3)));
  auto three = SharedMemoryLink::open(address(3), 4096);
  poll(*one);
  EXPECT_FALSE(one->reaches(address(3))) << "it was asked a moment ago";
  now += 1s;
  poll(*one);
  EXPECT_TRUE(one->reaches(address(3)));
}

TEST_F(SharedMemoryLinkTest, OneAddressIsOneLink) {
  EXPECT_EQ(SharedMemoryLink::open(address(1), 4096), nullptr);
}

TEST_F(SharedMemoryLinkTest, ASleeperIsWokenAndOneThatIsAwakeIsNot) {
  meet();
  EXPECT_FALSE(is_readable(two->descriptor()));
  send(*one, two->local(), "awake");
  EXPECT_FALSE(is_readable(two->descriptor()));
  EXPECT_FALSE(two->sleeps()) << "something is there";
  poll(*two);
  ASSERT_TRUE(two->sleeps());
  send(*one, two->local(), "asleep");
  EXPECT_TRUE(is_readable(two->descriptor()));
  two->wakes();
  EXPECT_EQ(poll(*two), (std::vector<Text>{"asleep"}));
  EXPECT_FALSE(is_readable(two->descriptor()));
}

TEST_F(SharedMemoryLinkTest, ASleeperIsWokenByTheFirstPacketToo) {
  ASSERT_TRUE(two->sleeps());
  send(*one, two->local(), "first");
  EXPECT_TRUE(is_readable(two->descriptor()));
  two->wakes();
  EXPECT_EQ(poll(*two), (std::vector<Text>{"first"}));
  // It has accepted, but the sender does not know its bell yet.
  ASSERT_TRUE(two->sleeps());
  send(*one, two->local(), "second");
  EXPECT_TRUE(is_readable(two->descriptor()));
}

TEST_F(SharedMemoryLinkTest, AFullRingHasNoRoomUntilSomebodyReads) {
  meet();
  const Text text(4000, 'x');
  std::size_t sent = 0;
  while (one->has_room(two->local(), text.size())) {
    send(*one, two->local(), text);
    ++sent;
  }
  EXPECT_GT(sent, 50U);
  ASSERT_TRUE(one->sleeps());
  EXPECT_EQ(poll(*two, 10).size(), 10U);
  EXPECT_TRUE(is_readable(one->descriptor())) << "who waits for room is woken";
  one->wakes();
  poll(*one);
  EXPECT_TRUE(one->has_room(two->local(), text.size()));
  EXPECT_EQ(poll(*two, 1000).size(), sent - 10);
  EXPECT_EQ(one->dropped(), 0U);
}

TEST_F(SharedMemoryLinkTest, WhatFindsNoRoomIsLostAndCounted) {
  const Text text(60'000, 'x');
  for (int i = 0; i < 20; ++i) send(*one, two->local(), text);
  EXPECT_GT(one->dropped(), 0U);
  EXPECT_EQ(poll(*two).size() + one->dropped(), 20U);
}

TEST_F(SharedMemoryLinkTest, OneThatGoesIsMissedAfterWhatItSaid) {
  meet();
  send(*two, one->local(), "last words");
  two.reset();
  EXPECT_EQ(one->departed(), std::nullopt);
  EXPECT_EQ(poll(*one), (std::vector<Text>{"last words"}));
  const auto gone = one->departed();
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->address, address(2).address);
  EXPECT_EQ(one->departed(), std::nullopt) << "said once";
  EXPECT_FALSE(one->reaches(address(2)));
}

TEST_F(SharedMemoryLinkTest, OneThatPartsIsNotMissed) {
  for (const bool both_sent : {false, true}) {
    SCOPED_TRACE(both_sent ? "two sessions" : "one session");
    send(*two, one->local(), "hello");
    if (both_sent) meet();
    send(*two, one->local(), "last words");
    two->has_queue_pairs(false);
    two.reset();
    EXPECT_EQ(poll(*one).back(), "last words");
    EXPECT_EQ(one->departed(), std::nullopt);
    EXPECT_FALSE(one->reaches(address(2)));
    two = SharedMemoryLink::open(address(2), 4096);
    now += 1s;
    poll(*one);
    EXPECT_TRUE(one->reaches(address(2))) << "somebody else may have its address";
  }
}

TEST_F(SharedMemoryLinkTest, OneThatHadPartedBeforeTheFirstWordIsNotMissed) {
  two->has_queue_pairs(false);
  send(*two, one->local(), "only word");
  EXPECT_EQ(poll(*one), (std::vector<Text>{"only word"}));
  two.reset();
  now += 1s;
  poll(*one);
  EXPECT_EQ(one->departed(), std::nullopt);
}

TEST_F(SharedMemoryLinkTest, OneThatHasQueuePairsAgainIsMissed) {
  two->has_queue_pairs(false);
  send(*two, one->local(), "first word");
  EXPECT_EQ(poll(*one), (std::vector<Text>{"first word"}));
  two->has_queue_pairs(true);
  two.reset();
  now += 1s;
  poll(*one);
  EXPECT_TRUE(one->departed());
}

TEST_F(SharedMemoryLinkTest, ALastWordIsHeardThoughNobodyHadAcceptedYet) {
  send(*one, two->local(), "only word");
  one.reset();
  EXPECT_EQ(poll(*two), (std::vector<Text>{"only word"}));
}

// As many as the process may have, until it goes.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    for (int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC); fd >= 0; fd = ::dup(fds_.front()))
      fds_.push_back(fd);
    EXPECT_EQ(errno, EMFILE);
  }
  ~NoDescriptorsLeft() {
    for (const int fd : fds_) ::close(fd);
  }
  NoDescriptorsLeft(const NoDescriptorsLeft&) = delete;
  NoDescriptorsLeft& operator=(const NoDescriptorsLeft&) = delete;

 private:
  std::vector<int> fds_;
};

// Both are alive, so nobody is missed: they use the network, and try again later.
TEST_F(SharedMemoryLinkTest, ANicWithoutDescriptorsIsReachedByTheNetworkAndNotTakenForDead) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "UndefinedBehaviorSanitizer looks at objects through a pipe, for which it needs descriptors";
#endif
  send(*one, two->local(), "hello");
  {
    const NoDescriptorsLeft none;
    poll(*two);  // no descriptor for the session
    poll(*one);
    poll(*two);
    EXPECT_FALSE(one->reaches(two->local()));
  }
  EXPECT_EQ(one->departed(), std::nullopt);
  EXPECT_EQ(two->departed(), std::nullopt);
  now += 1s;
  poll(*one);
  send(*one, two->local(), "hello");
  EXPECT_EQ(poll(*two), (std::vector<Text>{"hello"}));
  {
    const NoDescriptorsLeft none;
    poll(*one);  // …for what the other one shows
    poll(*two);
    EXPECT_FALSE(one->reaches(two->local()));
  }
  EXPECT_EQ(one->departed(), std::nullopt);
  EXPECT_EQ(two->departed(), std::nullopt);
  now += 1s;
  poll(*one), poll(*two);
  meet();
}

TEST_F(SharedMemoryLinkTest, ADescendantDoesNotKeepItsParentAlive) {
  meet();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    two->abandon();
    char byte = 0;
    static_cast<void>(!::write(ends[1], &byte, 1));
    ::close(ends[1]);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  two.reset();
  poll(*one);
  EXPECT_TRUE(one->departed());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]), ::close(ends[1]);
}

// ---- Memory that is shown -----------------------------------------------------------------------

class Owner final : public MemoryOwner {
 public:
  Owner() : fd(static_cast<int>(::memfd_create("memory", MFD_CLOEXEC))) {
    EXPECT_EQ(::ftruncate(fd, 8192), 0);
    EXPECT_EQ(::pwrite(fd, "shown", 5, 100), 5);
  }
  ~Owner() override { ::close(fd); }
  std::optional<SharedFile> file_of(std::uint32_t key) override {
    ++asked;
    return key == 0x1234 ? std::optional(SharedFile{7, fd, 8192}) : std::nullopt;
  }
  int fd;
  int asked = 0;
};

TEST_F(SharedMemoryLinkTest, AFileTravelsOnceAndGoesWhenItsOwnerSays) {
  Owner owner;
  two->set_owner(&owner);
  meet();
  Neighbour& neighbour = *one->find(two->local());
  EXPECT_FALSE(neighbour.file(7));
  neighbour.want(0x1234, now);
  neighbour.want(0x1234, now);
  poll(*two), poll(*one);
  EXPECT_EQ(owner.asked, 1) << "asked again only after a while";
  const auto file = neighbour.file(7);
  ASSERT_TRUE(file);
  ASSERT_EQ(file->size(), 8192U);
  EXPECT_EQ(std::memcmp(file->data() + 100, "shown", 5), 0);
  two->file_gone(7);
  poll(*one);
  EXPECT_FALSE(neighbour.file(7));
  two->set_owner(nullptr);
}

// A file for each key.
class OwnerOfMany final : public MemoryOwner {
 public:
  std::optional<SharedFile> file_of(std::uint32_t key) override { return SharedFile{key, owner.fd, 8192}; }
  Owner owner;
};

TEST_F(SharedMemoryLinkTest, ThatFilesAreGoneIsHeardAlsoByOneWhoDidNotListenForLong) {
  constexpr std::uint32_t kFiles = 1000;  // more than a socket holds messages
  OwnerOfMany owner;
  two->set_owner(&owner);
  meet();
  Neighbour& neighbour = *one->find(two->local());
  for (std::uint32_t key = 1; key <= kFiles; ++key) {
    neighbour.want(key, now);
    poll(*two), poll(*one);
    ASSERT_TRUE(neighbour.file(key)) << key;
  }
  for (std::uint32_t key = 1; key <= kFiles; ++key) two->file_gone(key);
  for (std::uint32_t i = 0; i < kFiles; ++i) poll(*two), poll(*one);
  for (std::uint32_t key = 1; key <= kFiles; ++key) EXPECT_FALSE(neighbour.file(key)) << key;
  two->set_owner(nullptr);
}

TEST_F(SharedMemoryLinkTest, WhatIsShownIsSeenAndCannotBeWritten) {
  meet();
  two->shown()[10] = std::byte{0x5a};
  const std::span<const std::byte> seen = one->find(two->local())->shown();
  EXPECT_EQ(seen[10], std::byte{0x5a});
  const int zero = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(::read(zero, const_cast<std::byte*>(&seen[10]), 1), -1) << "the kernel cannot, so nobody can";
  EXPECT_EQ(errno, EFAULT);
  ::close(zero);
}

TEST_F(SharedMemoryLinkTest, ItsOwnerWaitsForACopyToEnd) {
  meet();
  Neighbour& neighbour = *one->find(two->local());
  neighbour.begin();
  std::atomic<bool> ended{false};
  std::jthread copier([&] {
    std::this_thread::yield();
    ended = true;
    neighbour.end();
  });
  two->wait_for_copies(1min);
  EXPECT_TRUE(ended);
}

TEST_F(SharedMemoryLinkTest, ItsOwnerDoesNotWaitForCopiesThatBeginLater) {
  meet();
  Neighbour& neighbour = *one->find(two->local());
  neighbour.begin();
  std::atomic<bool> waited{false};
  std::jthread owner([&] {
    two->wait_for_copies(1min);
    waited = true;
  });
  testing::internal::CaptureStderr();
  while (!waited) {
    neighbour.end();
    neighbour.begin();
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "nobody was stopped";
}

TEST_F(SharedMemoryLinkTest, ItsOwnerDoesNotWaitForTheDead) {
  meet();
  one->find(two->local())->begin();
  one.reset();
  two->wait_for_copies();
  poll(*two);
  EXPECT_TRUE(two->departed());
}

TEST_F(SharedMemoryLinkTest, CountsWhatOthersMoved) {
  meet();
  one->find(two->local())->count({.writes = 1, .packets_received = 3, .bytes_received = 9000});
  one->find(two->local())->count({.writes = 1, .packets_received = 1, .bytes_received = 8});
  EXPECT_EQ(two->copies().writes, 2U);
  EXPECT_EQ(two->copies().bytes_received, 9008U);
  one.reset();
  poll(*two);
  EXPECT_EQ(two->copies().packets_received, 4U) << "also of one that is gone";
}

// ---- Strangers ----------------------------------------------------------------------------------

// Somebody of this user who knows the name, but not what to say.
class Stranger {
 public:
  explicit Stranger(const Endpoint& to) : socket(LocalSocket::connect(to)) { EXPECT_TRUE(socket); }
  void say(LocalMessage message, std::span<const int> descriptors = {}) const {
    EXPECT_EQ(socket.send(message, descriptors), LocalSocket::Outcome::Done);
  }
  LocalSocket socket;
};

TEST_F(SharedMemoryLinkTest, NonsenseIsRefusedAndChangesNothing) {
  const int plain = static_cast<int>(::memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(plain, static_cast<off_t>(PacketRing::size_for(std::size_t{512} << 10))), 0);
  const std::array<int, 2> unsealed{plain, plain};
  const LocalMessage hello{.kind = LocalMessage::Kind::Hello,
                           .size = PacketRing::size_for(std::size_t{512} << 10),
                           .address = address(3).address};
  LocalMessage of_another_version = hello;
  of_another_version.version = 77;
  LocalMessage of_another_size = hello;
  of_another_size.size = 4096;
  LocalMessage not_ours = hello;
  not_ours.magic = 1;
  {
    const Stranger a(two->local()), b(two->local()), c(two->local()), d(two->local()), e(two->local());
    a.say(hello);            // without descriptors
    b.say(hello, unsealed);  // memory that could shrink under us
    c.say(of_another_version, unsealed);
    d.say(of_another_size, unsealed);
    e.say(not_ours);
    EXPECT_TRUE(poll(*two).empty());
    poll(*two);
    for (const Stranger* stranger : {&a, &b, &c, &d}) {
      ReceivedMessage answer;
      ASSERT_EQ(stranger->socket.receive(answer), LocalSocket::Outcome::Done);
      EXPECT_EQ(answer.message.kind, LocalMessage::Kind::Refused);
    }
    EXPECT_FALSE(e.socket.is_connected());
  }
  poll(*two);
  EXPECT_EQ(two->departed(), std::nullopt) << "they were never there";
  meet();
  ::close(plain);
}

TEST_F(SharedMemoryLinkTest, ARingThatIsBrokenEndsItsSessionOnly) {
  auto memory = SharedSegment::create("ring", PacketRing::size_for(std::size_t{512} << 10));
  const std::array<int, 2> descriptors{memory->descriptor(), memory->descriptor()};
  const Stranger stranger(two->local());
  stranger.say(
      {.kind = LocalMessage::Kind::Hello, .size = memory->bytes().size(), .address = address(3).address},
      descriptors);
  poll(*two);
  reinterpret_cast<PacketRingHeader*>(memory->bytes().data())->tail.store(12345);
  poll(*two), poll(*two);
  EXPECT_FALSE(stranger.socket.is_connected());
  meet();
}

TEST_F(SharedMemoryLinkTest, AListenerOfAnotherUserIsNotTalkedTo) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Endpoint three = address(3);
  const std::string name = "qpair-nic-0-";
  const pid_t child = ::fork();
  if (child == 0) {
    // The name is anybody's to take; who took it is what the kernel says.
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(1);
    sockaddr_un taken{};
    taken.sun_family = AF_UNIX;
    std::string whole = name;
    for (const std::uint8_t byte : three.address) {
      const char* const digits = "0123456789abcdef";
      whole += digits[byte >> 4];
      whole += digits[byte & 15];
    }
    std::memcpy(&taken.sun_path[1], whole.data(), whole.size());
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + whole.size());
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&taken), length) != 0 || ::listen(fd, 5) != 0)
      ::_exit(1);
    static_cast<void>(!::write(ends[1], "r", 1));
    ::pause();
    ::_exit(0);
  }
  char ready = 0;
  ASSERT_EQ(::read(ends[0], &ready, 1), 1);
  EXPECT_FALSE(one->reaches(three));
  EXPECT_EQ(SharedMemoryLink::open(three, 4096), nullptr) << "the name is taken: packets go by the network";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]), ::close(ends[1]);
}

}  // namespace
}  // namespace qpair::softnic::wire
