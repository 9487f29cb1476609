#pragma once
// Telling each other what is needed to connect, over a connected stream socket (TCP, a Unix socket pair).
//
// Both sides call the same function; each sends its message and receives the other's. A message is a 16-byte
// header (magic, version, kind, length) and a body. Nothing is read beyond it, so exchanges can follow one
// another on one socket. The socket may be blocking or not; it is left as it was.
//
// Errors: transport_retry_exceeded when the peer did not answer in time; corrupt_message for bytes that are
// not of this protocol, a version that differs, a message of another kind or one that is too long; system
// when the socket failed or the peer closed it.

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "qpair/queue_pair.hpp"
#include "qpair/result.hpp"
#include "qpair/serialize.hpp"

namespace qpair {

inline constexpr std::size_t kMaxExchangeBytes = std::size_t{1} << 20;
inline constexpr std::chrono::milliseconds kExchangeTimeout{10'000};

// Sends `mine`, returns the peer's bytes. The timeout is for the whole exchange. Messages of more than
// kMaxExchangeBytes are refused on both sides.
Result<std::string> exchange(int fd, std::string_view mine,
                             std::chrono::milliseconds timeout = kExchangeTimeout);

Result<RdmaQpInfo> exchange_qp_info(int fd, const RdmaQpInfo& mine,
                                    std::chrono::milliseconds timeout = kExchangeTimeout);

// Any type that serialize() takes, say RdmaBuffer.
template <typename T>
Result<T> exchange_value(int fd, const T& mine, std::chrono::milliseconds timeout = kExchangeTimeout) {
  Result<std::string> theirs = exchange(fd, serialize(mine, Format::Cbor), timeout);
  if (!theirs) return tl::unexpected(theirs.error());
  return deserialize<T>(*theirs);
}

}  // namespace qpair
