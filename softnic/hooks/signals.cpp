// SIGSEGV and SIGBUS. Once the NIC guards its accesses to the program's memory, its handler has to stay in
// place: what the program installs is kept as the action that the NIC's handler passes everything on to that
// is not its own, and what the program asks for is told truthfully.

#include <signal.h>

#include <cerrno>

#include "softnic/driver/file.hpp"
#include "softnic/hooks/hook.hpp"
#include "softnic/nic/guarded_memory.hpp"

namespace qpair::softnic::hooks {
namespace {

using Handler = void (*)(int);
using Action = struct sigaction;

QPAIR_NEXT Next<int(int, const Action*, Action*)> next_sigaction("sigaction");
QPAIR_NEXT Next<Handler(int, Handler)> next_signal("signal");
QPAIR_NEXT Next<Handler(int, Handler)> next_sysv_signal("sysv_signal");
QPAIR_NEXT Next<Handler(int, Handler)> next_sigset("sigset");

bool is_guarded(int signal) {
  return (signal == SIGSEGV || signal == SIGBUS) && nic::fault_handler_installed();
}

// A child of vfork() shares its parent's memory and has actions of its own.
bool is_kept(int signal) {
  return is_guarded(signal) && !driver::FileTable::instance().in_child_of_vfork();
}

// What the parent's handler was is what the child inherited.
Handler told(int signal, Handler previous) {
  return is_guarded(signal) && previous != SIG_ERR ? nic::chained_action(signal).sa_handler : previous;
}

int change_chained(int signal, const Action* action, Action* previous) {
  const Action before = nic::chained_action(signal);
  if (action != nullptr) nic::set_chained_action(signal, *action);
  if (previous != nullptr) *previous = before;
  return 0;
}

Handler change_handler(int signal, Handler handler, int flags, bool block_itself) {
  if (handler == SIG_ERR) {
    errno = EINVAL;
    return SIG_ERR;
  }
  Action action{};
  action.sa_handler = handler;
  action.sa_flags = flags;
  if (block_itself) sigaddset(&action.sa_mask, signal);
  Action previous{};
  change_chained(signal, &action, &previous);
  return previous.sa_handler;
}

}  // namespace
}  // namespace qpair::softnic::hooks

using namespace qpair::softnic::hooks;

QPAIR_HOOK(int hooked_sigaction(int signal, const Action* action, Action* previous), "sigaction");
int hooked_sigaction(int signal, const Action* action, Action* previous) {
  if (is_kept(signal)) return change_chained(signal, action, previous);
  const int result = (*next_sigaction)(signal, action, previous);
  if (result == 0 && previous != nullptr && is_guarded(signal))
    *previous = qpair::softnic::nic::chained_action(signal);
  return result;
}
QPAIR_HOOK_ALIAS(int hooked_sigaction_internal(int, const Action*, Action*), "__sigaction", "sigaction");

QPAIR_HOOK(Handler hooked_signal(int signal, Handler handler), "signal");
Handler hooked_signal(int signal, Handler handler) {
  return is_kept(signal) ? change_handler(signal, handler, SA_RESTART, true)
                         : told(signal, (*next_signal)(signal, handler));
}
QPAIR_HOOK_ALIAS(Handler hooked_bsd_signal(int, Handler), "bsd_signal", "signal");
QPAIR_HOOK_ALIAS(Handler hooked_ssignal(int, Handler), "ssignal", "signal");

QPAIR_HOOK(Handler hooked_sysv_signal(int signal, Handler handler), "sysv_signal");
Handler hooked_sysv_signal(int signal, Handler handler) {
  constexpr int kOnce = static_cast<int>(SA_RESETHAND) | SA_NODEFER;
  return is_kept(signal) ? change_handler(signal, handler, kOnce, false)
                         : told(signal, (*next_sysv_signal)(signal, handler));
}
QPAIR_HOOK_ALIAS(Handler hooked_sysv_signal_internal(int, Handler), "__sysv_signal", "sysv_signal");

QPAIR_HOOK(Handler hooked_sigset(int signal, Handler handler), "sigset");
Handler hooked_sigset(int signal, Handler handler) {
  if (!is_kept(signal)) return told(signal, (*next_sigset)(signal, handler));
  const bool hold = handler == SIG_HOLD;
  const Handler previous = hold ? qpair::softnic::nic::chained_action(signal).sa_handler
                                : change_handler(signal, handler, 0, false);
  sigset_t only;
  sigset_t before;
  sigemptyset(&only);
  sigaddset(&only, signal);
  sigprocmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &only, &before);
  return sigismember(&before, signal) == 1 ? SIG_HOLD : previous;
}

QPAIR_HOOK(int hooked_sigignore(int signal), "sigignore");
int hooked_sigignore(int signal) {
  Action ignore{};
  ignore.sa_handler = SIG_IGN;
  return hooked_sigaction(signal, &ignore, nullptr);
}
