#pragma once
// The numbers that trade latency, throughput and processor time against each other.

#include <chrono>
#include <cstddef>

namespace qpair::softnic::nic {

inline constexpr unsigned kTransmitBudget = 64;    // packets of one queue pair before the next has its turn
inline constexpr std::size_t kReceiveBatch = 256;  // packets taken from the link in one round
inline constexpr std::size_t kLookAtOnce =
    4;  // queue pairs whose records are read in a round without a doorbell

// How long an engine without work keeps looking before it goes to sleep. Short: on a machine with few
// processors it takes time from the program it works for.
inline constexpr std::chrono::microseconds kSpin{20};
// Without userfaultfd: from how often to how seldom an idle engine looks for doorbells.
inline constexpr std::chrono::microseconds kShortestNap{20};
inline constexpr std::chrono::microseconds kLongestNap{1000};
// Receives posted to a queue pair in ERR ring no doorbell.
inline constexpr std::chrono::milliseconds kErrorLook{20};

}  // namespace qpair::softnic::nic
