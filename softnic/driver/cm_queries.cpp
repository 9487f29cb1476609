#include "softnic/driver/cm_queries.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "qpair/mlx5/endian.hpp"
#include "softnic/driver/cm_address.hpp"
#include "softnic/driver/cm_call.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint8_t kExactly = 2;  // IB_SA_EQ
constexpr std::uint8_t kReversible = 0x80;

// PathRecord of subnet administration (IBTA vol. 1 15.2.5.16), as ib_sa_pack_path() lays it out.
struct PathRecord {
  std::uint64_t service_id;
  std::uint8_t dgid[16];
  std::uint8_t sgid[16];
  std::uint16_t dlid;
  std::uint16_t slid;
  std::uint32_t flow_label_hop_limit;
  std::uint8_t traffic_class;
  std::uint8_t reversible_paths;
  std::uint16_t partition_key;
  std::uint16_t qos_class_sl;
  std::uint8_t mtu;
  std::uint8_t rate;
  std::uint8_t lifetime;
  std::uint8_t preference;
  std::uint8_t reserved[6];
};
static_assert(sizeof(PathRecord) == 64);
static_assert(sizeof(ib_path_rec_data::path_rec) == sizeof(PathRecord));

std::uint8_t mtu_of(const cm::Id& id, const cm::Port& port) {
  const cm::Connection* const conversation = id.conversation();
  return conversation != nullptr && conversation->agreement().mtu != 0 ? conversation->agreement().mtu
                                                                       : port.mtu;
}

}  // namespace

rdma_ucm_query_addr_resp addresses_of(const cm::Id& id, const cm::Port& port) {
  rdma_ucm_query_addr_resp answer{};
  answer.src_size = address_size(id.source());
  answer.dst_size = address_size(id.destination());
  answer.src_addr = to_socket_address(id.source());
  answer.dst_addr = to_socket_address(id.destination());
  if (id.has_device()) {
    answer.node_guid = mlx5::byte_swap(port.node_guid);
    answer.port_num = 1;
    answer.pkey = htons(kDefaultPartition);
  }
  return answer;
}

// Addresses as GIDs; those that are not known are zero.
rdma_ucm_query_addr_resp gids_of(const cm::Id& id, const cm::Port& port) {
  rdma_ucm_query_addr_resp answer = addresses_of(id, port);
  const cm::Gid here = id.has_device() ? port.gid : cm::Gid{};
  answer.src_addr = to_ib_address(here, id.service());
  answer.dst_addr = to_ib_address(id.peer_gid(), cm::service_id(id.space(), id.destination().port));
  answer.src_size = answer.dst_size = address_size(AF_IB);
  return answer;
}

PathAnswer path_of(const cm::Id& id, const cm::Port& port) {
  PathAnswer answer;
  if (!id.has_route()) return answer;
  PathRecord record{};
  std::ranges::copy(id.peer_gid(), record.dgid);
  std::ranges::copy(port.gid, record.sgid);
  record.flow_label_hop_limit = htonl((id.flow_label() << 8) | cm::kHopLimit);
  record.traffic_class = id.tos();
  record.reversible_paths = kReversible | 1;
  record.partition_key = htons(kDefaultPartition);
  record.mtu = static_cast<std::uint8_t>((kExactly << 6) | mtu_of(id, port));
  record.rate = kExactly << 6;
  record.lifetime = static_cast<std::uint8_t>((kExactly << 6) | id.packet_lifetime());
  answer.num_paths = 1;
  answer.path.flags = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
  std::memcpy(answer.path.path_rec, &record, sizeof record);
  return answer;
}

// ucma_copy_iboe_route(): before there is a route the GIDs alone.
rdma_ucm_query_route_resp route_of(const cm::Id& id, const cm::Port& port) {
  rdma_ucm_query_route_resp answer{};
  const __kernel_sockaddr_storage source = to_socket_address(id.source());
  const __kernel_sockaddr_storage destination = to_socket_address(id.destination());
  std::memcpy(&answer.src_addr, &source, sizeof answer.src_addr);
  std::memcpy(&answer.dst_addr, &destination, sizeof answer.dst_addr);
  if (!id.has_device()) return answer;
  answer.node_guid = mlx5::byte_swap(port.node_guid);
  answer.port_num = 1;
  ib_user_path_rec& path = answer.ib_route[0];
  std::ranges::copy(id.peer_gid(), path.dgid);
  std::ranges::copy(port.gid, path.sgid);
  path.pkey = htons(kDefaultPartition);
  if (!id.has_route()) return answer;
  answer.num_paths = 1;
  path.flow_label = htonl(id.flow_label());
  path.reversible = 1;
  path.mtu = mtu_of(id, port);
  path.hop_limit = cm::kHopLimit;
  path.traffic_class = id.tos();
  path.numb_path = 1;
  path.mtu_selector = kExactly;
  path.rate_selector = kExactly;
  path.packet_life_time_selector = kExactly;
  path.packet_life_time = id.packet_lifetime();
  return answer;
}

int cm_commands::query_route(const CmCall& call) {
  rdma_ucm_query command{};
  rdma_ucm_query_route_resp answer{};
  if (call.room < offsetof(rdma_ucm_query_route_resp, ibdev_index)) return -ENOSPC;
  if (const int bad = call.get(command); bad != 0) return bad;
  const int error = call.file.locked([&](cm::Manager& manager, wire::TimePoint) {
    const CmContext* const context = call.file.find(command.id);
    if (context == nullptr) return manager.numbers().has(command.id) ? -EINVAL : -ENOENT;
    answer = route_of(*context->id, manager.port());
    return 0;
  });
  if (error != 0) return error;
  const std::size_t size = std::min(call.room, sizeof answer);
  return copy_to_user(command.response, &answer, size) ? 0 : -EFAULT;
}

// What each answers, and how much room it must at least have.
int cm_commands::query(const CmCall& call) {
  rdma_ucm_query command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  rdma_ucm_query_addr_resp addresses{};
  PathAnswer path{};
  const bool wants_path = command.option == RDMA_USER_CM_QUERY_PATH;
  if (command.option > RDMA_USER_CM_QUERY_GID) return -ENOSYS;
  const std::size_t least =
      wants_path ? sizeof(rdma_ucm_query_path_resp) : offsetof(rdma_ucm_query_addr_resp, ibdev_index);
  if (call.room < least) return -ENOSPC;
  const int error = call.file.locked([&](cm::Manager& manager, wire::TimePoint) {
    const CmContext* const context = call.file.find(command.id);
    if (context == nullptr) return manager.numbers().has(command.id) ? -EINVAL : -ENOENT;
    if (wants_path) {
      path = path_of(*context->id, manager.port());
    } else {
      addresses = command.option == RDMA_USER_CM_QUERY_ADDR ? addresses_of(*context->id, manager.port())
                                                            : gids_of(*context->id, manager.port());
    }
    return 0;
  });
  if (error != 0) return error;
  const void* const answer = wants_path ? static_cast<const void*>(&path) : &addresses;
  const std::size_t size = wants_path ? path.size() : sizeof addresses;
  return copy_to_user(command.response, answer, std::min(call.room, size)) ? 0 : -EFAULT;
}

}  // namespace qpair::softnic::driver
