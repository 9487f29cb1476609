#include "softnic/wire/udp_link.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "softnic/explain/explain.hpp"
#include "softnic/wire/socket_option.hpp"

namespace qpair::softnic::wire {
namespace {

using explain::Kind;

constexpr std::chrono::microseconds kRetryAfter{50};
constexpr unsigned kAddressAttempts = 64;

// Beyond what an unprivileged process may have, where this one may.
void ask_for_buffer(int fd, int forced_name, int name, std::size_t bytes) {
  const int value = static_cast<int>(bytes);
  if (!set_option(fd, SOL_SOCKET, forced_name, value)) {
    set_option(fd, SOL_SOCKET, name, value);
  }
}

// A bound socket, or the errno.
tl::expected<Descriptor, int> bound_socket(const LocalAddress& local) {
  sockaddr_storage address{};
  const socklen_t length = to_sockaddr(local.endpoint, local.scope_id, address);
  Descriptor fd(::socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    return tl::unexpected(errno);
  }
  if (address.ss_family == AF_INET6) {
    set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  }
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return tl::unexpected(errno);
  }
  return fd;
}

// Whoever sends from one of the addresses that open_anywhere() claims has claimed it, and with it the port:
// another port is somebody else's who uses the same address.
bool is_impostor(const Endpoint& source) {
  return source.is_ipv4() && source.address[12] == 127 && source.address[13] == 71 &&
         source.port != kRoceUdpPort;
}

std::string cannot_bind(const Endpoint& endpoint, int error) {
  if (error == EADDRINUSE) {
    return fmt::format(
        "UDP port {} of {} is in use: another emulated NIC has this address (each process needs its own), or "
        "another "
        "program or the kernel's rdma_rxe has the port on every address",
        endpoint.port, to_string(endpoint));
  }
  return fmt::format("cannot use {} port {} for the emulated NIC: {}", to_string(endpoint), endpoint.port,
                     std::strerror(error));
}

std::uint64_t mix(std::uint64_t value) {  // splitmix64's finalizer
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

LocalAddress default_address(std::uint64_t number) {
  LocalAddress local;
  local.endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 71};
  // Below 192: with InfiniBand's link layer these two bytes are the port's LID, and LIDs from 0xc000 on are
  // for multicast (IBTA vol. 1 4.1.3).
  local.endpoint.address[14] = static_cast<std::uint8_t>((number >> 8) % 192);
  local.endpoint.address[15] = static_cast<std::uint8_t>(1 + number % 254);
  local.endpoint.port = kRoceUdpPort;
  local.interface = "lo";
  return local;
}

}  // namespace

tl::expected<std::unique_ptr<UdpLink>, std::string> UdpLink::open(const UdpOptions& options) {
  auto fd = bound_socket(options.local);
  if (!fd) {
    return tl::unexpected(cannot_bind(options.local.endpoint, fd.error()));
  }
  return start(std::move(*fd), options);
}

tl::expected<std::unique_ptr<UdpLink>, std::string> UdpLink::open_anywhere(std::uint64_t hint,
                                                                           UdpOptions options) {
  for (unsigned attempt = 0; attempt < kAddressAttempts; ++attempt) {
    options.local = default_address(mix(hint + (std::uint64_t{attempt} << 32)));
    auto fd = bound_socket(options.local);
    if (fd) {
      return start(std::move(*fd), options);
    }
    if (fd.error() != EADDRINUSE) {
      return tl::unexpected(cannot_bind(options.local.endpoint, fd.error()));
    }
  }
  return tl::unexpected(
      fmt::format("UDP port {} is in use on each of {} addresses of 127.71.0.0/16 that were tried: another "
                  "program or the kernel's rdma_rxe probably has it on every address",
                  kRoceUdpPort, kAddressAttempts));
}

tl::expected<std::unique_ptr<UdpLink>, std::string> UdpLink::start(Descriptor fd, const UdpOptions& options) {
  std::unique_ptr<UdpLink> link(new UdpLink(std::move(fd), options));
  if (link->send_arena_.size() == 0 || link->receive_arena_.size() == 0) {
    return tl::unexpected(std::string("there is no memory for the emulated NIC's packet buffers"));
  }
  return link;
}

