// Commands of rdma_cm, checked and refused as by the functions of the kernel that they are named after
// (drivers/infiniband/core/ucma.c): multicast groups of datagram identifiers.

#include <cerrno>
#include <cstring>
#include <optional>

#include "softnic/driver/cm_address.hpp"
#include "softnic/driver/cm_call.hpp"

namespace qpair::softnic::driver {
namespace {

struct JoinRequest {
  std::uint32_t id;
  std::uint64_t uid;
  std::uint64_t response;
  cm::Address group;
};

// ucma_process_join(). The program attaches its queue pair when the event tells it the group's GID.
int join(const CmCall& call, const JoinRequest& request) {
  rdma_ucm_create_id_resp answer{};
  if (call.room < sizeof answer) return -ENOSPC;
  return call.file.locked({request.response, sizeof answer}, [&](cm::Manager& manager, wire::TimePoint) {
    CmContext* const context = call.file.find(request.id);
    if (context == nullptr) return manager.numbers().has(request.id) ? -EINVAL : -ENOENT;
    cm::Event event;
    answer.id = manager.group_numbers().take();
    int refused = call.put(request.response, answer);
    if (refused == 0) refused = -context->id->join(request.group, event);
    if (refused != 0) {
      manager.group_numbers().give(answer.id);
      return refused;
    }
    context->groups[answer.id] = {.uid = request.uid};
    context->happened_to_group(answer.id, std::move(event));
    return 0;
  });
}

}  // namespace

int cm_commands::join_ip_mcast(const CmCall& call) {
  rdma_ucm_join_ip_mcast command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  __kernel_sockaddr_storage storage{};
  std::memcpy(&storage, &command.addr, sizeof command.addr);
  const auto group = from_socket_address(storage);
  if (!group) return -EINVAL;
  return join(call, {.id = command.id, .uid = command.uid, .response = command.response, .group = *group});
}

int cm_commands::join_mcast(const CmCall& call) {
  rdma_ucm_join_mcast command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  const auto group = from_socket_address(command.addr);
  if (!group || command.addr_size != address_size(*group) ||
      command.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED) {
    return -EINVAL;
  }
  return join(call, {.id = command.id, .uid = command.uid, .response = command.response, .group = *group});
}

int cm_commands::leave_mcast(const CmCall& call) {
  rdma_ucm_destroy_id command{};
  rdma_ucm_destroy_id_resp answer{};
  if (call.room < sizeof answer) return -ENOSPC;
  if (const int bad = call.get(command); bad != 0) return bad;
  const int error = call.file.locked([&](cm::Manager& manager, wire::TimePoint) {
    CmContext* const context = call.file.find_group(command.id);
    if (context == nullptr) return manager.group_numbers().has(command.id) ? -EINVAL : -ENOENT;
    answer.events_reported = context->groups[command.id].reported;
    call.file.drop_group_events(command.id);
    context->groups.erase(command.id);
    manager.group_numbers().give(command.id);
    return 0;
  });
  return error != 0 ? error : call.put(command.response, answer);
}

}  // namespace qpair::softnic::driver
