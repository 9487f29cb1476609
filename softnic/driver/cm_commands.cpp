// Which command of rdma_cm goes to which handler (kernel, drivers/infiniband/core/ucma.c, ucma_cmd_table).

#include <array>
#include <cerrno>

#include "softnic/driver/cm_call.hpp"

namespace qpair::softnic::driver {
namespace {

using Handler = int (*)(const CmCall&);

constexpr std::array<Handler, RDMA_USER_CM_CMD_JOIN_MCAST + 1> make_handlers() {
  std::array<Handler, RDMA_USER_CM_CMD_JOIN_MCAST + 1> table{};
  table[RDMA_USER_CM_CMD_CREATE_ID] = cm_commands::create_id;
  table[RDMA_USER_CM_CMD_DESTROY_ID] = cm_commands::destroy_id;
  table[RDMA_USER_CM_CMD_BIND_IP] = cm_commands::bind_ip;
  table[RDMA_USER_CM_CMD_RESOLVE_IP] = cm_commands::resolve_ip;
  table[RDMA_USER_CM_CMD_RESOLVE_ROUTE] = cm_commands::resolve_route;
  table[RDMA_USER_CM_CMD_QUERY_ROUTE] = cm_commands::query_route;
  table[RDMA_USER_CM_CMD_CONNECT] = cm_commands::connect;
  table[RDMA_USER_CM_CMD_LISTEN] = cm_commands::listen;
  table[RDMA_USER_CM_CMD_ACCEPT] = cm_commands::accept;
  table[RDMA_USER_CM_CMD_REJECT] = cm_commands::reject;
  table[RDMA_USER_CM_CMD_DISCONNECT] = cm_commands::disconnect;
  table[RDMA_USER_CM_CMD_INIT_QP_ATTR] = cm_commands::init_qp_attr;
  table[RDMA_USER_CM_CMD_GET_EVENT] = cm_commands::get_event;
  table[RDMA_USER_CM_CMD_SET_OPTION] = cm_commands::set_option;
  table[RDMA_USER_CM_CMD_NOTIFY] = cm_commands::notify;
  table[RDMA_USER_CM_CMD_JOIN_IP_MCAST] = cm_commands::join_ip_mcast;
  table[RDMA_USER_CM_CMD_LEAVE_MCAST] = cm_commands::leave_mcast;
  table[RDMA_USER_CM_CMD_MIGRATE_ID] = cm_commands::migrate_id;
  table[RDMA_USER_CM_CMD_QUERY] = cm_commands::query;
  table[RDMA_USER_CM_CMD_BIND] = cm_commands::bind;
  table[RDMA_USER_CM_CMD_RESOLVE_ADDR] = cm_commands::resolve_addr;
  table[RDMA_USER_CM_CMD_JOIN_MCAST] = cm_commands::join_mcast;
  return table;
}

constexpr auto kHandlers = make_handlers();

}  // namespace

int cm_command(CmFile& file, std::uint32_t command, const UserBuffer& in, std::size_t room) {
  if (command >= kHandlers.size()) return -EINVAL;
  const Handler handler = kHandlers[command];
  if (handler == nullptr) return -ENOSYS;  // GET_OPTION
  return handler({.file = file, .in = in, .room = room});
}

}  // namespace qpair::softnic::driver