UdpLink::UdpLink(Descriptor fd, const UdpOptions& options)
    : fd_(std::move(fd)),
      address_(options.local),
      local_(options.local.endpoint),
      scope_id_(options.local.scope_id),
      send_arena_(kSendArena),
      credit_pool_(options.socket_buffer),
      receive_arena_(kReceiveBatch * kReceiveSlot) {
  runs_.reserve(kMaxRuns);
  ask_for_buffer(fd_.get(), SO_RCVBUFFORCE, SO_RCVBUF, options.socket_buffer);
  ask_for_buffer(fd_.get(), SO_SNDBUFFORCE, SO_SNDBUF, options.socket_buffer);
  int granted = 0;
  socklen_t length = sizeof(granted);
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &granted, &length) == 0) {
    receive_buffer_ = static_cast<std::size_t>(granted);
    // What was taken is given back when a quarter has come together (net/ipv4/udp.c, udp_rmem_release).
    credit_pool_ = CreditPool(receive_buffer_ / 4 * 3);
  }
  if (local_.is_ipv4()) {
    set_option(fd_.get(), IPPROTO_IP, IP_MTU_DISCOVER, static_cast<int>(IP_PMTUDISC_DO));
  } else {
    set_option(fd_.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, static_cast<int>(IPV6_PMTUDISC_DO));
    // RoCEv2 senders may leave out the UDP checksum, and rdma_rxe does; over IPv6 that is not normal.
    set_option(fd_.get(), SOL_UDP, UDP_NO_CHECK6_RX, 1);
  }
  set_option(fd_.get(), SOL_SOCKET, SO_RXQ_OVFL, 1);
  send_groups_from(options.local);
  if (options.offload) {
    set_option(fd_.get(), SOL_UDP, UDP_GRO, 1);
    // Asks whether the kernel knows the option; 0 leaves the choice to each message.
    segment_offload_ = set_option(fd_.get(), SOL_UDP, UDP_SEGMENT, 0);
  }
  if (!is_loopback(local_)) {
    watch_ = HeaderWatch::open(local_);
  }
  for (unsigned i = 0; i < kReceiveBatch; ++i) {
    receive_.vectors[i] = {receive_arena_.data() + i * kReceiveSlot, kReceiveSlot};
    msghdr& header = receive_.messages[i].msg_hdr;
    header.msg_name = &receive_.sources[i];
    header.msg_iov = &receive_.vectors[i];
    header.msg_iovlen = 1;
    header.msg_control = receive_.controls[i].bytes.data();
  }
}

// ---- Multicast
// -------------------------------------------------------------------------------------------------

// Groups are reached through the interface that has the address, whatever the routes are, and as far as the
// first router. The kernel loops a copy back to this machine's members.
void UdpLink::send_groups_from(const LocalAddress& local) {
  const unsigned index = ::if_nametoindex(local.interface.c_str());
  if (local_.is_ipv4()) {
    ip_mreqn via{};
    std::memcpy(&via.imr_address, local_.address.data() + 12, 4);
    via.imr_ifindex = static_cast<int>(index);
    set_option(fd_.get(), IPPROTO_IP, IP_MULTICAST_IF, via);
  } else {
    set_option(fd_.get(), IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(index));
  }
}

int UdpLink::join(const Endpoint& group) {
  if (!fd_) return ENODEV;
  if (!groups_) groups_ = std::make_unique<GroupSockets>(address_, fd_.get());
  const int error = groups_->join(group);
  if (groups_->empty()) groups_.reset();
  return error;
}

void UdpLink::leave(const Endpoint& group) {
  if (!groups_) return;
  groups_->leave(group);
  if (groups_->empty()) groups_.reset();
}

void UdpLink::abandon() {
  if (groups_) groups_->abandon();
  if (watch_) watch_->abandon();
  fd_.abandon();
}

// ---- Sending
// ---------------------------------------------------------------------------------------------------

