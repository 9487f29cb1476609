#include "softnic/nic/memory_key_text.hpp"

#include <fmt/format.h>
#include <infiniband/verbs.h>

namespace qpair::softnic::nic {

using roce::RemoteAccess;

std::string extent_text(const MrParameters& region) {
  if (region.registered_by == nullptr) return range_text(region.iova, region.length);
  return fmt::format("[{:#x}, {:#x}) ({} bytes, registered by {})", region.iova, region.iova + region.length,
                     region.length, region.registered_by);
}

std::string range_text(std::uint64_t first, std::uint64_t length) {
  return fmt::format("[{:#x}, {:#x}) ({} bytes)", first, first + length, length);
}

std::string rights_text(int access) {
  std::string text = "local read";
  if ((access & IBV_ACCESS_LOCAL_WRITE) != 0) text += ", local write";
  if ((access & IBV_ACCESS_REMOTE_WRITE) != 0) text += ", remote write";
  if ((access & IBV_ACCESS_REMOTE_READ) != 0) text += ", remote read";
  if ((access & IBV_ACCESS_REMOTE_ATOMIC) != 0) text += ", remote atomic";
  if ((access & IBV_ACCESS_MW_BIND) != 0) text += ", window bind";
  return text;
}

std::string_view kind_text(KeyKind kind) {
  switch (kind) {
    case KeyKind::Region:
      return "memory region";
    case KeyKind::Window1:
      return "type 1 memory window";
    case KeyKind::Window2:
      return "type 2 memory window";
    case KeyKind::Indirect:
      return "indirect memory key";
    case KeyKind::Null:
      return "null memory region";
  }
  return "memory key";
}

int right_of(RemoteAccess access) {
  switch (access) {
    case RemoteAccess::Write:
      return IBV_ACCESS_REMOTE_WRITE;
    case RemoteAccess::Read:
      return IBV_ACCESS_REMOTE_READ;
    case RemoteAccess::Atomic:
      return IBV_ACCESS_REMOTE_ATOMIC;
  }
  return 0;
}

std::string_view right_text(RemoteAccess access) {
  switch (access) {
    case RemoteAccess::Write:
      return "remote write";
    case RemoteAccess::Read:
      return "remote read";
    case RemoteAccess::Atomic:
      return "remote atomic";
  }
  return "remote";
}

std::string_view request_text(RemoteAccess access) {
  switch (access) {
    case RemoteAccess::Write:
      return "RDMA WRITE";
    case RemoteAccess::Read:
      return "RDMA READ";
    case RemoteAccess::Atomic:
      return "atomic";
  }
  return "request";
}

}  // namespace qpair::softnic::nic
