#include "softnic/driver/modify_qp.hpp"

#include <fmt/format.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "softnic/driver/refusal.hpp"

namespace qpair::softnic::driver {
namespace {

ibv_ah_attr address_of(const ib_uverbs_qp_dest& dest) {
  ibv_ah_attr address{};
  std::memcpy(address.grh.dgid.raw, dest.dgid, sizeof dest.dgid);
  address.grh.flow_label = dest.flow_label;
  address.grh.sgid_index = dest.sgid_index;
  address.grh.hop_limit = dest.hop_limit;
  address.grh.traffic_class = dest.traffic_class;
  address.dlid = dest.dlid;
  address.sl = dest.sl;
  address.src_path_bits = dest.src_path_bits;
  address.static_rate = dest.static_rate;
  address.is_global = dest.is_global;
  address.port_num = dest.port_num;
  return address;
}

ib_uverbs_qp_dest dest_of(const ibv_ah_attr& address) {
  ib_uverbs_qp_dest dest{};
  std::memcpy(dest.dgid, address.grh.dgid.raw, sizeof dest.dgid);
  dest.flow_label = address.grh.flow_label;
  dest.dlid = address.dlid;
  dest.sgid_index = address.grh.sgid_index;
  dest.hop_limit = address.grh.hop_limit;
  dest.traffic_class = address.grh.traffic_class;
  dest.sl = address.sl;
  dest.src_path_bits = address.src_path_bits;
  dest.static_rate = address.static_rate;
  dest.is_global = address.is_global;
  dest.port_num = address.port_num;
  return dest;
}

ibv_qp_attr attributes_of(const ib_uverbs_ex_modify_qp& command) {
  const ib_uverbs_modify_qp& from = command.base;
  ibv_qp_attr to{};
  const std::uint32_t mask = from.attr_mask;
  // Only what check() found to be a value of its enum.
  if ((mask & IBV_QP_STATE) != 0) to.qp_state = static_cast<ibv_qp_state>(from.qp_state);
  if ((mask & IBV_QP_CUR_STATE) != 0) to.cur_qp_state = static_cast<ibv_qp_state>(from.cur_qp_state);
  if ((mask & IBV_QP_PATH_MTU) != 0) to.path_mtu = static_cast<ibv_mtu>(from.path_mtu);
  if ((mask & IBV_QP_PATH_MIG_STATE) != 0)
    to.path_mig_state = static_cast<ibv_mig_state>(from.path_mig_state);
  to.qkey = from.qkey;
  to.rq_psn = from.rq_psn;
  to.sq_psn = from.sq_psn;
  to.dest_qp_num = from.dest_qp_num;
  to.qp_access_flags = from.qp_access_flags;
  to.ah_attr = address_of(from.dest);
  to.alt_ah_attr = address_of(from.alt_dest);
  to.pkey_index = from.pkey_index;
  to.alt_pkey_index = from.alt_pkey_index;
  to.en_sqd_async_notify = from.en_sqd_async_notify;
  to.max_rd_atomic = from.max_rd_atomic;
  to.max_dest_rd_atomic = from.max_dest_rd_atomic;
  to.min_rnr_timer = from.min_rnr_timer;
  to.port_num = from.port_num;
  to.timeout = from.timeout;
  to.retry_cnt = from.retry_cnt;
  to.rnr_retry = from.rnr_retry;
  to.alt_port_num = from.alt_port_num;
  to.alt_timeout = from.alt_timeout;
  to.rate_limit = command.rate_limit;
  return to;
}

// modify_qp() in the kernel's drivers/infiniband/core/uverbs_cmd.c: what is refused before the driver is
// asked.
int check(Context& context, const ib_uverbs_modify_qp& command) {
  const std::uint32_t mask = command.attr_mask;
  const auto out_of_range = [](const char* name, unsigned value, const char* allowed) {
    return refuse(EINVAL, fmt::format("ibv_modify_qp: {} is {}; {}.", name, value, allowed));
  };
  if ((mask & IBV_QP_PORT) != 0 && command.port_num != 1) {
    return out_of_range("port_num", command.port_num, "the device has port 1");
  }
  if ((mask & IBV_QP_AV) != 0) {
    if (const int bad = check_address(context, address_of(command.dest)); bad != 0) {
      return refuse(EINVAL,
                    "ibv_modify_qp: the address vector needs port 1, is_global = 1 and a sgid_index that the "
                    "port's GID table has (RoCE).");
    }
  }
  if ((mask & IBV_QP_ALT_PATH) != 0) {
    if (command.alt_port_num != 1) {
      return out_of_range("alt_port_num", command.alt_port_num, "the device has port 1");
    }
    if (const int bad = check_address(context, address_of(command.alt_dest)); bad != 0) return bad;
  }
  if ((mask & IBV_QP_CUR_STATE) != 0 && command.cur_qp_state > IBV_QPS_ERR) {
    return out_of_range("cur_qp_state", command.cur_qp_state, "it is not one of enum ibv_qp_state");
  }
  if ((mask & IBV_QP_STATE) != 0 && command.qp_state > IBV_QPS_ERR) {
    return out_of_range("qp_state", command.qp_state, "it is not one of enum ibv_qp_state");
  }
  if ((mask & IBV_QP_PATH_MTU) != 0 && (command.path_mtu < IBV_MTU_256 || command.path_mtu > IBV_MTU_4096)) {
    return out_of_range("path_mtu", command.path_mtu, "it is not one of enum ibv_mtu");
  }
  if ((mask & IBV_QP_PATH_MIG_STATE) != 0 && command.path_mig_state > IBV_MIG_ARMED) {
    return out_of_range("path_mig_state", command.path_mig_state, "it is not one of enum ibv_mig_state");
  }
  return 0;
}

// What the other side of an XRC has, programs set on both (modify_qp_mask() in the kernel's uverbs_cmd.c).
std::uint32_t without_other_side(ibv_qp_type type, std::uint32_t mask) {
  switch (type) {
    case IBV_QPT_XRC_SEND:
      return mask & ~std::uint32_t{IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER};
    case IBV_QPT_XRC_RECV:
      return mask & ~std::uint32_t{IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY};
    default:
      return mask;
  }
}

template <typename To, typename From>
void assign(To& to, From from) {
  to = static_cast<To>(from);
}

}  // namespace

ibv_ah_attr address_of(const ib_uverbs_ah_attr& attributes) {
  ibv_ah_attr address{};
  std::memcpy(address.grh.dgid.raw, attributes.grh.dgid, sizeof attributes.grh.dgid);
  address.grh.flow_label = attributes.grh.flow_label;
  address.grh.sgid_index = attributes.grh.sgid_index;
  address.grh.hop_limit = attributes.grh.hop_limit;
  address.grh.traffic_class = attributes.grh.traffic_class;
  address.dlid = attributes.dlid;
  address.sl = attributes.sl;
  address.src_path_bits = attributes.src_path_bits;
  address.static_rate = attributes.static_rate;
  address.is_global = attributes.is_global;
  address.port_num = attributes.port_num;
  return address;
}

// mlx5_ib_modify_qp(): burst limits and connection options of cards that have them. A DC target learns its
// number when it goes to RTR (mlx5_ib_modify_dct()); here it has it from the start.
int modify_qp_driver(const QpObject& qp, const DriverData& driver) {
  mlx5_ib_modify_qp request{};
  if (driver.in.size == 0) return 0;
  if (driver.in.size < offsetof(mlx5_ib_modify_qp, ece_options)) return -EINVAL;
  if (!copy_from_user(&request, driver.in.address, std::min(driver.in.size, sizeof request))) return -EFAULT;
  if (request.comp_mask != 0 || request.burst_info.reserved != 0) return -EOPNOTSUPP;
  if (request.burst_info.max_burst_sz != 0 || request.burst_info.typical_pkt_sz != 0) {
    return unsupported("Rate limits of a queue pair");
  }
  const std::size_t size = std::min(driver.out.size, sizeof(mlx5_ib_modify_qp_resp));
  const mlx5_ib_modify_qp_resp answer{
      .response_length = static_cast<std::uint32_t>(size),
      .dctn = qp.type == nic::kDcTarget ? static_cast<std::uint32_t>(qp.qpn) : 0,
      .ece_options = 0,
      .reserved = 0};
  return copy_to_user(driver.out.address, &answer, size) ? 0 : -EFAULT;
}

int modify_qp(Context& context, const QpObject& qp, const ib_uverbs_ex_modify_qp& command) {
  if (const int bad = check(context, command.base); bad != 0) return bad;
  const std::uint32_t mask = without_other_side(qp.type, command.base.attr_mask);
  const ibv_qp_attr attributes = attributes_of(command);
  return -context.nic->modify_qp(qp.qpn, attributes, static_cast<int>(mask)).value;
}

int query_qp(Context& context, const QpObject& qp, ib_uverbs_query_qp_resp& answer) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  if (const int error = context.nic->query_qp(qp.qpn, attributes, initial).value; error != 0) return -error;
  answer = {};
  answer.dest = dest_of(attributes.ah_attr);
  answer.alt_dest = dest_of(attributes.alt_ah_attr);
  answer.max_send_wr = initial.cap.max_send_wr;
  answer.max_recv_wr = initial.cap.max_recv_wr;
  answer.max_send_sge = initial.cap.max_send_sge;
  answer.max_recv_sge = initial.cap.max_recv_sge;
  answer.max_inline_data = initial.cap.max_inline_data;
  answer.qkey = attributes.qkey;
  answer.rq_psn = attributes.rq_psn;
  answer.sq_psn = attributes.sq_psn;
  answer.dest_qp_num = attributes.dest_qp_num;
  answer.qp_access_flags = attributes.qp_access_flags;
  answer.pkey_index = attributes.pkey_index;
  answer.alt_pkey_index = attributes.alt_pkey_index;
  assign(answer.qp_state, attributes.qp_state);
  assign(answer.cur_qp_state, attributes.cur_qp_state);
  assign(answer.path_mtu, attributes.path_mtu);
  assign(answer.path_mig_state, attributes.path_mig_state);
  answer.sq_draining = attributes.sq_draining;
  answer.max_rd_atomic = attributes.max_rd_atomic;
  answer.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
  answer.min_rnr_timer = attributes.min_rnr_timer;
  answer.port_num = attributes.port_num;
  answer.timeout = attributes.timeout;
  answer.retry_cnt = attributes.retry_cnt;
  answer.rnr_retry = attributes.rnr_retry;
  answer.alt_port_num = attributes.alt_port_num;
  answer.alt_timeout = attributes.alt_timeout;
  answer.sq_sig_all = initial.sq_sig_all != 0;
  return 0;
}

}  // namespace qpair::softnic::driver
