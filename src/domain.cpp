#include "qpair/domain.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <utility>

#include "src/device_list.hpp"
#include "src/domain_state.hpp"
#include "src/shared_memory.hpp"

namespace qpair {

namespace {

std::uint64_t next_region_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::string memlock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{} bytes", limit.rlim_cur);
}

Error registration_error(const std::string& what, int reason) {
  switch (reason) {
    case ENOMEM:
    case EAGAIN:
      return Error::make(
          ErrorCode::out_of_resources,
          fmt::format("cannot register {}; the memlock limit is {} (ulimit -l)", what, memlock_limit()),
          reason);
    case EFAULT:
      return Error::make(ErrorCode::invalid_argument,
                         fmt::format("cannot register {}: not all of it is mapped, or not writable", what),
                         reason);
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
    case ENOSYS:
      return Error::make(ErrorCode::unsupported, fmt::format("this device cannot register {}", what), reason);
    default:
      return Error::make(ErrorCode::system, fmt::format("cannot register {}", what), reason);
  }
}

}  // namespace

Result<RdmaDomain> RdmaDomain::create(const RdmaDevice& device) {
  return create(std::string_view(device.name));
}

Result<RdmaDomain> RdmaDomain::create(std::string_view device_name) {
  std::string name(device_name);
  if (name.empty()) {
    Result<RdmaDevice> first = RdmaDevice::first_available();
    if (!first) return tl::unexpected(first.error());
    name = std::move(first->name);
  }
  Result<detail::ContextHandle> context = detail::open_device(name);
  if (!context) return tl::unexpected(context.error());
  detail::PdHandle pd(ibv_alloc_pd(context->get()));
  if (!pd) {
    return tl::unexpected(Error::make(ErrorCode::out_of_resources,
                                      fmt::format("cannot allocate a protection domain on {}", name), errno));
  }
  return RdmaDomain(std::make_shared<detail::DomainState>(std::move(*context), std::move(pd)));
}

RdmaDomain::RdmaDomain(std::shared_ptr<detail::DomainState> state) : state_(std::move(state)) {}

ibv_context* RdmaDomain::context() const {
  return state_->context();
}

ibv_pd* RdmaDomain::pd() const {
  return state_->pd();
}

std::string RdmaDomain::device_name() const {
  return ibv_get_device_name(state_->context()->device);
}

Result<MemoryRegion> RdmaDomain::register_buffer(void* address, std::size_t size, int access) const {
  if (address == nullptr || size == 0) {
    return tl::unexpected(
        Error::make(ErrorCode::invalid_argument,
                    fmt::format("cannot register {} bytes at {}: empty", size, fmt::ptr(address))));
  }
  ibv_mr* mr = ibv_reg_mr(pd(), address, size, access);
  if (mr == nullptr) {
    return tl::unexpected(registration_error(
        fmt::format("{} bytes at {} with access {:#x}", size, fmt::ptr(address), access), errno));
  }
  return MemoryRegion(state_, mr, reinterpret_cast<std::uint64_t>(address), size,
                      {static_cast<std::byte*>(address), size});
}

Result<MemoryRegion> RdmaDomain::register_dmabuf(int fd, std::uint64_t offset, std::size_t length,
                                                 std::uint64_t iova, int access) const {
  if (length == 0) {
    return tl::unexpected(Error::make(ErrorCode::invalid_argument, "cannot register 0 bytes of a dma-buf"));
  }
  ibv_mr* mr = ibv_reg_dmabuf_mr(pd(), offset, length, iova, fd, access);
  if (mr == nullptr) {
    return tl::unexpected(registration_error(
        fmt::format("{} bytes from {} of dma-buf descriptor {}", length, offset, fd), errno));
  }
  return MemoryRegion(state_, mr, iova, length, {});
}

Result<MemoryRegion> RdmaDomain::allocate(std::size_t size, int access) const {
  if (size == 0) return tl::unexpected(Error::make(ErrorCode::invalid_argument, "cannot allocate 0 bytes"));
  const auto with_pages = [&](detail::PageSize page_size) -> Result<MemoryRegion> {
    Result<detail::SharedMemory> memory = detail::SharedMemory::make(size, page_size);
    if (!memory) return tl::unexpected(memory.error());
    Result<MemoryRegion> region = register_buffer(memory->address(), size, access);
    if (region) region->memory_ = std::make_unique<detail::SharedMemory>(std::move(*memory));
    return region;
  };
  // Huge pages may be used up, or not be registrable: ibv_fork_init() cannot protect a part of one.
  if (size >= detail::kHugePage) {
    if (Result<MemoryRegion> region = with_pages(detail::PageSize::Huge)) return region;
  }
  return with_pages(detail::PageSize::Ordinary);
}

MemoryRegion::MemoryRegion(std::shared_ptr<detail::DomainState> domain, ibv_mr* mr, std::uint64_t addr,
                           std::uint64_t size, std::span<std::byte> bytes)
    : domain_(std::move(domain)),
      mr_(mr),
      buffer_{next_region_id(), mr->lkey, mr->rkey, addr, size},
      bytes_(bytes) {}

MemoryRegion::MemoryRegion(MemoryRegion&& other) noexcept
    : domain_(std::move(other.domain_)),
      memory_(std::move(other.memory_)),
      mr_(std::exchange(other.mr_, nullptr)),
      buffer_(std::exchange(other.buffer_, {})),
      bytes_(std::exchange(other.bytes_, {})) {}

MemoryRegion& MemoryRegion::operator=(MemoryRegion&& other) noexcept {
  if (this != &other) {
    release();
    mr_ = std::exchange(other.mr_, nullptr);
    buffer_ = std::exchange(other.buffer_, {});
    bytes_ = std::exchange(other.bytes_, {});
    memory_ = std::move(other.memory_);
    domain_ = std::move(other.domain_);
  }
  return *this;
}

MemoryRegion::~MemoryRegion() {
  release();
}

// The registration goes before the memory.
void MemoryRegion::release() noexcept {
  if (mr_ != nullptr) static_cast<void>(ibv_dereg_mr(mr_));
  mr_ = nullptr;
  memory_.reset();
}

Result<RdmaBuffer> RdmaBuffer::slice(std::uint64_t offset, std::uint64_t length) const {
  if (offset > size || length > size - offset) {
    return tl::unexpected(Error(ErrorCode::invalid_argument,
                                "the slice from {} of {} bytes is not inside a buffer of {} bytes",
                                {offset, length, size}));
  }
  RdmaBuffer part = *this;
  part.addr += offset;
  part.size = length;
  return part;
}

std::string to_string(const RdmaBuffer& buffer) {
  return fmt::format("region {}: {} bytes at {:#x}, lkey {:#x}, rkey {:#x}", buffer.mr_id, buffer.size,
                     buffer.addr, buffer.lkey, buffer.rkey);
}

std::string to_string(const MemoryRegion& region) {
  return to_string(region.buffer());
}

std::string to_string(const RdmaDomain& domain) {
  return fmt::format("domain on {}", domain.device_name());
}

}  // namespace qpair
