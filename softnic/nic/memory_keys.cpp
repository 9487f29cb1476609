#include "softnic/nic/memory_keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "softnic/explain/explain.hpp"
#include "softnic/nic/doorbell_pages.hpp"
#include "softnic/nic/host_memory.hpp"
#include "softnic/nic/memory_key_text.hpp"
#include "softnic/nic/vendor_errors.hpp"

namespace qpair::softnic::nic {
namespace {

using roce::RemoteAccess;

// What ibv_reg_mr takes. Other flags are optional by definition (IBV_ACCESS_OPTIONAL_RANGE) or need hardware
// that is not here.
constexpr int kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |
                             IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;
constexpr int kOptionalAccess = IBV_ACCESS_OPTIONAL_RANGE;

// Keys that name keys that name keys: no more of them than this. A program could otherwise make a circle.
constexpr unsigned kMaxDepth = 4;

// [first, first + length) without overflow.
bool covers(const MrParameters& region, std::uint64_t address, std::uint64_t length) {
  return address >= region.iova && length <= region.length && address - region.iova <= region.length - length;
}

bool allows(const MrParameters& region, MemoryKeys::LocalAccess access) {
  return access == MemoryKeys::LocalAccess::Read || (region.access & IBV_ACCESS_LOCAL_WRITE) != 0;
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
            range_text(parameters.iova, parameters.length), rights_text(parameters.access)));
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

// The part of a layout that has byte `offset` of a repetition.
const KeyPart& part_at(const KeyLayout& layout, std::uint64_t offset) {
  const auto after = std::upper_bound(layout.parts.begin(), layout.parts.end(), offset,
                                      [](std::uint64_t at, const KeyPart& part) { return at < part.start; });
  return *std::prev(after);
}

}  // namespace

MemoryKeys::MemoryKeys(std::uint32_t seed, DoorbellPages& pages)
    : keys_(seed % kIdMask, 0x10), pages_(pages), variant_(seed >> 24) {}

// ---- The table ----------------------------------------------------------------------------------

Expected<Mkey> MemoryKeys::add(KeyKind kind, const MrParameters& parameters,
                               std::unique_ptr<ChangeableKey> changeable) {
  const auto index = keys_.allocate();
  if (!index) return tl::unexpected(refuse(ENOMEM, "registration refused: all 2^24 memory keys are in use"));
  // Keys of mlx5dv_create_mkey() begin with variant 0: libmlx5 makes the lkey of the index alone.
  if (kind != KeyKind::Indirect) variant_ = (variant_ + 0x3b) & 0xff;  // odd step: all 256 variants come by
  auto key = std::make_unique<MemoryKey>();
  key->key = (*index << 8) | (kind != KeyKind::Indirect ? variant_ : 0);
  key->kind = kind;
  key->parameters = parameters;
  key->changeable = std::move(changeable);
  return Mkey{keys_.insert(*index, std::move(key)).key};
}

Expected<Mkey> MemoryKeys::create(const MrParameters& parameters) {
  if (const Errno error = check(parameters); error.value != 0) return tl::unexpected(error);
  auto key = add(KeyKind::Region, parameters, nullptr);
  if (key && host_ != nullptr) host_->show(static_cast<std::uint32_t>(*key), parameters);
  return key;
}

Expected<Mkey> MemoryKeys::create_window(const MwParameters& parameters) {
  auto changeable = std::make_unique<ChangeableKey>();
  changeable->peer_may_free = parameters.type == IBV_MW_TYPE_2;
  return add(parameters.type == IBV_MW_TYPE_2 ? KeyKind::Window2 : KeyKind::Window1,
             {.pd = parameters.pd, .address = 0, .length = 0, .iova = 0, .access = 0}, std::move(changeable));
}

Expected<Mkey> MemoryKeys::create_indirect(const MkeyParameters& parameters) {
  auto changeable = std::make_unique<ChangeableKey>();
  changeable->peer_may_free = parameters.peer_may_invalidate;
  changeable->capacity = parameters.max_entries;
  return add(KeyKind::Indirect,
             {.pd = parameters.pd, .address = 0, .length = 0, .iova = 0, .access = parameters.access},
             std::move(changeable));
}

