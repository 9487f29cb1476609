#include "softnic/nic/qp_states.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "softnic/nic/nic.hpp"

namespace qpair::softnic::nic {
namespace {

struct Attributes {
  int required = 0;
  int optional = 0;
};

constexpr int kInitReliable = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kInitDatagram = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

// RC and both sides of XRC; of its attributes the initiator has those of the requester, the target those of
// the responder.
constexpr bool is_rc(ibv_qp_type type) {
  return type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV;
}
constexpr int without_other_side(ibv_qp_type type, int attributes) {
  constexpr int kRequester = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  constexpr int kResponder = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (type == IBV_QPT_XRC_SEND) return attributes & ~kResponder;
  if (type == IBV_QPT_XRC_RECV) return attributes & ~kRequester;
  return attributes;
}
constexpr bool is_ud(ibv_qp_type type) {
  return type == IBV_QPT_UD;
}

Attributes init_to_rtr(ibv_qp_type type) {
  if (is_ud(type)) return {0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY};
  constexpr int kConnected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  return {is_rc(type) ? kConnected | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : kConnected,
          IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX};
}

Attributes rtr_to_rts(ibv_qp_type type) {
  if (is_ud(type)) return {IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY};
  constexpr int kPath = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
  if (!is_rc(type)) return {IBV_QP_SQ_PSN, kPath};
  return {IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
          kPath | IBV_QP_MIN_RNR_TIMER};
}

// RTS to itself, and back to RTS from SQD.
Attributes stay_in_rts(ibv_qp_type type) {
  if (is_ud(type)) return {0, IBV_QP_CUR_STATE | IBV_QP_QKEY};
  return {0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE |
                 (is_rc(type) ? IBV_QP_MIN_RNR_TIMER : 0)};
}

Attributes stay_in_sqd(ibv_qp_type type) {
  if (is_ud(type)) return {0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY};
  constexpr int kConnected =
      IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE;
  if (!is_rc(type)) return {0, kConnected};
  return {0, kConnected | IBV_QP_PORT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                 IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER};
}

std::optional<Attributes> transition_of_both_sides(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to) {
  if (to == IBV_QPS_RESET) return Attributes{};
  if (to == IBV_QPS_ERR) return from == IBV_QPS_RESET ? std::nullopt : std::optional(Attributes{});
  const int init = is_ud(type) ? kInitDatagram : kInitReliable;
  switch (from) {
    case IBV_QPS_RESET:
      if (to == IBV_QPS_INIT) return Attributes{init, 0};
      break;
    case IBV_QPS_INIT:
      if (to == IBV_QPS_INIT) return Attributes{0, init};
      if (to == IBV_QPS_RTR) return init_to_rtr(type);
      break;
    case IBV_QPS_RTR:
      if (to == IBV_QPS_RTS) return rtr_to_rts(type);
      break;
    case IBV_QPS_RTS:
      if (to == IBV_QPS_RTS) return stay_in_rts(type);
      if (to == IBV_QPS_SQD) return Attributes{0, IBV_QP_EN_SQD_ASYNC_NOTIFY};
      break;
    case IBV_QPS_SQD:
      if (to == IBV_QPS_RTS) return stay_in_rts(type);
      if (to == IBV_QPS_SQD) return stay_in_sqd(type);
      break;
    case IBV_QPS_SQE:
      if (to == IBV_QPS_RTS && !is_rc(type)) {
        return Attributes{0, IBV_QP_CUR_STATE | (is_ud(type) ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)};
      }
      break;
    default:
      break;
  }
  return std::nullopt;
}

// modify_dci_qp_is_ok() in the kernel's hw/mlx5/qp.c.
std::optional<Attributes> dc_initiator_transition(ibv_qp_state from, ibv_qp_state to) {
  if (to == IBV_QPS_RESET) return Attributes{};
  if (to == IBV_QPS_ERR) return from == IBV_QPS_RESET ? std::nullopt : std::optional(Attributes{});
  constexpr int kInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (from == IBV_QPS_RESET && to == IBV_QPS_INIT) return Attributes{kInit, 0};
  if (from == IBV_QPS_INIT && to == IBV_QPS_INIT) return Attributes{0, kInit};
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) {
    return Attributes{IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX | IBV_QP_AV};
  }
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) {
    return Attributes{
        IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_SQ_PSN,
        IBV_QP_MIN_RNR_TIMER};
  }
  if (from == IBV_QPS_RTS && to == IBV_QPS_RTS) return Attributes{0, IBV_QP_MIN_RNR_TIMER};
  return std::nullopt;
}

