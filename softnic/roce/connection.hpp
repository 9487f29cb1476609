#pragma once
// What requester and responder of one queue pair share: whom it talks to, the state, and how a packet leaves.

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include "softnic/roce/packet.hpp"
#include "softnic/roce/rc_queue_pair.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::roce {

// Of any packet, and its CRC.
inline constexpr std::size_t kLongestHeaders = 96;

struct Connection {
  Connection(std::uint32_t own_qpn, wire::Link& out) : qpn(own_qpn), link(out) {}

  std::uint32_t qpn;
  Service service = Service::ReliableConnection;  // or extended
  std::uint32_t peer_qpn = 0;
  std::uint32_t mtu = 1024;  // bytes
  DcEth dc;                  // of a DC initiator: the header of its requests
  ibv_qp_state state = IBV_QPS_RESET;
  wire::Link& link;
  wire::Endpoint peer{};
  Icrc icrc;
  Counters counters;

  // What ibv_modify_qp() says about the peer and the way to it.
  void configure(const ibv_qp_attr& attributes, int mask) {
    if ((mask & IBV_QP_PATH_MTU) != 0) mtu = 128U << attributes.path_mtu;
    if ((mask & IBV_QP_DEST_QPN) != 0) peer_qpn = attributes.dest_qp_num & 0xffffff;
    if ((mask & IBV_QP_AV) != 0) {
      std::memcpy(peer.address.data(), attributes.ah_attr.grh.dgid.raw, 16);
      peer.port = wire::kRoceUdpPort;
      icrc = Icrc(link.local(), peer);
    }
  }

  bool is_xrc() const { return service == Service::ExtendedReliableConnection; }
  bool responds() const { return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD; }
  bool requests() const { return state == IBV_QPS_RTS || state == IBV_QPS_SQD; }

  // Whatever is sent now is lost on this side already.
  bool is_blocked() const { return link.is_full(peer, mtu + kLongestHeaders); }

  // How many packets a message takes: a message without bytes takes one.
  std::uint64_t packets_for(std::uint64_t length) const { return length == 0 ? 1 : (length + mtu - 1) / mtu; }
};

// One packet on its way out, filled in place. Without finish() it never leaves.
class Outgoing {
 public:
  // Empty when the link has no room, which counts as a packet that the network lost.
  static std::optional<Outgoing> begin(Connection& connection, PacketHeader header, std::size_t payload) {
    header.destination_qpn = connection.peer_qpn;
    if (header.opcode != Opcode::Reason) header.opcode = on_service(connection.service, header.opcode);
    const std::span<std::byte> room =
        connection.link.reserve(connection.peer, PacketWriter::size(header.opcode, payload));
    if (room.size() != PacketWriter::size(header.opcode, payload)) return std::nullopt;
    PacketWriter writer(room, header, payload);
    writer.set_dc(connection.dc);
    return Outgoing(connection, room, writer);
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
