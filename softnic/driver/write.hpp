#pragma once
// The envelope of a command that comes by write().

#include <sys/types.h>

#include <cstddef>

#include "softnic/driver/context.hpp"

namespace qpair::softnic::driver {

ssize_t write_command(Context& context, const void* bytes, std::size_t size);

}  // namespace qpair::softnic::driver
