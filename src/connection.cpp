// The state machine of a queue pair: RESET → INIT → RTR → RTS and back (IBTA vol. 1, 10.3.1).
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/queue_pair_state.hpp"

namespace qpair::detail {

namespace {

constexpr std::uint32_t kMax24Bits = 0xffffff;
constexpr std::uint8_t kHopLimit = 64;

Error invalid(std::string message) {
  return Error::make(ErrorCode::invalid_argument, std::move(message));
}

std::string bytes(ibv_mtu mtu) {
  return fmt::format("{}", mtu_bytes(mtu));
}

}  // namespace

Result<RdmaQpInfo> QueuePairState::info() const {
  ibv_port_attr port{};
  if (const int failure = ibv_query_port(context_, config_.port_num, &port); failure != 0) {
    return tl::unexpected(
        Error::make(ErrorCode::system,
                    fmt::format("cannot query port {} of {}", config_.port_num, config_.device), failure));
  }
  RdmaQpInfo info;
  info.qp_num = qp_->qp_num;
  info.lid = port.lid;
  info.psn = psn_;
  info.path_mtu = std::min(*config_.path_mtu, port.active_mtu);
  info.max_dest_rd_atomic = *config_.max_dest_rd_atomic;
  info.generation = generation_;
  if (config_.gid_index) {
    ibv_gid gid{};
    if (ibv_query_gid(context_, config_.port_num, *config_.gid_index, &gid) != 0) {
      return tl::unexpected(Error::make(ErrorCode::system,
                                        fmt::format("cannot query GID {} of port {} of {}",
                                                    *config_.gid_index, config_.port_num, config_.device),
                                        errno));
    }
    info.gid = Gid::from(gid);
  }
  return info;
}

Result<ibv_qp_state> QueuePairState::state() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  if (const int failure = ibv_query_qp(qp_.get(), &attributes, IBV_QP_STATE, &initial); failure != 0) {
    return tl::unexpected(
        Error::make(ErrorCode::system, fmt::format("cannot query queue pair {:#x}", qp_->qp_num), failure));
  }
  return attributes.qp_state;
}

Result<void> QueuePairState::connect(const RdmaQpInfo& peer) {
  if (peer_) {
    if (*peer_ != peer) {
      return tl::unexpected(
          invalid(fmt::format("queue pair {:#x} is connected to {}; reset() it before connecting it to {}",
                              qp_->qp_num, *peer_, peer)));
    }
    const Result<ibv_qp_state> now = state();
    if (!now) return tl::unexpected(now.error());
    if (*now == IBV_QPS_RTS) return {};
    return tl::unexpected(
        Error::make(ErrorCode::not_connected, fmt::format("queue pair {:#x} was connected, but an operation "
                                                          "failed since; reset() it, exchange get_qp_info() "
                                                          "again, then connect()",
                                                          qp_->qp_num)));
  }
  if (Result<void> valid = check_peer(peer); !valid) return valid;
  const ibv_mtu mtu = std::min({peer.path_mtu, *config_.path_mtu, limits_.port.active_mtu});
  Result<void> connected = to_init().and_then([&] { return to_ready_to_receive(peer, mtu); }).and_then([&] {
    return to_ready_to_send(peer);
  });
  if (connected) {
    peer_ = peer;
    return {};
  }
  ibv_qp_attr back{};
  back.qp_state = IBV_QPS_RESET;
  static_cast<void>(ibv_modify_qp(qp_.get(), &back, IBV_QP_STATE));  // the first failure is the one to tell
  path_->reset();
  return connected;
}

// What the kernel would refuse without saying which attribute it was.
Result<void> QueuePairState::check_peer(const RdmaQpInfo& peer) const {
  if (context_->device->transport_type == IBV_TRANSPORT_IWARP) {
    return tl::unexpected(Error::make(
        ErrorCode::unsupported,
        fmt::format("{} is an iWARP device: those are connected by librdmacm only", config_.device)));
  }
  const std::string step = "connect, INIT → RTR: ";
  if (peer.qp_num > kMax24Bits)
    return tl::unexpected(invalid(fmt::format("{}dest_qp_num {:#x} is over 24 bits", step, peer.qp_num)));
  if (peer.psn > kMax24Bits)
    return tl::unexpected(invalid(fmt::format("{}rq_psn {:#x} is over 24 bits", step, peer.psn)));
  if (peer.path_mtu < IBV_MTU_256 || peer.path_mtu > IBV_MTU_4096) {
    return tl::unexpected(
        invalid(fmt::format("{}path_mtu {} is none (enum ibv_mtu)", step, static_cast<int>(peer.path_mtu))));
  }
  if (limits_.port.link_layer == IBV_LINK_LAYER_ETHERNET && (!peer.gid || peer.gid->is_zero())) {
    return tl::unexpected(invalid(
        fmt::format("{}ah_attr.grh.dgid is missing: RoCE connects by GID, and the peer sent none", step)));
  }
  if (!peer.gid && peer.lid == 0) {
    return tl::unexpected(
        invalid(fmt::format("{}ah_attr.dlid is 0 and there is no GID: the peer has no address", step)));
  }
  return {};
}

