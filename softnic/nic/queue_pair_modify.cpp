// modify_qp and query_qp: attributes checked against the state table, the device's limits and its GID table.

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "softnic/explain/explain.hpp"
#include "softnic/nic/address_resolution.hpp"
#include "softnic/nic/address_vector.hpp"
#include "softnic/nic/qp_states.hpp"
#include "softnic/nic/queue_pair.hpp"

namespace qpair::softnic::nic {
namespace {

constexpr std::uint32_t k24Bits = 0xff'ffff;
constexpr unsigned kMaxTimer = 31;   // timeout and min_rnr_timer are 5 bits
constexpr unsigned kMaxRetries = 7;  // retry_cnt and rnr_retry are 3 bits

unsigned bytes_of(ibv_mtu mtu) {
  return 128U << static_cast<unsigned>(mtu);
}

}  // namespace

std::string QueuePair::validate_path(const ibv_qp_attr& attributes) const {
  const ibv_ah_attr& path = attributes.ah_attr;
  if (path.is_global == 0) {
    if (device_.port.link_layer == IBV_LINK_LAYER_INFINIBAND) {
      return path.dlid != 0 && path.dlid < kFirstMulticastLid
                 ? std::string{}
                 : fmt::format("ah_attr.dlid is {:#x}; LIDs from 1 to {:#x} are those of ports", path.dlid,
                               kFirstMulticastLid - 1);
    }
    return "ah_attr.is_global is 0: RoCE has no LIDs, the path needs a GID (perftest: -x, ibv_rc_pingpong: "
           "-g)";
  }
  if (path.grh.sgid_index >= device_.gids.size()) {
    return fmt::format("ah_attr.grh.sgid_index is {}, the GID table has entries 0 to {}",
                       static_cast<unsigned>(path.grh.sgid_index), device_.gids.size() - 1);
  }
  return {};
}

std::string QueuePair::validate(const ibv_qp_attr& attributes, int mask) const {
  const auto over = [](const char* name, auto value, auto limit) {
    return fmt::format("{} is {}, the limit is {}", name, value, limit);
  };
  if ((mask & IBV_QP_PORT) != 0 && attributes.port_num != 1) {
    return fmt::format("port_num is {}, the device has port 1", static_cast<unsigned>(attributes.port_num));
  }
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && attributes.pkey_index >= device_.port.pkey_tbl_len) {
    return over("pkey_index", attributes.pkey_index, device_.port.pkey_tbl_len - 1);
  }
  if ((mask & IBV_QP_AV) != 0) {
    if (std::string error = validate_path(attributes); !error.empty()) return error;
  }
  if ((mask & IBV_QP_PATH_MTU) != 0) {
    if (attributes.path_mtu < IBV_MTU_256 || attributes.path_mtu > IBV_MTU_4096) {
      return fmt::format("path_mtu {} is not one of enum ibv_mtu",
                         static_cast<unsigned>(attributes.path_mtu));
    }
    if (attributes.path_mtu > device_.port.active_mtu) {
      return over("path_mtu", bytes_of(attributes.path_mtu), bytes_of(device_.port.active_mtu));
    }
  }
  if ((mask & IBV_QP_DEST_QPN) != 0 && attributes.dest_qp_num > k24Bits) {
    return fmt::format("dest_qp_num {:#x} has more than 24 bits", attributes.dest_qp_num);
  }
  const auto max_initiator = device_.limits.attributes.max_qp_init_rd_atom;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && attributes.max_rd_atomic > max_initiator) {
    return over("max_rd_atomic", static_cast<int>(attributes.max_rd_atomic), max_initiator);
  }
  const auto max_responder = device_.limits.attributes.max_qp_rd_atom;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && attributes.max_dest_rd_atomic > max_responder) {
    return over("max_dest_rd_atomic", static_cast<int>(attributes.max_dest_rd_atomic), max_responder);
  }
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attributes.min_rnr_timer > kMaxTimer) {
    return over("min_rnr_timer", static_cast<unsigned>(attributes.min_rnr_timer), kMaxTimer);
  }
  if ((mask & IBV_QP_TIMEOUT) != 0 && attributes.timeout > kMaxTimer) {
    return over("timeout", static_cast<unsigned>(attributes.timeout), kMaxTimer);
  }
  if ((mask & IBV_QP_RETRY_CNT) != 0 && attributes.retry_cnt > kMaxRetries) {
    return over("retry_cnt", static_cast<unsigned>(attributes.retry_cnt), kMaxRetries);
  }
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attributes.rnr_retry > kMaxRetries) {
    return over("rnr_retry", static_cast<unsigned>(attributes.rnr_retry), kMaxRetries);
  }
  if ((mask & IBV_QP_ALT_PATH) != 0) return "ALT_PATH: a RoCE port has no second path to migrate to";
  return {};
}

