// Commands of rdma_cm, checked and refused as by the functions of the kernel that they are named after
// (drivers/infiniband/core/ucma.c): options.

#include <cerrno>
#include <optional>

#include "softnic/driver/cm_call.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint8_t kMaxAckTimeout = 31;

template <typename Value>
std::optional<Value> option_value(const rdma_ucm_set_option& command, int& failure) {
  Value value{};
  if (command.optlen != sizeof value) {
    failure = -EINVAL;
    return std::nullopt;
  }
  if (!copy_from_user(&value, command.optval, sizeof value)) {
    failure = -EFAULT;
    return std::nullopt;
  }
  return value;
}

// ucma_set_option_id().
int set_id_option(const CmCall& call, const rdma_ucm_set_option& command) {
  int failure = 0;
  switch (command.optname) {
    case RDMA_OPTION_ID_TOS:
    case RDMA_OPTION_ID_ACK_TIMEOUT: {
      const auto value = option_value<std::uint8_t>(command, failure);
      if (!value) return failure;
      return call.file.with_id(command.id, [&](CmContext& context, wire::TimePoint) {
        if (command.optname == RDMA_OPTION_ID_TOS) {
          context.id->set_tos(*value);
          return 0;
        }
        if (*value > kMaxAckTimeout || context.id->is_datagram()) return -EINVAL;
        context.id->set_ack_timeout(*value);
        return 0;
      });
    }
    case RDMA_OPTION_ID_REUSEADDR:
    case RDMA_OPTION_ID_AFONLY: {
      const auto value = option_value<int>(command, failure);
      if (!value) return failure;
      return call.file.with_id(command.id, [&](CmContext& context, wire::TimePoint) {
        if (command.optname == RDMA_OPTION_ID_AFONLY) return -context.id->set_family_only(*value != 0);
        context.id->set_reuse(*value != 0);
        return 0;
      });
    }
    default:
      return -ENOSYS;
  }
}

// ucma_set_ib_path(): the program brings the route with it. There is only one, so that it need not be read.
int set_path(const CmCall& call, const rdma_ucm_set_option& command) {
  if (command.optlen == 0 || command.optlen % sizeof(ib_path_rec_data) != 0) return -EINVAL;
  return with_device(call.file, command.id,
                     [](CmContext& context, wire::TimePoint) { return -context.id->resolve_route(); });
}

}  // namespace

int cm_commands::set_option(const CmCall& call) {
  rdma_ucm_set_option command{};
  if (const int bad = call.get(command); bad != 0) return bad;
  if (command.level == RDMA_OPTION_ID) return set_id_option(call, command);
  if (command.level == RDMA_OPTION_IB && command.optname == RDMA_OPTION_IB_PATH)
    return set_path(call, command);
  return -ENOSYS;
}

}  // namespace qpair::softnic::driver
