#include "softnic/driver/ioctl.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "softnic/driver/event_file.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint16_t kMaxLength = 4096;  // PAGE_SIZE
constexpr std::uint32_t kDriverMlx5 = 1;    // RDMA_DRIVER_MLX5
constexpr std::size_t kInlineSize = sizeof(ib_uverbs_attr::data);

static_assert(sizeof(ib_uverbs_ioctl_hdr) == 24 && sizeof(ib_uverbs_attr) == 16);

bool is_inline(const ib_uverbs_attr& attribute) {
  return attribute.len <= kInlineSize;
}

// Input beyond what the method knows must be zero: a program of the future then learns that it is not
// understood.
Cleared trailing(const ib_uverbs_attr& attribute, std::size_t known) {
  if (!is_inline(attribute)) return is_cleared(attribute.data + known, attribute.len - known);
  std::uint8_t bytes[kInlineSize];
  std::memcpy(bytes, &attribute.data, sizeof bytes);
  const bool zero =
      std::all_of(bytes + known, bytes + attribute.len, [](std::uint8_t byte) { return byte == 0; });
  return zero ? Cleared::Yes : Cleared::No;
}

const MethodSpec* find_method(std::uint16_t object, std::uint16_t method) {
  for (const auto methods : {ioctl_methods(), memory_methods(), devx_methods()}) {
    const auto found = std::find_if(methods.begin(), methods.end(), [&](const MethodSpec& spec) {
      return spec.object == object && spec.method == method;
    });
    if (found != methods.end()) return &*found;
  }
  return nullptr;
}

}  // namespace

const IoctlCall::Slot* IoctlCall::find(std::uint16_t id) const {
  const auto* const end = slots_ + used_;
  const auto* const found = std::find_if(slots_, end, [&](const Slot& slot) { return slot.spec->id == id; });
  return found == end ? nullptr : found;
}

std::size_t IoctlCall::size_of(std::uint16_t id) const {
  const Slot* const slot = find(id);
  return slot == nullptr ? 0 : slot->attribute.len;
}

UserBuffer IoctlCall::buffer(std::uint16_t id) const {
  const Slot* const slot = find(id);
  if (slot == nullptr) return {};
  if (slot->spec->type == AttributeType::In && is_inline(slot->attribute)) {
    return {.address = slot->user_address + offsetof(ib_uverbs_attr, data), .size = slot->attribute.len};
  }
  return {.address = slot->attribute.data, .size = slot->attribute.len};
}

int IoctlCall::get_or_zero(std::uint16_t id, void* value, std::size_t size) const {
  const Slot* const slot = find(id);
  if (slot == nullptr) return -ENOENT;
  const std::size_t part = std::min<std::size_t>(size, slot->attribute.len);
  std::memset(value, 0, size);
  if (is_inline(slot->attribute)) {
    std::memcpy(value, &slot->attribute.data, part);
    return 0;
  }
  return copy_from_user(value, slot->attribute.data, part) ? 0 : -EFAULT;
}

int IoctlCall::get_bytes(std::uint16_t id, void* value, std::size_t size) const {
  const Slot* const slot = find(id);
  if (slot == nullptr) return -ENOENT;
  return size < slot->attribute.len ? -EINVAL : get_or_zero(id, value, size);
}

int IoctlCall::get_flags(std::uint16_t id, std::uint32_t allowed, std::uint32_t& flags) const {
  flags = 0;
  const Slot* const slot = find(id);
  if (slot == nullptr) return 0;
  std::uint64_t value = 0;
  if (slot->attribute.len != 4 && slot->attribute.len != 8) return -EINVAL;
  std::memcpy(&value, &slot->attribute.data, slot->attribute.len);
  if ((value & ~std::uint64_t{allowed}) != 0) return -EINVAL;
  flags = static_cast<std::uint32_t>(value);
  return 0;
}

std::uint64_t IoctlCall::constant(std::uint16_t id) const {
  const Slot* const slot = find(id);
  return slot == nullptr ? 0 : slot->attribute.data;
}

std::int64_t IoctlCall::descriptor(std::uint16_t id) const {
  const Slot* const slot = find(id);
  return slot == nullptr ? -1 : slot->attribute.data_s64;
}

Object* IoctlCall::object_of(std::uint16_t id) const {
  const Slot* const slot = find(id);
  return slot == nullptr ? nullptr : slot->object;
}

int IoctlCall::mark_written(std::uint16_t id) {
  Slot* const slot = const_cast<Slot*>(find(id));  // the slots are this object's
  if (slot == nullptr) return 0;
  slot->attribute.flags |= UVERBS_ATTR_F_VALID_OUTPUT;
  const std::uint64_t at = slot->user_address + offsetof(ib_uverbs_attr, flags);
  return copy_to_user(at, &slot->attribute.flags, sizeof slot->attribute.flags) ? 0 : -EFAULT;
}

int IoctlCall::put_bytes(std::uint16_t id, const void* value, std::size_t size) {
  const Slot* const slot = find(id);
  if (slot == nullptr) return 0;
  const std::size_t part = std::min<std::size_t>(size, slot->attribute.len);
  return copy_to_user(slot->attribute.data, value, part) ? mark_written(id) : -EFAULT;
}

int IoctlCall::put_struct(std::uint16_t id, const void* value, std::size_t size) {
  const Slot* const slot = find(id);
  if (slot == nullptr) return 0;
  const int failure = copy_out({.address = slot->attribute.data, .size = slot->attribute.len}, value, size);
  return failure != 0 ? failure : mark_written(id);
}

