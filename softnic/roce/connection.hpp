#pragma once
// What requester and responder of one queue pair share: whom it talks to, the state, and how a packet leaves.

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

#include "softnic/roce/packet.hpp"
#include "softnic/roce/rc_queue_pair.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::roce {

struct Connection {
  Connection(std::uint32_t own_qpn, wire::Link& out) : qpn(own_qpn), link(out) {}

  std::uint32_t qpn;
  std::uint32_t peer_qpn = 0;
  std::uint32_t mtu = 1024;  // bytes
  ibv_qp_state state = IBV_QPS_RESET;
  wire::Link& link;
  wire::Endpoint peer{};
  Icrc icrc;
  RcCounters counters;

  bool responds() const { return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD; }
  bool requests() const { return state == IBV_QPS_RTS || state == IBV_QPS_SQD; }

  // How many packets a message takes: a message without bytes takes one.
  std::uint64_t packets_for(std::uint64_t length) const { return length == 0 ? 1 : (length + mtu - 1) / mtu; }
};

// One packet on its way out, filled in place. Without finish() it never leaves.
class Outgoing {
 public:
  // Empty when the link has no room, which counts as a packet that the network lost.
  static std::optional<Outgoing> begin(Connection& connection, PacketHeader header, std::size_t payload) {
    header.destination_qpn = connection.peer_qpn;
    const std::span<std::byte> room =
        connection.link.reserve(connection.peer, PacketWriter::size(header.opcode, payload));
    if (room.size() != PacketWriter::size(header.opcode, payload)) return std::nullopt;
    return Outgoing(connection, room, PacketWriter(room, header, payload));
  }

  PacketWriter& writer() { return writer_; }

  void finish() {
    connection_->icrc.seal(room_);
    connection_->link.commit();
    connection_->counters.packets_sent += 1;
    connection_->counters.bytes_sent += room_.size();
  }

 private:
  Outgoing(Connection& connection, std::span<std::byte> room, PacketWriter writer)
      : connection_(&connection), room_(room), writer_(writer) {}

  Connection* connection_;
  std::span<std::byte> room_;
  PacketWriter writer_;
};

// What a call to transmit() did.
struct Sent {
  unsigned packets = 0;
  bool more = false;  // the budget ran out first
};

}  // namespace qpair::softnic::roce
