#pragma once
// The status of a work completion that an error CQE stands for. C++17, header-only; compiles under nvcc.
// Fact: rdma-core providers/mlx5/cq.c, mlx5_handle_error_cqe().

#include <infiniband/verbs.h>

#include "qpair/mlx5/cqe.hpp"

namespace qpair::mlx5 {

// IBV_WC_GENERAL_ERR for a syndrome that Syndrome does not name.
constexpr ibv_wc_status status_of(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::LocalLength:
      return IBV_WC_LOC_LEN_ERR;
    case Syndrome::LocalQpOperation:
      return IBV_WC_LOC_QP_OP_ERR;
    case Syndrome::LocalProtection:
      return IBV_WC_LOC_PROT_ERR;
    case Syndrome::WorkRequestFlushed:
      return IBV_WC_WR_FLUSH_ERR;
    case Syndrome::MemoryWindowBind:
      return IBV_WC_MW_BIND_ERR;
    case Syndrome::BadResponse:
      return IBV_WC_BAD_RESP_ERR;
    case Syndrome::LocalAccess:
      return IBV_WC_LOC_ACCESS_ERR;
    case Syndrome::RemoteInvalidRequest:
      return IBV_WC_REM_INV_REQ_ERR;
    case Syndrome::RemoteAccess:
      return IBV_WC_REM_ACCESS_ERR;
    case Syndrome::RemoteOperation:
      return IBV_WC_REM_OP_ERR;
    case Syndrome::TransportRetryExceeded:
      return IBV_WC_RETRY_EXC_ERR;
    case Syndrome::RnrRetryExceeded:
      return IBV_WC_RNR_RETRY_EXC_ERR;
    case Syndrome::RemoteAborted:
      return IBV_WC_REM_ABORT_ERR;
  }
  return IBV_WC_GENERAL_ERR;
}

}  // namespace qpair::mlx5
