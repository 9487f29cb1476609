#pragma once
// The numbers that trade latency, throughput and processor time against each other.

#include <chrono>
#include <cstddef>

namespace qpair::softnic::nic {

inline constexpr unsigned kTransmitBudget = 64;    // packets of one queue pair before the next has its turn
inline constexpr std::size_t kReceiveBatch = 256;  // packets taken from the link in one round
inline constexpr std::chrono::seconds kLongestBehind{1};  // as long may timers wait for packets to be taken
inline constexpr std::size_t kLookAtOnce =
    4;  // queue pairs whose records are read in a round without a doorbell
inline constexpr std::size_t kCopyBudget = std::size_t{1} << 20;  // bytes of a memory copy (MMO) in a round
inline constexpr std::size_t kCopyPiece = 16384;                  // …of which so many at a time
inline constexpr std::size_t kLookBeforeRest = 256;               // …at a time before the engine rests

// Looks at doorbells and rings of neighbours between two rounds of an engine that spins.
inline constexpr unsigned kGlances = 16;

// Memory that cannot be mapped is copied by the kernel. A single request is done so in 2 us, in 17 us when
// another engine has to be woken; but of many at a time the ring carries three times as many, up to this size
// (measured on two cores of an AMD EPYC, Zen 5).
inline constexpr std::uint64_t kSmallestKernelCopyOfMany = 16384;

// What queue pairs counted is shown to others so often, and whenever the engine rests.
inline constexpr std::chrono::microseconds kCountAgain{200};

// An engine without work keeps looking for at most kLongestSpin, less when that did not pay lately
// (patience.hpp).
inline constexpr std::chrono::microseconds kShortestSpin{1};
inline constexpr std::chrono::microseconds kLongestSpin{20};
inline constexpr std::chrono::microseconds kLongestSpinAfterFault{
    60};  // a woken program has to get a processor
inline constexpr unsigned kSpinAgainAfter = 64;
// From this number of processors on it then takes naps, which a packet ends, before it closes the doorbell
// pages: a store to a closed page costs its program tens of microseconds. With fewer a nap costs more than
// that.
inline constexpr unsigned kPlentyOfProcessors = 4;
// …or this number of open pages, as a program that rings many in turn would be stopped at each.
inline constexpr std::size_t kFewPages = 4;
inline constexpr std::chrono::microseconds kDrowsy{400};
inline constexpr std::chrono::microseconds kShortestNap{20};
inline constexpr std::chrono::microseconds kLongestDrowsyNap{100};
// While a peer's answer is awaited, the pages stay open and naps may be longer: the answer ends them. Timers
// may then be late, up to the scheduler's next tick: a timer earlier than that has to be programmed, which
// costs two exits of a virtual machine, several microseconds.
inline constexpr std::chrono::microseconds kAnswerNap{1000};
inline constexpr std::chrono::microseconds kLongAnswer{100};  // a doorbell that had to wait longer ends that…
inline constexpr unsigned kImpatience = 64;                   // …for so many times
inline constexpr std::chrono::nanoseconds kCoarse = std::chrono::milliseconds(4);
inline constexpr std::chrono::nanoseconds kFine{1};
// Without userfaultfd there is no sleep, and naps grow up to this.
inline constexpr std::chrono::microseconds kLongestNap{1000};
// What the scheduler is asked to give the engine at a time. A short slice is an early deadline: a waking
// engine then goes before a program that spins in ibv_poll_cq for what that engine is to bring (EEVDF,
// Linux 6.12 on; ignored before).
inline constexpr std::chrono::microseconds kSchedulerSlice{100};
// Receives posted to a queue pair in ERR ring no doorbell.
inline constexpr std::chrono::milliseconds kErrorLook{20};

}  // namespace qpair::softnic::nic
