#include "softnic/nic/guarded_memory.hpp"

#include <ucontext.h>

#if !defined(__x86_64__)
#include <setjmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#endif

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
  const std::size_t end = std::min<std::size_t>(size, sizeof(std::uint64_t));
  return guarded([&] {
    std::memcpy(to, from, size - end);
    std::atomic_thread_fence(std::memory_order_release);
    std::memcpy(static_cast<std::byte*>(to) + size - end, static_cast<const std::byte*>(from) + size - end,
                end);
  });
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
