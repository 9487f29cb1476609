#pragma once
// Where the emulated NIC says why. Used by all of softnic, uses none of it.
// Thread-safe; never throws; never blocks on anything but stderr.

#include <string_view>

namespace qpair::softnic::explain {

enum class Kind {
  Notice,   // something a person may want to know
  Refusal,  // a driver command was refused
  Failure,  // a work request failed, here or at the peer
  Finding,  // the program broke the hardware protocol: a real NIC would hang or corrupt data
};

struct Options {
  bool quiet = false;   // say nothing
  bool strict = false;  // a Finding ends the process (SIGABRT after the sentence, said even when quiet)
};

void configure(Options options) noexcept;

// One sentence or two, with the numbers, no newline at the end. Printed on stderr as one line.
// With fmt: say(Kind::Failure, fmt::format("…", …)).
// A flood of one kind is cut to a few each second, and then "… and K more". Safe in a signal handler and
// after fork().
void say(Kind kind, std::string_view sentence) noexcept;

// Says how many sentences a flood still holds back. Happens by itself at exit.
void finish() noexcept;

}  // namespace qpair::softnic::explain
