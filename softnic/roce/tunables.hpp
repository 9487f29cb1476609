#pragma once
// Every number of the transport that could as well be another one. What IBTA or the program decides is not
// here.

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace qpair::softnic::roce {

// Initiators whose connections a DC target knows at once; beyond that the one that was silent longest is
// forgotten. And how many packets one of them gets before the next has its turn.
inline constexpr std::size_t kMaxDcPeers = 4096;
inline constexpr unsigned kDcPeerBudget = 16;

// Requests that have been taken from the send queue and are not complete: the ring starts small and doubles.
// At 64 bytes an entry the largest ring is 4 KiB, half of what a connected queue pair may cost.
inline constexpr std::uint32_t kFirstOutstandingRequests = 8;
inline constexpr std::uint32_t kMaxOutstandingRequests = 64;

// Reads and atomics at once, in each direction; a ConnectX's limit (max_qp_rd_atom).
inline constexpr std::uint32_t kMaxReadsAtomics = 16;

// What may be on its way before an acknowledgment comes back. The first window is what the receive buffer of
// a UDP socket holds without privileges (net.core.rmem_max is mostly 208 KiB, doubled for bookkeeping), so
// that a receiver that is not running at the moment loses nothing. As long as nothing is lost it grows to the
// largest: two programs and two engines on two cores wait for each other for milliseconds, and a window is
// all that moves in such a turn.
inline constexpr std::uint32_t kFirstWindowBytes = 256 * 1024;
inline constexpr std::uint32_t kFirstWindowPackets = 256;
inline constexpr std::uint32_t kLargestWindowBytes = 4096 * 1024;
inline constexpr std::uint32_t kLargestWindowPackets = 4096;
inline constexpr std::uint32_t kSmallestWindowPackets = 8;
// For each window that was acknowledged whole it grows by half; by 1/16 of the first one once something was
// lost.
inline constexpr std::uint32_t kWindowGrowthShare = 16;

// A long read is asked for in so many pieces at once, if as many reads may be outstanding: while one piece
// arrives, the responder works on the next.
inline constexpr std::uint32_t kReadsPerWindow = 4;
inline constexpr std::uint32_t kSmallestReadPackets = 4;

// Within a long message an acknowledgment is asked for this many times in a window.
inline constexpr std::uint32_t kAckRequestsPerWindow = 4;

// The local ACK timeout is never shorter: a peer that shares a busy core may not run for some milliseconds.
inline constexpr std::chrono::nanoseconds kShortestAckTimeout = std::chrono::milliseconds(4);

// When nothing was heard for this long, or for much longer than answers took lately, the last packet is sent
// once more and the wait doubles; this does not count as a retry. A lost last packet or lost acknowledgment
// is found long before the local ACK timeout (67 ms by default).
inline constexpr std::chrono::nanoseconds kFirstProbe = std::chrono::milliseconds(1);
inline constexpr std::chrono::nanoseconds kLongestProbe = std::chrono::milliseconds(500);

// Bytes that are copied without packets before other queue pairs have their turn.
inline constexpr std::uint64_t kCopyPiece = 1024 * 1024;

// From this length on a request that could be copied waits for those before it rather than travel in packets.
inline constexpr std::uint64_t kWorthWaiting = 64 * 1024;

// What expire() sends at most when the engine did not call transmit() first.
inline constexpr unsigned kExpireBudget = 16;

// The remote side's sentence has to fit the smallest path MTU.
inline constexpr std::size_t kMaxReasonBytes = 256;

}  // namespace qpair::softnic::roce
