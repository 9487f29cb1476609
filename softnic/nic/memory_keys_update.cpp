// Changes to memory keys that come down a send queue, or from the peer: bind, invalidate, new layout.

#include <fmt/format.h>

#include "softnic/nic/memory_key_text.hpp"
#include "softnic/nic/memory_keys.hpp"
#include "softnic/nic/vendor_errors.hpp"

namespace qpair::softnic::nic {
namespace {

tl::unexpected<roce::Refusal> refuse(std::string reason) {
  return tl::unexpected(
      roce::Refusal{mlx5::Syndrome::MemoryWindowBind, kVendorMemoryWindowBind, std::move(reason)});
}

constexpr int kNeedLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

}  // namespace

roce::Check MemoryKeys::update(const User& user, const KeyUpdate& update) {
  MemoryKey* const key = at_index(update.key);
  if (key == nullptr) return refuse(unknown_key(update.key));
  if (!key->changeable) {
    return refuse(fmt::format("key {:#x} is a {}: a work request can neither bind nor invalidate it",
                              update.key, kind_text(key->kind)));
  }
  if (key->parameters.pd != user.pd) {
    return refuse(fmt::format("{} {:#x} belongs to protection domain {}, the queue pair to {}",
                              kind_text(key->kind), key->key, static_cast<std::uint32_t>(key->parameters.pd),
                              static_cast<std::uint32_t>(user.pd)));
  }
  const bool ends = update.sets_free && update.free;
  std::string error = ends               ? check_unbind(user, *key, update)
                      : key->is_window() ? check_bind(user, *key, update)
                                         : check_layout(*key, update);
  if (!error.empty()) return refuse(std::move(error));
  if (!key->free()) remember(*key, ends ? End::Invalidated : End::Rebound);
  if (ends) {
    unbind(*key);
  } else if (key->is_window()) {
    bind(*key, update);
  } else {
    lay_out(*key, update);
  }
  assign(*key, update);
  return {};
}

// IBTA vol. 1 10.6.7.2.2 and 10.6.7.2.3: a type 2 window is invalidated by the key that it has, on the queue
// pair that it is bound to; a type 1 window only by binding it to nothing.
std::string MemoryKeys::check_unbind(const User& user, const MemoryKey& key, const KeyUpdate& update) const {
  const ChangeableKey& is = *key.changeable;
  if (!update.check_qpn) return {};  // a type 1 window that is bound to 0 bytes
  if (key.kind == KeyKind::Window1) {
    return fmt::format(
        "{:#x} is a type 1 memory window, which local invalidate cannot end; bind it to 0 bytes", update.key);
  }
  if (is.free) {
    return fmt::format("{} {:#x} is not bound to any memory: there is nothing to invalidate",
                       kind_text(key.kind), update.key);
  }
  if (key.key != update.key) return unknown_key(update.key);
  if (is.qpn != kAnyQp && is.qpn != static_cast<std::uint32_t>(user.qp)) {
    return fmt::format("{} {:#x} was bound on queue pair {:#x} and is invalidated there, not on {:#x}",
                       kind_text(key.kind), key.key, is.qpn, static_cast<std::uint32_t>(user.qp));
  }
  return {};
}

// IBTA vol. 1 10.6.7.2.2: what a window may be bound to. The checks are made now, though the NIC looks at the
// region again with every access.
std::string MemoryKeys::check_bind(const User& user, const MemoryKey& window, const KeyUpdate& update) const {
  const ChangeableKey& is = *window.changeable;
  if (!update.sets_layout || update.layout.parts.size() != 1 || update.layout.repetitions != 1) {
    return fmt::format("{} {:#x} takes one piece of a memory region; the work request has {}",
                       kind_text(window.kind), update.key, update.layout.parts.size());
  }
  if (window.kind == KeyKind::Window1 && update.sets_qpn) {
    return fmt::format(
        "{:#x} is a type 1 memory window; IBV_WR_BIND_MW is for type 2, ibv_bind_mw() for type 1",
        update.key);
  }
  if (window.kind == KeyKind::Window2 && !update.sets_qpn) {
    return fmt::format(
        "{:#x} is a type 2 memory window; ibv_bind_mw() is for type 1, IBV_WR_BIND_MW for type 2",
        update.key);
  }
  if (update.check_free && !is.free) {
    return fmt::format("{} {:#x} is bound already, to {}; it must be invalidated first",
                       kind_text(window.kind), window.key, extent_text(window.parameters));
  }
  if (update.sets_qpn && update.qpn != static_cast<std::uint32_t>(user.qp)) {
    return fmt::format("the window is to serve queue pair {:#x}, and the work request is on {:#x}",
                       update.qpn, static_cast<std::uint32_t>(user.qp));
  }
  const KeyPart& part = update.layout.parts.front();
  const MemoryKey* const region = lookup(part.key);
  if (region == nullptr) return unknown_key(part.key);
  const MrParameters& of = region->parameters;
  const std::string asked = fmt::format("the window asks for {}", range_text(part.address, part.length));
  if (region->kind != KeyKind::Region) {
    return fmt::format("key {:#x} is a {}; a window is bound to a memory region", part.key,
                       kind_text(region->kind));
  }
  if (of.pd != user.pd) {
    return fmt::format("memory region {:#x} belongs to protection domain {}, the queue pair to {}; {}",
                       part.key, static_cast<std::uint32_t>(of.pd), static_cast<std::uint32_t>(user.pd),
                       asked);
  }
  if ((of.access & IBV_ACCESS_MW_BIND) == 0) {
    return fmt::format("memory region {:#x}, {}, was registered without IBV_ACCESS_MW_BIND (it has {})",
                       part.key, extent_text(of), rights_text(of.access));
  }
  if (part.address < of.iova || part.length > of.length || part.address - of.iova > of.length - part.length) {
    return fmt::format("memory region {:#x} covers {}; {}", part.key, extent_text(of), asked);
  }
  if ((update.access & kNeedLocalWrite) != 0 && (of.access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return fmt::format("the window asks for {}, and memory region {:#x} has no local write",
                       rights_text(update.access), part.key);
  }
  return {};
}

std::string MemoryKeys::check_layout(const MemoryKey& key, const KeyUpdate& update) const {
  const ChangeableKey& is = *key.changeable;
  if (update.check_free && !is.free) return fmt::format("memory key {:#x} is in use already", key.key);
  if (update.sets_qpn && update.qpn != kAnyQp) {
    return fmt::format("memory key {:#x} cannot be tied to queue pair {:#x}: only type 2 windows are",
                       key.key, update.qpn);
  }
  if (update.layout.parts.size() > is.capacity) {
    return fmt::format("memory key {:#x} was made for {} entries; the work request has {}", key.key,
                       is.capacity, update.layout.parts.size());
  }
  return {};
}

void MemoryKeys::bind(MemoryKey& window, const KeyUpdate& update) {
  unbind(window);
  ChangeableKey& is = *window.changeable;
  is.layout = update.layout;
  is.region = update.layout.parts.front().key;
  is.qpn = update.sets_qpn ? update.qpn : kAnyQp;
  is.free = false;
  ++at_index(is.region)->windows;
}

void MemoryKeys::lay_out(MemoryKey& key, const KeyUpdate& update) {
  ChangeableKey& is = *key.changeable;
  if (update.sets_layout) is.layout = update.layout;
  if (update.sets_free) is.free = false;
}

void MemoryKeys::unbind(MemoryKey& key) {
  ChangeableKey& is = *key.changeable;
  is.free = true;
  is.qpn = kAnyQp;
  if (const std::uint32_t number = std::exchange(is.region, 0); number != 0) --at_index(number)->windows;
}

// What the work request says about the key itself.
void MemoryKeys::assign(MemoryKey& key, const KeyUpdate& update) {
  MrParameters& is = key.parameters;
  if (update.sets_start) is.iova = update.start;
  if (update.sets_length) is.length = update.length;
  is.access = (is.access & ~update.sets_access) | (update.access & update.sets_access);
  if (update.sets_variant) key.key = (key.key & ~0xffU) | update.variant;
}

// IBTA vol. 1 10.6.7.2.3 and 9.4.1.1: the peer may end what was made for that, and a type 2 window only over
// the queue pair that it is bound to.
roce::Check MemoryKeys::invalidate(const User& user, std::uint32_t rkey) {
  const auto refuse_peer = [](std::string reason) {
    return tl::unexpected(
        roce::Refusal{mlx5::Syndrome::RemoteAccess, kVendorRemoteAccess,
                      fmt::format("the peer asked to invalidate a key: {}", std::move(reason))});
  };
  const MemoryKey* const found = lookup(rkey);
  if (found == nullptr) return refuse_peer(unknown_key(rkey));
  if (!found->changeable || !found->changeable->peer_may_free) {
    return refuse_peer(
        fmt::format("{:#x} is a {}, which no peer may invalidate", rkey, kind_text(found->kind)));
  }
  if (found->parameters.pd != user.pd) {
    return refuse_peer(fmt::format(
        "{} {:#x} belongs to protection domain {}, the queue pair to {}", kind_text(found->kind), rkey,
        static_cast<std::uint32_t>(found->parameters.pd), static_cast<std::uint32_t>(user.pd)));
  }
  if (found->free()) {
    return refuse_peer(fmt::format("{} {:#x} is not bound to any memory", kind_text(found->kind), rkey));
  }
  const std::uint32_t qpn = found->changeable->qpn;
  if (qpn != kAnyQp && qpn != static_cast<std::uint32_t>(user.qp)) {
    return refuse_peer(fmt::format("{} {:#x} was bound on queue pair {:#x}, not on {:#x}",
                                   kind_text(found->kind), rkey, qpn, static_cast<std::uint32_t>(user.qp)));
  }
  remember(*found, End::Invalidated);
  unbind(*at_index(rkey));
  return {};
}

}  // namespace qpair::softnic::nic
