#pragma once
// How long an engine without work goes on looking before it lets the processor go.
//
// Spinning finds a doorbell tens of microseconds earlier than sleeping does, but on a machine with two
// processors it may keep the very thread from running that is to ring it, or the peer's engine that is to
// answer. So it spins only as long as that paid before, in the manner of the kernel's halt polling
// (Documentation/virt/kvm/halt-polling.rst): the limit doubles when spinning found something, halves when it
// did not, and what has come to nothing is tried again once in a while. Waiting after packets (a program
// reacts to what arrived) and waiting after own transmissions (a peer answers) are learnt separately; and so
// is waiting for a program that was blocked at a closed doorbell page: it takes some microseconds before it
// rings again, perhaps another page, and who gives up earlier blocks it with each doorbell. A packet ends a
// sleep as soon as a spin, so unless there are processors to spare, only doorbells count as a success.

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "softnic/nic/chip.hpp"
#include "softnic/nic/tunables.hpp"

namespace qpair::softnic::nic {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  Patience() : Patience(processors() >= kPlentyOfProcessors) {}
  explicit Patience(bool plenty) : plenty_(plenty) { limits_.fill(kLongestSpin); }

  enum class Woken : std::uint8_t { No, ByFault };  // by a program that was blocked at a closed doorbell page
  void worked(const Chip::Work& work, Clock::time_point now, Woken woken = Woken::No) {
    if (idle_) learn(work, now);
    if (rested_ && awaiting_ && work.doorbells && now - since_ > kLongAnswer) {
      impatient_ = kImpatience;
    } else if (impatient_ != 0) {
      --impatient_;
    }
    idle_ = rested_ = false;
    kind_ = woken == Woken::ByFault ? kAfterFault : work.packets ? kAfterPackets : kAfterSending;
    awaiting_ = work.awaiting;
  }
  // The processor was given away meanwhile.
  void rested() { rested_ = true; }
  bool has_processors_to_spare() const { return plenty_; }
  // Without work: has it been long enough?
  bool is_over(Clock::time_point now) {
    if (!idle_) {
      idle_ = true;
      since_ = now;
    }
    return rested_ || now - since_ >= limits_[kind_];
  }
  Clock::duration idle(Clock::time_point now) const { return idle_ ? now - since_ : Clock::duration::zero(); }

  // Something that was sent is to be answered by a packet, and doorbells can wait for that: not where answers
  // take long and programs rang meanwhile.
  bool awaits_packet() const { return awaiting_ && impatient_ == 0; }

 private:
  enum Kind : std::size_t { kAfterPackets, kAfterSending, kAfterFault, kKinds };

  static unsigned processors() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<unsigned>(CPU_COUNT(&set)) : 1;
  }

  void learn(const Chip::Work& work, Clock::time_point now) {
    Clock::duration& limit = limits_[kind_];
    if (!rested_) {
      // Without rest: it was found by spinning.
      if (now > since_ && (work.doorbells || (plenty_ && work.packets))) {
        limit = std::min<Clock::duration>(std::max<Clock::duration>(limit * 2, kShortestSpin), kLongestSpin);
        // Now that it runs its next doorbell may come soon.
        if (kind_ == kAfterFault) {
          limits_[kAfterSending] = std::max<Clock::duration>(limits_[kAfterSending], kLongestSpin / 4);
        }
      }
    } else if (limit > Clock::duration::zero()) {
      limit = limit / 2 < kShortestSpin ? Clock::duration::zero() : limit / 2;
    } else if (++failures_ % kSpinAgainAfter == 0) {
      limit = kind_ == kAfterFault ? kLongestSpin : kLongestSpin / 4;
    }
  }

  bool plenty_;
  bool idle_ = false;
  bool rested_ = false;
  unsigned failures_ = 0;
  unsigned impatient_ = 0;
  bool awaiting_ = false;
  Kind kind_ = kAfterSending;
  Clock::time_point since_{};
  std::array<Clock::duration, kKinds> limits_{};
};

}  // namespace qpair::softnic::nic
