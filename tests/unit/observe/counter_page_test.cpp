#include "softnic/observe/counter_page.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "softnic/observe/running_nics.hpp"

namespace qpair::softnic::observe {
namespace {

wire::Endpoint address() {
  return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 71, 1, 2}, wire::kRoceUdpPort};
}

CounterValues after(const CounterValues& before, std::uint64_t sent) {
  Counters counters = counters_of(before);
  counters.packets_sent += sent;
  return values_of(counters);
}

TEST(CounterPage, IsFoundByProcessAndTellsWhoseItIs) {
  const auto page = CounterPage::create(address());
  ASSERT_TRUE(page);
  const auto nics = running_nics(getpid());
  ASSERT_EQ(nics.size(), 1U);
  EXPECT_EQ(nics[0].pid, getpid());
  EXPECT_EQ(nics[0].process, "unit-observe");
  EXPECT_EQ(nics[0].address.address, address().address);
  EXPECT_GT(nics[0].started, 0U);
  bool among_all = false;
  for (const NicReading& nic : running_nics()) among_all |= nic.pid == getpid();
  EXPECT_TRUE(among_all);
}

TEST(CounterPage, ShowsQueuePairsAndTheirSum) {
  const auto page = CounterPage::create(address());
  QueuePairIdentity who{0x123456, 0xabcdef, 2, 0};
  const int slot = page->enter(who);
  const CounterValues none{};
  const CounterValues one = after(none, 3);
  who.state = 3;
  page->publish(slot, who, none, one);
  page->publish(slot, who, one, after(one, 4));
  const NicReading nic = running_nics(getpid()).at(0);
  ASSERT_EQ(nic.listed.size(), 1U);
  EXPECT_EQ(nic.listed[0].who, who);
  EXPECT_EQ(nic.listed[0].counters.packets_sent, 7U);
  EXPECT_EQ(nic.totals.packets_sent, 7U);
}

TEST(CounterPage, ANewQueuePairInAnOldPlaceStartsAtZero) {
  const auto page = CounterPage::create(address());
  const int slot = page->enter({1, 2, 2, 3});
  page->publish(slot, {1, 2, 2, 3}, {}, after({}, 9));
  page->leave(slot);
  EXPECT_TRUE(running_nics(getpid()).at(0).listed.empty());
  EXPECT_EQ(page->enter({5, 0, 2, 0}), slot);
  const NicReading nic = running_nics(getpid()).at(0);
  EXPECT_EQ(nic.listed.at(0).who.qpn, 5U);
  EXPECT_EQ(nic.listed.at(0).counters.packets_sent, 0U);
  EXPECT_EQ(nic.totals.packets_sent, 9U);
}

TEST(CounterPage, AChildOfForkIsNotTakenForItsParent) {
  const auto page = CounterPage::create(address());
  int ready[2];
  int end[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(end), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    close(end[1]);
    _exit(write(ready[1], "r", 1) == 1 && read(end[0], &byte, 1) == 0 ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(running_nics(child).empty());
  close(end[1]);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(running_nics(getpid()).size(), 1U);
}

TEST(CounterPage, CannotBeWrittenOrShrunkByWhoeverFindsIt) {
  const auto page = CounterPage::create(address());
  int found = -1;
  for (int fd = 0; fd < 1 << 16 && found < 0; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 && fcntl(fd, F_GET_SEALS) > 0) found = fd;
  }
  ASSERT_GE(found, 0);
  const int other = open(("/proc/self/fd/" + std::to_string(found)).c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(other, 0);
  EXPECT_EQ(ftruncate(other, 0), -1);
  EXPECT_EQ(write(other, "x", 1), -1);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0), MAP_FAILED);
  close(other);
}

TEST(CounterPage, WithoutADescriptorThereIsNone) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto page = CounterPage::create(address());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(page, nullptr);
}

TEST(RunningNics, NobodyIsNobody) {
  EXPECT_TRUE(running_nics(getpid()).empty());
  EXPECT_TRUE(running_nics(1 << 30).empty());
}

}  // namespace
}  // namespace qpair::softnic::observe