int IoctlCall::put_handle(std::uint16_t id, std::int64_t handle) {
  const Slot* const slot = find(id);
  if (slot == nullptr) return 0;
  const std::uint64_t at = slot->user_address + offsetof(ib_uverbs_attr, data);
  return copy_to_user(at, &handle, sizeof handle) ? 0 : -EFAULT;
}

DriverData IoctlCall::driver_data() const {
  return {.in = buffer(UVERBS_ATTR_UHW_IN), .out = buffer(UVERBS_ATTR_UHW_OUT)};
}

// uverbs_process_attr()
int IoctlCall::check(Slot& slot) const {
  const AttributeSpec& spec = *slot.spec;
  const ib_uverbs_attr& attribute = slot.attribute;
  switch (spec.type) {
    case AttributeType::In:
      if (attribute.len > spec.max_size && spec.zero_trailing) {
        const Cleared rest = trailing(attribute, spec.max_size);
        if (rest != Cleared::Yes) return rest == Cleared::Fault ? -EFAULT : -EOPNOTSUPP;
      }
      [[fallthrough]];
    case AttributeType::Out:
      if (attribute.len < spec.min_size || (!spec.zero_trailing && attribute.len > spec.max_size))
        return -EINVAL;
      return attribute.attr_data.reserved != 0 ? -EINVAL : 0;
    case AttributeType::Handle:
      if (attribute.attr_data.reserved != 0 || attribute.len != 0) return -EINVAL;
      if (spec.access == Access::New) return 0;
      if (attribute.data_s64 < 0) return -EINVAL;
      slot.object = context.handles.find(attribute.data);
      if (slot.object == nullptr) return -ENOENT;
      if (spec.object == kAnyObject) return 0;
      return static_cast<std::uint16_t>(slot.object->type) == spec.object ? 0 : -EINVAL;
    case AttributeType::Descriptor: {
      if (attribute.attr_data.reserved != 0 || attribute.len != 0) return -EINVAL;
      if (spec.access == Access::New) return 0;
      const EventKind kind =
          spec.object == UVERBS_OBJECT_COMP_CHANNEL ? EventKind::Completion : EventKind::Async;
      return find_event_queue(kind, &context, attribute.data_s64) ? 0 : -EBADF;
    }
  }
  return -EOPNOTSUPP;
}

// uverbs_set_attr()
int IoctlCall::accept(const MethodSpec& method, const ib_uverbs_attr& attribute, std::uint64_t user_address) {
  const auto known = std::find_if(method.attributes.begin(), method.attributes.end(),
                                  [&](const AttributeSpec& spec) { return spec.id == attribute.attr_id; });
  if (known == method.attributes.end()) {
    return (attribute.flags & UVERBS_ATTR_F_MANDATORY) != 0 ? -EPROTONOSUPPORT : 0;
  }
  if (has(attribute.attr_id)) return -EINVAL;
  Slot slot{.spec = &*known, .attribute = attribute, .user_address = user_address, .object = nullptr};
  if (const int failure = check(slot); failure != 0) return failure;
  slots_[used_++] = slot;  // no more than the method's attributes, each once
  return 0;
}

int IoctlCall::parse(const MethodSpec& method, std::uint64_t attributes, std::uint16_t count) {
  for (std::uint16_t i = 0; i < count; ++i) {
    const std::uint64_t at = attributes + std::uint64_t{i} * sizeof(ib_uverbs_attr);
    ib_uverbs_attr attribute{};
    if (!copy_from_user(&attribute, at, sizeof attribute)) return -EFAULT;
    if (const int failure = accept(method, attribute, at); failure != 0) return failure;
  }
  const bool complete =
      std::all_of(method.attributes.begin(), method.attributes.end(),
                  [&](const auto& spec) { return spec.need == Need::Optional || has(spec.id); });
  return complete ? 0 : -EINVAL;
}

int IoctlCall::destroy_named() {
  for (std::size_t i = 0; i < used_; ++i) {
    Slot& slot = slots_[i];
    if (slot.spec->type != AttributeType::Handle || slot.spec->access != Access::Destroy) continue;
    slot.object = nullptr;
    return destroy(context, static_cast<ObjectType>(slot.spec->object), slot.attribute.data, &reported);
  }
  return 0;
}

// ib_uverbs_ioctl() and ib_uverbs_cmd_verbs()
int ioctl_command(Context& context, std::uint64_t argument) {
  ib_uverbs_ioctl_hdr header;
  if (!copy_from_user(&header, argument, sizeof header)) return -EFAULT;
  if (header.length > kMaxLength ||
      header.length != sizeof header + std::size_t{header.num_attrs} * sizeof(ib_uverbs_attr)) {
    return -EINVAL;
  }
  if (header.reserved1 != 0 || header.reserved2 != 0) return -EPROTONOSUPPORT;
  if (header.driver_id != kDriverMlx5) return -EINVAL;
  const MethodSpec* const method = find_method(header.object_id, header.method_id);
  if (method == nullptr) return -EPROTONOSUPPORT;

  IoctlCall call(context);
  if (const int failure = call.parse(*method, argument + sizeof header, header.num_attrs); failure != 0) {
    return failure;
  }
  if (const int failure = call.destroy_named(); failure != 0) return failure;
  int failure = method->handler(call);
  // The driver's part of the answer counts as written whenever there was room for one.
  if (failure == 0) failure = call.mark_written(UVERBS_ATTR_UHW_OUT);
  return failure == -EPROTONOSUPPORT ? -EINVAL : failure;
}

}  // namespace qpair::softnic::driver
