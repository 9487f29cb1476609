#pragma once
// An open device and a protection domain on it: where memory is registered and queue pairs are made.

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "qpair/device.hpp"
#include "qpair/memory.hpp"
#include "qpair/print.hpp"
#include "qpair/result.hpp"

namespace qpair {

// A handle: copies share the context and the protection domain. Regions and queue pairs made from it keep
// both open, so the order of destruction does not matter. May be used from several threads.
class RdmaDomain {
 public:
  static Result<RdmaDomain> create(const RdmaDevice& device);
  // By name; an empty name is the first available device.
  static Result<RdmaDomain> create(std::string_view device_name = {});

  [[nodiscard]] ibv_context* context() const;
  [[nodiscard]] ibv_pd* pd() const;
  [[nodiscard]] std::string device_name() const;

  // Registers memory that the program owns and that must stay where it is for as long as the region lives.
  // `access`: enum ibv_access_flags. out_of_resources says so when the memlock limit is in the way.
  Result<MemoryRegion> register_buffer(void* address, std::size_t size, int access = kAllRights) const;
  Result<MemoryRegion> register_buffer(std::span<std::byte> bytes, int access = kAllRights) const {
    return register_buffer(bytes.data(), bytes.size(), access);
  }
  // Registers a dma-buf, such as GPU memory exported by cuMemGetHandleForAddressRange(). Work requests use
  // addresses from `iova` on. The descriptor may be closed afterwards.
  Result<MemoryRegion> register_dmabuf(int fd, std::uint64_t offset, std::size_t length, std::uint64_t iova,
                                       int access = kAllRights) const;
  // Zeroed memory of its own, registered, and present to the last page. From 2 MiB on it is in huge pages of
  // that size where enough are free, and aligned to them; otherwise it is aligned to the system's page.
  // invalid_argument for 0 bytes; out_of_resources for more than there is, at once and not when it is first
  // touched.
  //
  // It is a shared mapping of a file without a name (memfd), so that an emulated NIC of the same host can
  // write into it directly; the file costs a descriptor for as long as the region lives. After fork() parent
  // and child see the same bytes, and the parent's NIC goes on writing to them: ibv_fork_init() is not needed
  // for this memory. After ibv_fork_init() the child does not have it at all.
  Result<MemoryRegion> allocate(std::size_t size, int access = kAllRights) const;

 private:
  friend class RdmaQueuePair;
  explicit RdmaDomain(std::shared_ptr<detail::DomainState> state);
  std::shared_ptr<detail::DomainState> state_;
};

[[nodiscard]] std::string to_string(const RdmaDomain& domain);

}  // namespace qpair