// mlx5_ib_modify_dct() there: a target goes to RTR and stays.
std::optional<Attributes> dc_target_transition(ibv_qp_state from, ibv_qp_state to) {
  if (from == IBV_QPS_RESET && to == IBV_QPS_INIT) return Attributes{kInitReliable, 0};
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) {
    return Attributes{IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX};
  }
  return std::nullopt;
}

std::optional<Attributes> transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to) {
  if (type == kDcInitiator) return dc_initiator_transition(from, to);
  if (type == kDcTarget) return dc_target_transition(from, to);
  auto attributes = transition_of_both_sides(type, from, to);
  if (attributes) {
    attributes->required = without_other_side(type, attributes->required);
    attributes->optional = without_other_side(type, attributes->optional);
  }
  return attributes;
}

std::string attribute_names(int mask) {
  static constexpr std::array<std::pair<int, const char*>, 21> kNames{{
      {IBV_QP_STATE, "STATE"},
      {IBV_QP_CUR_STATE, "CUR_STATE"},
      {IBV_QP_EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY"},
      {IBV_QP_ACCESS_FLAGS, "ACCESS_FLAGS"},
      {IBV_QP_PKEY_INDEX, "PKEY_INDEX"},
      {IBV_QP_PORT, "PORT"},
      {IBV_QP_QKEY, "QKEY"},
      {IBV_QP_AV, "AV"},
      {IBV_QP_PATH_MTU, "PATH_MTU"},
      {IBV_QP_TIMEOUT, "TIMEOUT"},
      {IBV_QP_RETRY_CNT, "RETRY_CNT"},
      {IBV_QP_RNR_RETRY, "RNR_RETRY"},
      {IBV_QP_RQ_PSN, "RQ_PSN"},
      {IBV_QP_MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"},
      {IBV_QP_ALT_PATH, "ALT_PATH"},
      {IBV_QP_MIN_RNR_TIMER, "MIN_RNR_TIMER"},
      {IBV_QP_SQ_PSN, "SQ_PSN"},
      {IBV_QP_MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"},
      {IBV_QP_PATH_MIG_STATE, "PATH_MIG_STATE"},
      {IBV_QP_CAP, "CAP"},
      {IBV_QP_DEST_QPN, "DEST_QPN"},
  }};
  std::string text;
  for (const auto& [bit, name] : kNames) {
    if ((mask & bit) == 0) continue;
    if (!text.empty()) text += ", ";
    text += name;
    mask &= ~bit;
  }
  if (mask != 0) text += fmt::format("{}{:#x}", text.empty() ? "" : ", ", static_cast<unsigned>(mask));
  return text;
}

}  // namespace

const char* state_name(ibv_qp_state state) {
  switch (state) {
    case IBV_QPS_RESET:
      return "RESET";
    case IBV_QPS_INIT:
      return "INIT";
    case IBV_QPS_RTR:
      return "RTR";
    case IBV_QPS_RTS:
      return "RTS";
    case IBV_QPS_SQD:
      return "SQD";
    case IBV_QPS_SQE:
      return "SQE";
    case IBV_QPS_ERR:
      return "ERR";
    default:
      return "unknown";
  }
}

std::string check_transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask) {
  const auto allowed = transition(type, from, to);
  if (!allowed) return fmt::format("a queue pair cannot go from {} to {}", state_name(from), state_name(to));
  if (const int missing = allowed->required & ~mask; missing != 0) {
    return fmt::format("{} to {} needs {}", state_name(from), state_name(to), attribute_names(missing));
  }
  if (const int extra = mask & ~(allowed->required | allowed->optional | IBV_QP_STATE); extra != 0) {
    return fmt::format("{} to {} does not take {}", state_name(from), state_name(to), attribute_names(extra));
  }
  return {};
}

}  // namespace qpair::softnic::nic
