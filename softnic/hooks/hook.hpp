#pragma once
// How a libc function is replaced, and how the one that was replaced is reached.
//
// Hooks run everywhere: before constructors, inside dlsym() and malloc(), in signal handlers, in the child of
// vfork(). A hook that finds the call not to be its business therefore touches nothing but
// constant-initialised data, takes no lock, allocates nothing and hands on to the next definition with errno
// as it was.

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <type_traits>

// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot be put in parentheses
// Declares a hook: QPAIR_HOOK(int hooked_close(int fd), "close"). The symbol is given apart from the C++
// name, so that the declarations in libc's headers, with their attributes and exception specifications, do
// not matter here.
#define QPAIR_HOOK(declaration, symbol) \
  extern "C" __attribute__((visibility("default"))) declaration __asm__(symbol)

// Another symbol for the same hook, which has to be defined in the same file.
#define QPAIR_HOOK_ALIAS(declaration, symbol, of) \
  extern "C" __attribute__((visibility("default"), alias(of))) declaration __asm__(symbol)

// Defines a Next: constant-initialised, and where resolve_all() finds it.
#define QPAIR_NEXT __attribute__((section("qpair_next"))) constinit

// NOLINTEND(bugprone-macro-parentheses)

namespace qpair::softnic::hooks {

// The next definition of a function: libc's, or that of another interposer (a sanitizer, say). Looked up when
// the library is loaded, or when it is needed before that: dlsym() takes a lock which dlopen() holds while it
// runs constructors, and those may wait for threads that come here.
template <typename Function>
class alignas(32) Next {  // without gaps in their section
 public:
  // `fallback`: what to use in place of a function that an old libc does not have.
  constexpr explicit Next(const char* symbol, Function* fallback = nullptr)
      : symbol_(symbol), fallback_(fallback) {}

  Function* operator*() {
    Function* found = function_.load(std::memory_order_relaxed);
    return found != nullptr ? found : find();
  }

 private:
  __attribute__((cold, noinline)) Function* find() {
    const int saved_errno = errno;
    auto* found = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, symbol_));
    if (found == nullptr) found = fallback_;
    function_.store(found, std::memory_order_relaxed);
    errno = saved_errno;
    return found;
  }

  const char* symbol_;
  Function* fallback_;
  std::atomic<Function*> function_{nullptr};
};

// For results in the kernel's manner: negative errno for failure.
template <typename Result>
Result system_result(Result result) {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

}  // namespace qpair::softnic::hooks