std::uint16_t UdpLink::destination_index(const Endpoint& destination) {
  if (!runs_.empty() && destinations_[runs_.back().destination].endpoint == destination) {
    return runs_.back().destination;
  }
  for (std::size_t i = 0; i < destination_count_; ++i) {
    if (destinations_[i].endpoint == destination) {
      return static_cast<std::uint16_t>(i);
    }
  }
  if (destination_count_ == destinations_.size()) {  // start anew; nothing may point to the old ones
    flush();
    drop_pending();
    destination_count_ = 0;
  }
  Destination& added = destinations_[destination_count_];
  added = {};
  added.endpoint = destination;
  added.length = to_sockaddr(destination, scope_id_, added.address);
  added.on_this_host = is_loopback(destination) || find_local(destination).has_value();
  return static_cast<std::uint16_t>(destination_count_++);
}

bool UdpLink::extends_last_run(std::uint16_t destination, std::size_t size) const {
  if (runs_.empty()) {
    return false;
  }
  const Run& run = runs_.back();
  const bool all_equal = run.length == std::size_t{run.segment} * run.count;
  return run.destination == destination && all_equal && size <= run.segment && run.count < kMaxSegments &&
         run.length + size <= kMaxDatagram;
}

std::span<std::byte> UdpLink::reserve(const Endpoint& destination, std::size_t size) {
  assert(size <= kMaxDatagram);
  const std::uint16_t index = destination_index(destination);
  if (arena_used_ + kRunAlignment + size > kSendArena || runs_.size() == kMaxRuns) {
    flush();
    drop_pending();
  }
  const std::size_t offset =
      extends_last_run(index, size) ? arena_used_ : (arena_used_ + kRunAlignment - 1) & ~(kRunAlignment - 1);
  reserved_.offset = static_cast<std::uint32_t>(offset);
  reserved_.length = reserved_.segment = static_cast<std::uint32_t>(size);
  reserved_.count = 1;
  reserved_.destination = index;
  return send_arena_.bytes().subspan(offset, size);
}

void UdpLink::commit() {
  if (reserved_.count == 0 || reserved_.length == 0) {
    return;
  }
  destinations_[reserved_.destination].credit.spend(charge_for(reserved_));
  if (extends_last_run(reserved_.destination, reserved_.length)) {
    runs_.back().length += reserved_.length;
    ++runs_.back().count;
  } else {
    runs_.push_back(reserved_);
  }
  arena_used_ = reserved_.offset + reserved_.length;
  reserved_.count = 0;
}

// What the receiver's kernel charges for it: segments of one message share a buffer, which counts their
// bytes.
std::int64_t UdpLink::charge_for(const Run& packet) const {
  return offloads(packet) && extends_last_run(packet.destination, packet.length)
             ? packet.length
             : charge_alone(packet.length);
}

// Fills send_ with messages from the first packet that has not left.
unsigned UdpLink::prepare() {
  unsigned count = 0;
  std::size_t skip = first_packet_;
  for (std::size_t i = first_run_; i < runs_.size() && count < kSendBatch; ++i, skip = 0) {
    const Run& run = runs_[i];
    Destination& to = destinations_[run.destination];
    const bool together = offloads(run);
    for (std::size_t packet = skip; packet < run.count && count < kSendBatch;) {
      const std::size_t taken = together ? run.count - packet : 1;
      const std::size_t begin = packet * run.segment;
      const std::size_t end = std::min<std::size_t>((packet + taken) * run.segment, run.length);
      send_.vectors[count] = {send_arena_.data() + run.offset + begin, end - begin};
      send_.packets[count] = static_cast<std::uint16_t>(taken);
      msghdr& header = send_.messages[count].msg_hdr;
      header = {};
      header.msg_name = &to.address;
      header.msg_namelen = to.length;
      header.msg_iov = &send_.vectors[count];
      header.msg_iovlen = 1;
      if (taken > 1) {
        header.msg_control = send_.controls[count].bytes.data();
        header.msg_controllen = CMSG_SPACE(sizeof(std::uint16_t));
        cmsghdr* control = CMSG_FIRSTHDR(&header);
        control->cmsg_level = SOL_UDP;
        control->cmsg_type = UDP_SEGMENT;
        control->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
        const auto segment = static_cast<std::uint16_t>(run.segment);
        std::memcpy(CMSG_DATA(control), &segment, sizeof(segment));
      }
      ++count;
      packet += taken;
    }
  }
  return count;
}

// The first messages of send_ are gone: sent or given up.
void UdpLink::consume(unsigned messages) {
  for (unsigned i = 0; i < messages; ++i) {
    first_packet_ += send_.packets[i];
    if (first_packet_ >= runs_[first_run_].count) {
      first_packet_ = 0;
      ++first_run_;
    }
  }
}

