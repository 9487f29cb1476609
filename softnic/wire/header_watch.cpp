#include "softnic/wire/header_watch.hpp"

#include <linux/filter.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "softnic/wire/address.hpp"

namespace qpair::softnic::wire {
namespace {

std::uint16_t load16(const std::byte* from) {
  return static_cast<std::uint16_t>(std::to_integer<unsigned>(from[0]) << 8 |
                                    std::to_integer<unsigned>(from[1]));
}

constexpr std::uint32_t kNever = 0;  // no interface has this index

// Keeps the first `bytes` of whatever has this UDP port and did not come over the interface `not_over`.
bool filter(int fd, std::uint16_t port, std::uint32_t not_over, std::uint32_t bytes) {
  constexpr std::uint32_t kInterface = static_cast<std::uint32_t>(SKF_AD_OFF + SKF_AD_IFINDEX);
  std::array<sock_filter, 8> program{{
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x45, 0, 5),  // no IP options
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 22),           // destination port
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kInterface),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, not_over, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, bytes),
      BPF_STMT(BPF_RET | BPF_K, 0),
  }};
  const sock_fprog whole{static_cast<unsigned short>(program.size()), program.data()};
  return ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &whole, sizeof whole) == 0;
}

}  // namespace

HeaderWatch::HeaderWatch(Descriptor fd) : fd_(std::move(fd)), kept_(kKept) {}

std::optional<HeaderWatch> HeaderWatch::open(const Endpoint& local, bool own_host) {
  if (!local.is_ipv4()) {
    return std::nullopt;
  }
  Descriptor fd(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP));
  sockaddr_storage address{};
  const socklen_t length = to_sockaddr(local, 0, address);
  if (!fd || !filter(fd.get(), local.port, own_host ? kNever : ::if_nametoindex("lo"), kHeaders) ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return std::nullopt;
  }
  return HeaderWatch(std::move(fd));
}

std::span<const std::uint16_t> HeaderWatch::identifications(const Endpoint& source,
                                                            std::span<const std::byte> datagram) {
  found_count_ = 0;
  if (datagram.size() < kBeginning) {
    return {};
  }
  Header sought;
  std::memcpy(sought.source.data(), source.address.data() + 12, 4);
  sought.source[4] = static_cast<std::byte>(source.port >> 8);
  sought.source[5] = static_cast<std::byte>(source.port & 0xff);
  sought.length = static_cast<std::uint16_t>(datagram.size());
  std::copy_n(datagram.begin(), kBeginning, sought.beginning.begin());
  while (!take_matches(sought) && read_more()) {
  }
  return std::span(found_).first(found_count_);
}

// All that match are candidates. The oldest was this datagram's, or one's that was lost.
bool HeaderWatch::take_matches(const Header& sought) {
  std::uint64_t oldest = end_;
  for (std::uint64_t i = first_; i != end_ && found_count_ != kMostCandidates; ++i) {
    const Header& header = kept_[i % kKept];
    if (header.length != sought.length || header.source != sought.source ||
        header.beginning != sought.beginning) {
      continue;
    }
    oldest = std::min(oldest, i);
    found_[found_count_++] = header.identification;
  }
  if (found_count_ == 0) {
    return false;
  }
  kept_[oldest % kKept].length = 0;
  if (oldest - first_ > kOverdue) {
    first_ = oldest - kOverdue;
  }
  while (first_ != end_ && kept_[first_ % kKept].length == 0) {
    ++first_;
  }
  return true;
}

bool HeaderWatch::read_more() {
  std::array<std::array<std::byte, kHeaders>, kReadAtOnce> buffers;
  std::array<iovec, kReadAtOnce> vectors{};
  std::array<mmsghdr, kReadAtOnce> messages{};
  for (std::size_t i = 0; i != kReadAtOnce; ++i) {
    vectors[i] = {buffers[i].data(), kHeaders};
    messages[i].msg_hdr.msg_iov = &vectors[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int count = ::recvmmsg(fd_.get(), messages.data(), kReadAtOnce, MSG_DONTWAIT, nullptr);
  for (int i = 0; i < count; ++i) {
    const std::byte* packet = buffers[static_cast<std::size_t>(i)].data();
    const std::uint16_t udp_length = load16(packet + kIpSize + 4);
    if (messages[static_cast<std::size_t>(i)].msg_len < kHeaders || udp_length < kUdpSize + kBeginning) {
      continue;
    }
    if (end_ - first_ == kKept) {
      ++first_;
    }
    Header& header = kept_[end_++ % kKept];
    std::copy_n(packet + 12, 4, header.source.begin());
    std::copy_n(packet + kIpSize, 2, header.source.begin() + 4);
    header.length = static_cast<std::uint16_t>(udp_length - kUdpSize);
    header.identification = load16(packet + 4);
    std::copy_n(packet + kIpSize + kUdpSize, kBeginning, header.beginning.begin());
  }
  return count > 0;
}

}  // namespace qpair::softnic::wire
