#include "softnic/nic/guarded_memory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <numeric>
#include <vector>

namespace qpair::softnic::nic {
namespace {

// Two pages of which the second can be taken away.
class Pages {
 public:
  Pages()
      : size_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))),
        base_(static_cast<std::byte*>(
            mmap(nullptr, 2 * size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { munmap(base_, 2 * size_); }
  std::size_t size() const { return size_; }
  std::byte* base() const { return base_; }
  std::byte* edge() const { return base_ + size_; }
  void protect_second(int protection) const { mprotect(edge(), size_, protection); }
  void unmap_second() const { munmap(edge(), size_); }

 private:
  std::size_t size_;
  std::byte* base_;
};

class GuardedMemory : public testing::Test {
 protected:
  void SetUp() override { install_fault_handler(); }
};

TEST_F(GuardedMemory, CopiesEverySizeExactlyAndNothingBeyond) {
  std::vector<unsigned char> from(20'000);
  std::iota(from.begin(), from.end(), static_cast<unsigned char>(1));
  for (std::size_t size = 0; size < 10'000; size += size < 300 ? 1 : 677) {
    std::vector<unsigned char> to(size + 2, 0xee);
    ASSERT_TRUE(guarded_copy(to.data() + 1, from.data() + 3, size));
    EXPECT_EQ(0, std::memcmp(to.data() + 1, from.data() + 3, size)) << size;
    EXPECT_EQ(to.front(), 0xee) << size;
    EXPECT_EQ(to.back(), 0xee) << size;
  }
}

TEST_F(GuardedMemory, CopyIntoAMissingPageFailsAndReachesUpToIt) {
  Pages pages;
  pages.unmap_second();
  std::vector<std::byte> from(16'384, std::byte{7});
  for (std::size_t size : {1UL, 2UL, 4UL, 8UL, 15UL, 16UL, 64UL, 200UL, 4096UL, 16'384UL}) {
    EXPECT_FALSE(guarded_copy(pages.edge(), from.data(), size)) << size;
    EXPECT_FALSE(guarded_copy(from.data(), pages.edge(), size)) << size;
  }
  EXPECT_TRUE(guarded_copy(pages.edge() - 1, from.data(), 1));
  EXPECT_FALSE(guarded_copy(pages.edge() - 128, from.data(), 256));
  EXPECT_EQ(pages.edge()[-128], std::byte{7});
}

TEST_F(GuardedMemory, ReadOnlyPageCanBeReadButNotWritten) {
  Pages pages;
  pages.protect_second(PROT_READ);
  std::uint64_t value = 0;
  EXPECT_TRUE(guarded_load64(pages.edge(), value));
  EXPECT_FALSE(guarded_store64(pages.edge(), 1));
  EXPECT_FALSE(guarded_store32(pages.edge(), 1));
  EXPECT_FALSE(guarded_fetch_add64(pages.edge(), 1, value));
  EXPECT_FALSE(guarded_compare_exchange64(pages.edge(), 0, 1, value));
}

TEST_F(GuardedMemory, ForbiddenPageFailsEveryAccess) {
  Pages pages;
  pages.protect_second(PROT_NONE);
  std::uint64_t wide = 0;
  std::uint32_t narrow = 0;
  EXPECT_FALSE(guarded_load64(pages.edge(), wide));
  EXPECT_FALSE(guarded_load32(pages.edge(), narrow));
}

TEST_F(GuardedMemory, AddressThatNoProcessCanHaveFails) {
  std::uint64_t value = 0;
  EXPECT_FALSE(guarded_load64(reinterpret_cast<const void*>(0xdead'0000'0000'0000), value));  // not canonical
  EXPECT_FALSE(guarded_load64(nullptr, value));
}

TEST_F(GuardedMemory, TruncatedFileIsABusErrorThatFailsTheCopy) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const int file = memfd_create("truncated", 0);
  ASSERT_EQ(0, ftruncate(file, static_cast<off_t>(page)));
  void* const mapped = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ASSERT_EQ(0, ftruncate(file, 0));
  std::uint64_t value = 0;
  EXPECT_FALSE(guarded_load64(mapped, value));
  EXPECT_FALSE(guarded_store64(mapped, 1));
  munmap(mapped, page);
  close(file);
}

TEST_F(GuardedMemory, AtomicsReturnWhatWasThere) {
  alignas(8) std::uint64_t cell = 40;
  std::uint64_t original = 0;
  ASSERT_TRUE(guarded_fetch_add64(&cell, 2, original));
  EXPECT_EQ(original, 40U);
  EXPECT_EQ(cell, 42U);
  ASSERT_TRUE(guarded_compare_exchange64(&cell, 41, 7, original));  // differs: unchanged
  EXPECT_EQ(original, 42U);
  EXPECT_EQ(cell, 42U);
  ASSERT_TRUE(guarded_compare_exchange64(&cell, 42, 7, original));
  EXPECT_EQ(original, 42U);
  EXPECT_EQ(cell, 7U);
}

TEST_F(GuardedMemory, BlockedSignalsAreUnblockedForTheAccessAndBlockedAgain) {
  Pages pages;
  pages.unmap_second();
  sigset_t faults;
  sigemptyset(&faults);
  sigaddset(&faults, SIGSEGV);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &faults, &before);
  {
    const FaultSignalsUnblocked unblocked;
    EXPECT_FALSE(guarded_store32(pages.edge(), 1));
  }
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, &before, &after);
  EXPECT_EQ(1, sigismember(&after, SIGSEGV));
  EXPECT_EQ(0, sigismember(&after, SIGBUS));
}

std::atomic<int> signals_seen{0};

TEST_F(GuardedMemory, SignalsWaitWhileOnlyThoseOfFaultsAreWanted) {
  Pages pages;
  pages.unmap_second();
  struct sigaction action {};
  action.sa_handler = [](int) { ++signals_seen; };
  struct sigaction before {};
  sigaction(SIGUSR1, &action, &before);
  {
    const OnlyFaultSignals outer;
    raise(SIGUSR1);
    {
      const OnlyFaultSignals inner;
      EXPECT_FALSE(guarded_store32(pages.edge(), 1));
    }
    EXPECT_EQ(signals_seen, 0);
  }
  EXPECT_EQ(signals_seen, 1);
  raise(SIGUSR1);
  EXPECT_EQ(signals_seen, 2);
  sigaction(SIGUSR1, &before, nullptr);
}

std::byte* repaired_page = nullptr;
void repair(int, siginfo_t* info, void*) {
  if (info->si_addr == repaired_page) mprotect(repaired_page, 4096, PROT_READ | PROT_WRITE);
}

TEST_F(GuardedMemory, FaultsOfTheProgramReachItsOwnHandler) {
  Pages pages;
  pages.protect_second(PROT_NONE);
  repaired_page = pages.edge();
  struct sigaction action {};
  action.sa_sigaction = repair;
  action.sa_flags = SA_SIGINFO;
  const struct sigaction before = chained_action(SIGSEGV);
  set_chained_action(SIGSEGV, action);
  *static_cast<volatile std::byte*>(pages.edge()) = std::byte{9};  // faults once, the handler repairs it
  EXPECT_EQ(pages.edge()[0], std::byte{9});
  set_chained_action(SIGSEGV, before);
}

TEST_F(GuardedMemory, FaultOfTheProgramWithoutAHandlerStillKillsIt) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  EXPECT_EXIT(
      {
        set_chained_action(SIGSEGV, action);
        const Pages pages;
        pages.protect_second(PROT_NONE);
        *static_cast<volatile std::byte*>(pages.edge()) = std::byte{1};
      },
      testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(
      {
        set_chained_action(SIGSEGV, action);
        raise(SIGSEGV);
        _exit(0);
      },
      testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace qpair::softnic::nic
