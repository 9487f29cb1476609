// Protection domains, and the address handles that live in them.

#include <fmt/format.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <cerrno>

#include "softnic/driver/context.hpp"
#include "softnic/driver/refusal.hpp"
#include "softnic/nic/address_vector.hpp"

namespace qpair::softnic::driver {
namespace {

bool has_gid(const nic::Nic& nic, std::uint8_t index) {
  return std::any_of(nic.gids().begin(), nic.gids().end(),
                     [&](const nic::GidEntry& entry) { return entry.index == index; });
}

}  // namespace

Outcome<std::uint32_t> create_pd(Context& context, const DriverData& driver) {
  const auto pdn = context.nic->create_pd();
  if (!pdn) return tl::unexpected(-pdn.error().value);
  const std::int64_t handle = context.handles.insert(std::make_unique<PdObject>(*pdn));
  if (handle < 0) {
    context.nic->destroy_pd(*pdn);
    return tl::unexpected(static_cast<int>(handle));
  }
  const mlx5_ib_alloc_pd_resp answer{.pdn = static_cast<std::uint32_t>(*pdn)};
  const auto number = static_cast<std::uint32_t>(handle);
  // ib_copy_to_udata() in alloc_pd() of the kernel's hw/mlx5/main.c
  if (!copy_to_user(driver.out.address, &answer, std::min(driver.out.size, sizeof answer))) {
    return tl::unexpected(undo(context, ObjectType::Pd, number, -EFAULT));
  }
  return number;
}

// rdma_check_ah_attr() and rdma_fill_sgid_attr() in the kernel's drivers/infiniband/core/verbs.c.
int check_address(Context& context, const ibv_ah_attr& attributes) {
  if (attributes.port_num != 1) return -EINVAL;
  if (attributes.is_global == 0) {  // RoCE has no LIDs
    return context.nic->port().link_layer == IBV_LINK_LAYER_INFINIBAND ? 0 : -EINVAL;
  }
  return has_gid(*context.nic, attributes.grh.sgid_index) ? 0 : -EINVAL;
}

Outcome<std::uint32_t> create_ah(Context& context, const AhRequest& request, const DriverData& driver) {
  int failure = 0;
  auto* const pd = context.handles.get<PdObject>(request.pd_handle, failure);
  if (pd == nullptr) return tl::unexpected(-EINVAL);
  if (const int bad = check_address(context, request.attributes); bad != 0) {
    return tl::unexpected(
        refuse(-bad, fmt::format("ibv_create_ah: port_num {}, is_global {}, sgid_index {}; RoCE needs port "
                                 "1, is_global 1 and a GID index that the port's table has.",
                                 request.attributes.port_num, request.attributes.is_global,
                                 request.attributes.grh.sgid_index)));
  }
  mlx5_ib_create_ah_resp answer{};
  constexpr std::size_t kSmallest = offsetof(mlx5_ib_create_ah_resp, reserved);
  if (driver.out.size < kSmallest) return tl::unexpected(-EINVAL);
  answer.response_length = kSmallest;
  std::ranges::copy(nic::ethernet_address(request.attributes.grh.dgid), answer.dmac);
  const std::int64_t handle = context.handles.insert(std::make_unique<AhObject>(*pd));
  if (handle < 0) return tl::unexpected(static_cast<int>(handle));
  ++pd->users;
  const auto number = static_cast<std::uint32_t>(handle);
  if (!copy_to_user(driver.out.address, &answer, answer.response_length)) {
    return tl::unexpected(undo(context, ObjectType::Ah, number, -EFAULT));
  }
  return number;
}

}  // namespace qpair::softnic::driver
