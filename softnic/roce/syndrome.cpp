#include "softnic/roce/syndrome.hpp"

#include <array>

namespace qpair::softnic::roce {

using namespace std::chrono_literals;

std::chrono::nanoseconds rnr_delay(std::uint8_t timer) {
  // IBTA vol. 1 9.7.5.2.8, table 45.
  static constexpr std::array<std::chrono::nanoseconds, 32> kDelays = {
      655360us, 10us,    20us,    30us,     40us,     60us,     80us,     120us,    //
      160us,    240us,   320us,   480us,    640us,    960us,    1280us,   1920us,   //
      2560us,   3840us,  5120us,  7680us,   10240us,  15360us,  20480us,  30720us,  //
      40960us,  61440us, 81920us, 122880us, 163840us, 245760us, 327680us, 491520us,
  };
  return kDelays[timer & 31];
}

std::chrono::nanoseconds ack_timeout(std::uint8_t timeout) {
  return std::chrono::nanoseconds(std::int64_t{4096} << (timeout & 31));
}

std::string_view name(NakCode code) {
  switch (code) {
    case NakCode::SequenceError:
      return "PSN sequence error";
    case NakCode::InvalidRequest:
      return "invalid request";
    case NakCode::RemoteAccess:
      return "remote access error";
    case NakCode::RemoteOperation:
      return "remote operational error";
  }
  return "unknown error";
}

// Vendor error codes are not in a public manual; these are what ConnectX cards have been seen to report:
// - 0x81 retries exceeded: openucx/ucx issues 3679 and 6669 ("synd 0x15 vend 0x81")
// - 0x88 remote access: ofiwg/libfabric issue 4283 (CQE dump ...8813...)
// - 0x89 remote operational: openucx/ucx issue 10755 ("synd 0x14 vend 0x89")
// - 0x8a remote invalid request: charmplusplus/charm issue 2532, openucx/ucx issue 1770 (CQE dump ...8a12...)
// 0x87 (RNR retries exceeded) and 0x69 (receive too short) have no source that could be cited.
Refusal refusal_of(NakCode code, std::string reason) {
  switch (code) {
    case NakCode::InvalidRequest:
      return {mlx5::Syndrome::RemoteInvalidRequest, vendor_error::kRemoteInvalidRequest, std::move(reason)};
    case NakCode::RemoteAccess:
      return {mlx5::Syndrome::RemoteAccess, vendor_error::kRemoteAccess, std::move(reason)};
    case NakCode::RemoteOperation:
      return {mlx5::Syndrome::RemoteOperation, vendor_error::kRemoteOperation, std::move(reason)};
    case NakCode::SequenceError:
      break;
  }
  return {mlx5::Syndrome::TransportRetryExceeded, vendor_error::kRetryExceeded, std::move(reason)};
}

NakCode nak_for(const Refusal& why) {
  switch (why.syndrome) {
    case mlx5::Syndrome::RemoteAccess:
    case mlx5::Syndrome::LocalAccess:
    case mlx5::Syndrome::MemoryWindowBind:
      return NakCode::RemoteAccess;
    case mlx5::Syndrome::RemoteInvalidRequest:
    case mlx5::Syndrome::LocalLength:
      return NakCode::InvalidRequest;
    default:
      return NakCode::RemoteOperation;  // the responder's own trouble (IBTA vol. 1 9.7.5.2.6)
  }
}

}  // namespace qpair::softnic::roce
