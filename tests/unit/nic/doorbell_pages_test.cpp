// Doorbell pages that a program maps where no hook sees it.

#include "softnic/nic/doorbell_pages.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "softnic/nic/own_mappings.hpp"

namespace qpair::softnic::nic {
namespace {

using wire::TimePoint;

class UnseenMapping : public testing::Test {
 protected:
  static constexpr std::size_t kPage = 4096;

  UnseenMapping() : fd_(memfd_create("doorbells", MFD_CLOEXEC)) {
    EXPECT_EQ(0, ftruncate(fd_, 3 * kPage));
    registers_ = map(kPage);
  }
  ~UnseenMapping() override { close(fd_); }

  std::byte* map(off_t offset, int flags = MAP_SHARED) const {
    void* const at = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, flags, fd_, offset);
    EXPECT_NE(at, MAP_FAILED);
    return static_cast<std::byte*>(at);
  }

  int fd_;
  std::byte* registers_;
};

TEST_F(UnseenMapping, IsFoundAmongTheProcessesOwn) {
  map(0);
  map(kPage, MAP_PRIVATE);
  EXPECT_TRUE(OwnMappings().others_of(registers_).empty());
  const std::byte* const program = map(kPage);
  ASSERT_EQ(OwnMappings().others_of(registers_).size(), 1U);
  EXPECT_EQ(OwnMappings().others_of(registers_).front(), reinterpret_cast<std::uint64_t>(program));
}

TEST_F(UnseenMapping, IsFoundInTheMiddleOfALargerOne) {
  void* const whole = mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  ASSERT_NE(whole, MAP_FAILED);
  ASSERT_EQ(OwnMappings().others_of(registers_).size(), 1U);
  EXPECT_EQ(OwnMappings().others_of(registers_).front(), reinterpret_cast<std::uint64_t>(whole) + kPage);
}

TEST_F(UnseenMapping, ThousandsOfPagesThatNobodyMapsAreSearchedForTogether) {
  constexpr std::size_t kPages = 5000;
  const int fd = memfd_create("pages", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, kPages * kPage), 0);
  const auto map_all = [fd] {
    return static_cast<std::byte*>(mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  };
  std::byte* const registers = map_all();
  DoorbellPages pages;
  for (std::size_t i = 0; i < kPages; ++i) pages.add(registers + i * kPage);
  for (int i = 0; i < 100; ++i) pages.protect(TimePoint{} + std::chrono::microseconds(i));  // one search
  std::byte* const program = map_all();
  pages.protect(TimePoint{} + std::chrono::seconds(10));
  EXPECT_EQ(pages.are_closed(), pages.descriptor() >= 0);
  munmap(program, kPages * kPage);
  munmap(registers, kPages * kPage);
  close(fd);
}

// The program unmapped a page and mapped another in its place, before it gave the first one up.
TEST_F(UnseenMapping, APageThatIsGivenUpLateDoesNotOpenItsSuccessor) {
  DoorbellPages pages;
  const UarId first = pages.add(map(0));
  const UarId second = pages.add(registers_);
  std::byte* const program = map(0);
  pages.mapped(first, program);
  ASSERT_EQ(mmap(program, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, kPage), program);
  pages.mapped(second, program);
  pages.protect(TimePoint{});
  pages.remove(first);
  const bool wakes = pages.protect(TimePoint{} + std::chrono::seconds(1));
  if (pages.descriptor() < 0) GTEST_SKIP() << "this kernel has no userfaultfd for write protection";
  ASSERT_TRUE(wakes);
  std::jthread thread([program] { *program = std::byte{1}; });
  pollfd one{pages.descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&one, 1, 10'000), 1) << "the store was not seen";
  pages.remove(second);
}

TEST_F(UnseenMapping, OfNoneNobodyCanBeWokenByADoorbell) {
  DoorbellPages pages;
  pages.add(registers_);
  EXPECT_FALSE(pages.protect(TimePoint{}));
  EXPECT_FALSE(pages.are_closed());
}

TEST_F(UnseenMapping, AStoreToItWakesTheNic) {
  DoorbellPages pages;
  const UarId uar = pages.add(registers_);
  std::byte* const program = map(kPage);
  const bool wakes = pages.protect(TimePoint{});
  if (pages.descriptor() < 0) GTEST_SKIP() << "this kernel has no userfaultfd for write protection";
  ASSERT_TRUE(wakes);
  std::thread thread([&] { *reinterpret_cast<volatile std::uint64_t*>(program + 0x800) = 7; });
  bool woken = false;
  while (!woken) pages.admit(std::chrono::steady_clock::now(), [&](UarId stored) { woken = stored == uar; });
  thread.join();
  EXPECT_EQ(*reinterpret_cast<std::uint64_t*>(registers_ + 0x800), 7U);
}

TEST_F(UnseenMapping, StoresGoOnWhenAllAreOpened) {
  DoorbellPages pages;
  const UarId uar = pages.add(registers_);
  std::byte* const program = map(kPage);
  pages.protect(TimePoint{});
  if (pages.descriptor() < 0) GTEST_SKIP() << "this kernel has no userfaultfd for write protection";
  std::atomic<int> stored{0};
  const auto stored_is = [&](int count) {
    for (int i = 0; i < 10'000 && stored != count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return stored == count;
  };
  std::jthread thread([&] {
    *reinterpret_cast<volatile std::uint64_t*>(program + 0x800) = 7;
    ++stored;
    *reinterpret_cast<volatile std::uint64_t*>(program + 0x900) = 8;
    ++stored;
  });
  pollfd one{pages.descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&one, 1, 10'000), 1) << "the store is not blocked";
  pages.open_all();
  EXPECT_EQ(pages.open(), 1U);
  EXPECT_TRUE(stored_is(2));
  EXPECT_EQ(*reinterpret_cast<std::uint64_t*>(registers_ + 0x800), 7U);
  EXPECT_EQ(*reinterpret_cast<std::uint64_t*>(registers_ + 0x900), 8U);
  EXPECT_TRUE(pages.protect(TimePoint{})) << "closed again when the NIC next sleeps";
  pages.remove(uar);  // whatever failed, nobody is left waiting
}

class KnownMapping : public UnseenMapping {
 protected:
  KnownMapping() { pages.mapped(pages.add(registers_), program); }

  DoorbellPages pages;
  std::byte* const program = map(kPage);
  const std::uint64_t at = reinterpret_cast<std::uint64_t>(program);
};

TEST_F(KnownMapping, LiesInTheProgramsMemoryAsLongAsItIsMapped) {
  EXPECT_TRUE(pages.lie_in(at + kPage - 1, 8));
  EXPECT_TRUE(pages.lie_in(at - 8, 9));
  EXPECT_FALSE(pages.lie_in(at - 8, 8));
  EXPECT_FALSE(pages.lie_in(at + kPage, 8));
  EXPECT_FALSE(pages.lie_in(at + 64, 0));
  EXPECT_TRUE(pages.lie_in(0, ~std::uint64_t{0}));
  ASSERT_EQ(mmap(program, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            program);
  EXPECT_FALSE(pages.lie_in(at, kPage)) << "memory of the program";
  EXPECT_EQ(pages.open(), 0U);
  munmap(program, kPage);
}

// Without descriptors there is no list of mappings to look into.
TEST_F(KnownMapping, IsBelievedToLieThereWhenNobodyCanTell) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  // UBSan opens a pipe before it looks at `this`, which has virtual functions.
  const auto lies_at = [&known = pages, address = at] { return known.lie_in(address, 8); };
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool lies = lies_at();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(lies);
  EXPECT_EQ(pages.open(), 1U) << "still known";
}

TEST_F(KnownMapping, ThatIsClosedAndNoLongerKnownIsOpened) {
  if (!pages.protect(TimePoint{})) GTEST_SKIP() << "this kernel has no userfaultfd for write protection";
  ASSERT_EQ(mprotect(program, kPage, PROT_READ), 0);  // then it is no place where doorbells are rung
  EXPECT_FALSE(pages.lie_in(at, 8));
  ASSERT_EQ(mprotect(program, kPage, PROT_READ | PROT_WRITE), 0);
  *reinterpret_cast<volatile std::uint64_t*>(program + 0x800) = 7;  // would wait for ever
  EXPECT_EQ(*reinterpret_cast<std::uint64_t*>(registers_ + 0x800), 7U);
}

TEST_F(UnseenMapping, ThatIsToldLaterIsOpen) {
  DoorbellPages pages;
  const UarId uar = pages.add(registers_);
  std::byte* const program = map(kPage);
  pages.protect(TimePoint{});
  pages.mapped(uar, program);
  *reinterpret_cast<volatile std::uint64_t*>(program + 0x800) = 7;  // would wait for ever
  EXPECT_EQ(*reinterpret_cast<std::uint64_t*>(registers_ + 0x800), 7U);
}

}  // namespace
}  // namespace qpair::softnic::nic