void UdpLink::flush() {
  retry_at_.reset();
  while (first_run_ < runs_.size() && fd_) {
    const unsigned count = prepare();
    const int sent = ::sendmmsg(fd_.get(), send_.messages.data(), count, MSG_DONTWAIT | MSG_NOSIGNAL);
    ++counters_.send_calls;
    if (sent > 0) {
      for (int i = 0; i < sent; ++i) {
        counters_.sent_packets += send_.packets[static_cast<std::size_t>(i)];
      }
      counters_.sent_messages += static_cast<unsigned>(sent);
      consume(static_cast<unsigned>(sent));
    } else if (!overcome(errno)) {
      return;
    }
  }
  runs_.clear();
  first_run_ = first_packet_ = arena_used_ = 0;
}

// The first message of send_ was refused. False: nothing to be done now, it stays where it is.
bool UdpLink::overcome(int error) {
  switch (error) {
    case EINTR:
      return true;
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM:
      retry_at_ = std::chrono::steady_clock::now() + kRetryAfter;
      return false;
    case EBADF:
    case ENOTSOCK:
      turn_off(error);
      return true;
    default:
      break;
  }
  if (send_.packets[0] > 1) {  // whatever it is, segmentation offload is the first suspect
    segment_offload_ = false;
    explain::say(Kind::Notice,
                 fmt::format("the kernel refuses UDP segmentation offload ({}); packets are sent one by one",
                             std::strerror(error)));
    return true;
  }
  refuse(error);
  counters_.dropped_unreachable += send_.packets[0];
  consume(1);
  return true;
}

void UdpLink::refuse(int error) {
  const auto index = static_cast<std::size_t>(error);
  if (index >= reported_.size() || reported_[index]) {
    return;
  }
  reported_[index] = true;
  const Destination& to = destinations_[runs_[first_run_].destination];
  if (error == EMSGSIZE) {
    explain::say(Kind::Notice,
                 fmt::format("a packet of {} bytes to {} is longer than the network lets through; choose a "
                             "smaller path MTU (qpair run --mtu, QPAIR_NIC_MTU)",
                             send_.vectors[0].iov_len, to_string(to.endpoint)));
  } else if (is_loopback(local_) && !to.on_this_host) {
    explain::say(
        Kind::Notice,
        fmt::format("packets to {} cannot leave this machine, since the emulated NIC's address is {}; "
                    "choose another (qpair run --address or --interface)",
                    to_string(to.endpoint), to_string(local_)));
  } else {
    explain::say(Kind::Notice, fmt::format("packets from {} to {} are lost: {}", to_string(local_),
                                           to_string(to.endpoint), std::strerror(error)));
  }
}

// Gives up what flush() left.
void UdpLink::drop_pending() {
  for (; first_run_ < runs_.size(); ++first_run_, first_packet_ = 0) {
    counters_.dropped_full += runs_[first_run_].count - first_packet_;
  }
  runs_.clear();
  first_run_ = first_packet_ = arena_used_ = 0;
  retry_at_.reset();
}

// ---- Receiving
// -------------------------------------------------------------------------------------------------

bool UdpLink::receive() {
  for (unsigned i = 0; i < kReceiveBatch; ++i) {
    receive_.messages[i].msg_hdr.msg_namelen = sizeof(sockaddr_storage);
    receive_.messages[i].msg_hdr.msg_controllen = sizeof(Control);
  }
  const int count = ::recvmmsg(fd_.get(), receive_.messages.data(), kReceiveBatch, MSG_DONTWAIT, nullptr);
  ++counters_.receive_calls;
  receive_.next = receive_.filled = 0;
  receive_.drained = count < static_cast<int>(kReceiveBatch);
  if (count <= 0) {
    if (count < 0 && (errno == EBADF || errno == ENOTSOCK)) {
      turn_off(errno);
    }
    return false;
  }
  counters_.received_messages += static_cast<unsigned>(count);
  receive_.filled = static_cast<unsigned>(count);
  start_message();
  return true;
}

