#pragma once
// RoCEv2 over a UDP socket.
//
// Out: packets are laid one after another in an arena; neighbours to one destination with one size form a
// run, and a run towards this host leaves as one system call's message with UDP segmentation offload. flush()
// hands all runs over with as few sendmmsg() calls as it can. In: recvmmsg() with UDP GRO into a second
// arena, cut up again at the kernel's segment size. Neither side ever blocks, allocates or grows: what does
// not fit is lost, as on a network.
//
// The socket is never connected and always sets Don't Fragment, since only then is the IPv4 identification 0,
// and the invariant CRC covers it (kernel include/net/ip.h, ip_select_ident_segs). Segmentation offload
// counts the identification up for each segment, so that it is used only where no header reaches the
// receiver: on this host.
//
// Towards this host there is flow control for those who ask (has_room(), credit.hpp). A sender and a receiver
// that run out of step lose nothing then, however long one of them waits for a processor.
//
// A datagram does not show the identification that it came with. From an emulated NIC it is 0, and NICs of
// this host are emulated, since the kernel's rdma_rxe would have the port. Other hosts' may have any; a
// HeaderWatch sees it, where there may be one.

#include <sys/socket.h>

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "softnic/wire/address.hpp"
#include "softnic/wire/credit.hpp"
#include "softnic/wire/descriptor.hpp"
#include "softnic/wire/group_sockets.hpp"
#include "softnic/wire/header_watch.hpp"
#include "softnic/wire/link.hpp"
#include "softnic/wire/pages.hpp"

namespace qpair::softnic::wire {

struct UdpCounters {
  std::uint64_t sent_packets = 0, sent_messages = 0, send_calls = 0;
  std::uint64_t received_packets = 0, received_messages = 0, receive_calls = 0;
  std::uint64_t dropped_full = 0;         // the socket took no more and the arena was full
  std::uint64_t overrun = 0;              // received ones that the kernel lost: its buffer was full
  std::uint64_t dropped_impostor = 0;     // messages from another NIC's address, but not from its port
  std::uint64_t dropped_unreachable = 0;  // refused by the kernel: no route, too long, not permitted
};

struct UdpOptions {
  LocalAddress local;
  std::size_t socket_buffer = 8U << 20;  // bytes to ask the kernel for, each way
  bool offload = true;                   // use UDP_SEGMENT and UDP_GRO where they can be had
};

class UdpLink final : public Link {
 public:
  // Claims exactly this address. The error is a sentence.
  static tl::expected<std::unique_ptr<UdpLink>, std::string> open(const UdpOptions& options);
  // Claims some free address of 127.71.0.0/16, starting from one that depends on `hint` (a process id, say).
  static tl::expected<std::unique_ptr<UdpLink>, std::string> open_anywhere(std::uint64_t hint,
                                                                           UdpOptions options = {});

  Endpoint local() const override { return local_; }
  std::span<std::byte> reserve(const Endpoint& destination, std::size_t size) override;
  void commit() override;
  void flush() override;
  bool has_room(const Endpoint& destination, std::size_t size) override;
  std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint now) override;
  bool ready() const override { return receive_.next < receive_.filled; }
  int descriptor() const override { return groups_ ? groups_->descriptor() : fd_.get(); }
  std::optional<TimePoint> deadline() const override;
  int join(const Endpoint& group) override;
  void leave(const Endpoint& group) override;
  void abandon() override;

  const UdpCounters& counters() const { return counters_; }
  bool uses_offload() const { return segment_offload_; }
  // Bytes that the kernel granted for received packets not yet polled, its own bookkeeping included.
  std::size_t receive_buffer() const { return receive_buffer_; }

 private:
  // Longest UDP payload over IPv4, and what a GRO message may hold.
  static constexpr std::size_t kMaxDatagram = 65507;
  static constexpr std::size_t kReceiveSlot = 65536;
  // Chosen by measurement (bench/wire.cpp): more does not help, and the arenas should stay in the L2 cache.
  // The send arena holds what a queue pair sends in its turn (nic/tunables.hpp, kTransmitBudget), at any MTU.
  static constexpr std::size_t kSendArena = 320U << 10;
  static constexpr std::size_t kRunAlignment = 64;
  static constexpr unsigned kSendBatch = 64;
  static constexpr unsigned kReceiveBatch = 8;
  static constexpr std::size_t kMaxRuns = 1024;
  static constexpr unsigned kMaxSegments =
      64;  // kernel include/linux/udp.h, UDP_MAX_SEGMENTS (128 since 6.9)

