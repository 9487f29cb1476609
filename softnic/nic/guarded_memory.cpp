#include "softnic/nic/guarded_memory.hpp"

#include <setjmp.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <type_traits>

// ---- The guarded instructions -------------------------------------------------------------------

#if defined(__x86_64__)

// Leaf functions that use no stack, in one range of addresses. A fault inside the range becomes "return
// false" by moving the program counter to qpair_guarded_fail, in the manner of the kernel's exception table
// (arch/x86/mm/extable.c). Copying: plain vector loads and stores in ascending order; string moves only for
// the bulk of large copies, as their stores are not ordered among themselves (Intel SDM vol. 3, 9.2.4).
__asm__(R"(
  .pushsection .text.qpair_guarded,"ax",@progbits
  .hidden qpair_guarded_begin
  .hidden qpair_guarded_end
  .hidden qpair_guarded_fail
  .hidden qpair_guarded_copy
  .hidden qpair_guarded_load32
  .hidden qpair_guarded_store32
  .hidden qpair_guarded_load64
  .hidden qpair_guarded_store64
  .hidden qpair_guarded_cas64
  .hidden qpair_guarded_add64
  .globl qpair_guarded_begin
  .globl qpair_guarded_end
  .globl qpair_guarded_fail
  .globl qpair_guarded_copy
  .globl qpair_guarded_load32
  .globl qpair_guarded_store32
  .globl qpair_guarded_load64
  .globl qpair_guarded_store64
  .globl qpair_guarded_cas64
  .globl qpair_guarded_add64
  .balign 64
qpair_guarded_begin:
  .type qpair_guarded_copy,@function
qpair_guarded_copy:
  .cfi_startproc
  cmpq   $16, %rdx
  jb     5f
  cmpq   $64, %rdx
  jbe    3f
  cmpq   $8192, %rdx
  jbe    2f
  leaq   -64(%rdx), %rcx
  movl   $64, %edx
  rep movsb
2:
  subq   $64, %rdx
  jb     4f
1:
  movups (%rsi), %xmm0
  movups 16(%rsi), %xmm1
  movups 32(%rsi), %xmm2
  movups 48(%rsi), %xmm3
  movups %xmm0, (%rdi)
  movups %xmm1, 16(%rdi)
  movups %xmm2, 32(%rdi)
  movups %xmm3, 48(%rdi)
  addq   $64, %rsi
  addq   $64, %rdi
  subq   $64, %rdx
  jae    1b
4:
  addq   $64, %rdx
3:
  subq   $16, %rdx
  jb     6f
7:
  movups (%rsi), %xmm0
  movups %xmm0, (%rdi)
  addq   $16, %rsi
  addq   $16, %rdi
  subq   $16, %rdx
  jae    7b
6:
  addq   $16, %rdx
5:
  testb  $8, %dl
  jz     8f
  movq   (%rsi), %rax
  movq   %rax, (%rdi)
  addq   $8, %rsi
  addq   $8, %rdi
8:
  testb  $4, %dl
  jz     9f
  movl   (%rsi), %eax
  movl   %eax, (%rdi)
  addq   $4, %rsi
  addq   $4, %rdi
9:
  testb  $2, %dl
  jz     10f
  movzwl (%rsi), %eax
  movw   %ax, (%rdi)
  addq   $2, %rsi
  addq   $2, %rdi
10:
  testb  $1, %dl
  jz     11f
  movzbl (%rsi), %eax
  movb   %al, (%rdi)
11:
  movl   $1, %eax
  ret
  .cfi_endproc
  .type qpair_guarded_load32,@function
qpair_guarded_load32:
  .cfi_startproc
  movl   (%rdi), %eax
  movl   %eax, (%rsi)
  movl   $1, %eax
  ret
  .cfi_endproc
  .type qpair_guarded_store32,@function
qpair_guarded_store32:
  .cfi_startproc
  movl   %esi, (%rdi)
  movl   $1, %eax
  ret
  .cfi_endproc
  .type qpair_guarded_load64,@function
qpair_guarded_load64:
  .cfi_startproc
  movq   (%rdi), %rax
  movq   %rax, (%rsi)
  movl   $1, %eax
  ret
  .cfi_endproc
  .type qpair_guarded_store64,@function
qpair_guarded_store64:
  .cfi_startproc
  movq   %rsi, (%rdi)
  movl   $1, %eax
  ret
  .cfi_endproc
  .type qpair_guarded_cas64,@function
qpair_guarded_cas64:
  .cfi_startproc
  movq   %rsi, %rax
  lock cmpxchgq %rdx, (%rdi)
  movq   %rax, (%rcx)
  movl   $1, %eax
  ret
  .cfi_endproc
  .type qpair_guarded_add64,@function
qpair_guarded_add64:
  .cfi_startproc
  lock xaddq %rsi, (%rdi)
  movq   %rsi, (%rdx)
  movl   $1, %eax
  ret
  .cfi_endproc
qpair_guarded_end:
  .type qpair_guarded_fail,@function
qpair_guarded_fail:
  .cfi_startproc
  xorl   %eax, %eax
  ret
  .cfi_endproc
  .popsection
)");

