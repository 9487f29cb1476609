// The handler of SIGSEGV and SIGBUS behind guarded_memory.hpp.
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <type_traits>

#include "softnic/nic/guarded_memory.hpp"

#if defined(__x86_64__)
__asm__(R"(
  .pushsection .text.qpair_restore,"ax",@progbits
  .hidden qpair_signal_return
  .globl qpair_signal_return
  .type qpair_signal_return,@function
qpair_signal_return:
  movq $15, %rax
  syscall
  .popsection
)");
extern "C" void qpair_signal_return();
#endif

namespace qpair::softnic::nic {
namespace {

// What rt_sigaction takes (kernel, include/linux/signal_types.h); libc's struct sigaction differs.
struct KernelAction {
  void (*handler)(int, siginfo_t*, void*);
  unsigned long flags;
#if defined(__x86_64__)
  void (*restorer)();
#endif
  std::uint64_t mask;
};
constexpr unsigned long kRestorer = 0x04000000;  // SA_RESTORER

long raw_sigaction(int signal, const KernelAction* action, KernelAction* previous) {
  return syscall(SYS_rt_sigaction, signal, action, previous, sizeof(std::uint64_t));
}

constexpr std::uint64_t signal_bit(int signal) {
  return std::uint64_t{1} << (signal - 1);
}

// The program's action for one signal. Written under a lock, read inside a signal handler: two slots, of
// which one is current, so that a reader never sees a half-written one unless two writes overtake it.
class Chained {
 public:
  void set(const struct sigaction& action) {
    const std::lock_guard lock(mutex_);
    const unsigned next = 1U - current_.load(std::memory_order_relaxed);
    slots_.at(next) = action;
    current_.store(next, std::memory_order_release);
  }
  struct sigaction get() const {
    return slots_.at(current_.load(std::memory_order_acquire));
  }

 private:
  std::mutex mutex_;
  std::array<struct sigaction, 2> slots_{};
  std::atomic<unsigned> current_{0};
};

struct Handlers {
  Chained segv, bus;
  std::mutex install;
};
Handlers& handlers() {
  // Needs no constructor and no destructor: a fault may come before and after those.
  static constinit Handlers instance;
  static_assert(std::is_trivially_destructible_v<Handlers>);
  return instance;
}
Chained& chained(int signal) {
  return signal == SIGBUS ? handlers().bus : handlers().segv;
}

void die_by(int signal) {
  KernelAction action{};
#if defined(__x86_64__)
  action.flags = kRestorer;
  action.restorer = qpair_signal_return;
#endif
  raw_sigaction(signal, &action,
                nullptr);  // SIG_DFL: the instruction faults again when we return, and dumps core
}

void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction action = chained(signal).get();
  const bool sent = info != nullptr && info->si_code <= 0;  // by kill() and not by a fault
  const bool has_handler = (action.sa_flags & SA_SIGINFO) != 0
                               ? action.sa_sigaction != nullptr
                               : action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
  if (!has_handler) {
    if (sent && action.sa_handler == SIG_IGN) return;
    die_by(signal);
    if (sent) syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
    return;
  }
  if ((action.sa_flags & static_cast<int>(SA_RESETHAND)) != 0) {
    struct sigaction reset {};
    reset.sa_handler = SIG_DFL;
    chained(signal).set(reset);
  }
  std::uint64_t mask = 0;
  std::memcpy(&mask, &action.sa_mask, sizeof mask);
  if ((action.sa_flags & SA_NODEFER) == 0) mask |= signal_bit(signal);
  std::uint64_t current = 0;
  std::memcpy(&current, &static_cast<ucontext_t*>(context)->uc_sigmask, sizeof current);
  mask |= current;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, nullptr, sizeof mask);
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, info, context);
  } else {
    action.sa_handler(signal);
  }
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (fix_up_fault(signal, info, context)) return;
  const int saved_errno = errno;
  pass_on(signal, info, context);
  errno = saved_errno;
}

void install(int signal) {
  KernelAction ours{};
  ours.handler = on_fault;
  ours.flags = SA_SIGINFO |
               SA_ONSTACK;  // the alternate stack, if the program has one: its stack may be what overflowed
#if defined(__x86_64__)
  ours.flags |= kRestorer;
  ours.restorer = qpair_signal_return;
#endif
  KernelAction before{};
  if (raw_sigaction(signal, nullptr, &before) != 0) return;
  struct sigaction previous {};
  previous.sa_flags = static_cast<int>(before.flags & ~kRestorer);
  previous.sa_sigaction = before.handler;
  std::memcpy(&previous.sa_mask, &before.mask, sizeof before.mask);
  chained(signal).set(previous);
  raw_sigaction(signal, &ours, nullptr);
}

}  // namespace

void install_fault_handler() {
  Handlers& all = handlers();
  if (fault_handler_installed()) return;
  const std::lock_guard lock(all.install);
  if (fault_handler_installed()) return;
  install(SIGSEGV);
  install(SIGBUS);
  internal::fault_handler_installed.store(true, std::memory_order_release);
}

void set_chained_action(int signal, const struct sigaction& action) {
  chained(signal).set(action);
}

struct sigaction chained_action(int signal) {
  return chained(signal).get();
}

FaultSignalsUnblocked::FaultSignalsUnblocked() {
  const std::uint64_t faults = signal_bit(SIGSEGV) | signal_bit(SIGBUS);
  syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &faults, &previous_, sizeof faults);
}

FaultSignalsUnblocked::~FaultSignalsUnblocked() {
  const std::uint64_t faults = signal_bit(SIGSEGV) | signal_bit(SIGBUS);
  const std::uint64_t again = previous_ & faults;
  if (again != 0) syscall(SYS_rt_sigprocmask, SIG_BLOCK, &again, nullptr, sizeof again);
}

// An instruction that is wrong ends the process when its signal is blocked.
OnlyFaultSignals::OnlyFaultSignals() {
  std::uint64_t others = ~std::uint64_t{0};
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS, SIGABRT})
    others &= ~signal_bit(signal);
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &others, &previous_, sizeof others);
}

OnlyFaultSignals::~OnlyFaultSignals() {
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &previous_, nullptr, sizeof previous_);
}

}  // namespace qpair::softnic::nic
