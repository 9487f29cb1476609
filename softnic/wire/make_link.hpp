#pragma once
// The link of one emulated NIC, as its options ask for: loopback in memory for packets to itself, RoCEv2 over
// UDP for everybody else, and around both the capture and the fault injector where they are wanted.

#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "softnic/config.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::wire {

// Claims the address. The error is a sentence that says what to change.
tl::expected<std::unique_ptr<Link>, std::string> make_link(const NicConfig& config);

}  // namespace qpair::softnic::wire
