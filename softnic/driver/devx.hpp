#pragma once
// Commands of the device itself. 0, -EREMOTEIO with the device's own answer, or another negative errno.

#include <cstddef>
#include <cstdint>
#include <span>

#include "softnic/driver/context.hpp"

namespace qpair::softnic::driver {

struct DevxCommand {
  std::span<const std::byte> in;
  std::span<std::byte> out;  // zeroed
};

int devx_general(const Context& context, const DevxCommand& command);
// The handle of what was made.
Outcome<std::uint32_t> devx_create(Context& context, const DevxCommand& command);
int devx_modify(const Context& context, const Object& object, const DevxCommand& command);

}  // namespace qpair::softnic::driver
