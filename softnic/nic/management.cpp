#include "softnic/nic/management.hpp"

#include <algorithm>
#include <utility>

namespace qpair::softnic::nic {
namespace {

constexpr std::uint32_t kManagementQkey = 0x8001'0000;  // IBTA vol. 1 3.5.3

}  // namespace

void ManagementPort::send(const wire::Endpoint& to, MadView mad) {
  wire::Endpoint destination = to;
  destination.port = wire::kRoceUdpPort;
  const std::size_t size = roce::PacketWriter::size(roce::Opcode::UdSendOnly, kMadSize);
  const std::span<std::byte> room = link_.reserve(destination, size);
  if (room.size() != size) return;
  roce::PacketWriter packet(
      room, {.opcode = roce::Opcode::UdSendOnly, .destination_qpn = kManagementQpn, .psn = next_psn_},
      kMadSize);
  packet.set_deth({.qkey = kManagementQkey, .source_qpn = kManagementQpn});
  std::ranges::copy(mad, packet.payload().begin());
  next_psn_ = next_psn_ + 1;
  roce::set_icrc({link_.local(), destination, room});
  link_.commit();
}

bool ManagementPort::receive(const roce::Packet& packet, const wire::Endpoint& source, wire::TimePoint now) {
  const std::span<const std::byte> payload = packet.payload();
  if (!agent_ || packet.info().has(roce::OpcodeInfo::kImmediate) || packet.deth().qkey != kManagementQkey ||
      payload.size() != kMadSize) {
    return false;
  }
  Mad mad;  // the agent may send while it looks at it
  std::ranges::copy(payload, mad.begin());
  agent_->receive(mad, wire::Endpoint(source), now);
  return true;
}

bool ManagementPort::expire(wire::TimePoint now) {
  if (!agent_ || agent_->deadline() > now) return false;
  agent_->expire(now);
  return true;
}

}  // namespace qpair::softnic::nic
