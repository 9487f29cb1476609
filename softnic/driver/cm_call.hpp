#pragma once
// One command of rdma_cm on its way to its handler, and all handlers. They answer 0 or a negative errno.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "softnic/driver/cm_file.hpp"
#include "softnic/driver/user_memory.hpp"

namespace qpair::softnic::driver {

// What was asked, as far as the command has it; older programs do not know the last fields.
struct CmCall {
  CmFile& file;
  UserBuffer in;
  std::size_t room;

  template <typename Command>
  int get(Command& command) const {
    return copy_from_user(&command, in.address, sizeof command) ? 0 : -EFAULT;
  }
  template <typename Command>
  int get(Command& command, std::size_t least) const {
    if (in.size < least) return -EINVAL;
    return copy_from_user(&command, in.address, std::min(in.size, sizeof command)) ? 0 : -EFAULT;
  }
  template <typename Answer>
  int put(std::uint64_t to, const Answer& answer) const {
    return copy_to_user(to, &answer, sizeof answer) ? 0 : -EFAULT;
  }
};

// An identifier without a device can do none of what follows (ucma_get_ctx_dev()).
template <typename Use>
int with_device(CmFile& file, std::uint32_t number, const Use& use) {
  return file.with_id(number, [&](CmContext& context, wire::TimePoint now) {
    return context.id->has_device() ? use(context, now) : -EINVAL;
  });
}

// rdma_bind_addr(). `shown`: other processes learn of the port.
int bind_to(CmFile& file, std::uint32_t number, const cm::Address& address, bool shown);

namespace cm_commands {
int create_id(const CmCall& call);
int destroy_id(const CmCall& call);
int bind_ip(const CmCall& call);
int bind(const CmCall& call);
int resolve_ip(const CmCall& call);
int resolve_addr(const CmCall& call);
int resolve_route(const CmCall& call);
int connect(const CmCall& call);
int listen(const CmCall& call);
int accept(const CmCall& call);
int reject(const CmCall& call);
int disconnect(const CmCall& call);
int init_qp_attr(const CmCall& call);
int notify(const CmCall& call);
int get_event(const CmCall& call);
int migrate_id(const CmCall& call);
int set_option(const CmCall& call);
int join_ip_mcast(const CmCall& call);
int join_mcast(const CmCall& call);
int leave_mcast(const CmCall& call);
int query_route(const CmCall& call);
int query(const CmCall& call);
}  // namespace cm_commands

}  // namespace qpair::softnic::driver
