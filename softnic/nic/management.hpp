#pragma once
// Queue pair 1, the general services interface: management datagrams of 256 bytes, sent and received by the
// kernel and not by programs (IBTA vol. 1 13.5). The agent behind it is the connection manager.
//
// Everything here happens under the NIC's lock: the agent's calls come from the engine or out of
// Nic::with_agent(), and it sends through the port that it was made with.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "softnic/roce/packet.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::nic {

inline constexpr std::uint32_t kManagementQpn = 1;
inline constexpr std::size_t kMadSize = 256;
using Mad = std::array<std::byte, kMadSize>;
using MadView = std::span<const std::byte, kMadSize>;

class MadSender {
 public:
  virtual ~MadSender() = default;
  // To queue pair 1 of the NIC at that address. May be lost, as everything on a network.
  virtual void send(const wire::Endpoint& to, MadView mad) = 0;
};

class ManagementAgent {
 public:
  virtual ~ManagementAgent() = default;
  virtual void receive(MadView mad, const wire::Endpoint& source, wire::TimePoint now) = 0;
  // When expire() has to be called next; max() when never.
  virtual wire::TimePoint deadline() const = 0;
  virtual void expire(wire::TimePoint now) = 0;
};

// The packets of queue pair 1: UD SEND Only, Q_Key 0x80010000.
class ManagementPort final : public MadSender {
 public:
  explicit ManagementPort(wire::Link& link) : link_(link) {}

  void send(const wire::Endpoint& to, MadView mad) override;

  void attach(std::unique_ptr<ManagementAgent> agent) { agent_ = std::move(agent); }
  ManagementAgent* agent() const { return agent_.get(); }

  // A packet whose CRC and partition key were checked. False: it is no management datagram for an agent that
  // is here.
  bool receive(const roce::Packet& packet, const wire::Endpoint& source, wire::TimePoint now);
  wire::TimePoint deadline() const { return agent_ ? agent_->deadline() : wire::TimePoint::max(); }
  // True: something was due.
  bool expire(wire::TimePoint now);

 private:
  wire::Link& link_;
  std::unique_ptr<ManagementAgent> agent_;
  roce::Psn next_psn_;
};

}  // namespace qpair::softnic::nic
