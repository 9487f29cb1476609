#pragma once
// Small helpers that the wire tests share: packets with recognisable bytes, and a link that records what it
// is given.

#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <vector>

#include "softnic/wire/address.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::wire {

using Bytes = std::vector<std::byte>;

// `size` bytes that depend on `number`, so that mixed-up packets are noticed.
inline Bytes pattern(std::size_t size, std::uint32_t number) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + number * 13 + (number >> 8));
  }
  if (size >= sizeof(number)) {
    std::memcpy(bytes.data(), &number, sizeof(number));
  }
  return bytes;
}

inline std::uint32_t number_of(const Bytes& bytes) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

inline void send(Link& link, const Endpoint& destination, const Bytes& bytes) {
  const auto room = link.reserve(destination, bytes.size());
  std::memcpy(room.data(), bytes.data(), bytes.size());
  link.commit();
}

struct Packet {
  Endpoint source;
  Endpoint destination;
  Bytes bytes;
};

// Polls until nothing comes any more; on loopback what was flushed can be polled at once.
inline std::vector<Packet> receive_all(Link& link, TimePoint now = {}) {
  std::vector<Packet> packets;
  while (link.poll(
             [&](const Frame& frame) {
               packets.push_back(
                   {frame.source, frame.destination, Bytes(frame.bytes.begin(), frame.bytes.end())});
             },
             64, now) > 0) {
  }
  return packets;
}

inline Endpoint endpoint(const char* text) {
  return parse_address(text).value();
}

// A network of one: what is sent comes out of `sent`, what is put into `incoming` is delivered.
class RecordingLink final : public Link {
 public:
  explicit RecordingLink(const Endpoint& local) : local_(local) {}
  Endpoint local() const override { return local_; }
  std::span<std::byte> reserve(const Endpoint& destination, std::size_t size) override {
    open_ = {local_, destination, Bytes(size)};
    return open_.bytes;
  }
  void commit() override { sent.push_back(open_); }
  void flush() override { ++flushes; }
  std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint) override {
    std::size_t delivered = 0;
    for (; delivered < limit && !incoming.empty(); ++delivered) {
      Packet packet = incoming.front();
      incoming.pop_front();
      receiver({packet.source, packet.destination, packet.bytes});
    }
    return delivered;
  }

  std::vector<Packet> sent;
  std::deque<Packet> incoming;
  unsigned flushes = 0;

 private:
  Endpoint local_;
  Packet open_;
};

}  // namespace qpair::softnic::wire
