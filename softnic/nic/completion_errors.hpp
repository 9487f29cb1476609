#pragma once
// Every (status, vendor_err) that a failed work request can complete with here. docs/errors.md explains each,
// and tests/integration/errors.cpp provokes each that a program can provoke; a completion with another pair
// is a mistake of ours.

#include <algorithm>
#include <array>
#include <cstdint>

#include "qpair/mlx5/cqe.hpp"

namespace qpair::softnic::nic {

enum class CompletionSide : std::uint8_t { Send, Receive };

struct CompletionError {
  CompletionSide side;
  mlx5::Syndrome syndrome;
  std::uint8_t vendor_err;

  friend constexpr bool operator==(const CompletionError&, const CompletionError&) = default;
};

inline constexpr std::array kCompletionErrors{
    CompletionError{CompletionSide::Send, mlx5::Syndrome::LocalLength, 0x00},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::LocalLength, 0x68},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::LocalQpOperation, 0x00},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::LocalQpOperation, 0x68},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::LocalProtection, 0x51},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::LocalProtection, 0x52},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::LocalProtection, 0x53},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::WorkRequestFlushed, 0xf9},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::MemoryWindowBind, 0x78},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::BadResponse, 0x00},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::RemoteInvalidRequest, 0x8a},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::RemoteAccess, 0x88},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::RemoteOperation, 0x89},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::TransportRetryExceeded, 0x81},
    CompletionError{CompletionSide::Send, mlx5::Syndrome::RnrRetryExceeded, 0x87},
    CompletionError{CompletionSide::Receive, mlx5::Syndrome::LocalLength, 0x69},
    CompletionError{CompletionSide::Receive, mlx5::Syndrome::LocalQpOperation, 0x00},
    CompletionError{CompletionSide::Receive, mlx5::Syndrome::LocalQpOperation, 0x68},
    CompletionError{CompletionSide::Receive, mlx5::Syndrome::LocalProtection, 0x51},
    CompletionError{CompletionSide::Receive, mlx5::Syndrome::LocalProtection, 0x52},
    CompletionError{CompletionSide::Receive, mlx5::Syndrome::LocalProtection, 0x53},
    CompletionError{CompletionSide::Receive, mlx5::Syndrome::WorkRequestFlushed, 0xf9},
    CompletionError{CompletionSide::Receive, mlx5::Syndrome::LocalAccess, 0x88},
    CompletionError{CompletionSide::Receive, mlx5::Syndrome::LocalAccess, 0x89},
};

constexpr bool is_known(const CompletionError& error) {
  return std::ranges::find(kCompletionErrors, error) != kCompletionErrors.end();
}

}  // namespace qpair::softnic::nic
