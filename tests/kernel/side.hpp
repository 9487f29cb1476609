#pragma once
// One side of a reliable connection, as a test drives it: in this process (LocalSide) or, by calls over TCP,
// in another one on another machine (RemoteSide, which talks to serve()). Plain verbs, so that every
// attribute of the queue pair can be chosen. Failures to do what was asked are exceptions; failed work is a
// Completion.

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace qpair::kernel_test {

inline constexpr std::uint32_t kMemorySize = 1 << 20;
inline constexpr int kAllRights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// What follows crosses the network as it lies in memory: both sides are this same program.

struct QpOptions {
  std::uint32_t mtu = 1024;  // bytes
  std::int32_t memory_rights = kAllRights;
  std::int32_t qp_rights = kAllRights;
  std::uint8_t gid_index = 0;
  std::uint8_t timeout = 14;  // 67 ms
  std::uint8_t retry_cnt = 7;
  std::uint8_t rnr_retry = 7;
  std::uint8_t min_rnr_timer = 12;  // 0.64 ms
  std::uint8_t max_reads = 16;      // as requester and as responder
  std::uint8_t padding[2]{};
};

struct QpInfo {
  std::uint32_t qpn = 0;
  std::uint32_t psn = 0;
  ibv_gid gid{};
  std::uint64_t address = 0;  // of the side's memory, kMemorySize bytes
  std::uint32_t rkey = 0;
  std::uint32_t padding = 0;
};

// A work request whose local memory is one piece of the side's own.
struct Work {
  std::uint64_t id = 0;
  std::uint32_t opcode = IBV_WR_SEND;
  std::uint32_t flags = IBV_SEND_SIGNALED;
  std::uint32_t offset = 0;
  std::uint32_t length = 0;
  std::uint64_t remote_address = 0;
  std::uint32_t rkey = 0;
  std::uint32_t immediate = 0;
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;
};

struct Completion {
  std::uint64_t id = 0;
  std::uint32_t status = 0;
  std::uint32_t opcode = 0;
  std::uint32_t bytes = 0;
  std::uint32_t immediate = 0;
  std::uint32_t flags = 0;
  std::uint32_t vendor_error = 0;
};

enum class Queue : std::uint32_t { Send, Receive };

class Side {
 public:
  Side() = default;
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  virtual ~Side() = default;

  // A new queue pair in INIT, and new memory; what was there before is gone.
  virtual QpInfo create(const QpOptions& options) = 0;
  // To RTS.
  virtual void connect(const QpInfo& peer) = 0;
  virtual void destroy() = 0;

  virtual void write(std::uint32_t offset, const std::vector<std::byte>& bytes) = 0;
  virtual std::vector<std::byte> read(std::uint32_t offset, std::uint32_t size) = 0;

  virtual void send(const std::vector<Work>& list) = 0;  // one ibv_post_send() for all
  virtual void receive(const Work& work) = 0;
  // The next completion; none within half a minute is an exception.
  virtual Completion wait(Queue queue) = 0;
  virtual ibv_qp_state state() = 0;
  // The next asynchronous event, awaited as long.
  virtual ibv_event_type event() = 0;
  // From the port's hw_counters.
  virtual std::uint64_t counter(const std::string& name) = 0;
};

std::unique_ptr<Side> make_local_side();
std::unique_ptr<Side> make_remote_side(const std::string& host, std::uint16_t port);

// Answers the calls of remote sides, each connection in a process of its own, until one asks to stop. Returns
// an exit status.
int serve(std::uint16_t port);

}  // namespace qpair::kernel_test
