#pragma once
// The commands of the legacy interface (struct ib_uverbs_* of rdma/ib_user_verbs.h). They come by write()
// (write.cpp) or, wrapped, by ioctl (INVOKE_WRITE in ioctl_methods.cpp): the same handlers serve both.

#include <cstddef>
#include <cstdint>

#include "softnic/driver/context.hpp"

namespace qpair::softnic::driver {

// One command, after its envelope was taken off.
struct WriteCall {
  UserBuffer in;   // struct ib_uverbs_<command>
  UserBuffer out;  // struct ib_uverbs_<command>_resp
  DriverData driver;
};

struct WriteMethod {
  std::size_t request_size = 0;  // what must at least be there
  std::size_t response_size = 0;
  bool has_driver_data = false;
  bool has_response = false;  // the request begins with the response's address
  bool extended = false;
  const char* name = nullptr;  // of what is not supported; the handler is null then
  int (*handler)(Context&, const WriteCall&) = nullptr;
};

// Null: `failure` says why, -EINVAL or -EOPNOTSUPP (uapi_get_method() in
// drivers/infiniband/core/rdma_core.h).
const WriteMethod* find_write_method(std::uint32_t command, int& failure);

// The handler, or the refusal of what the device does not do.
int run(const WriteMethod& method, Context& context, const WriteCall& call);

}  // namespace qpair::softnic::driver
