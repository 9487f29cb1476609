#pragma once
// A link carries RoCEv2 packets (base transport header … invariant CRC, i.e. the UDP payload) between NICs.
// Links are wrapped by links (fault injector, capture) without either knowing; the NIC sees one Link.
// All calls come from the engine thread. Nothing throws; sending never fails (a network may lose what it
// likes).

#include <array>
#include <cerrno>
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

// Room for whatever one UDP datagram carries.
inline constexpr std::size_t kLongestPacket = 65536;

inline constexpr std::array<std::uint16_t, 1> kUnnumbered{0};

// One packet. `bytes` are writable for the receiver (it may decrypt, strip or patch in place), valid only
// during the call that delivers them.
struct Frame {
  Endpoint source;
  Endpoint destination;
  std::span<std::byte> bytes;
  // What the IPv4 header's identification may have been, which the invariant CRC covers. Emulated NICs send
  // 0; empty: it was not seen.
  std::span<const std::uint16_t> identifications = kUnnumbered;
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

  // Flow control of the link itself, as priority flow control gives it to RoCE: false while `destination`
  // could not take `size` bytes more without losing them. Becomes true again through poll() or at deadline().
  // Services without flow control of their own (UC, UD) ask before they send; a reliable connection has its
  // window.
  virtual bool has_room(const Endpoint& destination, std::size_t size) {
    static_cast<void>(destination), static_cast<void>(size);
    return true;
  }

  // True: `size` bytes more would not fit into what leads to `destination`, so that sending them is in vain.
  // Its descriptor becomes readable when it ends. For reliable connections, which need no more than that.
  virtual bool is_full(const Endpoint& destination, std::size_t size) {
    static_cast<void>(destination), static_cast<void>(size);
    return false;
  }

  // Hands everything committed to the network.
  virtual void flush() = 0;

  // Delivers up to `limit` received packets, returns how many. Packets sent from inside `receiver` are
  // allowed.
  virtual std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint now) = 0;

  // True when poll() would deliver something without a descriptor becoming readable (loopback queue).
  virtual bool ready() const { return false; }
  // Readable when poll() may deliver something; -1 when there is none. A link may be made of two.
  virtual int descriptor() const { return -1; }
  virtual int second_descriptor() const { return -1; }
  // When poll() has to be called even if the descriptor stays silent (delayed packets).
  virtual std::optional<TimePoint> deadline() const { return std::nullopt; }

  // Before this side waits for its descriptors, and after. False: do not, something has come meanwhile.
  virtual bool sleeps() { return true; }
  virtual void wakes() {}

  // A NIC that was there and is not any more, as far as a link can tell: its process has ended. Each is told
  // once, after everything that it sent.
  virtual std::optional<Endpoint> departed() { return std::nullopt; }
  // Whether the program has queue pairs. One that ends without any has left nothing undone: whoever still
  // sends to it finds silence, as on a network, and is not told that it departed.
  virtual void has_queue_pairs(bool any) { static_cast<void>(any); }

  // Multicast: from now on what anybody sends to `group`, this side included, is delivered too, with the
  // group as its destination. 0, or an errno. Joined twice, it has to be left twice.
  virtual int join(const Endpoint& group);
  virtual void leave(const Endpoint& group) { static_cast<void>(group); }

  // After fork() in the child: closes the descriptors that it inherited. Nothing but the destructor follows.
  virtual void abandon() {}
};

inline int Link::join(const Endpoint&) {
  return EOPNOTSUPP;
}

}  // namespace qpair::softnic::wire
