#include "qpair/detail/data_path.hpp"

#include "src/datapath/work.hpp"

namespace qpair::detail {

// The way around for what the inlined path does not do.

namespace {

Work inline_put(std::span<const std::byte> data, const RdmaBuffer& remote, Signal signal) {
  Work work;
  work.opcode = mlx5::Opcode::RdmaWrite;
  work.inline_data = data;
  work.is_inline = true;
  work.remote = &remote;
  work.signal = signal;
  return work;
}

}  // namespace

const Mlx5CqRing& DataPath::no_completions() {
  static mlx5::be32 record[2]{};
  static mlx5::Cqe64 cqe = [] {
    mlx5::Cqe64 invalid{};
    invalid.op_own = static_cast<std::uint8_t>(static_cast<unsigned>(mlx5::CqeOpcode::Invalid) << 4);
    return invalid;
  }();
  static const Mlx5CqRing ring{reinterpret_cast<std::byte*>(&cqe), 1, sizeof cqe, record, nullptr, 0};
  return ring;
}

Result<WrId> DataPath::enqueue_one(mlx5::Opcode opcode, const RdmaBuffer& local, const RdmaBuffer& remote,
                                   Signal signal) {
  return enqueue(transfer(opcode, {&local, 1}, remote, signal));
}

Result<WrId> DataPath::enqueue_bytes(std::span<const std::byte> data, const RdmaBuffer& remote,
                                     Signal signal) {
  return enqueue(inline_put(data, remote, signal));
}

Result<WrId> DataPath::post_one(mlx5::Opcode opcode, const RdmaBuffer& local, const RdmaBuffer& remote,
                                Signal signal) {
  return post(transfer(opcode, {&local, 1}, remote, signal));
}

Result<WrId> DataPath::post_bytes(std::span<const std::byte> data, const RdmaBuffer& remote, Signal signal) {
  return post(inline_put(data, remote, signal));
}

}  // namespace qpair::detail