Errno MemoryKeys::change(Mkey number, const MrParameters& parameters, int flags) {
  const MemoryKey* const key = lookup(static_cast<std::uint32_t>(number));
  if (key == nullptr) return refuse(EINVAL, unknown_key(static_cast<std::uint32_t>(number)));
  if (key->kind != KeyKind::Region) {
    return refuse(EINVAL,
                  fmt::format("a {} cannot be registered again (key {:#x})", kind_text(key->kind), key->key));
  }
  if (key->windows != 0) {
    return refuse(EBUSY, fmt::format("memory region {:#x} cannot be registered again: {} memory windows are "
                                     "bound to it",
                                     key->key, key->windows));
  }
  MrParameters changed = key->parameters;
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    changed.address = parameters.address;
    changed.length = parameters.length;
    changed.iova = parameters.iova;
    changed.registered_by = parameters.registered_by;
  }
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) changed.pd = parameters.pd;
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0) changed.access = parameters.access;
  if (const Errno error = check(changed); error.value != 0) return error;
  if (host_ != nullptr) host_->hide_key(key->key);
  at_index(key->key)->parameters = changed;
  if (host_ != nullptr) host_->show(key->key, changed);
  return Errno{0};
}

// IBTA vol. 1 11.2.8.4: a region that windows are bound to stays; ibv_dereg_mr(3) says the same.
tl::expected<Pdn, Errno> MemoryKeys::destroy(Mkey number) {
  MemoryKey* const key = at_index(static_cast<std::uint32_t>(number));
  // A window or an indirect key may have another variant by now: whoever made it knows the index.
  if (key == nullptr || (key->kind == KeyKind::Region && key->key != static_cast<std::uint32_t>(number))) {
    return tl::unexpected(refuse(EINVAL, unknown_key(static_cast<std::uint32_t>(number))));
  }
  if (key->windows != 0) {
    return tl::unexpected(
        refuse(EBUSY, fmt::format("memory region {:#x}, {}, cannot be deregistered: {} memory windows are "
                                  "bound to it; unbind them or deallocate them first",
                                  key->key, extent_text(key->parameters), key->windows)));
  }
  const Pdn pd = key->parameters.pd;
  if (host_ != nullptr) host_->hide_key(key->key);
  if (key->changeable) unbind(*key);
  remember(*key, End::Deregistered);
  keys_.remove(key->key >> 8);
  return pd;
}

const MrParameters* MemoryKeys::find(Mkey number) const {
  const MemoryKey* const key = lookup(static_cast<std::uint32_t>(number));
  return key != nullptr ? &key->parameters : nullptr;
}

const MemoryKey* MemoryKeys::lookup(std::uint32_t number) const {
  const MemoryKey* const key = at_index(number);
  return key != nullptr && key->key == number ? key : nullptr;
}

void MemoryKeys::remember(const MemoryKey& key, End end) {
  gone_.at(gone_next_) = Gone{key.key, end, key.parameters};
  gone_next_ = (gone_next_ + 1) % gone_.size();
}

// ---- Access -------------------------------------------------------------------------------------

MemoryKeys::Run MemoryKeys::local(Pdn pd, std::uint32_t lkey, std::uint64_t address, std::uint64_t length,
                                  LocalAccess access) const {
  const MemoryKey* const key = lookup(lkey);
  if (key == nullptr && lkey == kNullKey) return MemoryRun{nullptr, length};
  if (key == nullptr || key->is_window() || key->free() || key->parameters.pd != pd ||
      !covers(key->parameters, address, length) || !allows(key->parameters, access)) {
    return tl::unexpected(refuse_local(pd, lkey, address, length, access));
  }
  auto found = run(*key, address, length, access, 0);
  if (found) return *found;
  return tl::unexpected(
      roce::Refusal{mlx5::Syndrome::LocalProtection, kVendorLocalKey, std::move(found.error())});
}

MemoryKeys::Run MemoryKeys::remote(const User& user, RemoteAccess access, std::uint32_t rkey,
                                   std::uint64_t address, std::uint64_t length) const {
  const MemoryKey* const key = lookup(rkey);
  const int right = right_of(access);
  const bool others = key != nullptr && key->kind == KeyKind::Window2 &&
                      key->changeable->qpn != static_cast<std::uint32_t>(user.qp);
  if ((user.access & right) == 0 || key == nullptr || key->free() || others ||
      key->parameters.pd != user.pd || (key->parameters.access & right) == 0 ||
      !covers(key->parameters, address, length)) {
    return tl::unexpected(refuse_remote(user, access, rkey, address, length));
  }
  const LocalAccess use = access == RemoteAccess::Read ? LocalAccess::Read : LocalAccess::Write;
  auto found = run(*key, address, length, use, 0);
  if (found) return *found;
  return tl::unexpected(
      roce::Refusal{mlx5::Syndrome::RemoteAccess, kVendorRemoteAccess, std::move(found.error())});
}

