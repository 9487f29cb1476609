#pragma once
// How methods of the ioctl interface declare their attributes, and what their handlers share.

#include <rdma/ib_user_ioctl_cmds.h>

#include <cstddef>
#include <cstdint>

#include "softnic/driver/ioctl.hpp"

namespace qpair::softnic::driver {

inline constexpr std::uint16_t kAnySize = 0xffff;

template <typename T>
constexpr AttributeSpec in(std::uint16_t id, Need need = Need::Mandatory) {
  return {.id = id, .type = AttributeType::In, .need = need, .min_size = sizeof(T), .max_size = sizeof(T)};
}

template <typename T>
constexpr AttributeSpec out(std::uint16_t id, Need need = Need::Mandatory) {
  return {.id = id, .type = AttributeType::Out, .need = need, .min_size = sizeof(T), .max_size = sizeof(T)};
}

template <typename T>
constexpr AttributeSpec in_struct(std::uint16_t id, std::size_t min_size) {
  return {.id = id,
          .type = AttributeType::In,
          .need = Need::Mandatory,
          .min_size = static_cast<std::uint16_t>(min_size),
          .max_size = sizeof(T),
          .zero_trailing = true};
}

template <typename T>
constexpr AttributeSpec out_struct(std::uint16_t id, std::size_t min_size) {
  AttributeSpec spec = in_struct<T>(id, min_size);
  spec.type = AttributeType::Out;
  return spec;
}

constexpr AttributeSpec in_bytes(std::uint16_t id, std::uint16_t min_size, Need need) {
  return {.id = id, .type = AttributeType::In, .need = need, .min_size = min_size, .max_size = kAnySize};
}

constexpr AttributeSpec out_bytes(std::uint16_t id, std::uint16_t min_size, Need need) {
  return {.id = id, .type = AttributeType::Out, .need = need, .min_size = min_size, .max_size = kAnySize};
}

constexpr AttributeSpec constant(std::uint16_t id) {
  return in<std::uint64_t>(id);
}

constexpr AttributeSpec flags(std::uint16_t id, Need need = Need::Optional) {
  return {.id = id, .type = AttributeType::In, .need = need, .min_size = 4, .max_size = 8};
}

constexpr AttributeSpec handle(std::uint16_t id, std::uint16_t object, Access access,
                               Need need = Need::Mandatory) {
  return {.id = id, .type = AttributeType::Handle, .need = need, .object = object, .access = access};
}

constexpr AttributeSpec descriptor(std::uint16_t id, std::uint16_t object, Access access,
                                   Need need = Need::Optional) {
  return {.id = id, .type = AttributeType::Descriptor, .need = need, .object = object, .access = access};
}

inline constexpr AttributeSpec kDriverIn = in_bytes(UVERBS_ATTR_UHW_IN, 0, Need::Optional);
inline constexpr AttributeSpec kDriverOut = out_bytes(UVERBS_ATTR_UHW_OUT, 0, Need::Optional);

// The first failure of several.
template <typename... Failures>
int first_of(Failures... failures) {
  int first = 0;
  static_cast<void>(((first = failures, first != 0) || ...));
  return first;
}

inline bool opened(const IoctlCall& call) {
  return call.context.opened;
}

// The object was destroyed before the handler ran, and there is nothing to say about it.
inline int destroyed(IoctlCall& /*call*/) {
  return 0;
}

}  // namespace qpair::softnic::driver
