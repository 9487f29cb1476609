#pragma once
// The link of one emulated NIC, as its options ask for: loopback in memory for packets to itself, shared
// memory for the other NICs of this user on this host, RoCEv2 over UDP for everybody else, and around them
// the capture and the fault injector where they are wanted.

#include <cstddef>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "softnic/config.hpp"
#include "softnic/wire/link.hpp"
#include "softnic/wire/shared_memory_link.hpp"

namespace qpair::softnic::wire {

struct MadeLink {
  std::unique_ptr<Link> link;
  // Part of it, for copies without packets. Null where there is none, or where every byte is to travel in a
  // packet: with faults, with a capture, or because the options say so.
  SharedMemoryLink* host = nullptr;
};

// Claims the address. `shown`: bytes that this NIC shows to others of this host. The error is a sentence that
// says what to change.
tl::expected<MadeLink, std::string> make_link(const NicConfig& config, std::size_t shown);

}  // namespace qpair::softnic::wire
