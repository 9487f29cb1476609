#include "softnic/nic/engine.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <new>
#include <thread>
#include <utility>

#include "softnic/explain/explain.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/patience.hpp"
#include "softnic/nic/tunables.hpp"
#include "softnic/wire/descriptor.hpp"

// Descriptors are used by raw system calls: they are none of the program's, and the interposed libc need not
// look.

namespace qpair::softnic::nic {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kStackSize = std::size_t{512} << 10;

void write_eventfd(int fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const long written = syscall(SYS_write, fd, &one, sizeof one);
}

void drain_eventfd(int fd) {
  std::uint64_t count = 0;
  [[maybe_unused]] const long got = syscall(SYS_read, fd, &count, sizeof count);
}

}  // namespace

// ---- Control calls ------------------------------------------------------------------------------

Engine::Control::Control(Engine& engine) : engine_(engine) {
  engine_.hold();
}

Engine::Control::~Control() {
  engine_.release();
}

void Engine::hold() {
  waiting_.fetch_add(1, std::memory_order_relaxed);
  mutex_.lock();
  waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void Engine::release() {
  const bool asleep = asleep_.load(std::memory_order_relaxed);
  mutex_.unlock();
  if (asleep) kick();
}

void Engine::kick() {
  if (kick_fd_ >= 0) write_eventfd(kick_fd_);
}

int Engine::start() {
  if (started_) return 0;
  install_fault_handler();
  kick_fd_ = wire::make_private(static_cast<int>(syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK)));
  if (kick_fd_ < 0) return errno;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackSize);
  // The program's signals are handled on the program's threads.
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  sigdelset(&blocked, SIGSEGV);
  sigdelset(&blocked, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  const int error = pthread_create(&thread_, &attributes, entry, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    wire::close_private(std::exchange(kick_fd_, -1));
    return error;
  }
  started_ = true;
  return 0;
}

Engine::~Engine() {
  if (started_) {
    stop_.store(true, std::memory_order_release);
    kick();
    pthread_join(thread_, nullptr);
  }
  wire::close_private(kick_fd_);
}

void Engine::abandon() {
  started_ = false;
  chip_.abandon();
  wire::close_private(std::exchange(kick_fd_, -1));
}

namespace {

// struct sched_attr of linux/sched/types.h, first version; libc declares neither it nor the call.
struct SchedulerAttributes {
  std::uint32_t size = sizeof(SchedulerAttributes);
  std::uint32_t policy = SCHED_OTHER;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;  // for SCHED_OTHER: the slice
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};
static_assert(sizeof(SchedulerAttributes) == 48);

void ask_for_low_latency() {
  SchedulerAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 &&
      attributes.policy == SCHED_OTHER) {
    attributes.runtime = static_cast<std::uint64_t>(std::chrono::nanoseconds(kSchedulerSlice).count());
    syscall(SYS_sched_setattr, 0, &attributes, 0);
  }
}

}  // namespace

// ---- The thread ---------------------------------------------------------------------------------

void* Engine::entry(void* self) {
  pthread_setname_np(pthread_self(), "qpair-nic");
  static_cast<Engine*>(self)->run();
  return nullptr;
}

void Engine::run() {
  ask_for_low_latency();
  std::unique_lock lock(mutex_);
  Patience patience;
  while (!stop_.load(std::memory_order_acquire)) {
    try {
      turn(lock, patience);
    } catch (const std::bad_alloc&) {
      explain::say(explain::Kind::Failure,
                   "out of memory in the emulated NIC: what it was about to do is lost");
      lock.unlock();  // whoever has the memory may need it
      std::this_thread::sleep_for(kShortestNap);
      lock.lock();
    }
    give_way(lock);
  }
}

void Engine::turn(std::unique_lock<std::mutex>& lock, Patience& patience) {
  const auto now = Clock::now();
  // Also while busy: what wakes or occupies the engine need not be a doorbell.
  const bool admitted = chip_.admit(now);
  const Chip::Work work = chip_.round(now);
  if (work || admitted) {
    patience.worked(work, now, admitted ? Patience::Woken::ByFault : Patience::Woken::No);
    nap_ = kShortestNap;
  } else if (patience.is_over(now)) {
    rest(lock, patience);
    patience.rested();
  } else {
    look_out();
  }
}

// Most of a round in which nothing happens is spent on what hardly ever does.
void Engine::look_out() const {
  for (unsigned i = 0; i < kGlances && waiting_.load(std::memory_order_relaxed) == 0; ++i) {
    if (chip_.glance()) return;
  }
}

void Engine::rest(std::unique_lock<std::mutex>& lock, const Patience& patience) {
  const auto now = Clock::now();
  const bool may_doze =
      patience.awaits_packet() || patience.has_processors_to_spare() || chip_.pages().open() > kFewPages;
  const bool drowsy = may_doze && patience.idle(now) < kDrowsy && !chip_.pages().are_closed();
  if (!drowsy && chip_.look_further()) return;
  const bool doorbells_wake = !drowsy && chip_.pages().protect(now);
  if (drowsy ? chip_.anything_new() : chip_.anything_left()) return;
  auto until = chip_.deadline(now);
  // The transport's timers may be late; a delay that was asked of the network (qpair run --delay) may not.
  auto slack = chip_.link().deadline() ? kFine : kCoarse;
  if (drowsy && patience.awaits_packet()) {
    until = std::min(until, now + kAnswerNap);
  } else if (!doorbells_wake) {
    until = std::min(until, now + nap_);
    slack = kFine;
    nap_ = std::min<Clock::duration>(nap_ * 2, drowsy ? kLongestDrowsyNap : kLongestNap);
  }
  if (until > now) wait(until, slack, lock);
}

void Engine::give_way(std::unique_lock<std::mutex>& lock) {
  if (waiting_.load(std::memory_order_relaxed) == 0) return;
  lock.unlock();
  while (waiting_.load(std::memory_order_relaxed) != 0 && !stop_.load(std::memory_order_relaxed))
    sched_yield();
  lock.lock();
}

void Engine::wait(wire::TimePoint until, std::chrono::nanoseconds slack, std::unique_lock<std::mutex>& lock) {
  if (!chip_.link().sleeps()) return;
  std::array<pollfd, 4> fds{{{kick_fd_, POLLIN, 0},
                             {chip_.link().descriptor(), POLLIN, 0},
                             {chip_.link().second_descriptor(), POLLIN, 0},
                             {chip_.pages().descriptor(), POLLIN, 0}}};
  timespec timeout{};
  if (until != wire::TimePoint::max()) {
    const auto left = std::max(until - Clock::now(), Clock::duration::zero());
    timeout.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
    timeout.tv_nsec = (left % std::chrono::seconds(1)).count();
  }
  if (slack_ != slack) {
    slack_ = slack;
    prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack.count()), 0UL, 0UL, 0UL);
  }
  asleep_.store(true, std::memory_order_relaxed);
  lock.unlock();
  syscall(SYS_ppoll, fds.data(), fds.size(), until != wire::TimePoint::max() ? &timeout : nullptr, nullptr,
          0);
  lock.lock();
  asleep_.store(false, std::memory_order_relaxed);
  chip_.link().wakes();
  if (fds[0].revents != 0) drain_eventfd(kick_fd_);
}

}  // namespace qpair::softnic::nic
