// QueuePair and memory: the bytes that its own segments name, and the peer's access.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/queue_pair.hpp"
#include "softnic/nic/vendor_errors.hpp"

namespace qpair::softnic::nic {
namespace {

using mlx5::Syndrome;
using roce::Check;
using roce::Refusal;
using roce::RemoteAccess;

tl::unexpected<Refusal> unmapped_locally(std::uint32_t lkey, std::uint64_t address, std::uint64_t size) {
  return tl::unexpected(
      Refusal{Syndrome::LocalProtection, kVendorLocalTranslation,
              fmt::format("[{:#x}, {:#x}) is registered (lkey {:#x}), but the program has unmapped or "
                          "protected part of it",
                          address, address + size, lkey)});
}

tl::unexpected<Refusal> unmapped_remotely(std::uint32_t rkey, std::uint64_t address, std::uint64_t size) {
  return tl::unexpected(
      Refusal{Syndrome::RemoteOperation, kVendorRemoteOperation,
              fmt::format("[{:#x}, {:#x}) is registered (rkey {:#x}), but its program has unmapped or "
                          "protected part of it",
                          address, address + size, rkey)});
}

// Bytes without memory behind them read as zeros. `to` may be a program's memory as well.
bool copy_from(const MemoryRun& run, std::span<std::byte> to) {
  if (run.at != nullptr) return guarded_copy(to.data(), run.at, to.size());
  static constexpr std::array<std::byte, 4096> kZeros{};
  while (!to.empty()) {
    const std::size_t size = std::min(to.size(), kZeros.size());
    if (!guarded_copy(to.data(), kZeros.data(), size)) return false;
    to = to.subspan(size);
  }
  return true;
}

bool copy_to(const MemoryRun& run, std::span<const std::byte> from) {
  return run.at == nullptr || guarded_copy(run.at, from.data(), from.size());
}

std::size_t size_of(const MemoryRun& run, std::size_t wanted) {
  return static_cast<std::size_t>(std::min<std::uint64_t>(run.size, wanted));
}

// A misaligned atomic could straddle two cache lines, where x86 locks the bus and may raise SIGBUS.
Check check_alignment(std::uint64_t address, const std::byte* where) {
  if ((address & 7) == 0 && (reinterpret_cast<std::uintptr_t>(where) & 7) == 0) return {};
  return tl::unexpected(
      Refusal{Syndrome::RemoteInvalidRequest, kVendorRemoteRequest,
              fmt::format("an atomic at {:#x}: the address must be a multiple of 8", address)});
}

}  // namespace

MemoryKeys::User QueuePair::key_user() const {
  return {.pd = remote_pd(), .qp = number_, .access = static_cast<int>(attributes_.qp_access_flags)};
}

// ---- Its own segments ---------------------------------------------------------------------------

Check QueuePair::load(std::uint32_t lkey, std::uint64_t address, std::span<std::byte> to) {
  while (!to.empty()) {
    auto run = device_.keys.local(parameters_.pd, lkey, address, to.size(), MemoryKeys::LocalAccess::Read);
    if (!run) return tl::unexpected(std::move(run.error()));
    const std::size_t size = size_of(*run, to.size());
    if (!copy_from(*run, to.first(size))) return unmapped_locally(lkey, address, size);
    address += size;
    to = to.subspan(size);
  }
  return {};
}

Check QueuePair::store(Pdn pd, std::uint32_t lkey, std::uint64_t address, std::span<const std::byte> from) {
  while (!from.empty()) {
    auto run = device_.keys.local(pd, lkey, address, from.size(), MemoryKeys::LocalAccess::Write);
    if (!run) return tl::unexpected(std::move(run.error()));
    const std::size_t size = size_of(*run, from.size());
    if (!copy_to(*run, from.first(size))) return unmapped_locally(lkey, address, size);
    address += size;
    from = from.subspan(size);
  }
  return {};
}

// ---- The peer's access --------------------------------------------------------------------------

Check QueuePair::check_remote(RemoteAccess access, std::uint32_t rkey, std::uint64_t address,
                              std::uint64_t length) {
  if (length == 0) return {};
  auto run = device_.keys.remote(key_user(), access, rkey, address, length);
  if (!run) return tl::unexpected(std::move(run.error()));
  return {};
}

Check QueuePair::write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> from) {
  while (!from.empty()) {
    auto run = device_.keys.remote(key_user(), RemoteAccess::Write, rkey, address, from.size());
    if (!run) return tl::unexpected(std::move(run.error()));
    const std::size_t size = size_of(*run, from.size());
    if (!copy_to(*run, from.first(size))) return unmapped_remotely(rkey, address, size);
    address += size;
    from = from.subspan(size);
  }
  return {};
}

Check QueuePair::read(std::uint32_t rkey, std::uint64_t address, std::span<std::byte> to) {
  while (!to.empty()) {
    auto run = device_.keys.remote(key_user(), RemoteAccess::Read, rkey, address, to.size());
    if (!run) return tl::unexpected(std::move(run.error()));
    const std::size_t size = size_of(*run, to.size());
    if (!copy_from(*run, to.first(size))) return unmapped_remotely(rkey, address, size);
    address += size;
    to = to.subspan(size);
  }
  return {};
}

// Where an atomic's 8 bytes lie together.
tl::expected<std::byte*, Refusal> QueuePair::atomic_target(std::uint32_t rkey, std::uint64_t address) {
  constexpr std::uint64_t kSize = sizeof(std::uint64_t);
  auto run = device_.keys.remote(key_user(), RemoteAccess::Atomic, rkey, address, kSize);
  if (!run) return tl::unexpected(std::move(run.error()));
  if (run->at == nullptr || run->size < kSize) {
    return tl::unexpected(
        Refusal{Syndrome::RemoteInvalidRequest, kVendorRemoteRequest,
                fmt::format("an atomic at {:#x}: its 8 bytes do not lie together in the memory of key {:#x}",
                            address, rkey)});
  }
  if (auto aligned = check_alignment(address, run->at); !aligned) {
    return tl::unexpected(std::move(aligned.error()));
  }
  return run->at;
}

Check QueuePair::compare_swap(std::uint32_t rkey, std::uint64_t address, std::uint64_t compare,
                              std::uint64_t swap, std::uint64_t& original) {
  auto where = atomic_target(rkey, address);
  if (!where) return tl::unexpected(std::move(where.error()));
  if (guarded_compare_exchange64(*where, compare, swap, original)) return {};
  return unmapped_remotely(rkey, address, sizeof original);
}

Check QueuePair::fetch_add(std::uint32_t rkey, std::uint64_t address, std::uint64_t add,
                           std::uint64_t& original) {
  auto where = atomic_target(rkey, address);
  if (!where) return tl::unexpected(std::move(where.error()));
  if (guarded_fetch_add64(*where, add, original)) return {};
  return unmapped_remotely(rkey, address, sizeof original);
}

Check QueuePair::invalidate(std::uint32_t rkey) {
  return device_.keys.invalidate(key_user(), rkey);
}

}  // namespace qpair::softnic::nic
