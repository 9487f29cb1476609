// The methods that carry the device's own commands. As drivers/infiniband/hw/mlx5/devx.c in the kernel.
//
// What is not here is EPROTONOSUPPORT: user memory, event channels and asynchronous queries.

#include <cerrno>
#include <vector>

#include "softnic/driver/devx.hpp"
#include "softnic/driver/ioctl_attributes.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint16_t kHeader = 16;  // mlx5_ifc_general_obj_in_cmd_hdr, and of the answer

// The program's mailboxes, copied in, and out again when the device has answered.
class Mailboxes {
 public:
  Mailboxes(IoctlCall& call, std::uint16_t in, std::uint16_t out)
      : call_(call), out_id_(out), in_(call.size_of(in)), out_(call.size_of(out)) {
    const UserBuffer from = call.buffer(in);
    readable_ = copy_from_user(in_.data(), from.address, from.size);
  }
  bool readable() const { return readable_; }
  DevxCommand command() { return {.in = in_, .out = out_}; }
  // A refusal's answer goes to the program too.
  int finish(int failure) {
    if (failure != 0 && failure != -EREMOTEIO) return failure;
    const int bad = call_.put_bytes(out_id_, out_.data(), out_.size());
    return bad != 0 ? bad : failure;
  }

 private:
  IoctlCall& call_;
  std::uint16_t out_id_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
  bool readable_ = false;
};

constexpr AttributeSpec kGeneral[] = {
    in_bytes(MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, kHeader, Need::Mandatory),
    out_bytes(MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, kHeader, Need::Mandatory),
};

int general(IoctlCall& call) {
  Mailboxes mailboxes(call, MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT);
  if (!mailboxes.readable()) return -EFAULT;
  return mailboxes.finish(devx_general(call.context, mailboxes.command()));
}

constexpr AttributeSpec kCreate[] = {
    handle(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, MLX5_IB_OBJECT_DEVX_OBJ, Access::New),
    in_bytes(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, kHeader, Need::Mandatory),
    out_bytes(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, kHeader, Need::Mandatory),
};

int create(IoctlCall& call) {
  Mailboxes mailboxes(call, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT);
  if (!mailboxes.readable()) return -EFAULT;
  const auto made = devx_create(call.context, mailboxes.command());
  if (!made) return mailboxes.finish(made.error());
  const int failure =
      first_of(mailboxes.finish(0), call.put_handle(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, *made));
  return undo(call.context, ObjectType::Devx, *made, failure);
}

constexpr AttributeSpec kDestroy[] = {
    handle(MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, MLX5_IB_OBJECT_DEVX_OBJ, Access::Destroy),
};

constexpr AttributeSpec kModify[] = {
    handle(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE, kAnyObject, Access::Read),
    in_bytes(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, kHeader, Need::Mandatory),
    out_bytes(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, kHeader, Need::Mandatory),
};

int modify(IoctlCall& call) {
  Mailboxes mailboxes(call, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT);
  if (!mailboxes.readable()) return -EFAULT;
  const auto* const object = call.object<Object>(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE);
  return mailboxes.finish(devx_modify(call.context, *object, mailboxes.command()));
}

constexpr MethodSpec kMethods[] = {
    {MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_OTHER, kGeneral, general},
    {MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_CREATE, kCreate, create},
    {MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_DESTROY, kDestroy, destroyed},
    {MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_MODIFY, kModify, modify},
};

}  // namespace

std::span<const MethodSpec> devx_methods() {
  return kMethods;
}

}  // namespace qpair::softnic::driver
