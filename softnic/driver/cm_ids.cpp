// Commands of rdma_cm, checked and refused as by the functions of the kernel that they are named after
// (drivers/infiniband/core/ucma.c): identifiers and their events.

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "softnic/driver/cm_call.hpp"

namespace qpair::softnic::driver {
namespace {

std::optional<std::uint8_t> qp_type_of(const rdma_ucm_create_id& command) {
  switch (command.ps) {
    case RDMA_PS_TCP:
      return IBV_QPT_RC;
    case RDMA_PS_UDP:
    case RDMA_PS_IPOIB:
      return IBV_QPT_UD;
    case RDMA_PS_IB:
      return command.qp_type;
    default:
      return std::nullopt;
  }
}

}  // namespace

int cm_commands::create_id(const CmCall& call) {
  rdma_ucm_create_id command{};
  rdma_ucm_create_id_resp answer{};
  if (call.room < sizeof answer) return -ENOSPC;
  if (const int bad = call.get(command); bad != 0) return bad;
  const auto qp_type = qp_type_of(command);
  if (!qp_type) return -EINVAL;
  return call.file.locked({command.response, sizeof answer}, [&](cm::Manager& manager, wire::TimePoint) {
    answer.id = manager.numbers().take();
    if (const int bad = call.put(command.response, answer); bad != 0) {
      manager.numbers().give(answer.id);
      return bad;
    }
    CmContext& context = call.file.add(answer.id, command.uid);
    context.id = std::make_unique<cm::Id>(manager, static_cast<cm::PortSpace>(command.ps), *qp_type);
    context.id->set_consumer(&context);
    return 0;
  });
}

int cm_commands::destroy_id(const CmCall& call) {
  rdma_ucm_destroy_id command{};
  rdma_ucm_destroy_id_resp answer{};
  if (call.room < sizeof answer) return -ENOSPC;
  if (const int bad = call.get(command); bad != 0) return bad;
  std::shared_ptr<cm::PortClaim> port;  // let go outside the NIC's lock
  const int error = call.file.locked([&](cm::Manager& manager, wire::TimePoint) {
    const auto context = call.file.remove(command.id);
    if (!context) return manager.numbers().has(command.id) ? -EINVAL : -ENOENT;
    manager.numbers().give(command.id);
    for (const auto& [group, joined] : context->groups) manager.group_numbers().give(group);
    answer.events_reported = context->reported;
    port = context->id->port();
    return 0;
  });
  return error != 0 ? error : call.put(command.response, answer);
}

namespace {

// A request becomes an identifier of the program's with the event that tells of it.
void name_request(CmFile& file, cm::Manager& manager, CmFile::Waiting& event) {
  event.response.id = manager.numbers().take();
  CmContext& context = file.add(event.response.id, 0);
  context.id = std::move(event.request);
  context.id->set_consumer(&context);
  ++event.context->backlog;
}

void unname_request(CmFile& file, cm::Manager& manager, CmFile::Waiting& event) {
  const auto context = file.remove(event.response.id);
  manager.numbers().give(event.response.id);
  event.request = std::move(context->id);
  event.request->set_consumer(nullptr);
  --event.context->backlog;
}

}  // namespace

int cm_commands::get_event(const CmCall& call) {
  rdma_ucm_get_event command{};
  constexpr std::size_t kLeast = offsetof(rdma_ucm_event_resp, reserved);
  if (call.room < kLeast) return -ENOSPC;
  if (const int bad = call.get(command); bad != 0) return bad;
  for (;;) {
    if (const int error = call.file.wait_for_event(); error != 0) return error;
    bool found = false;
    const std::size_t room = std::min(call.room, sizeof(rdma_ucm_event_resp));
    const int error = call.file.locked({command.response, room}, [&](cm::Manager& manager, wire::TimePoint) {
      CmFile::Waiting event{};
      if (!call.file.pop(event)) return 0;  // its identifier was destroyed meanwhile
      found = true;
      const bool request = event.request != nullptr;
      if (request) name_request(call.file, manager, event);
      if (copy_to_user(command.response, &event.response, room)) {
        ++event.context->reported;
        if (event.group) ++event.context->groups[*event.group].reported;
        return 0;
      }
      if (request) unname_request(call.file, manager, event);
      call.file.push_back_first(std::move(event));
      return -EFAULT;
    });
    if (error != 0 && !found) call.file.put_back_token();
    if (error != 0 || found) return error;
  }
}

int cm_commands::migrate_id(const CmCall& call) {
  rdma_ucm_migrate_id command{};
  rdma_ucm_migrate_resp answer{};
  if (call.room < sizeof answer) return -ENOSPC;
  if (const int bad = call.get(command); bad != 0) return bad;
  const auto other = FileTable::instance().find(static_cast<int>(command.fd));
  const auto from = std::dynamic_pointer_cast<CmFile>(other);
  if (!other) return -ENOENT;
  if (!from) return -EINVAL;
  const int error = from->with_id(command.id, [&](CmContext& context, wire::TimePoint) {
    answer.events_reported = context.reported;
    call.file.take_over(*from, command.id);
    return 0;
  });
  return error != 0 ? error : call.put(command.response, answer);
}

}  // namespace qpair::softnic::driver
