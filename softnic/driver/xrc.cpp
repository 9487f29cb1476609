// XRC domains. As ib_uverbs_open_xrcd() in the kernel's drivers/infiniband/core/uverbs_cmd.c.

#include <cerrno>

#include "softnic/driver/context.hpp"
#include "softnic/driver/system.hpp"

namespace qpair::softnic::driver {

Outcome<std::uint32_t> open_xrcd(Context& context, int fd, std::uint32_t flags) {
  std::optional<nic::FileIdentity> file;
  if (fd != -1) {
    file.emplace();
    if (system::identify(fd, file->device, file->inode) != 0) return tl::unexpected(-EBADF);
  }
  const auto xrcdn = context.nic->open_xrcd(file, static_cast<int>(flags));
  if (!xrcdn) return tl::unexpected(-xrcdn.error().value);
  const std::int64_t handle = context.handles.insert(std::make_unique<XrcdObject>(*xrcdn));
  if (handle < 0) {
    context.nic->close_xrcd(*xrcdn);
    return tl::unexpected(static_cast<int>(handle));
  }
  return static_cast<std::uint32_t>(handle);
}

}  // namespace qpair::softnic::driver
