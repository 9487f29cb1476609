#pragma once
// What became of a work request.

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "qpair/print.hpp"

namespace qpair {

class Error;

// Names one operation of one queue pair: what put(), get(), recv() and the others return and what the
// completion carries. Send-side and receive-side operations are numbered apart, each from 0 upwards, and a
// number is never used twice during the life of the queue pair, not even after reset().
enum class WrId : std::uint64_t {};

// Which completion queue to poll. Both: the two take turns, so that neither starves the other; a caller that
// needs to know which one answered asks IbvWc::is_receive().
enum class PollTarget : std::uint8_t { Send, Recv, Both };

// Whether an operation reports its completion. An operation without a signal is never returned by a poll
// while it succeeds; the room that it took in the send queue is given back when a later operation completes.
// (When a program posts nothing but unsignaled work, qpair asks the NIC for a completion twice in each round
// of the queue and swallows it, so polling always makes room for half of the queue. What needs more room than
// that, at once, needs a signaled operation before it.) An operation that fails is always reported.
enum class Signal : std::uint8_t { No, Yes };

// One completion. Plain value; the fields are those of ibv_wc, in host byte order.
struct IbvWc {
  WrId wr_id{};
  ibv_wc_status status = IBV_WC_SUCCESS;
  ibv_wc_opcode opcode = IBV_WC_SEND;  // receive side: has the bit IBV_WC_RECV, also when status is a failure
  // Bytes received, read or written back. At the side that posted: of the whole operation, were it split or
  // not. At the side that receives: of the message that completes the receive, which for a put_with_recv()
  // that was split is the last of them.
  std::uint64_t byte_len = 0;
  std::uint32_t vendor_err = 0;  // the device's own reason for a failure: 0x88 remote access, 0x81 retries, …
  std::uint32_t imm_data = 0;    // valid if has_imm(); host order: the number given to put_with_recv()
  std::uint32_t qp_num = 0;
  std::uint32_t src_qp = 0;
  std::uint32_t wc_flags = 0;  // enum ibv_wc_flags
  std::uint16_t pkey_index = 0;
  std::uint16_t slid = 0;
  std::uint8_t sl = 0;
  std::uint8_t dlid_path_bits = 0;

  // The work request did what it was asked.
  [[nodiscard]] bool is_valid() const { return status == IBV_WC_SUCCESS; }
  [[nodiscard]] bool is_receive() const { return (static_cast<unsigned>(opcode) & IBV_WC_RECV) != 0; }
  [[nodiscard]] bool has_imm() const { return (wc_flags & IBV_WC_WITH_IMM) != 0; }
  // Nothing for a success. (Include qpair/error.hpp, or this header, for the complete type.)
  [[nodiscard]] std::optional<Error> error() const;

  friend bool operator==(const IbvWc&, const IbvWc&) = default;
};
static_assert(std::is_trivially_copyable_v<IbvWc>);

// "remote access error": the sentence that ibv_wc_status_str() would start.
[[nodiscard]] std::string_view status_name(ibv_wc_status status);
// "RDMA write", "receive", …
[[nodiscard]] std::string_view opcode_name(ibv_wc_opcode opcode);

[[nodiscard]] std::string to_string(WrId id);
[[nodiscard]] std::string to_string(PollTarget target);
[[nodiscard]] std::string to_string(Signal signal);
[[nodiscard]] std::string to_string(const IbvWc& wc);

}  // namespace qpair

#include "qpair/error.hpp"  // IWYU pragma: export (completes IbvWc::error)
