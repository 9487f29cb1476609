#include "src/datapath/mlx5_wc.hpp"

#include "qpair/mlx5/status.hpp"
#include "src/datapath/work.hpp"

namespace qpair::detail {

namespace {

using mlx5::CqeOpcode;
using mlx5::Opcode;

// rdma-core providers/mlx5/cq.c, handle_good_req(): the opcode of the request stands in the CQE.
ibv_wc_opcode opcode_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::RdmaWrite:
    case Opcode::RdmaWriteImm:
      return IBV_WC_RDMA_WRITE;
    case Opcode::RdmaRead:
      return IBV_WC_RDMA_READ;
    case Opcode::AtomicCompareSwap:
      return IBV_WC_COMP_SWAP;
    case Opcode::AtomicFetchAdd:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

// Scatter to CQE is off: data that lies in the CQE would be lost without a word.
bool holds_data(const mlx5::Cqe64& cqe) {
  return (cqe.op_own & (mlx5::kInlineScatter32 | mlx5::kInlineScatter64)) != 0;
}

void describe_error(const mlx5::Cqe64& cqe, IbvWc& wc) {
  const auto& error = reinterpret_cast<const mlx5::ErrorCqe&>(cqe);
  wc.status = status_of(error.syndrome);
  wc.vendor_err = error.vendor_err;
}

}  // namespace

bool is_of_send_queue(const mlx5::Cqe64& cqe) {
  const CqeOpcode opcode = mlx5::cqe_opcode(cqe.op_own);
  return opcode == CqeOpcode::Request || opcode == CqeOpcode::RequestError;
}

void describe_send(const mlx5::Cqe64& cqe, std::uint64_t bytes, IbvWc& wc) {
  wc.wr_id = kNoOperation;
  wc.status = IBV_WC_GENERAL_ERR;
  if (!is_of_send_queue(cqe)) return;
  const auto request = static_cast<Opcode>(std::uint32_t{cqe.sop_drop_qpn} >> 24);
  wc.opcode = opcode_of(request);
  if (mlx5::cqe_opcode(cqe.op_own) == CqeOpcode::RequestError) {
    describe_error(cqe, wc);
    return;
  }
  if (holds_data(cqe)) return;
  wc.status = IBV_WC_SUCCESS;
  if (request == Opcode::RdmaRead) wc.byte_len = bytes != 0 ? bytes : std::uint64_t{cqe.byte_cnt};
  if (is_atomic(request)) wc.byte_len = 8;
}

void describe_receive(const mlx5::Cqe64& cqe, IbvWc& wc) {
  wc.wr_id = kNoOperation;
  wc.opcode = IBV_WC_RECV;
  wc.status = IBV_WC_GENERAL_ERR;
  if (is_of_send_queue(cqe)) return;
  const CqeOpcode opcode = mlx5::cqe_opcode(cqe.op_own);
  if (opcode == CqeOpcode::ResponderError) {
    describe_error(cqe, wc);
    return;
  }
  if (holds_data(cqe)) return;
  switch (opcode) {
    case CqeOpcode::ResponderWriteImm:
      wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
      wc.wc_flags = IBV_WC_WITH_IMM;
      break;
    case CqeOpcode::ResponderSendImm:
      wc.wc_flags = IBV_WC_WITH_IMM;
      break;
    case CqeOpcode::ResponderSendInvalidate:
      wc.wc_flags = IBV_WC_WITH_INV;
      break;
    case CqeOpcode::ResponderSend:
      break;
    default:
      return;  // an opcode that no receive queue has
  }
  wc.status = IBV_WC_SUCCESS;
  wc.byte_len = cqe.byte_cnt;
  if (wc.wc_flags != 0) wc.imm_data = cqe.imm_inval_pkey;
  const std::uint32_t flags_rqpn = cqe.flags_rqpn;
  wc.src_qp = flags_rqpn & 0xffffff;
  wc.sl = (flags_rqpn >> 24) & 0xf;
  if (((flags_rqpn >> 28) & 3) != 0) wc.wc_flags |= IBV_WC_GRH;
  wc.slid = cqe.slid;
  wc.dlid_path_bits = cqe.ml_path & 0x7f;
}

}  // namespace qpair::detail
