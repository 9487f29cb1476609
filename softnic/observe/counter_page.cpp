#include "softnic/observe/counter_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <new>

// Descriptors are used by raw system calls: they are none of the program's, and the interposed libc need not
// look.

#ifndef F_SEAL_FUTURE_WRITE  // Linux 5.1
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace qpair::softnic::observe {
namespace {

constexpr std::memory_order kRelaxed = std::memory_order_relaxed;
constexpr std::uint64_t kSize = sizeof(CounterPageLayout);

std::uint64_t wall_clock() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// A store, where fetch_add() would lock the bus: there is one writer.
void count_up(std::atomic<std::uint64_t>& counter, std::uint64_t by) {
  counter.store(counter.load(kRelaxed) + by, kRelaxed);
}

// Memory for all of it is taken at once: a page that cannot be had later would be a SIGBUS in the program.
bool allocate(int file) {
  long result = 0;
  do {
    result = ::syscall(SYS_fallocate, file, 0, 0L, static_cast<long>(kSize));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace

std::unique_ptr<CounterPage> CounterPage::create(const wire::Endpoint& local) {
  wire::Descriptor file(
      static_cast<int>(::syscall(SYS_memfd_create, kCounterPageName, MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!file || !allocate(file.get())) return nullptr;
  void* const memory = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  ::syscall(SYS_fcntl, file.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  ::syscall(SYS_fcntl, file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  auto* const page = new (memory) CounterPageLayout{};
  page->size = kSize;
  page->counters = kCounters;
  page->pid = ::getpid();
  page->started = wall_clock();
  page->address = local.address;
  page->magic.store(kCounterPageMagic, std::memory_order_release);
  return std::unique_ptr<CounterPage>(new CounterPage(std::move(file), page));
}

CounterPage::CounterPage(wire::Descriptor file, CounterPageLayout* page)
    : file_(std::move(file)), page_(page) {
  free_.reserve(kListedQueuePairs);
  for (std::size_t i = kListedQueuePairs; i-- > 0;) free_.push_back(static_cast<int>(i));
}

CounterPage::~CounterPage() {
  ::munmap(page_, kSize);
}

int CounterPage::enter(const QueuePairIdentity& who) {
  count_up(page_->queue_pairs, 1);
  if (free_.empty()) {
    count_up(page_->unlisted, 1);
    return kNoSlot;
  }
  const int slot = free_.back();
  free_.pop_back();
  CounterPageLayout::Slot& entry = page_->slots[static_cast<std::size_t>(slot)];
  for (auto& value : entry.values) value.store(0, kRelaxed);
  entry.identity.store(who.packed(), std::memory_order_release);
  return slot;
}

void CounterPage::leave(int slot) {
  count_up(page_->queue_pairs, std::uint64_t{0} - 1);
  if (slot == kNoSlot) return count_up(page_->unlisted, std::uint64_t{0} - 1);
  page_->slots[static_cast<std::size_t>(slot)].identity.store(0, std::memory_order_release);
  free_.push_back(slot);
}

void CounterPage::publish(int slot, const QueuePairIdentity& who, const CounterValues& before,
                          const CounterValues& now) {
  CounterPageLayout::Slot* const entry =
      slot == kNoSlot ? nullptr : &page_->slots[static_cast<std::size_t>(slot)];
  for (std::size_t i = 0; i < kCounters; ++i) {
    if (now[i] == before[i]) continue;
    count_up(page_->totals[i], now[i] - before[i]);
    if (entry != nullptr) {
      entry->values[i].store(now[i], kRelaxed);
    } else {
      count_up(page_->unlisted_values[i], now[i] - before[i]);
    }
  }
  if (entry != nullptr) entry->identity.store(who.packed(), kRelaxed);
}

void CounterPage::add(const CounterValues& before, const CounterValues& now) {
  for (std::size_t i = 0; i < kCounters; ++i) count_up(page_->totals[i], now[i] - before[i]);
}

}  // namespace qpair::softnic::observe
