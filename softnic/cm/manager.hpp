#pragma once
// The connection manager of one NIC: the agent behind queue pair 1. Knows the conversations by their
// identifiers, the listeners by their service, and when something has to be said again.
//
// Everything happens under the NIC's lock: datagrams and timers on the engine thread, commands inside
// Nic::with_agent().

#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "softnic/cm/id.hpp"
#include "softnic/nic/management.hpp"

namespace qpair::softnic::cm {

// What the port is, for messages and attributes.
struct Port {
  wire::Endpoint address;
  Gid gid{};               // RoCE v2: the address; with InfiniBand's link layer the link-local one
  unsigned gid_index = 0;  // where that lies in the table
  bool infiniband = false;
  std::uint64_t node_guid = 0;
  std::uint8_t mtu = 0;        // active; enum ibv_mtu
  std::uint8_t ack_delay = 0;  // local_ca_ack_delay

  // Of another NIC on the same network.
  Gid gid_of(const wire::Endpoint& peer) const;
  std::uint16_t lid_of(const wire::Endpoint& peer) const;  // 0 with Ethernet
};

// Lowest free first.
class Numbers {
 public:
  std::uint32_t take();
  bool has(std::uint32_t number) const { return taken_.contains(number); }
  void give(std::uint32_t number);

 private:
  std::set<std::uint32_t> taken_;
  std::uint32_t lowest_free_ = 0;  // none below
};

class Manager final : public nic::ManagementAgent {
 public:
  // `seed`: where identifiers and sequence numbers begin.
  Manager(nic::MadSender& sender, const Port& port, std::uint64_t seed);
  ~Manager() override;

  const Port& port() const { return port_; }

  void receive(nic::MadView mad, const wire::Endpoint& source, TimePoint now) override;
  TimePoint deadline() const override;
  void expire(TimePoint now) override;

  // Of the programs' identifiers, and of the groups that these joined: one space each for all files (ucma.c,
  // ctx_idr and multicast_idr).
  Numbers& numbers() { return numbers_; }
  Numbers& group_numbers() { return group_numbers_; }

  // For identifiers.
  std::uint32_t random();
  std::unique_ptr<Connection> start_conversation(Id& id);
  void end_conversation(Connection& conversation);
  // After every call on a conversation: its deadline may have moved, and its peer be known.
  void watch(const Connection& conversation);
  void add_listener(Id& id);
  void remove_listener(Id& id);

 private:
  struct Entry {
    Connection* conversation;
    TimePoint timer = TimePoint::max();
    std::pair<std::uint64_t, std::uint32_t> remote_id{};   // as it is filed in remote_ids_
    std::pair<std::uint64_t, std::uint32_t> remote_qpn{};  // …and in remote_qpns_
  };
  using Remote = std::pair<std::uint64_t, std::uint32_t>;  // CA GUID, and a number of that CA's
  struct RemoteHash {
    std::size_t operator()(const Remote& remote) const {
      return std::hash<std::uint64_t>{}(remote.first ^ (std::uint64_t{remote.second} << 32));
    }
  };
  using RemoteTable = std::unordered_map<Remote, std::uint32_t, RemoteHash>;  // to our identifier

  Connection* find(std::uint32_t local_id) const;
  Connection* find(const RemoteTable& table, const Remote& remote) const;
  void file(RemoteTable& table, Remote& filed, const Remote& now, std::uint32_t local_id);
  static void unfile(RemoteTable& table, Remote& filed, std::uint32_t local_id);

  Id* find_listener(std::uint64_t service, const IpHeader& header, bool& known) const;
  void receive_req(const Header& header, const Mad& mad, const wire::Endpoint& source, TimePoint now);
  void receive_sidr_req(const Header& header, const Mad& mad, const wire::Endpoint& source, TimePoint now);
  void receive_dreq(const Header& header, const Mad& mad, const wire::Endpoint& source, TimePoint now);
  void hand_over(std::uint32_t local_id, const Header& header, const Mad& mad, const wire::Endpoint& source,
                 TimePoint now);
  void refuse(const Req& req, const Header& header, const wire::Endpoint& to, Reason reason);

  nic::MadSender& sender_;
  const Port port_;
  std::uint64_t random_;
  std::unordered_map<std::uint32_t, Entry> conversations_;
  std::set<std::pair<TimePoint, std::uint32_t>> timers_;
  RemoteTable remote_ids_;
  RemoteTable remote_qpns_;
  std::unordered_multimap<std::uint64_t, Id*> listeners_;
  Numbers numbers_;
  Numbers group_numbers_;
};

}  // namespace qpair::softnic::cm
