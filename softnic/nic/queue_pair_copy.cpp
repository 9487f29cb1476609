// Reads and writes of memory on this host: carried out by the initiator, without packets.
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "softnic/nic/counter_board.hpp"
#include "softnic/nic/queue_pair.hpp"
#include "softnic/nic/tunables.hpp"

namespace qpair::softnic::nic {
namespace {

using roce::Operation;
using roce::RemoteAccess;
using roce::SendRequest;

// More of them go by packets.
constexpr std::size_t kMaxPieces = 64;

RemoteAccess access_of(const SendRequest& request) {
  return request.operation == Operation::Read ? RemoteAccess::Read : RemoteAccess::Write;
}

// The packets that it would have taken, as the side counts them whose memory it is: their headers are a BTH
// and a CRC, of the first request a RETH, of an acknowledgment and of the first and last response an AETH
// (IBTA vol. 1 9.2).
wire::Copies copies_of(const SendRequest& request, std::uint32_t mtu) {
  constexpr std::uint64_t kHeaders = 16;
  constexpr std::uint64_t kReth = 16;
  constexpr std::uint64_t kAeth = 4;
  const std::uint64_t packets = (request.length + mtu - 1) / mtu;
  if (request.operation == Operation::Read) {
    return {.reads = 1,
            .packets_sent = packets,
            .packets_received = 1,
            .bytes_sent = request.length + packets * kHeaders + (packets == 1 ? kAeth : 2 * kAeth),
            .bytes_received = kHeaders + kReth};
  }
  return {.writes = 1,
          .packets_sent = 1,
          .packets_received = packets,
          .bytes_sent = kHeaders + kAeth,
          .bytes_received = request.length + packets * kHeaders + kReth};
}

// The kernel may copy between the processes. It copies each piece by one string operation, whose stores are
// not ordered among themselves, but before those of the next one (Intel SDM vol. 3, 9.2.4). Programs poll on
// the last byte of an RDMA WRITE, so the end is a piece of its own. Other processors promise no order; there,
// writes go in packets. A process that became another program by exec() has closed its socket.
bool is_for_the_kernel(const SendRequest& request, const HostMemory::Access& access) {
#if defined(__x86_64__)
  constexpr bool ordered = true;
#else
  constexpr bool ordered = false;
#endif
  return (ordered || request.operation == Operation::Read) && access.neighbour().is_connected();
}

// False: it could not copy all.
bool kernel_copy(const SendRequest& request, std::span<const iovec> local, const HostMemory::Access& access,
                 std::uint64_t offset, std::uint64_t size) {
  constexpr std::uint64_t kEnd = 64;
  const std::uint64_t bulk = size > kEnd ? size - kEnd : 0;
  const auto at = [&access, offset](std::uint64_t byte) {
    return reinterpret_cast<void*>(access.address + offset + byte);  // NOLINT: of the other process
  };
  const std::array<iovec, 2> remote{{{at(0), bulk}, {at(bulk), size - bulk}}};
  const long number = request.operation == Operation::Read ? SYS_process_vm_readv : SYS_process_vm_writev;
  const long moved =
      ::syscall(number, access.process, local.data(), local.size(), remote.data(), remote.size(), 0UL);
  if (moved < 0 && errno != EFAULT) access.neighbour().reachable_by_kernel = false;
  return moved == static_cast<long>(size);
}

}  // namespace

// A reliable connection that is established: its peer's first packet would raise an event before that.
bool QueuePair::is_shown() const {
  return parameters_.type == IBV_QPT_RC && (state() == IBV_QPS_RTS || state() == IBV_QPS_SQD);
}

void QueuePair::show() {
  if (device_.host == nullptr) return;
  if (!is_shown()) return device_.host->hide_queue_pair(number_);
  device_.host->show(number_, parameters_.pd, attributes_, peer_address_);
}

bool QueuePair::is_to_this_nic() const {
  return peer_address_.address == device_.link.local().address;
}

// A queue pair of this NIC that is ready to be written to by this one.
QueuePair* QueuePair::peer_here() const {
  QueuePair* const peer = device_.qps.find(attributes_.dest_qp_num);
  const bool connected =
      peer != nullptr && peer->is_shown() && peer->peer() == qpn() && peer->is_to_this_nic();
  return connected && HostMemory::agree(attributes_, peer->attributes_.path_mtu,
                                        peer->attributes_.max_dest_rd_atomic)
             ? peer
             : nullptr;
}

bool QueuePair::is_for_copying(const SendRequest& request) const {
  const bool plain = request.operation == Operation::Write || request.operation == Operation::Read;
  return device_.host != nullptr && parameters_.type == IBV_QPT_RC && plain && request.length != 0;
}

bool QueuePair::can_copy(const SendRequest& request, std::uint64_t limit) {
  if (!is_for_copying(request)) return false;
  if (is_to_this_nic()) {
    QueuePair* const peer = peer_here();
    return peer != nullptr && !memory_of(*peer, request).empty();
  }
  const auto access = access_across(request);
  if (!access) return false;
  std::array<iovec, kMaxPieces> pieces;
  return !access->memory.empty() || local_pieces(request, 0, std::min(limit, request.length), pieces) != 0;
}

std::optional<std::uint64_t> QueuePair::copy(const SendRequest& request, std::uint64_t offset,
                                             std::uint64_t limit) {
  if (!is_for_copying(request)) return std::nullopt;
  const std::uint64_t size = std::min(limit, request.length - offset);
  const bool done =
      is_to_this_nic() ? copy_within(request, offset, size) : copy_across(request, offset, size);
  if (!done) return std::nullopt;
  return size;
}

// All that the request is about of the memory of a queue pair of this NIC; empty when it has to be refused,
// or does not lie in one piece.
std::span<std::byte> QueuePair::memory_of(QueuePair& peer, const SendRequest& request) {
  const auto run = device_.keys.remote(peer.key_user(), access_of(request), request.rkey,
                                       request.remote_address, request.length);
  if (!run || run->at == nullptr || run->size != request.length) return {};
  return {run->at, request.length};
}

bool QueuePair::copy_within(const SendRequest& request, std::uint64_t offset, std::uint64_t size) {
  QueuePair* const peer = peer_here();
  if (peer == nullptr) return false;
  const std::span<std::byte> memory = memory_of(*peer, request);
  if (memory.empty() || !move(request, offset, memory.subspan(offset, size))) return false;
  if (offset + size != request.length) return true;
  const wire::Copies copies = copies_of(request, path_mtu());
  count_as_initiator(counters_, copies);
  count_as_owner(peer->counters_, copies);
  return true;
}

std::optional<HostMemory::Access> QueuePair::access_across(const SendRequest& request) {
  auto access =
      device_.host->access({.to = peer_address_,
                            .from_qpn = qpn(),
                            .connection = attributes_,
                            .access = access_of(request),
                            .rkey = request.rkey,
                            .address = request.remote_address,
                            .length = request.length,
                            .smallest_kernel_copy = fetched_ == rung_ ? 0 : kSmallestKernelCopyOfMany});
  if (access && access->memory.empty() && !is_for_the_kernel(request, *access)) return std::nullopt;
  return access;
}

bool QueuePair::copy_across(const SendRequest& request, std::uint64_t offset, std::uint64_t size) {
  const auto access = access_across(request);
  if (!access) return false;
  if (!access->memory.empty()) {
    if (!move(request, offset, access->memory.subspan(offset, size))) return false;
  } else {
    std::array<iovec, kMaxPieces> pieces;
    const std::size_t count = local_pieces(request, offset, size, pieces);
    if (count == 0 || !kernel_copy(request, std::span(pieces).first(count), *access, offset, size))
      return false;
  }
  if (offset + size != request.length) return true;
  const wire::Copies copies = copies_of(request, path_mtu());
  count_as_initiator(counters_, copies);
  access->neighbour().count(copies);
  return true;
}

bool QueuePair::move(const SendRequest& request, std::uint64_t offset, std::span<std::byte> remote) {
  return (request.operation == Operation::Read ? scatter(request, offset, remote)
                                               : gather(request, offset, remote))
      .has_value();
}

}  // namespace qpair::softnic::nic
