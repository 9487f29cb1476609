#include "softnic/nic/memory_keys.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <string_view>

#include "softnic/explain/explain.hpp"
#include "softnic/nic/vendor_errors.hpp"

namespace qpair::softnic::nic {
namespace {

using roce::RemoteAccess;

// What ibv_reg_mr takes for memory that is not on-demand paged for good. Other flags are optional by
// definition (IBV_ACCESS_OPTIONAL_RANGE) or need hardware that is not here.
constexpr int kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |
                             IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;
constexpr int kOptionalAccess = IBV_ACCESS_OPTIONAL_RANGE;

// [first, first + length) without overflow.
bool covers(const MrParameters& region, std::uint64_t address, std::uint64_t length) {
  return address >= region.iova && length <= region.length && address - region.iova <= region.length - length;
}

std::byte* translate(const MrParameters& region, std::uint64_t address) {
  return reinterpret_cast<std::byte*>(region.address + (address - region.iova));
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

std::string_view right_name(RemoteAccess access) {
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

std::string_view request_name(RemoteAccess access) {
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

std::string range(std::uint64_t first, std::uint64_t length) {
  return fmt::format("[{:#x}, {:#x}) ({} bytes)", first, first + length, length);
}

std::string rights(int access) {
  std::string text = "local read";
  if ((access & IBV_ACCESS_LOCAL_WRITE) != 0) text += ", local write";
  if ((access & IBV_ACCESS_REMOTE_WRITE) != 0) text += ", remote write";
  if ((access & IBV_ACCESS_REMOTE_READ) != 0) text += ", remote read";
  if ((access & IBV_ACCESS_REMOTE_ATOMIC) != 0) text += ", remote atomic";
  return text;
}

Errno refuse(int error, const std::string& sentence) {
  explain::say(explain::Kind::Refusal, sentence);
  return Errno{error};
}

// 0, or why the kernel refuses such a registration (ib_check_mr_access: remote write and atomics need local
// write).
Errno check(const MrParameters& parameters) {
  if ((parameters.access & ~(kKnownAccess | kOptionalAccess)) != 0) {
    return refuse(EINVAL, fmt::format("registration refused: access flags {:#x} contain unknown bits",
                                      static_cast<unsigned>(parameters.access)));
  }
  constexpr int kNeedLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if ((parameters.access & kNeedLocalWrite) != 0 && (parameters.access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return refuse(
        EINVAL,
        fmt::format(
            "registration of {} refused: remote write and remote atomic need local write; asked for {}",
            range(parameters.iova, parameters.length), rights(parameters.access)));
  }
  // A length of all ones from address 0 is the whole address space (implicit on-demand paging).
  if (parameters.length != ~std::uint64_t{0} && parameters.address + parameters.length < parameters.address) {
    return refuse(EINVAL,
                  fmt::format("registration refused: {:#x} + {} bytes passes the end of the address space",
                              parameters.address, parameters.length));
  }
  if (parameters.length != 0 && parameters.iova + (parameters.length - 1) < parameters.iova) {
    return refuse(EINVAL, fmt::format("registration refused: iova {:#x} + {} bytes wraps", parameters.iova,
                                      parameters.length));
  }
  return Errno{0};
}

}  // namespace

MemoryKeys::MemoryKeys(std::uint32_t seed) : regions_(seed % kIdMask, 0x10), variant_(seed >> 24) {}

Expected<Mkey> MemoryKeys::create(const MrParameters& parameters) {
  if (const Errno error = check(parameters); error.value != 0) return tl::unexpected(error);
  const auto index = regions_.allocate();
  if (!index) return tl::unexpected(refuse(ENOMEM, "registration refused: all 2^24 memory keys are in use"));
  variant_ = (variant_ + 0x3b) & 0xff;  // odd step: all 256 variants come by
  const std::uint32_t key = (*index << 8) | variant_;
  regions_.insert(*index, std::make_unique<Region>(Region{key, parameters}));
  return Mkey{key};
}

Errno MemoryKeys::change(Mkey key, const MrParameters& parameters, int flags) {
  const Region* const region = lookup(static_cast<std::uint32_t>(key));
  if (region == nullptr) return refuse(EINVAL, unknown_key(static_cast<std::uint32_t>(key)));
  MrParameters changed = region->parameters;
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    changed.address = parameters.address;
    changed.length = parameters.length;
    changed.iova = parameters.iova;
  }
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) changed.pd = parameters.pd;
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0) changed.access = parameters.access;
  if (const Errno error = check(changed); error.value != 0) return error;
  regions_.find(static_cast<std::uint32_t>(key) >> 8)->parameters = changed;
  return Errno{0};
}

tl::expected<MrParameters, Errno> MemoryKeys::destroy(Mkey key) {
  const auto number = static_cast<std::uint32_t>(key);
  const Region* const region = lookup(number);
  if (region == nullptr) return tl::unexpected(refuse(EINVAL, unknown_key(number)));
  const MrParameters parameters = region->parameters;
  gone_.at(gone_next_) = Gone{number, parameters.iova, parameters.length};
  gone_next_ = (gone_next_ + 1) % gone_.size();
  regions_.remove(number >> 8);
  return parameters;
}

const MrParameters* MemoryKeys::find(Mkey key) const {
  const Region* const region = lookup(static_cast<std::uint32_t>(key));
  return region != nullptr ? &region->parameters : nullptr;
}

const MemoryKeys::Region* MemoryKeys::lookup(std::uint32_t key) const {
  const Region* const region = regions_.find(key >> 8);
  return region != nullptr && region->key == key ? region : nullptr;
}

MemoryKeys::Address MemoryKeys::local(Pdn pd, std::uint32_t lkey, std::uint64_t address, std::uint64_t length,
                                      LocalAccess access) const {
  const Region* const region = lookup(lkey);
  if (region == nullptr || region->parameters.pd != pd || !covers(region->parameters, address, length) ||
      (access == LocalAccess::Write && (region->parameters.access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
    return tl::unexpected(refuse_local(pd, lkey, address, length, access));
  }
  return translate(region->parameters, address);
}

MemoryKeys::Address MemoryKeys::remote(Pdn pd, int qp_access, RemoteAccess access, std::uint32_t rkey,
                                       std::uint64_t address, std::uint64_t length) const {
  const Region* const region = lookup(rkey);
  const int right = right_of(access);
  if ((qp_access & right) == 0 || region == nullptr || region->parameters.pd != pd ||
      (region->parameters.access & right) == 0 || !covers(region->parameters, address, length)) {
    return tl::unexpected(refuse_remote(pd, qp_access, access, rkey, address, length));
  }
  return translate(region->parameters, address);
}

std::string MemoryKeys::unknown_key(std::uint32_t key) const {
  for (const Gone& gone : gone_) {
    if (gone.key == key && key != 0) {
      return fmt::format("memory key {:#x} was deregistered; it covered {}", key,
                         range(gone.iova, gone.length));
    }
  }
  if (key == 0) return "memory key 0 is never valid";
  if (const Region* const other = regions_.find(key >> 8)) {
    return fmt::format("memory key {:#x} does not exist; {:#x} does, its low 8 bits differ", key, other->key);
  }
  return fmt::format("memory key {:#x} does not exist", key);
}

roce::Refusal MemoryKeys::refuse_local(Pdn pd, std::uint32_t lkey, std::uint64_t address,
                                       std::uint64_t length, LocalAccess access) const {
  using mlx5::Syndrome;
  const Region* const region = lookup(lkey);
  const std::string asked = fmt::format("the work request names {}", range(address, length));
  if (region == nullptr) {
    return {Syndrome::LocalProtection, kVendorLocalKey, fmt::format("{}; {}", unknown_key(lkey), asked)};
  }
  const MrParameters& is = region->parameters;
  if (is.pd != pd) {
    return {Syndrome::LocalProtection, kVendorLocalKey,
            fmt::format("lkey {:#x} belongs to protection domain {}, the queue pair to {}; {}", lkey,
                        static_cast<std::uint32_t>(is.pd), static_cast<std::uint32_t>(pd), asked)};
  }
  if (access == LocalAccess::Write && (is.access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return {Syndrome::LocalProtection, kVendorLocalAccess,
            fmt::format("lkey {:#x} covers {} without local write, and data was to be stored there; {}", lkey,
                        range(is.iova, is.length), asked)};
  }
  return {Syndrome::LocalProtection, kVendorLocalAccess,
          fmt::format("lkey {:#x} covers {}; {}", lkey, range(is.iova, is.length), asked)};
}

roce::Refusal MemoryKeys::refuse_remote(Pdn pd, int qp_access, RemoteAccess access, std::uint32_t rkey,
                                        std::uint64_t address, std::uint64_t length) const {
  const auto refusal = [](std::string reason) {
    return roce::Refusal{mlx5::Syndrome::RemoteAccess, kVendorRemoteAccess, std::move(reason)};
  };
  const std::string asked =
      fmt::format("the peer's {} asked for {}", request_name(access), range(address, length));
  const int right = right_of(access);
  if ((qp_access & right) == 0) {
    return refusal(fmt::format("the queue pair was modified to INIT without {} (it has {}); {}",
                               right_name(access), rights(qp_access), asked));
  }
  const Region* const region = lookup(rkey);
  if (region == nullptr) return refusal(fmt::format("{}; {}", unknown_key(rkey), asked));
  const MrParameters& is = region->parameters;
  if (is.pd != pd) {
    return refusal(fmt::format("rkey {:#x} belongs to protection domain {}, the queue pair to {}; {}", rkey,
                               static_cast<std::uint32_t>(is.pd), static_cast<std::uint32_t>(pd), asked));
  }
  if ((is.access & right) == 0) {
    return refusal(fmt::format("rkey {:#x} covers {} without {} (it has {}); {}", rkey,
                               range(is.iova, is.length), right_name(access), rights(is.access), asked));
  }
  return refusal(fmt::format("rkey {:#x} covers {}; {}", rkey, range(is.iova, is.length), asked));
}

}  // namespace qpair::softnic::nic