// [address, address + length) was checked against the key itself.
MemoryKeys::Piece MemoryKeys::run(const MemoryKey& key, std::uint64_t address, std::uint64_t length,
                                  LocalAccess access, unsigned depth) const {
  const std::uint64_t offset = address - key.parameters.iova;
  if (!key.changeable) {
    const std::uint64_t at = key.parameters.address + offset;
    if (access == LocalAccess::Write && pages_.lie_in(at, length)) {
      return tl::unexpected(
          fmt::format("one of the device's doorbell pages lies in {} of key {:#x}; the device "
                      "stores to memory only",
                      range_text(at, length), key.key));
    }
    return MemoryRun{reinterpret_cast<std::byte*>(at), length};
  }
  const KeyLayout& layout = key.changeable->layout;
  if (offset >= layout.size()) {
    if (length == 0) return MemoryRun{nullptr, 0};
    return tl::unexpected(fmt::format("key {:#x} announces {}, but its {} pieces end after {} bytes", key.key,
                                      extent_text(key.parameters), layout.parts.size(), layout.size()));
  }
  const std::uint64_t in_round = offset % layout.round;
  const KeyPart& part = part_at(layout, in_round);
  return piece(key, part, offset / layout.round, in_round - part.start, length, access, depth);
}

// The rights of the keys that a key is made of are those for local use: the outer key alone says what a peer
// may do (so that memory without remote rights can be shown through a window or a layout).
MemoryKeys::Piece MemoryKeys::piece(const MemoryKey& outer, const KeyPart& part, std::uint64_t repetition,
                                    std::uint64_t offset, std::uint64_t length, LocalAccess access,
                                    unsigned depth) const {
  const std::uint64_t address = part.address + repetition * part.stride + offset;
  const std::uint64_t size = std::min(length, part.length - offset);
  if (part.key == kNullKey) return MemoryRun{nullptr, size};
  const auto refuse_piece = [&](const std::string& why) {
    return tl::unexpected(fmt::format("the {} {:#x} has a piece {} of key {:#x}: {}", kind_text(outer.kind),
                                      outer.key, range_text(address, size), part.key, why));
  };
  const MemoryKey* const key = lookup(part.key);
  if (key == nullptr) return refuse_piece(unknown_key(part.key));
  const MrParameters& is = key->parameters;
  if (key->free()) return refuse_piece("which is not bound to any memory");
  if (key->is_window()) return refuse_piece("which is a memory window; only lkeys can be pieces");
  if (is.pd != outer.parameters.pd) {
    return refuse_piece(fmt::format("which belongs to protection domain {}, not to {}",
                                    static_cast<std::uint32_t>(is.pd),
                                    static_cast<std::uint32_t>(outer.parameters.pd)));
  }
  if (!covers(is, address, size)) {
    return refuse_piece(fmt::format("which covers {}", extent_text(is)));
  }
  if (!allows(is, access)) return refuse_piece("which has no local write, and data was to be stored there");
  if (key->changeable && depth + 1 >= kMaxDepth) {
    return refuse_piece(fmt::format("keys within keys go {} deep at most", kMaxDepth));
  }
  return run(*key, address, size, access, depth + 1);
}

// ---- Why not ------------------------------------------------------------------------------------

std::string MemoryKeys::unknown_key(std::uint32_t key) const {
  // The latest end first: a window's key may have ended several times.
  for (std::size_t back = 1; back <= gone_.size(); ++back) {
    const Gone& gone = gone_.at((gone_next_ + gone_.size() - back) % gone_.size());
    if (gone.key != key || key == 0) continue;
    const char* const how = gone.end == End::Deregistered ? "deregistered"
                            : gone.end == End::Rebound    ? "replaced when its window was bound again"
                                                          : "invalidated";
    return fmt::format("memory key {:#x} was {}; it covered {}", key, how, extent_text(gone.region));
  }
  if (key == 0) return "memory key 0 is never valid";
  if (const MemoryKey* const other = at_index(key)) {
    return fmt::format("memory key {:#x} does not exist; {:#x} does, its low 8 bits differ", key, other->key);
  }
  return fmt::format("memory key {:#x} does not exist", key);
}

