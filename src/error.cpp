#include "qpair/error.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "src/device_reason.hpp"

namespace qpair {

namespace {

ErrorCode code_of(const IbvWc& wc) {
  switch (wc.status) {
    case IBV_WC_LOC_LEN_ERR:
      return ErrorCode::length;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return ErrorCode::local_protection;
    case IBV_WC_REM_INV_REQ_ERR:
      // For a send, what the other side finds invalid is nearly always that it is longer than the receive.
      return wc.opcode == IBV_WC_SEND ? ErrorCode::length : ErrorCode::remote_access;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_OP_ERR:
      return ErrorCode::remote_access;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return ErrorCode::receiver_not_ready;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return ErrorCode::transport_retry_exceeded;
    case IBV_WC_WR_FLUSH_ERR:
      return ErrorCode::flushed;
    default:
      return ErrorCode::system;
  }
}

// What it means and what to do about it.
std::string_view advice(const IbvWc& wc) {
  switch (wc.status) {
    case IBV_WC_LOC_LEN_ERR:
      return wc.is_receive() ? "the message is longer than the receive that was posted for it"
                             : "the operation is longer than the device allows in one message";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return "the local key does not cover the range or lacks local write; is the region still registered, "
             "on this "
             "domain?";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer refused: its region does not cover the range, lacks the right, or is not registered "
             "any more";
    case IBV_WC_REM_INV_REQ_ERR:
      return wc.opcode == IBV_WC_SEND
                 ? "the peer refused: its receive is too short for the message"
                 : "the peer refused the request: too long, misaligned, or not enabled there";
    case IBV_WC_REM_OP_ERR:
      return "the peer could not carry it out; its own completion or log says why";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer posted no receive in time; post receives earlier, or raise rnr_retry (7: wait for "
             "ever)";
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return "the peer does not answer: is it running, connected to this queue pair, and reachable?";
    case IBV_WC_WR_FLUSH_ERR:
      return "the queue pair is in the error state: an earlier operation failed; reset() and connect() again";
    default:
      return "reset() and connect() again";
  }
}

std::string describe(const IbvWc& wc) {
  std::string text =
      fmt::format("{} {} failed: {} (vendor error {:#x}): {}", opcode_name(wc.opcode),
                  static_cast<std::uint64_t>(wc.wr_id), status_name(wc.status), wc.vendor_err, advice(wc));
  if (const std::string reason = detail::device_reason(wc); !reason.empty()) {
    text += fmt::format("; the device says: {}", reason);
  }
  return text;
}

}  // namespace

Error Error::make(ErrorCode code, std::string message, int system_errno) {
  Error error(code, "");
  error.errno_ = system_errno;
  if (system_errno != 0) message += fmt::format(": {} (errno {})", std::strerror(system_errno), system_errno);
  error.owned_ = std::make_shared<const std::string>(std::move(message));
  return error;
}

Error::Error(const IbvWc& wc) noexcept : code_(code_of(wc)), wc_(wc) {}

std::string Error::message() const {
  std::string text;
  if (owned_) {
    text = *owned_;
  } else if (wc_) {
    text = describe(*wc_);
  } else {
    text = fmt::format(fmt::runtime(text_), numbers_[0], numbers_[1], numbers_[2], numbers_[3]);
  }
  return text;
}

Error Error::within(std::string_view context) const {
  Error error = *this;
  error.owned_ = std::make_shared<const std::string>(fmt::format("{}: {}", context, message()));
  return error;
}

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::no_device:
      return "no_device";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::queue_full:
      return "queue_full";
    case ErrorCode::not_connected:
      return "not_connected";
    case ErrorCode::out_of_resources:
      return "out_of_resources";
    case ErrorCode::remote_access:
      return "remote_access";
    case ErrorCode::local_protection:
      return "local_protection";
    case ErrorCode::length:
      return "length";
    case ErrorCode::receiver_not_ready:
      return "receiver_not_ready";
    case ErrorCode::transport_retry_exceeded:
      return "transport_retry_exceeded";
    case ErrorCode::flushed:
      return "flushed";
    case ErrorCode::foreign_process:
      return "foreign_process";
    case ErrorCode::corrupt_message:
      return "corrupt_message";
    case ErrorCode::system:
      return "system";
  }
  return "unknown";
}

std::string to_string(ErrorCode code) {
  return std::string(name_of(code));
}

std::string to_string(const Error& error) {
  return fmt::format("{}: {}", error.code(), error.message());
}

}  // namespace qpair
