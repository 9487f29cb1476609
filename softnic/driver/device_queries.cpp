// What the device says about itself.

#include <endian.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "softnic/driver/context.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint64_t kClockKilohertz = 1'000'000;  // the device's clock counts nanoseconds
constexpr std::uint16_t kMaxModerationCount = 0xffff;
constexpr std::uint16_t kMaxModerationPeriod = 0xfff;

// What a ConnectX-7 does with memory that is paged on demand (odp_caps of ibv_devinfo -v).
constexpr std::uint32_t kConnectedOnDemand = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_WRITE |
                                             IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC |
                                             IBV_ODP_SUPPORT_SRQ_RECV;

// fw_ver is three numbers in one: fw_rev_maj(), fw_rev_min() and fw_rev_sub() in the kernel's mlx5 driver.
std::uint64_t firmware_number(const std::string& text) {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned patch = 0;
  if (std::sscanf(text.c_str(), "%u.%u.%u", &major, &minor, &patch) != 3) return 0;  // NOLINT(cert-err34-c)
  return std::uint64_t{major} << 32 | std::uint64_t{minor & 0xffff} << 16 | (patch & 0xffff);
}

template <typename To, typename From>
void assign(To& to, From from) {
  to = static_cast<To>(from);
}

}  // namespace

// copy_query_dev_fields() in the kernel's drivers/infiniband/core/uverbs_cmd.c.
ib_uverbs_query_device_resp query_device(const nic::Nic& nic) {
  const nic::DeviceIdentity& identity = nic.identity();
  const ibv_device_attr& limits = nic.limits().attributes;
  ib_uverbs_query_device_resp answer{};
  answer.fw_ver = firmware_number(identity.firmware);
  answer.node_guid = htobe64(identity.node_guid);
  answer.sys_image_guid = htobe64(identity.system_image_guid);
  assign(answer.max_mr_size, limits.max_mr_size);
  assign(answer.page_size_cap, limits.page_size_cap);
  answer.vendor_id = limits.vendor_id;
  answer.vendor_part_id = identity.device_id;
  answer.hw_ver = identity.hardware_revision;
  assign(answer.max_qp, limits.max_qp);
  assign(answer.max_qp_wr, limits.max_qp_wr);
  assign(answer.device_cap_flags, limits.device_cap_flags);
  assign(answer.max_sge, limits.max_sge);
  assign(answer.max_sge_rd, limits.max_sge_rd);
  assign(answer.max_cq, limits.max_cq);
  assign(answer.max_cqe, limits.max_cqe);
  assign(answer.max_mr, limits.max_mr);
  assign(answer.max_pd, limits.max_pd);
  assign(answer.max_qp_rd_atom, limits.max_qp_rd_atom);
  assign(answer.max_ee_rd_atom, limits.max_ee_rd_atom);
  assign(answer.max_res_rd_atom, limits.max_res_rd_atom);
  assign(answer.max_qp_init_rd_atom, limits.max_qp_init_rd_atom);
  assign(answer.max_ee_init_rd_atom, limits.max_ee_init_rd_atom);
  assign(answer.atomic_cap, limits.atomic_cap);
  assign(answer.max_ee, limits.max_ee);
  assign(answer.max_rdd, limits.max_rdd);
  assign(answer.max_mw, limits.max_mw);
  assign(answer.max_raw_ipv6_qp, limits.max_raw_ipv6_qp);
  assign(answer.max_raw_ethy_qp, limits.max_raw_ethy_qp);
  assign(answer.max_mcast_grp, limits.max_mcast_grp);
  assign(answer.max_mcast_qp_attach, limits.max_mcast_qp_attach);
  assign(answer.max_total_mcast_qp_attach, limits.max_total_mcast_qp_attach);
  assign(answer.max_ah, limits.max_ah);
  assign(answer.max_srq, limits.max_srq);
  assign(answer.max_srq_wr, limits.max_srq_wr);
  assign(answer.max_srq_sge, limits.max_srq_sge);
  assign(answer.max_pkeys, limits.max_pkeys);
  assign(answer.local_ca_ack_delay, limits.local_ca_ack_delay);
  answer.phys_port_cnt = 1;
  return answer;
}

