#pragma once
// What NICs of one host say to each other besides packets: messages with descriptors, over a Unix socket
// whose name follows from the NIC's address. The name is abstract: there is no file that could be left
// behind, and it is seen in this network namespace only, as the address is. Anybody can take a free name, so
// each side asks the kernel who the other one is and talks to its own user only.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "softnic/wire/descriptor.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::wire {

struct LocalMessage {
  enum class Kind : std::uint16_t {
    Hello,    // to whoever listens: here is a ring and a bell; `size`: of the ring's memory; `address`: whose
    Welcome,  // and here is what I show, and my bell; `size`: of the memory
    Refused,  // no, or no longer: use the network. Who ends a session without it has ended altogether
    Knock,    // look at your ring: for as long as there is no bell
    Want,     // how can the memory of key `value` be reached?
    File,     // the file of that key, whose number is `value`; `size`: of the file
    Gone,     // that file is no longer registered
  };
  static constexpr std::uint32_t kMagic = 0x7170'6e62;
  static constexpr std::uint16_t kVersion = 1;

  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  Kind kind{};
  std::uint64_t value = 0;
  std::uint64_t size = 0;
  std::array<std::uint8_t, 16> address{};
};
static_assert(sizeof(LocalMessage) == 40);

struct ReceivedMessage {
  LocalMessage message;
  std::array<Descriptor, 2> descriptors;
};

class LocalSocket {
 public:
  enum class Outcome : std::uint8_t { Done, Nothing, Closed };

  LocalSocket() = default;
  // Empty when the name is taken or the kernel refuses.
  static LocalSocket listen(const Endpoint& own);
  // Empty when nobody listens there who is of this user.
  static LocalSocket connect(const Endpoint& peer);
  // The next one that has connected; empty when there is none of this user, or no descriptor for it.
  LocalSocket accept(bool& table_full) const;

  explicit operator bool() const { return static_cast<bool>(fd_); }
  int get() const { return fd_.get(); }
  // Of the process on the other side, as this one sees it; 0 when it cannot.
  pid_t peer_process() const { return peer_; }

  // Never blocks; Nothing: it is full.
  Outcome send(const LocalMessage& message, std::span<const int> descriptors = {}) const;
  // Closed also for what is no message. Descriptors for which this process has no room are missing.
  Outcome receive(ReceivedMessage& message) const;
  // The other side is there.
  bool is_connected() const;
  void abandon() { fd_.abandon(); }

 private:
  bool take_peer();

  Descriptor fd_;
  pid_t peer_ = 0;
};

}  // namespace qpair::softnic::wire
