#pragma once
// Flow control between the NICs of one host: credits, as InfiniBand's links have them (IBTA vol. 1 7.9),
// where RoCE counts on priority flow control. A sender asks and the receiver grants what its socket holds for
// one more sender; the request travels behind everything sent before, so that whoever answers it has taken
// all of that out of its socket, and neither side counts what is lost. Both packets are base transport
// headers with manufacturer opcodes (0xC0 to 0xFF): whoever does not know them drops them, and a sender that
// hears no answer goes on, slowly.
//
// Bytes are what the kernel charges the receiving socket, its bookkeeping included. No sockets and no clock
// here: UdpLink has them.

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "softnic/wire/icrc.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::wire {

// ---- The packets --------------------------------------------------------------------------------

inline constexpr std::uint8_t kCreditRequestOpcode = 0xc1;
inline constexpr std::uint8_t kCreditGrantOpcode = 0xc2;

struct CreditPacket {
  std::uint8_t opcode = kCreditRequestOpcode;
  std::uint32_t number = 0;  // of the request, 24 bits: where other packets have their PSN
  std::uint32_t bytes = 0;   // granted

  static constexpr std::size_t kRequestSize = kBthSize + kIcrcSize;
  static constexpr std::size_t kGrantSize = kBthSize + sizeof(std::uint32_t) + kIcrcSize;
  std::size_t size() const { return opcode == kCreditGrantOpcode ? kGrantSize : kRequestSize; }
  // `room` has size() bytes; the CRC at its end is the caller's.
  void write(std::span<std::byte> room) const;
  // Empty: another packet. The CRC is not looked at.
  static std::optional<CreditPacket> parse(std::span<const std::byte> packet);
};

// ---- What a packet costs ------------------------------------------------------------------------

// The kernel charges a socket for the buffer, which comes from a power of two, with what lies around the
// packet in it, and for its descriptor (net/core/skbuff.c, skb->truesize). At most, for a datagram of its
// own:
constexpr std::int64_t charge_alone(std::size_t size) {
  constexpr std::size_t kAround = 512;  // headers, headroom, struct skb_shared_info
  constexpr std::size_t kDescriptor = 256;
  return static_cast<std::int64_t>(std::bit_ceil(size + kAround) + kDescriptor);
}

// ---- The sender's side --------------------------------------------------------------------------

// What may still be sent to one receiver.
class SendCredit {
 public:
  // After so long a grant is no longer used, so that the receiver can give it to others.
  static constexpr std::chrono::milliseconds kValid{500};
  // An answer that is late is asked for again, and a refused request repeated.
  static constexpr std::chrono::milliseconds kAskAgain{10};
  static constexpr std::chrono::milliseconds kRefused{1};
  // A receiver that has nothing to say for so long (longer, if it ever answered) is stopped, gone or another
  // implementation. It is sent kAssumed bytes.
  static constexpr std::chrono::milliseconds kSilence{50};
  static constexpr std::chrono::milliseconds kLongSilence{250};
  static constexpr std::int64_t kAssumed = 64 << 10;

  bool covers(std::int64_t bytes, TimePoint now) const { return bytes <= left_ && now < valid_until_; }
  void spend(std::int64_t bytes) {
    left_ -= bytes;
    since_request_ += bytes;
  }

  // Half of the last grant is spent.
  bool is_low() const { return left_ <= grant_ / 2; }
  // A request was sent and not answered, or will be sent by expire().
  bool is_asking() const { return awaiting_ || starved_; }
  void request(std::uint32_t number, TimePoint now);
  // The answer. False: it is to no request, or to an old one.
  bool grant(std::uint32_t number, std::uint32_t bytes, TimePoint now);

  // Somebody wanted to send and could not.
  void starve(TimePoint now);
  bool is_starved() const { return starved_; }
  // While starved: when expire() has to be called.
  TimePoint deadline() const;
  // True: ask again.
  bool expire(TimePoint now);

 private:
  std::int64_t left_ = 0;  // may be below 0: not all senders ask
  std::int64_t grant_ = 0;
  std::int64_t since_request_ = 0;  // spent since then: the answer knows nothing of it
  std::uint32_t number_ = 0;        // of the latest request
  bool awaiting_ = false;
  bool starved_ = false;
  bool answers_ = false;  // it did
  TimePoint requested_{};
  TimePoint starved_since_{};  // and heard nothing since
  TimePoint valid_until_{};
};

// ---- The receiver's side ------------------------------------------------------------------------

// Shares a socket's buffer between those that send to it. Each begins with little, gets twice as much
// whenever it asks for more, and never more than half of what is free, so that something is left for the
// next; with n of them that becomes a share of 1/(n + 1).
class CreditPool {
 public:
  static constexpr std::int64_t kLargest = 4 << 20;  // as a reliable connection
  static constexpr std::int64_t kSmallest = 2 * charge_alone(4096);
  // Longer than a grant is used, by as much as an answer may be late.
  static constexpr std::chrono::milliseconds kHeld{1000};

  explicit CreditPool(std::size_t capacity) : capacity_(static_cast<std::int64_t>(capacity)) {}

  // For a sender of which nothing is in the buffer any more. 0: nothing now.
  std::uint32_t grant(const Endpoint& sender, TimePoint now);

 private:
  struct Holder {
    Endpoint sender;
    std::int64_t granted = 0;
    std::int64_t bytes = 0;  // that it may still send
    TimePoint until{};
  };
  std::int64_t capacity_;
  std::array<Holder, 128> holders_{};
};

}  // namespace qpair::softnic::wire
