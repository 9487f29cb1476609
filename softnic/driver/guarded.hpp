#pragma once
// What stands between an emulated system call and the program that made it.

#include <cerrno>
#include <exception>

#include "softnic/explain/explain.hpp"

namespace qpair::softnic::driver {

// Nothing that a program does may end it here: an exception is memory that could not be had. A thread that is
// cancelled while it waits goes through.
template <typename Command>
auto guarded(Command command) -> decltype(command()) {
  try {
    return command();
  } catch (const std::exception& failure) {
    explain::say(explain::Kind::Refusal, failure.what());
    return static_cast<decltype(command())>(-ENOMEM);
  }
}

}  // namespace qpair::softnic::driver
