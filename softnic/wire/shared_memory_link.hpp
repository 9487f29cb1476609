#pragma once
// RoCEv2 packets between the NICs of one user on one host, through memory: no system call unless the other
// side sleeps. And what lets one NIC reach another's memory without that one's help.
//
//   this NIC ──ring──▶ other NIC     opened by whoever wants to send; each direction is one session
//        └───socket──▶               carries the descriptors once, and says when the other side is gone
//
// A session begins with connect() to the other NIC's socket, whose name follows from its address; where
// nobody of this user listens, reaches() says so and the packets go by the network. The ring works from then
// on, whether or not the other side has come to accept it.
//
// Sleep: a NIC that sleeps says so in what it shows (Shown::asleep); a sender that sees it writes to its
// bell, an eventfd. A sender that finds the ring full asks to be woken likewise.
//
// What a NIC shows: a segment that the NIC fills (nic/shown_objects.hpp) with its memory keys and queue
// pairs. Others map it for reading, check there what the responder would check, and copy to and from the
// memory directly: files that both have mapped, or the other process's memory through the kernel. While they
// do they say so (Neighbour::begin), and before the owner takes anything back that it has shown it waits for
// them (wait_for_copies).

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "softnic/wire/descriptor.hpp"
#include "softnic/wire/link.hpp"
#include "softnic/wire/local_socket.hpp"
#include "softnic/wire/packet_ring.hpp"
#include "softnic/wire/shared_segment.hpp"

namespace qpair::softnic::wire {

// At the start of what a NIC shows.
struct Shown {
  alignas(64) std::atomic<std::uint32_t> asleep{0};
  // Not 0: it has no queue pairs. If its process ends now, however it does, nobody misses it.
  std::atomic<std::uint32_t> parted{0};
};
inline constexpr std::size_t kShownHeader = 64;

// How the memory of a key can be reached by others.
struct SharedFile {
  std::uint64_t id = 0;  // counted up, never used again
  int descriptor = -1;
  std::uint64_t size = 0;
};

// Who answers for the memory that this NIC shows.
class MemoryOwner {
 public:
  virtual ~MemoryOwner() = default;
  // Somebody wants to reach the memory of that key. Empty: only through the process.
  virtual std::optional<SharedFile> file_of(std::uint32_t key) = 0;
};

// What others moved without packets, counted as those packets would have been.
struct Copies {
  std::uint64_t writes = 0, reads = 0;
  std::uint64_t packets_sent = 0, packets_received = 0, bytes_sent = 0, bytes_received = 0;
  friend bool operator==(const Copies&, const Copies&) = default;
};
static_assert(sizeof(Copies) == kCopyCounters * sizeof(std::uint64_t));

// Another NIC of this host, to which packets go through memory. Engine lock held.
class Neighbour {
 public:
  Neighbour() = default;
  ~Neighbour();
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  // What it shows, after the header; empty until it has answered.
  std::span<const std::byte> shown() const;
  pid_t process() const { return socket_.peer_process(); }
  bool is_connected() const { return socket_.is_connected(); }

  // Between them the memory that is shown stays. Never across a call that may wait.
  void begin() { ring_.header().copying.store(++copies_, std::memory_order_seq_cst); }
  void end() { ring_.header().copying.store(++copies_, std::memory_order_release); }
  void count(const Copies& copies);

  // Its file, mapped. Nothing: it was not asked for yet. Empty: it cannot be mapped.
  std::optional<std::span<std::byte>> file(std::uint64_t id) const;
  // Asks for the file of a key, once in a while.
  void want(std::uint32_t key, TimePoint now);

  // The kernel let this process reach that one's memory, as far as is known.
  bool reachable_by_kernel = true;

 private:
  friend class SharedMemoryLink;
  struct File {
    std::uint64_t id = 0;
    std::span<std::byte> bytes;
  };

  void handle(ReceivedMessage& received);
  void welcome(ReceivedMessage& received);
  void map_file(const LocalMessage& message, const Descriptor& fd);
  void forget_file(std::uint64_t id);
  void wake();

  Endpoint endpoint_;
  LocalSocket socket_;
  SharedSegment memory_;
  PacketRing ring_;
  SharedSegment shown_;
  Descriptor bell_;
  std::vector<File> files_;
  std::uint32_t wanted_ = 0;
  TimePoint wanted_at_{};
  bool gone_ = false;
  bool refused_ = false;  // gone, but not missed: alive, so that the network reaches it, or parted
  bool unflushed_ = false;
  std::uint32_t rung_in_ = 0;  // the sleep in which its bell was rung
  std::uint32_t copies_ = 0;   // begun and ended
};

class SharedMemoryLink final : public Link {
 public:
  // `shown`: bytes that the NIC shows after the header. Empty where the kernel has not what it takes; then
  // everything goes by the network.
  static std::unique_ptr<SharedMemoryLink> open(const Endpoint& local, std::size_t shown);

