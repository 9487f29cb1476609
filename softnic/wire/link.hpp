#pragma once
// A link carries RoCEv2 packets (base transport header … invariant CRC, i.e. the UDP payload) between NICs.
// Links are wrapped by links (fault injector, capture) without either knowing; the NIC sees one Link.
// All calls come from the engine thread. Nothing throws; sending never fails (a network may lose what it
// likes).

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace qpair::softnic::wire {

using TimePoint = std::chrono::steady_clock::time_point;

// An IPv6 or IPv4-mapped IPv6 address and a UDP port (host order). The address bytes equal a RoCEv2 GID.
struct Endpoint {
  std::array<std::uint8_t, 16> address{};
  std::uint16_t port = 0;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
  bool is_ipv4() const;  // ::ffff:a.b.c.d
};

inline constexpr std::uint16_t kRoceUdpPort = 4791;

// One packet. `bytes` are writable for the receiver (it may decrypt, strip or patch in place), valid only
// during the call that delivers them.
struct Frame {
  Endpoint source;
  Endpoint destination;
  std::span<std::byte> bytes;
};

class Link {
 public:
  using Receiver = std::function<void(const Frame&)>;

  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  virtual ~Link() = default;

  // This side's address; frames are sent from it.
  virtual Endpoint local() const = 0;

  // Room for one packet of exactly `size` bytes to `destination`; the caller fills it whole, then calls
  // commit(). At most one reservation is open. May flush earlier packets to make room.
  virtual std::span<std::byte> reserve(const Endpoint& destination, std::size_t size) = 0;
  virtual void commit() = 0;

  // Hands everything committed to the network.
  virtual void flush() = 0;

  // Delivers up to `limit` received packets, returns how many. Packets sent from inside `receiver` are
  // allowed.
  virtual std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint now) = 0;

  // True when poll() would deliver something without the descriptor becoming readable (loopback queue).
  virtual bool ready() const { return false; }
  // Readable when poll() may deliver something; -1 when there is none.
  virtual int descriptor() const { return -1; }
  // When poll() has to be called even if the descriptor stays silent (delayed packets).
  virtual std::optional<TimePoint> deadline() const { return std::nullopt; }

  // After fork() in the child: closes the descriptors that it inherited. Nothing but the destructor follows.
  virtual void abandon() {}
};

}  // namespace qpair::softnic::wire
