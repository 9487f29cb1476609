#pragma once
// Which counters an error completion counts in. A ConnectX counts flushed work requests among the errors too.

#include "qpair/mlx5/cqe.hpp"
#include "softnic/observe/counters.hpp"

namespace qpair::softnic::nic {

inline void count_send_error(observe::Counters& counters, mlx5::Syndrome syndrome) {
  ++counters.req_cqe_error;
  switch (syndrome) {
    case mlx5::Syndrome::WorkRequestFlushed:
      ++counters.req_cqe_flush_error;
      break;
    case mlx5::Syndrome::RemoteAccess:
      ++counters.req_remote_access_errors;
      break;
    case mlx5::Syndrome::RemoteInvalidRequest:
      ++counters.req_remote_invalid_request;
      break;
    case mlx5::Syndrome::TransportRetryExceeded:
      ++counters.req_transport_retries_exceeded;
      break;
    case mlx5::Syndrome::RnrRetryExceeded:
      ++counters.req_rnr_retries_exceeded;
      break;
    default:
      break;
  }
}

inline void count_receive_error(observe::Counters& counters, mlx5::Syndrome syndrome) {
  ++counters.resp_cqe_error;
  if (syndrome == mlx5::Syndrome::WorkRequestFlushed) ++counters.resp_cqe_flush_error;
  if (syndrome == mlx5::Syndrome::LocalLength) ++counters.resp_local_length_error;
}

}  // namespace qpair::softnic::nic
