#pragma once
// Access to the program's memory that survives whatever the program did to it.
//
// A real NIC reaches memory through the IOMMU: a page that is gone fails the operation, not the machine. The
// emulated NIC shares the program's address space, so the same page would be a SIGSEGV (missing, or
// protected) or a SIGBUS (a file that was truncated). Each function below returns false in that case, and the
// bytes before the bad page may have been copied. They work on any thread in which SIGSEGV and SIGBUS are not
// blocked; a fault while blocked kills the process (kernel/signal.c, force_sig_info_to_task), hence
// FaultSignalsUnblocked.
//
// Lock-free, async-signal-safe, no allocation. Sanitizers do not see these accesses.

#include <signal.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace qpair::softnic::nic {

// Copies upwards; the last bytes are stored last (programs poll on the last byte of an RDMA WRITE). No
// overlap.
[[nodiscard]] bool guarded_copy(void* to, const void* from, std::size_t size);

// Aligned addresses only. Loads acquire, stores release, read-modify-writes are sequentially consistent.
[[nodiscard]] bool guarded_load32(const void* from, std::uint32_t& value);
[[nodiscard]] bool guarded_store32(void* to, std::uint32_t value);
[[nodiscard]] bool guarded_load64(const void* from, std::uint64_t& value);
[[nodiscard]] bool guarded_store64(void* to, std::uint64_t value);
// Stores `desired` if `expected` is there. `original` is what was there in either case.
[[nodiscard]] bool guarded_compare_exchange64(void* at, std::uint64_t expected, std::uint64_t desired,
                                              std::uint64_t& original);
[[nodiscard]] bool guarded_fetch_add64(void* at, std::uint64_t add, std::uint64_t& original);

// ---- The signal handler behind it ---------------------------------------------------------------

// Installs the handler for SIGSEGV and SIGBUS by raw system calls, so that neither sanitizers' interceptors
// nor our own sigaction hook see it, and remembers what was installed before as the chained action.
// Idempotent, thread-safe.
void install_fault_handler();
namespace internal {
inline constinit std::atomic<bool> fault_handler_installed{false};
}
// Asked by the sigaction hook, also while sanitizers initialise themselves: touches nothing that has to be
// made first.
[[nodiscard]] inline bool fault_handler_installed() {
  return internal::fault_handler_installed.load(std::memory_order_acquire);
}

// True: the fault was in one of the functions above, and the context now returns from it. For a handler of
// the program's that has replaced ours.
bool fix_up_fault(int signal, siginfo_t* info, void* context);

// What the handler does with faults that are not ours. The sigaction hook keeps the program's actions here.
void set_chained_action(int signal, const struct sigaction& action);
[[nodiscard]] struct sigaction chained_action(int signal);

// Unblocks SIGSEGV and SIGBUS in this thread for its lifetime.
class FaultSignalsUnblocked {
 public:
  FaultSignalsUnblocked();
  ~FaultSignalsUnblocked();
  FaultSignalsUnblocked(const FaultSignalsUnblocked&) = delete;
  FaultSignalsUnblocked& operator=(const FaultSignalsUnblocked&) = delete;

 private:
  std::uint64_t previous_ = 0;
};

// Nothing but those of faults is delivered to this thread for its lifetime. Whoever holds one of the NIC's
// locks in a thread of the program holds one of these: a signal handler may exit, fork, jump out, or ring a
// doorbell, for which the lock is needed.
class OnlyFaultSignals {
 public:
  OnlyFaultSignals();
  ~OnlyFaultSignals();
  OnlyFaultSignals(const OnlyFaultSignals&) = delete;
  OnlyFaultSignals& operator=(const OnlyFaultSignals&) = delete;

 private:
  std::uint64_t previous_ = 0;
};

}  // namespace qpair::softnic::nic
