// Tickets of queue pairs, and the frames of exchange(), from a peer that sends anything at all. No ticket
// opens a queue pair in a process that has none; no frame makes exchange() wait, crash or read too far.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "qpair/exchange.hpp"
#include "qpair/serialize.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const qpair::Result<qpair::RdmaQueuePair> ticket = qpair::deserialize<qpair::RdmaQueuePair>(bytes);
  if (ticket) std::abort();
  if (ticket.error().code() != qpair::ErrorCode::corrupt_message &&
      ticket.error().code() != qpair::ErrorCode::foreign_process) {
    std::abort();
  }

  constexpr std::size_t kFitsTheSocket = 65536;
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 0;
  const std::size_t sent = std::min(size, kFitsTheSocket);
  if (send(sockets[1], data, sent, MSG_DONTWAIT) == static_cast<ssize_t>(sent)) {
    const bool as_info = size % 2 == 0;
    constexpr std::chrono::milliseconds kNoWaiting{0};
    if (as_info) {
      static_cast<void>(qpair::exchange_qp_info(sockets[0], {}, kNoWaiting));
    } else if (const auto got = qpair::exchange(sockets[0], "mine", kNoWaiting)) {
      if (got->size() + 16 > sent) std::abort();  // more than there was
    }
  }
  close(sockets[0]);
  close(sockets[1]);
  return 0;
}
