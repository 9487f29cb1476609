#pragma once
// Why a work request failed, in the device's own words, where the device has any.

#include <string>
#include <string_view>

#include "qpair/completion.hpp"

namespace qpair::detail {

// The reason of this failed completion, or empty. A device that can tell has an attribute "failures" in its
// sysfs directory; hardware has none, and then this is a handful of failed open() calls. Not for the data
// path.
std::string device_reason(const IbvWc& wc);

// The same from the attribute's text: one line for each failure, the latest first, of the form
//   QPN  "send" | "receive" | "queue-pair"  ibv_wc_status  vendor_err  "now" | "over"  sentence
// "over": from before the queue pair was last reset.
std::string reason_in(std::string_view failures, const IbvWc& wc);

}  // namespace qpair::detail
