#pragma once
// The main() of a test program that is its own peer process (peer_process.hpp).

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

namespace qpair::testing {

// Runs `peer(role, socket)` when the program was started as one, otherwise its tests. What the peer throws is
// its end, with exit status 1.
template <typename Peer>
int run_tests_or_peer(int count, char** arguments, Peer peer) {
  if (count != 4 || std::string(arguments[1]) != "--peer") {
    ::testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A group of its own: a process that a test has stopped must not bring the test's group SIGHUP when a shell
  // above it ends.
  ::setpgid(0, 0);
  const std::string role = arguments[2];
  try {
    peer(role, std::atoi(arguments[3]));
    return 0;
  } catch (const std::exception& failure) {
    std::cerr << "peer " << role << ": " << failure.what() << '\n';
    return 1;
  }
}

}  // namespace qpair::testing