extern "C" {
extern const char qpair_guarded_begin[], qpair_guarded_end[], qpair_guarded_fail[];
int qpair_guarded_copy(void* to, const void* from, std::size_t size);
int qpair_guarded_load32(const void* from, std::uint32_t* value);
int qpair_guarded_store32(void* to, std::uint32_t value);
int qpair_guarded_load64(const void* from, std::uint64_t* value);
int qpair_guarded_store64(void* to, std::uint64_t value);
int qpair_guarded_cas64(void* at, std::uint64_t expected, std::uint64_t desired, std::uint64_t* original);
int qpair_guarded_add64(void* at, std::uint64_t add, std::uint64_t* original);
}

namespace qpair::softnic::nic {

bool guarded_copy(void* to, const void* from, std::size_t size) {
  return qpair_guarded_copy(to, from, size) != 0;
}
bool guarded_load32(const void* from, std::uint32_t& value) {
  return qpair_guarded_load32(from, &value) != 0;
}
bool guarded_store32(void* to, std::uint32_t value) {
  return qpair_guarded_store32(to, value) != 0;
}
bool guarded_load64(const void* from, std::uint64_t& value) {
  return qpair_guarded_load64(from, &value) != 0;
}
bool guarded_store64(void* to, std::uint64_t value) {
  return qpair_guarded_store64(to, value) != 0;
}
bool guarded_compare_exchange64(void* at, std::uint64_t expected, std::uint64_t desired,
                                std::uint64_t& original) {
  return qpair_guarded_cas64(at, expected, desired, &original) != 0;
}
bool guarded_fetch_add64(void* at, std::uint64_t add, std::uint64_t& original) {
  return qpair_guarded_add64(at, add, &original) != 0;
}

bool fix_up_fault(int signal, siginfo_t* info, void* context) {
  if ((signal != SIGSEGV && signal != SIGBUS) || info == nullptr || info->si_code <= 0) return false;
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto at = static_cast<std::uintptr_t>(registers[REG_RIP]);
  if (at < reinterpret_cast<std::uintptr_t>(qpair_guarded_begin) ||
      at >= reinterpret_cast<std::uintptr_t>(qpair_guarded_end)) {
    return false;
  }
  registers[REG_RIP] = static_cast<greg_t>(reinterpret_cast<std::uintptr_t>(qpair_guarded_fail));
  return true;
}

}  // namespace qpair::softnic::nic

#else

namespace qpair::softnic::nic {
namespace {

// Elsewhere: a fault jumps back to where the guarded access began. The jump buffer does not save the signal
// mask, as saving it is a system call; the handler restores it from the interrupted context instead.
thread_local sigjmp_buf* guard = nullptr;

template <typename Access>
__attribute__((noinline)) bool guarded(const Access& access) {
  sigjmp_buf here;
  sigjmp_buf* const outer = guard;
  if (sigsetjmp(here, 0) != 0) {
    guard = outer;
    return false;
  }
  guard = &here;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  access();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  guard = outer;
  return true;
}

}  // namespace

bool guarded_copy(void* to, const void* from, std::size_t size) {
  return guarded([&] { std::memcpy(to, from, size); });
}
bool guarded_load32(const void* from, std::uint32_t& value) {
  return guarded([&] { value = __atomic_load_n(static_cast<const std::uint32_t*>(from), __ATOMIC_ACQUIRE); });
}
bool guarded_store32(void* to, std::uint32_t value) {
  return guarded([&] { __atomic_store_n(static_cast<std::uint32_t*>(to), value, __ATOMIC_RELEASE); });
}
bool guarded_load64(const void* from, std::uint64_t& value) {
  return guarded([&] { value = __atomic_load_n(static_cast<const std::uint64_t*>(from), __ATOMIC_ACQUIRE); });
}
bool guarded_store64(void* to, std::uint64_t value) {
  return guarded([&] { __atomic_store_n(static_cast<std::uint64_t*>(to), value, __ATOMIC_RELEASE); });
}
bool guarded_compare_exchange64(void* at, std::uint64_t expected, std::uint64_t desired,
                                std::uint64_t& original) {
  return guarded([&] {
    original = expected;
    __atomic_compare_exchange_n(static_cast<std::uint64_t*>(at), &original, desired, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
  });
}
bool guarded_fetch_add64(void* at, std::uint64_t add, std::uint64_t& original) {
  return guarded(
      [&] { original = __atomic_fetch_add(static_cast<std::uint64_t*>(at), add, __ATOMIC_SEQ_CST); });
}

bool fix_up_fault(int signal, siginfo_t* info, void* context) {
  if ((signal != SIGSEGV && signal != SIGBUS) || info == nullptr || info->si_code <= 0) return false;
  if (guard == nullptr) return false;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr,
          sizeof(std::uint64_t));
  siglongjmp(*guard, 1);
}

}  // namespace qpair::softnic::nic

#endif

// ---- The handler --------------------------------------------------------------------------------

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

}  // namespace qpair::softnic::nic