void UdpLink::start_message() {
  const mmsghdr& message = receive_.messages[receive_.next];
  receive_.offset = 0;
  receive_.segment = message.msg_len;
  receive_.source = from_sockaddr(receive_.sources[receive_.next]);
  receive_.numbered = !is_on_this_host(receive_.source);
  msghdr header = message.msg_hdr;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level == SOL_UDP && control->cmsg_type == UDP_GRO) {
      int segment = 0;
      std::memcpy(&segment, CMSG_DATA(control), sizeof(segment));
      if (segment > 0) {
        receive_.segment = static_cast<std::size_t>(segment);
      }
    } else if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SO_RXQ_OVFL) {
      std::uint32_t lost = 0;
      std::memcpy(&lost, CMSG_DATA(control), sizeof(lost));
      note_overrun(lost);
    }
  }
}

bool UdpLink::is_on_this_host(const Endpoint& source) {
  if (is_loopback(local_)) {
    return true;
  }
  if (source.address != last_source_.address) {
    last_source_ = source;
    last_source_on_this_host_ = find_local(source).has_value();
  }
  return last_source_on_this_host_;
}

// The kernel adds its count to the next message only when it is not zero.
void UdpLink::note_overrun(std::uint32_t lost_so_far) {
  if (counters_.overrun == 0 && lost_so_far > 0) {
    explain::say(
        Kind::Notice,
        fmt::format("the kernel lost packets to {} because its receive buffer of {} KiB was full; they "
                    "are sent again, which costs time. sysctl net.core.rmem_max=8388608 gives it room",
                    to_string(local_), receive_buffer_ >> 10));
  }
  counters_.overrun = lost_so_far;
}

std::optional<TimePoint> UdpLink::deadline() const {
  return retry_at_ && credit_deadline_ ? std::min(*retry_at_, *credit_deadline_)
         : retry_at_                   ? retry_at_
                                       : credit_deadline_;
}

std::size_t UdpLink::poll(const Receiver& receiver, std::size_t limit, TimePoint now) {
  if (retry_at_ && now >= *retry_at_) {
    flush();
  }
  if (credit_deadline_ && now >= *credit_deadline_) {
    look_at_credits(now);
  }
  std::size_t delivered = 0;
  while (delivered < limit && fd_) {
    if (receive_.next == receive_.filled) {
      // A batch that was not full emptied the socket; asking again would cost a system call to learn nothing.
      if ((delivered > 0 && receive_.drained) || !receive()) {
        break;
      }
    }
    const std::size_t length = receive_.messages[receive_.next].msg_len;
    if (is_impostor(receive_.source)) {
      ++counters_.dropped_impostor;
      ++delivered;  // towards the limit, so that a flood of them keeps nobody here
      receive_.offset = length;
    }
    while (receive_.offset < length && delivered < limit) {
      const Frame frame = next_frame();
      ++delivered;
      if (!take_credit(frame, now)) {
        receiver(frame);
      }
    }
    if (receive_.offset >= length && ++receive_.next < receive_.filled) {
      start_message();
    }
  }
  if (groups_ && delivered < limit) {
    const auto deliver = [this, &receiver](Frame frame) {
      if (!is_on_this_host(frame.source)) {
        frame.identifications = {};
      }
      receiver(frame);
    };
    delivered += groups_->poll(deliver, limit - delivered);
  }
  if (credit_answered_) {
    credit_answered_ = false;
    flush();
  }
  counters_.received_packets += delivered;
  return delivered;
}

Frame UdpLink::next_frame() {
  const std::size_t size =
      std::min(receive_.segment, receive_.messages[receive_.next].msg_len - receive_.offset);
  Frame frame{receive_.source, local_,
              receive_arena_.bytes().subspan(receive_.next * kReceiveSlot + receive_.offset, size)};
  receive_.offset += size;
  if (receive_.numbered) {
    frame.identifications =
        watch_ ? watch_->identifications(frame.source, frame.bytes) : std::span<const std::uint16_t>();
  }
  return frame;
}

void UdpLink::turn_off(int error) {
  explain::say(Kind::Notice,
               fmt::format("the emulated NIC lost its socket ({}): the program closed or replaced a "
                           "descriptor that was not its own; nothing is sent or received any more",
                           std::strerror(error)));
  fd_.forget();  // not ours to close
}

}  // namespace qpair::softnic::wire