ib_uverbs_ex_query_device_resp query_device_ex(const nic::Nic& nic) {
  ib_uverbs_ex_query_device_resp answer{};
  answer.base = query_device(nic);
  answer.timestamp_mask = ~std::uint64_t{0} >> 1;
  answer.hca_core_clock = kClockKilohertz;
  answer.device_cap_flags_ex = answer.base.device_cap_flags;
  answer.odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
  answer.odp_caps.per_transport_caps = {.rc_odp_caps = kConnectedOnDemand | IBV_ODP_SUPPORT_RECV,
                                        .uc_odp_caps = 0,
                                        .ud_odp_caps = IBV_ODP_SUPPORT_SEND};
  answer.xrc_odp_caps = kConnectedOnDemand;
  answer.max_dm_size = kDeviceMemory;
  answer.cq_moderation_caps.max_cq_moderation_count = kMaxModerationCount;
  answer.cq_moderation_caps.max_cq_moderation_period = kMaxModerationPeriod;
  return answer;
}

// The mlx5 part: nothing of it is there, the fields say so. mlx5_ib_query_device() in the kernel's
// hw/mlx5/main.c.
int query_device_driver(const DriverData& driver) {
  constexpr std::size_t kSmallest = offsetof(mlx5_ib_query_device_resp, tso_caps);
  if (driver.out.size != 0 && driver.out.size < kSmallest) return -EINVAL;
  switch (is_cleared(driver.in.address, driver.in.size)) {
    case Cleared::Yes:
      break;
    case Cleared::No:
      return -EINVAL;
    case Cleared::Fault:
      return -EFAULT;
  }
  mlx5_ib_query_device_resp answer{};
  answer.response_length = static_cast<std::uint32_t>(std::min(driver.out.size, sizeof answer));
  return copy_to_user(driver.out.address, &answer, answer.response_length) ? 0 : -EFAULT;
}

// copy_port_attr_to_resp() in the kernel's drivers/infiniband/core/uverbs_std_types_device.c.
int query_port(const nic::Nic& nic, std::uint64_t port, ib_uverbs_query_port_resp& answer,
               std::uint16_t& flags2) {
  if (port != 1) return -EINVAL;
  const ibv_port_attr attributes = nic.port();
  answer = {};
  answer.port_cap_flags = attributes.port_cap_flags;
  answer.max_msg_sz = attributes.max_msg_sz;
  answer.bad_pkey_cntr = attributes.bad_pkey_cntr;
  answer.qkey_viol_cntr = attributes.qkey_viol_cntr;
  assign(answer.gid_tbl_len, attributes.gid_tbl_len);
  answer.pkey_tbl_len = attributes.pkey_tbl_len;
  answer.lid = attributes.lid;
  answer.sm_lid = attributes.sm_lid;
  assign(answer.state, attributes.state);
  assign(answer.max_mtu, attributes.max_mtu);
  assign(answer.active_mtu, attributes.active_mtu);
  answer.lmc = attributes.lmc;
  answer.max_vl_num = attributes.max_vl_num;
  answer.sm_sl = attributes.sm_sl;
  answer.subnet_timeout = attributes.subnet_timeout;
  answer.init_type_reply = attributes.init_type_reply;
  answer.active_width = attributes.active_width;
  answer.active_speed = attributes.active_speed;
  answer.phys_state = attributes.phys_state;
  answer.link_layer = attributes.link_layer;
  answer.flags = attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? IB_UVERBS_QPF_GRH_REQUIRED : 0;
  flags2 = attributes.port_cap_flags2;
  return 0;
}

}  // namespace qpair::softnic::driver
