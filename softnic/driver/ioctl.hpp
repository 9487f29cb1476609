#pragma once
// The ioctl interface: a header and a list of attributes, checked against what a method declares before the
// method runs. As drivers/infiniband/core/uverbs_ioctl.c in the kernel.

#include <rdma/rdma_user_ioctl_cmds.h>

#include <cstdint>
#include <span>

#include "softnic/driver/context.hpp"

namespace qpair::softnic::driver {

enum class AttributeType : std::uint8_t { In, Out, Handle, Descriptor };
enum class Access : std::uint8_t { Read, New, Destroy };
enum class Need : std::uint8_t { Mandatory, Optional };

struct AttributeSpec {
  std::uint16_t id;
  AttributeType type;
  Need need;
  std::uint16_t min_size = 0;  // In and Out
  std::uint16_t max_size = 0;
  bool zero_trailing = false;  // longer is allowed when what is beyond max_size is zero
  std::uint16_t object = 0;    // Handle and Descriptor
  Access access = Access::Read;
};

class IoctlCall;

struct MethodSpec {
  std::uint16_t object;
  std::uint16_t method;
  std::span<const AttributeSpec> attributes;
  int (*handler)(IoctlCall&);
};

std::span<const MethodSpec> ioctl_methods();   // ioctl_methods.cpp
std::span<const MethodSpec> memory_methods();  // ioctl_memory.cpp
std::span<const MethodSpec> devx_methods();    // ioctl_devx.cpp

inline constexpr std::uint16_t kAnyObject = 0xffff;  // a handle of whatever type
inline constexpr std::size_t kMaxSpecs = 18;         // of one method

// A method's attributes, as the handler sees them.
class IoctlCall {
 public:
  explicit IoctlCall(Context& context_) : context(context_) {}

  Context& context;

  bool has(std::uint16_t id) const { return find(id) != nullptr; }
  std::size_t size_of(std::uint16_t id) const;
  UserBuffer buffer(std::uint16_t id) const;  // of an Out or a long In; empty when it is not there

  // uverbs_copy_from(): exactly a T. uverbs_copy_from_or_zero(): as much as there is.
  template <typename T>
  int get(std::uint16_t id, T& value) const {
    return get_bytes(id, &value, sizeof value);
  }
  int get_or_zero(std::uint16_t id, void* value, std::size_t size) const;
  // uverbs_get_flags32(): 4 or 8 bytes, none but `allowed`; absent is 0.
  int get_flags(std::uint16_t id, std::uint32_t allowed, std::uint32_t& flags) const;
  std::uint64_t constant(std::uint16_t id) const;  // UVERBS_ATTR_CONST_IN
  std::int64_t descriptor(std::uint16_t id) const;

  // The object that a Handle names; it was checked to be one. Null when an optional one is absent.
  template <typename T>
  T* object(std::uint16_t id) const {
    return static_cast<T*>(object_of(id));
  }

  // What destroying the object told, for a method with a Destroy handle.
  EventRouter::Reported reported;

  // Nothing is written and 0 is answered when the program did not ask for it.
  template <typename T>
  int put(std::uint16_t id, const T& value) {
    return put_bytes(id, &value, sizeof value);
  }
  int put_bytes(std::uint16_t id, const void* value, std::size_t size);   // uverbs_copy_to()
  int put_struct(std::uint16_t id, const void* value, std::size_t size);  // uverbs_copy_to_struct_or_zero()
  int put_handle(std::uint16_t id, std::int64_t handle);
  int mark_written(std::uint16_t id);

  DriverData driver_data() const;  // UVERBS_ATTR_UHW_IN and UVERBS_ATTR_UHW_OUT

  // Reads the program's attributes. 0 or the kernel's errno.
  int parse(const MethodSpec& method, std::uint64_t attributes, std::uint16_t count);
  // Destroys what a Destroy handle names. Before the handler.
  int destroy_named();

 private:
  struct Slot {
    const AttributeSpec* spec = nullptr;
    ib_uverbs_attr attribute{};
    std::uint64_t user_address = 0;  // of the attribute
    Object* object = nullptr;
  };

  const Slot* find(std::uint16_t id) const;
  Object* object_of(std::uint16_t id) const;
  int get_bytes(std::uint16_t id, void* value, std::size_t size) const;
  int accept(const MethodSpec& method, const ib_uverbs_attr& attribute, std::uint64_t user_address);
  int check(Slot& slot) const;

  Slot slots_[kMaxSpecs];
  std::size_t used_ = 0;
};

int ioctl_command(Context& context, std::uint64_t argument);

}  // namespace qpair::softnic::driver