roce::Refusal MemoryKeys::refuse_local(Pdn pd, std::uint32_t lkey, std::uint64_t address,
                                       std::uint64_t length, LocalAccess access) const {
  using mlx5::Syndrome;
  const auto refusal = [](std::uint8_t vendor, std::string reason) {
    return roce::Refusal{Syndrome::LocalProtection, vendor, std::move(reason)};
  };
  const MemoryKey* const key = lookup(lkey);
  const std::string asked = fmt::format("the work request names {}", range_text(address, length));
  if (key == nullptr) return refusal(kVendorLocalKey, fmt::format("{}; {}", unknown_key(lkey), asked));
  if (key->is_window()) {
    return refusal(kVendorLocalKey, fmt::format("{:#x} is the rkey of a {}, which gives no local access; {}",
                                                lkey, kind_text(key->kind), asked));
  }
  const MrParameters& is = key->parameters;
  if (is.pd != pd) {
    return refusal(kVendorLocalKey,
                   fmt::format("lkey {:#x} covers {} in protection domain {}, the queue pair is in {}; {}",
                               lkey, extent_text(is), static_cast<std::uint32_t>(is.pd),
                               static_cast<std::uint32_t>(pd), asked));
  }
  if (key->free()) {
    return refusal(kVendorLocalKey,
                   fmt::format("{} {:#x} has no layout yet; {}", kind_text(key->kind), lkey, asked));
  }
  if (!allows(is, access)) {
    return refusal(
        kVendorLocalAccess,
        fmt::format("lkey {:#x} covers {} without local write, and data was to be stored there; {}", lkey,
                    extent_text(is), asked));
  }
  return refusal(kVendorLocalAccess, fmt::format("lkey {:#x} covers {}; {}", lkey, extent_text(is), asked));
}

roce::Refusal MemoryKeys::refuse_remote(const User& user, RemoteAccess access, std::uint32_t rkey,
                                        std::uint64_t address, std::uint64_t length) const {
  const auto refusal = [](std::string reason) {
    return roce::Refusal{mlx5::Syndrome::RemoteAccess, kVendorRemoteAccess, std::move(reason)};
  };
  const std::string asked =
      fmt::format("the peer's {} asked for {}", request_text(access), range_text(address, length));
  const int right = right_of(access);
  if ((user.access & right) == 0) {
    // A function that the queue pair does not support, as an opcode that it does not know (IBTA vol.
    // 1 9.9.3).
    return {mlx5::Syndrome::RemoteInvalidRequest, kVendorRemoteRequest,
            fmt::format("the queue pair was modified to INIT without {} (it has {}); {}", right_text(access),
                        rights_text(user.access), asked)};
  }
  const MemoryKey* const key = lookup(rkey);
  if (key == nullptr) return refusal(fmt::format("{}; {}", unknown_key(rkey), asked));
  const MrParameters& is = key->parameters;
  if (is.pd != user.pd) {
    return refusal(fmt::format("rkey {:#x} covers {} in protection domain {}, the queue pair is in {}; {}",
                               rkey, extent_text(is), static_cast<std::uint32_t>(is.pd),
                               static_cast<std::uint32_t>(user.pd), asked));
  }
  if (key->free()) {
    return refusal(fmt::format("{} {:#x} is not bound to any memory; {}", kind_text(key->kind), rkey, asked));
  }
  if (key->kind == KeyKind::Window2 && key->changeable->qpn != static_cast<std::uint32_t>(user.qp)) {
    return refusal(fmt::format("{} {:#x} was bound on queue pair {:#x} and serves that one only; {}",
                               kind_text(key->kind), rkey, key->changeable->qpn, asked));
  }
  if ((is.access & right) == 0) {
    return refusal(fmt::format("rkey {:#x} covers {} without {} (it has {}); {}", rkey, extent_text(is),
                               right_text(access), rights_text(is.access), asked));
  }
  return refusal(fmt::format("rkey {:#x} covers {}; {}", rkey, extent_text(is), asked));
}

}  // namespace qpair::softnic::nic