  // Consecutive packets of the arena: `count` of them, all `segment` bytes but the last, which may be
  // shorter.
  struct Run {
    std::uint32_t offset = 0;
    std::uint32_t length = 0;
    std::uint32_t segment = 0;
    std::uint16_t count = 0;
    std::uint16_t destination = 0;  // index into destinations_
  };
  // Where packets went lately, with the socket address ready-made.
  struct Destination {
    Endpoint endpoint;
    sockaddr_storage address{};
    socklen_t length = 0;
    bool on_this_host = false;
    SendCredit credit;
  };
  struct Control {  // room for two control messages of an int
    alignas(cmsghdr) std::array<std::byte, 2 * CMSG_SPACE(sizeof(int))> bytes{};
  };
  struct SendBatch {
    std::array<mmsghdr, kSendBatch> messages{};
    std::array<iovec, kSendBatch> vectors{};
    std::array<Control, kSendBatch> controls{};
    std::array<std::uint16_t, kSendBatch> packets{};
  };
  struct ReceiveBatch {
    std::array<mmsghdr, kReceiveBatch> messages{};
    std::array<iovec, kReceiveBatch> vectors{};
    std::array<sockaddr_storage, kReceiveBatch> sources{};
    std::array<Control, kReceiveBatch> controls{};
    unsigned filled = 0;     // messages that the last recvmmsg() brought
    unsigned next = 0;       // the one being delivered
    bool drained = false;    // the socket held no more
    std::size_t offset = 0;  // and where in it
    std::size_t segment = 0;
    Endpoint source;
    bool numbered = false;  // by the sender's kernel: it is on another host
  };

  void send_groups_from(const LocalAddress& local);
  static tl::expected<std::unique_ptr<UdpLink>, std::string> start(Descriptor fd, const UdpOptions& options);
  UdpLink(Descriptor fd, const UdpOptions& options);
  std::uint16_t destination_index(const Endpoint& destination);
  bool offloads(const Run& run) const {
    return segment_offload_ && destinations_[run.destination].on_this_host;
  }
  bool extends_last_run(std::uint16_t destination, std::size_t size) const;
  unsigned prepare();
  void consume(unsigned messages);
  bool overcome(int error);
  void refuse(int error);
  void drop_pending();
  bool receive();
  void start_message();
  bool is_on_this_host(const Endpoint& source);
  Frame next_frame();
  void note_overrun(std::uint32_t lost_so_far);
  void turn_off(int error);
  std::int64_t charge_for(const Run& packet) const;
  void send_credit(std::uint16_t index, const CreditPacket& packet);
  void request_credit(std::uint16_t index, TimePoint now);
  bool take_credit(const Frame& frame, TimePoint now);
  void watch_credits();
  void look_at_credits(TimePoint now);

  Descriptor fd_;
  LocalAddress address_;
  Endpoint local_;
  std::uint32_t scope_id_ = 0;
  std::unique_ptr<GroupSockets> groups_;  // while there are any
  bool segment_offload_ = false;
  std::size_t receive_buffer_ = 0;

  Pages send_arena_;
  std::size_t arena_used_ = 0;
  Run reserved_;                  // the open reservation, as a run of its own
  std::vector<Run> runs_;         // capacity fixed in the constructor
  std::size_t first_run_ = 0;     // runs before it have left
  std::size_t first_packet_ = 0;  // packets of that run that have left
  std::array<Destination, 64> destinations_{};
  std::size_t destination_count_ = 0;
  std::optional<TimePoint> retry_at_;
  std::bitset<256> reported_;  // errno values that a sentence was said about
  SendBatch send_;

  CreditPool credit_pool_;
  std::uint32_t credit_requests_ = 0;
  bool credit_answered_ = false;              // in this poll()
  std::optional<TimePoint> credit_deadline_;  // while some destination has no room
  TimePoint now_{};                           // when the send arena was empty

  std::optional<HeaderWatch> watch_;
  Endpoint last_source_;
  bool last_source_on_this_host_ = false;
  Pages receive_arena_;
  ReceiveBatch receive_;
  UdpCounters counters_;
};

}  // namespace qpair::softnic::wire
