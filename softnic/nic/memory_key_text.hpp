#pragma once
// Words for memory keys, shared by the sentences about them.

#include <cstdint>
#include <string>
#include <string_view>

#include "softnic/nic/memory_key.hpp"
#include "softnic/roce/host.hpp"

namespace qpair::softnic::nic {

// "[0x1000, 0x2000) (4096 bytes)"
std::string range_text(std::uint64_t first, std::uint64_t length);
// What a key covers, and who registered it if that is known.
std::string extent_text(const MrParameters& region);
// "local read, local write", of ibv_access_flags.
std::string rights_text(int access);
// "memory region", "type 2 memory window" …
std::string_view kind_text(KeyKind kind);

int right_of(roce::RemoteAccess access);                   // enum ibv_access_flags
std::string_view right_text(roce::RemoteAccess access);    // "remote write"
std::string_view request_text(roce::RemoteAccess access);  // "RDMA WRITE"

}  // namespace qpair::softnic::nic