Result<void> QueuePairState::modify(ibv_qp_attr& attributes, int mask, const char* step,
                                    const std::string& what) {
  const int failure = ibv_modify_qp(qp_.get(), &attributes, mask);
  if (failure == 0) return {};
  const int reason = failure < 0 ? -failure : failure;
  const bool unreachable =
      reason == ETIMEDOUT || reason == ENETUNREACH || reason == EHOSTUNREACH || reason == EADDRNOTAVAIL;
  ErrorCode code = ErrorCode::system;
  if (unreachable) code = ErrorCode::transport_retry_exceeded;
  if (reason == EINVAL) code = ErrorCode::invalid_argument;
  if (reason == ENOMEM) code = ErrorCode::out_of_resources;
  return tl::unexpected(
      Error::make(code,
                  fmt::format("connect, {}: the device refused {}{}", step,
                              unreachable ? "ah_attr.grh.dgid, the peer cannot be reached, of " : "", what),
                  reason));
}

Result<void> QueuePairState::to_init() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = config_.pkey_index;
  attributes.port_num = config_.port_num;
  attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  if (limits_.device.atomic_cap != IBV_ATOMIC_NONE) attributes.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
  Result<void> done =
      modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "RESET → INIT",
             fmt::format("port_num {}, pkey_index {}, qp_access_flags {:#x}", config_.port_num,
                         config_.pkey_index, attributes.qp_access_flags));
  if (done) path_->open_receive();
  return done;
}

Result<void> QueuePairState::to_ready_to_receive(const RdmaQpInfo& peer, ibv_mtu mtu) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = mtu;
  attributes.dest_qp_num = peer.qp_num;
  attributes.rq_psn = peer.psn;
  attributes.max_dest_rd_atomic = *config_.max_dest_rd_atomic;
  attributes.min_rnr_timer = config_.min_rnr_timer;
  attributes.ah_attr.port_num = config_.port_num;
  attributes.ah_attr.dlid = peer.lid;
  std::string route = fmt::format("ah_attr.dlid {}", peer.lid);
  if (peer.gid && config_.gid_index) {
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.dgid = peer.gid->to_ibv();
    attributes.ah_attr.grh.sgid_index = *config_.gid_index;
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    route = fmt::format("ah_attr.grh.dgid {}, ah_attr.grh.sgid_index {}", *peer.gid, *config_.gid_index);
  }
  return modify(
      attributes,
      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
      "INIT → RTR",
      fmt::format("{}, path_mtu {}, dest_qp_num {:#x}, rq_psn {:#x}, max_dest_rd_atomic {}, min_rnr_timer {}",
                  route, bytes(mtu), peer.qp_num, peer.psn, *config_.max_dest_rd_atomic,
                  config_.min_rnr_timer));
}

Result<void> QueuePairState::to_ready_to_send(const RdmaQpInfo& peer) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = psn_;
  attributes.timeout = config_.qp_timeout;
  attributes.retry_cnt = config_.retry_cnt;
  attributes.rnr_retry = config_.rnr_retry;
  // More than the peer can serve would be refused there, request by request.
  attributes.max_rd_atomic = std::min(*config_.max_rd_atomic, peer.max_dest_rd_atomic);
  Result<void> done =
      modify(attributes,
             IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                 IBV_QP_MAX_QP_RD_ATOMIC,
             "RTR → RTS",
             fmt::format("sq_psn {:#x}, timeout {}, retry_cnt {}, rnr_retry {}, max_rd_atomic {}", psn_,
                         config_.qp_timeout, config_.retry_cnt, config_.rnr_retry, attributes.max_rd_atomic));
  if (done) path_->open_send();
  return done;
}

Result<void> QueuePairState::reset() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  if (const int failure = ibv_modify_qp(qp_.get(), &attributes, IBV_QP_STATE); failure != 0) {
    return tl::unexpected(Error::make(ErrorCode::system,
                                      fmt::format("cannot reset queue pair {:#x}", qp_->qp_num),
                                      failure < 0 ? -failure : failure));
  }
  path_->reset();
  peer_.reset();
  // Packets of the old connection that are still on their way must not be taken for ones of the new.
  const std::uint32_t old = psn_;
  do psn_ = random_psn();
  while (psn_ == old);
  ++generation_;
  return {};
}

}  // namespace qpair::detail
