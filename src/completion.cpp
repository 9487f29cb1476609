#include "qpair/completion.hpp"

#include <fmt/format.h>

#include "qpair/error.hpp"

namespace qpair {

std::optional<Error> IbvWc::error() const {
  if (is_valid()) return {};
  return Error(*this);
}

std::string_view status_name(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      return "local length error";
    case IBV_WC_LOC_QP_OP_ERR:
      return "local queue pair operation error";
    case IBV_WC_LOC_EEC_OP_ERR:
      return "local EE context operation error";
    case IBV_WC_LOC_PROT_ERR:
      return "local protection error";
    case IBV_WC_WR_FLUSH_ERR:
      return "flushed";
    case IBV_WC_MW_BIND_ERR:
      return "memory window bind error";
    case IBV_WC_BAD_RESP_ERR:
      return "bad response";
    case IBV_WC_LOC_ACCESS_ERR:
      return "local access error";
    case IBV_WC_REM_INV_REQ_ERR:
      return "remote invalid request error";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_REM_OP_ERR:
      return "remote operation error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retries exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "receiver-not-ready retries exceeded";
    case IBV_WC_REM_ABORT_ERR:
      return "remote aborted";
    case IBV_WC_FATAL_ERR:
      return "fatal error";
    case IBV_WC_RESP_TIMEOUT_ERR:
      return "response timeout";
    default:
      return "general error";
  }
}

std::string_view opcode_name(ibv_wc_opcode opcode) {
  switch (opcode) {
    case IBV_WC_SEND:
      return "send";
    case IBV_WC_RDMA_WRITE:
      return "RDMA write";
    case IBV_WC_RDMA_READ:
      return "RDMA read";
    case IBV_WC_COMP_SWAP:
      return "compare-and-swap";
    case IBV_WC_FETCH_ADD:
      return "fetch-and-add";
    case IBV_WC_RECV:
      return "receive";
    case IBV_WC_RECV_RDMA_WITH_IMM:
      return "receive of RDMA write with immediate";
    default:
      return "operation";
  }
}

std::string to_string(WrId id) {
  return fmt::format("{}", static_cast<std::uint64_t>(id));
}

std::string to_string(PollTarget target) {
  switch (target) {
    case PollTarget::Send:
      return "Send";
    case PollTarget::Recv:
      return "Recv";
    case PollTarget::Both:
      return "Both";
  }
  return fmt::format("PollTarget({})", static_cast<unsigned>(target));
}

std::string to_string(Signal signal) {
  return signal == Signal::No ? "No" : "Yes";
}

std::string to_string(const IbvWc& wc) {
  std::string text = fmt::format("{} {}: {}", opcode_name(wc.opcode), wc.wr_id, status_name(wc.status));
  if (!wc.is_valid()) {
    text += fmt::format(", vendor error {:#x}", wc.vendor_err);
  } else if (wc.byte_len != 0 || wc.is_receive()) {
    text += fmt::format(", {} bytes", wc.byte_len);
  }
  if (wc.has_imm()) text += fmt::format(", immediate {:#x}", wc.imm_data);
  return text + fmt::format(", queue pair {:#x}", wc.qp_num);
}

}  // namespace qpair
