#pragma once
// What a CQE of an mlx5 device says, as an IbvWc.

#include <cstdint>

#include "qpair/completion.hpp"
#include "qpair/mlx5/cqe.hpp"
#include "qpair/mlx5/wqe.hpp"

namespace qpair::detail {

inline constexpr WrId kNoOperation{~std::uint64_t{0}};

// Of the send side: everything but wr_id, which is kNoOperation. A CQE that no send queue has is a general
// error. `bytes`: of the whole operation, or 0 where the CQE knows it.
void describe_send(const mlx5::Cqe64& cqe, std::uint64_t bytes, IbvWc& wc);
// Likewise of the receive side.
void describe_receive(const mlx5::Cqe64& cqe, IbvWc& wc);

[[nodiscard]] bool is_of_send_queue(const mlx5::Cqe64& cqe);

}  // namespace qpair::detail