void QueuePair::remember(const ibv_qp_attr& attributes, int mask) {
  ibv_qp_attr& to = attributes_;
  if ((mask & IBV_QP_PORT) != 0) to.port_num = attributes.port_num;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) to.pkey_index = attributes.pkey_index;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) to.qp_access_flags = attributes.qp_access_flags;
  if ((mask & IBV_QP_QKEY) != 0) to.qkey = attributes.qkey;
  if ((mask & IBV_QP_AV) != 0) to.ah_attr = attributes.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) to.path_mtu = attributes.path_mtu;
  if ((mask & IBV_QP_DEST_QPN) != 0) to.dest_qp_num = attributes.dest_qp_num;
  if ((mask & IBV_QP_RQ_PSN) != 0) to.rq_psn = attributes.rq_psn & k24Bits;
  if ((mask & IBV_QP_SQ_PSN) != 0) to.sq_psn = attributes.sq_psn & k24Bits;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) to.max_rd_atomic = attributes.max_rd_atomic;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) to.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) to.min_rnr_timer = attributes.min_rnr_timer;
  if ((mask & IBV_QP_TIMEOUT) != 0) to.timeout = attributes.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) to.retry_cnt = attributes.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) to.rnr_retry = attributes.rnr_retry;
  if ((mask & IBV_QP_PATH_MIG_STATE) != 0) to.path_mig_state = attributes.path_mig_state;
}

Errno QueuePair::modify(const ibv_qp_attr& attributes, int mask, wire::TimePoint now) {
  const ibv_qp_state from = state();
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes.qp_state : from;
  std::string refusal = check_transition(parameters_.type, from, to, mask);
  if (refusal.empty() && (mask & IBV_QP_CUR_STATE) != 0 && attributes.cur_qp_state != from) {
    refusal = fmt::format("cur_qp_state says {}, it is in {}", state_name(attributes.cur_qp_state),
                          state_name(from));
  }
  if (refusal.empty()) refusal = validate(attributes, mask);
  if (!refusal.empty()) {
    explain::say(explain::Kind::Refusal,
                 fmt::format("queue pair {:#x}: modify_qp refused: {}", qpn(), refusal));
    return Errno{EINVAL};
  }

  if (to == IBV_QPS_SQD && from != IBV_QPS_SQD) {
    notify_drained_ = (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 && attributes.en_sqd_async_notify != 0;
  }
  remember(attributes, mask);
  if (to == IBV_QPS_ERR) {
    enter_error();
    return Errno{0};
  }
  ibv_qp_attr resolved = attributes;
  if ((mask & IBV_QP_AV) != 0) {
    const ibv_ah_attr& path = attributes.ah_attr;
    resolved.ah_attr.grh.dgid = path.is_global != 0 ? routable(path.grh.dgid)
                                                    : address_of_lid(path.dlid, device_.link.local().address);
    peer_address_ = endpoint_of(resolved.ah_attr.grh.dgid);
  }
  transport_->modify(resolved, mask, now);
  if (to == IBV_QPS_RESET) restart();
  show();
  return Errno{0};
}

void QueuePair::restart() {
  set_watched(false);
  device_.failures.over(number_);
  fetched_ = rung_ = 0;
  copied_ = 0;
  retire_receives();
  if (own_receives_) own_receives_->reset();
  last_wqe_reached_ = false;
  inflight_.clear();
  send_payload_ = {};
  receive_payload_ = {};
  notify_drained_ = false;
  failing_ = false;
  attributes_ = {};
}

// The receive ring as it was laid out, which may hold more than was asked for (set_rq_size() and
// mlx5_ib_query_qp() in the kernel's hw/mlx5/qp.c).
ibv_qp_cap QueuePair::granted() const {
  ibv_qp_cap capabilities = parameters_.capabilities;
  if (parameters_.rq_wqe_count == 0) return capabilities;
  const std::uint32_t segments = (1U << parameters_.rq_wqe_shift) / mlx5::kSegmentSize;
  capabilities.max_recv_wr = parameters_.rq_wqe_count;
  capabilities.max_recv_sge = parameters_.wq_signature ? segments - 1 : segments;
  return capabilities;
}

void QueuePair::query(ibv_qp_attr& attributes, ibv_qp_init_attr& initial) const {
  attributes = attributes_;
  attributes.qp_state = attributes.cur_qp_state = state();
  attributes.cap = granted();
  transport_->query(attributes);
  initial = {};
  initial.qp_type = parameters_.type;
  initial.cap = attributes.cap;
  initial.sq_sig_all = parameters_.signal_all ? 1 : 0;
}

}  // namespace qpair::softnic::nic
