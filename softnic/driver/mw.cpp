// Memory windows.

#include <fmt/format.h>
#include <rdma/mlx5-abi.h>

#include <cerrno>
#include <memory>

#include "softnic/driver/context.hpp"
#include "softnic/driver/refusal.hpp"

namespace qpair::softnic::driver {
namespace {

// struct mlx5_ib_alloc_mw, which libmlx5 does not send.
int check_driver_request(const UserBuffer& in) {
  mlx5_ib_alloc_mw request{};
  if (const int bad = copy_in(&request, sizeof request, in); bad != 0) return bad;
  return request.comp_mask != 0 || request.reserved1 != 0 || request.reserved2 != 0 ? -EOPNOTSUPP : 0;
}

}  // namespace

// mlx5_ib_alloc_mw() in the kernel's hw/mlx5/mr.c. The window is bound on a send queue.
Outcome<MwCreated> create_mw(Context& context, PdObject& pd, std::uint8_t type, const DriverData& driver) {
  if (const int bad = check_driver_request(driver.in); bad != 0) return tl::unexpected(bad);
  if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) {
    return tl::unexpected(
        refuse(EINVAL, fmt::format("ibv_alloc_mw: type {}; IBV_MW_TYPE_1 and IBV_MW_TYPE_2 exist.", type)));
  }
  const auto key = context.nic->create_mw({.pd = pd.pdn, .type = static_cast<ibv_mw_type>(type)});
  if (!key) return tl::unexpected(-key.error().value);
  const std::int64_t handle = context.handles.insert(std::make_unique<MwObject>(pd, *key));
  if (handle < 0) {
    context.nic->destroy_mr(*key);
    return tl::unexpected(static_cast<int>(handle));
  }
  ++pd.users;
  return MwCreated{.handle = static_cast<std::uint32_t>(handle), .rkey = static_cast<std::uint32_t>(*key)};
}

}  // namespace qpair::softnic::driver