  // Whether packets to that NIC go this way.
  bool reaches(const Endpoint& destination) { return find(destination) != nullptr; }
  // When it was polled last.
  TimePoint now() const { return now_; }
  // The NIC at that address; null when there is none, or it is to be reached by the network.
  Neighbour* find(const Endpoint& destination);

  std::span<std::byte> shown() const { return shown_.bytes().subspan(kShownHeader); }
  void set_owner(MemoryOwner* owner) { owner_ = owner; }
  // Returns when nobody copies any more under what was shown before the call. Whoever copies is done within
  // microseconds, unless it was stopped meanwhile: then this returns after `patience`.
  void wait_for_copies(std::chrono::nanoseconds patience = std::chrono::seconds(1));
  void file_gone(std::uint64_t id);
  // What others moved directly, in sum.
  Copies copies() const;

  // ---- Link
  Endpoint local() const override { return local_; }
  std::span<std::byte> reserve(const Endpoint& destination, std::size_t size) override;
  void commit() override;
  void flush() override;
  std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint now) override;
  bool ready() const override;
  int descriptor() const override { return epoll_.get(); }
  bool has_room(const Endpoint& destination, std::size_t size) override {
    return !is_full(destination, size);
  }
  bool is_full(const Endpoint& destination, std::size_t size) override;
  bool sleeps() override;
  void wakes() override;
  std::optional<Endpoint> departed() override;
  void has_queue_pairs(bool any) override;
  void abandon() override;

  std::uint64_t dropped() const { return dropped_; }  // found no room

 private:
  // Somebody who sends to us.
  struct Inbound {
    LocalSocket socket;
    Endpoint source;  // once it said Hello
    SharedSegment memory;
    PacketRing ring;
    Descriptor bell;
    bool greeted = false;
    bool over = false;
    bool refused = false;                     // over, but it is not missed, as above
    std::unordered_set<std::uint64_t> files;  // that it was sent
    std::vector<std::uint64_t> gone;          // of those, what it could not be told yet
  };
  struct AddressHash {
    std::size_t operator()(const std::array<std::uint8_t, 16>& address) const;
  };

  SharedMemoryLink() = default;
  Neighbour* connect(const Endpoint& destination);
  void look_around(TimePoint now);
  void watch(int fd) const;
  Descriptor reserve_descriptor() const;
  void accept();
  bool refuse_next();
  void listen_to(Inbound& inbound);
  void greet(Inbound& inbound, ReceivedMessage& received);
  void refuse(Inbound& inbound);
  void answer(Inbound& inbound, std::uint32_t key);
  static void tell_gone(Inbound& inbound);
  void hear(Neighbour& neighbour);
  std::size_t drain(Inbound& inbound, const Receiver& receiver, std::size_t limit);
  void bury(TimePoint now);
  void depart(const Endpoint& endpoint);

  Endpoint local_;
  MemoryOwner* owner_ = nullptr;
  SharedSegment shown_;
  LocalSocket listener_;
  Descriptor bell_;
  Descriptor epoll_;
  Descriptor spare_;  // to have one when there is none left
  TimePoint now_{};
  TimePoint looked_{};

  std::unordered_map<std::array<std::uint8_t, 16>, std::unique_ptr<Neighbour>, AddressHash> neighbours_;
  Neighbour* latest_ = nullptr;  // in most cases the next one, too
  std::unordered_map<std::array<std::uint8_t, 16>, TimePoint, AddressHash>
      absent_;  // where nobody listened, and until when that is believed
  std::vector<std::unique_ptr<Inbound>> inbound_;
  std::size_t first_ = 0;  // whose turn it is to be drained first
  bool over_ = false;      // some session is
  std::deque<Endpoint> departed_;
  Copies past_{};  // of sessions that are over

  std::array<Neighbour*, 64> unflushed_{};
  std::size_t unflushed_count_ = 0;
  Neighbour* open_ = nullptr;  // the open reservation; null: into scratch_
  std::vector<std::byte> scratch_;
  std::uint64_t dropped_ = 0;
};

}  // namespace qpair::softnic::wire
