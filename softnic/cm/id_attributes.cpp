// What an identifier's queue pair is set to, and the address vectors of datagrams.

#include <algorithm>
#include <cerrno>

#include "softnic/cm/id.hpp"
#include "softnic/cm/manager.hpp"

namespace qpair::softnic::cm {

ib_uverbs_ah_attr Id::address_vector() const {
  ib_uverbs_ah_attr vector{};
  std::ranges::copy(peer_gid_, vector.grh.dgid);
  vector.grh.flow_label = flow_label();
  vector.grh.sgid_index = static_cast<std::uint8_t>(manager_.port().gid_index);
  vector.grh.hop_limit = kHopLimit;
  vector.grh.traffic_class = tos_;
  vector.is_global = 1;
  vector.dlid = peer_lid_;
  vector.port_num = 1;
  if (conversation_ && !is_datagram()) {
    const Agreement& agreed = conversation_->agreement();
    vector.grh.flow_label = agreed.flow_label;
    vector.grh.traffic_class = agreed.traffic_class;
    vector.grh.hop_limit = agreed.hop_limit > 1 ? agreed.hop_limit : kHopLimit;
  }
  return vector;
}

// cma_iboe_join_multicast(), cma_iboe_set_mgid(): the group's GID is its IP address.
int Id::join(const Address& group, Event& event) const {
  constexpr std::uint32_t kMulticastQpn = 0xff'ffff;
  constexpr std::uint16_t kMulticastLid = 0xc000;
  constexpr std::uint8_t kOneHop = 1;
  if (!has_device_ || (state_ != State::AddrBound && state_ != State::AddrResolved) || !is_datagram() ||
      group.is_any() || group.family == AF_IB) {
    return EINVAL;
  }
  event.type = EventType::MulticastJoin;
  event.ud.qp_num = kMulticastQpn;
  event.ud.qkey = kUdpQkey;
  event.ud.ah_attr = address_vector();
  std::ranges::copy(group.bytes, event.ud.ah_attr.grh.dgid);
  event.ud.ah_attr.grh.flow_label = 0;
  event.ud.ah_attr.grh.hop_limit = kOneHop;
  event.ud.ah_attr.dlid = kMulticastLid;
  return 0;
}

// rdma_init_qp_attr().
int Id::init_qp_attr(ib_uverbs_qp_attr& attributes) const {
  return conversation_ && !is_datagram() ? init_connected(attributes) : init_unconnected(attributes);
}

// cma_ib_init_qp_attr().
int Id::init_unconnected(ib_uverbs_qp_attr& attributes) const {
  attributes.pkey_index = 0;
  attributes.port_num = 1;
  attributes.qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (is_datagram()) {
    attributes.qkey = kUdpQkey;
    attributes.qp_attr_mask |= IBV_QP_QKEY;
  } else {
    attributes.qp_access_flags = 0;
    attributes.qp_attr_mask |= IBV_QP_ACCESS_FLAGS;
  }
  return 0;
}

// ib_cm_init_qp_attr().
int Id::init_connected(ib_uverbs_qp_attr& attributes) const {
  const Agreement& agreed = conversation_->agreement();
  using At = cm::State;
  const At now = conversation_->state();
  const bool reachable = now == At::ReqReceived || now == At::RepReceived || now == At::RepSent ||
                         now == At::MraRepReceived || now == At::Established;
  const bool reliable = qp_type_ != IBV_QPT_UC;
  attributes.qp_attr_mask = IBV_QP_STATE;
  switch (attributes.qp_state) {
    case IBV_QPS_INIT:
      if (!reachable && now != At::ReqSent && now != At::MraReqReceived) return EINVAL;
      attributes.qp_attr_mask |= IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
      attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
      if (agreed.responder_resources != 0) {
        attributes.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
      }
      attributes.port_num = 1;
      return 0;
    case IBV_QPS_RTR:
      if (!reachable) return EINVAL;
      attributes.qp_attr_mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
      attributes.ah_attr = address_vector();
      attributes.path_mtu = agreed.mtu;
      attributes.dest_qp_num = agreed.remote_qpn;
      attributes.rq_psn = sequence_;
      if (reliable) {
        attributes.qp_attr_mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        attributes.max_dest_rd_atomic = agreed.responder_resources;
        attributes.min_rnr_timer = 0;
      }
      return 0;
    case IBV_QPS_RTS:
      if (!reachable) return EINVAL;
      attributes.qp_attr_mask |= IBV_QP_SQ_PSN;
      attributes.sq_psn = agreed.sq_psn;
      if (reliable) {
        attributes.qp_attr_mask |=
            IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        attributes.timeout = ack_timeout_ ? *ack_timeout_ : agreed.ack_timeout;
        attributes.retry_cnt = agreed.retry_count;
        attributes.rnr_retry = agreed.rnr_retry_count;
        attributes.max_rd_atomic = agreed.initiator_depth;
      }
      return 0;
    default:
      return EINVAL;
  }
}

}  // namespace qpair::softnic::cm
