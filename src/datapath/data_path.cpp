#include "qpair/detail/data_path.hpp"

namespace qpair::detail {

// The way around for what the fast path does not do.

Result<WrId> DataPath::enqueue_one(mlx5::Opcode opcode, const RdmaBuffer& local, const RdmaBuffer& remote,
                                   Signal signal) {
  Work work;
  work.opcode = opcode;
  work.local = {&local, 1};
  work.remote = &remote;
  work.signal = signal;
  return enqueue(work);
}

Result<WrId> DataPath::post_one(mlx5::Opcode opcode, const RdmaBuffer& local, const RdmaBuffer& remote,
                                Signal signal) {
  Work work;
  work.opcode = opcode;
  work.local = {&local, 1};
  work.remote = &remote;
  work.signal = signal;
  return post(work);
}

}  // namespace qpair::detail
