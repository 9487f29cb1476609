#pragma once
// Why something failed: a code to switch on and a sentence to read.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "qpair/completion.hpp"
#include "qpair/print.hpp"

namespace qpair {

enum class ErrorCode : std::uint8_t {
  invalid_argument,          // what was asked can never be done; nothing was posted
  no_device,                 // no RDMA device, or none of that name
  unsupported,               // the device or the kernel cannot do this
  queue_full,                // poll completions, then ask again; nothing was written
  not_connected,             // connect() first
  out_of_resources,          // memory, memlock limit, or objects of the device
  remote_access,             // the remote side refused: key, range, rights, or the request itself
  local_protection,          // a local key, range or right is wrong
  length,                    // the message does not fit where it should go
  receiver_not_ready,        // no receive was posted at the other side for too long
  transport_retry_exceeded,  // the other side does not answer
  flushed,                   // an earlier failure took this operation with it
  foreign_process,           // the queue pair lives in another process, or is gone
  corrupt_message,           // bytes from outside do not parse
  system,                    // anything else; system_errno() may say more
};

// A value. Making one on the data path neither allocates nor formats: it holds a static text with places for
// numbers, and the sentence is composed when message() is called. Copying is cheap.
class Error {
 public:
  // With a text made up at run time; for the control path. What errno means is put behind it.
  static Error make(ErrorCode code, std::string message, int system_errno = 0);
  // With a static text, in fmt's syntax, and up to four numbers to put in. `text` must live for ever: a
  // literal.
  static constexpr std::size_t kNumbers = 4;
  Error(ErrorCode code, const char* text, std::array<std::uint64_t, kNumbers> numbers = {}) noexcept
      : code_(code), text_(text), numbers_(numbers) {}
  // The failure that a completion reports. `wc.status` is not IBV_WC_SUCCESS.
  explicit Error(const IbvWc& wc) noexcept;

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  // errno of the call that failed, or 0.
  [[nodiscard]] int system_errno() const noexcept { return errno_; }
  // The completion of the failed work request, if that is what failed.
  [[nodiscard]] const std::optional<IbvWc>& wc() const noexcept { return wc_; }
  // The device's own reason, or 0.
  [[nodiscard]] std::uint32_t vendor_err() const noexcept { return wc_ ? wc_->vendor_err : 0; }
  // What was asked, what is allowed and what to do. One line, no final newline. Of a failed work request:
  // also the reason in the device's own words, where the device keeps any, as the emulated NIC does (the last
  // 64 failures of the process): with the keys, ranges and rights, and the remote side's reason if it was
  // that side that refused. It is looked up when message() is called, not on the data path, and is there also
  // when the queue pair is gone; should a queue pair have failed twice in the same way, with a reset() in
  // between, it is that of the later time. within() keeps the message as it is then.
  [[nodiscard]] std::string message() const;

  // The same error with "context: " put before the message.
  [[nodiscard]] Error within(std::string_view context) const;

 private:
  ErrorCode code_;
  int errno_ = 0;
  const char* text_ = "";
  std::array<std::uint64_t, kNumbers> numbers_{};
  std::shared_ptr<const std::string> owned_;  // instead of text_
  std::optional<IbvWc> wc_;
};

// "queue_full", …: stable names, as in the enumeration.
[[nodiscard]] std::string_view name_of(ErrorCode code);
[[nodiscard]] std::string to_string(ErrorCode code);
// "queue_full: the send queue …"
[[nodiscard]] std::string to_string(const Error& error);

}  // namespace qpair
