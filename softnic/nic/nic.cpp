#include "softnic/nic/nic.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <new>
#include <random>
#include <type_traits>

#include "softnic/explain/explain.hpp"
#include "softnic/nic/chip.hpp"
#include "softnic/nic/engine.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/wire/address.hpp"
#include "softnic/wire/make_link.hpp"

namespace qpair::softnic::nic {

class Nic::Impl {
 public:
  Impl(std::unique_ptr<wire::Link> link, std::uint32_t mtu, const std::string& net_device, std::uint64_t seed)
      : chip(std::move(link), mtu, net_device, seed), engine(chip) {}

  // One control call: refused in a child of fork(), under the engine's lock, and out of memory is an errno.
  template <typename Call>
  auto control(Call&& call) -> decltype(call()) {
    using Result = decltype(call());
    if (abandoned.load(std::memory_order_relaxed)) return failure<Result>(ENODEV);
    try {
      const FaultSignalsUnblocked unblocked;
      const Engine::Control lock(engine);
      return call();
    } catch (const std::bad_alloc&) {
      return failure<Result>(ENOMEM);
    }
  }

  Chip chip;
  Engine engine;  // after the chip: it goes first
  std::atomic<bool> abandoned{false};

 private:
  template <typename Result>
  static Result failure(int error) {
    if constexpr (std::is_same_v<Result, Errno>) {
      return Errno{error};
    } else if constexpr (!std::is_void_v<Result>) {
      return tl::unexpected(Errno{error});
    }
  }
};

namespace {

constexpr Errno kDone{0};

std::uint64_t random_seed() {
  try {
    std::random_device source;
    return (std::uint64_t{source()} << 32) | source();
  } catch (const std::exception&) {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
}

}  // namespace

Nic::Nic(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Nic::~Nic() {
  // In a child of fork() nothing of it may be touched: a lock may be held by a thread that does not exist
  // here.
  if (impl_ && impl_->abandoned.load(std::memory_order_relaxed)) static_cast<void>(impl_.release());
}

tl::expected<std::unique_ptr<Nic>, std::string> Nic::create(const NicConfig& config) {
  auto link = wire::make_link(config);
  if (!link) return tl::unexpected(std::move(link.error()));
  std::string net_device = "lo";
  std::uint32_t mtu = config.mtu;
  if (const auto local = wire::find_local((*link)->local())) {
    net_device = local->interface;
    if (const std::uint32_t fits = wire::roce_mtu_for(local->mtu); local->mtu != 0 && fits < mtu) {
      explain::say(explain::Kind::Notice, fmt::format("path MTU {} in place of {}: {} carries {} bytes", fits,
                                                      mtu, net_device, local->mtu));
      mtu = fits;
    }
  }
  return std::unique_ptr<Nic>(
      new Nic(std::make_unique<Impl>(std::move(*link), mtu, net_device, random_seed())));
}

const DeviceIdentity& Nic::identity() const {
  return impl_->chip.identity();
}
const DeviceLimits& Nic::limits() const {
  return impl_->chip.limits();
}
const std::vector<GidEntry>& Nic::gids() const {
  return impl_->chip.gids();
}
ibv_port_attr Nic::port() const {
  return impl_->chip.port();
}

// ---- Doorbell pages -----------------------------------------------------------------------------

Expected<UarId> Nic::add_uar(std::byte* page) {
  return impl_->control([&]() -> Expected<UarId> {
    if (const int error = impl_->engine.start(); error != 0) return tl::unexpected(Errno{error});
    return impl_->chip.pages().add(page);
  });
}

void Nic::uar_mapped(UarId uar, void* address) {
  return impl_->control([&]() -> void { impl_->chip.pages().mapped(uar, address); });
}

void Nic::remove_uar(UarId uar) {
  return impl_->control([&]() -> void { impl_->chip.pages().remove(uar); });
}

// ---- Protection domains and memory --------------------------------------------------------------

Expected<Pdn> Nic::create_pd() {
  return impl_->control([&]() -> Expected<Pdn> { return impl_->chip.create_pd(); });
}

Errno Nic::destroy_pd(Pdn pd) {
  return impl_->control([&]() -> Errno { return impl_->chip.destroy_pd(pd); });
}

Expected<Mkey> Nic::create_mr(const MrParameters& parameters) {
  return impl_->control([&]() -> Expected<Mkey> {
    if (!impl_->chip.use_pd(parameters.pd)) return tl::unexpected(Errno{EINVAL});
    auto key = impl_->chip.keys().create(parameters);
    if (!key) impl_->chip.unuse_pd(parameters.pd);
    return key;
  });
}

Errno Nic::change_mr(Mkey key, const MrParameters& parameters, int flags) {
  return impl_->control([&]() -> Errno {
    const MrParameters* const before = impl_->chip.keys().find(key);
    if (before == nullptr) return Errno{EINVAL};
    const Pdn old_pd = before->pd;
    const bool moves = (flags & IBV_REREG_MR_CHANGE_PD) != 0 && parameters.pd != old_pd;
    if (moves && !impl_->chip.use_pd(parameters.pd)) return Errno{EINVAL};
    const Errno error = impl_->chip.keys().change(key, parameters, flags);
    if (moves) impl_->chip.unuse_pd(error.value == 0 ? old_pd : parameters.pd);
    return error;
  });
}

Errno Nic::destroy_mr(Mkey key) {
  return impl_->control([&]() -> Errno {
    const auto gone = impl_->chip.keys().destroy(key);
    if (!gone) return gone.error();
    impl_->chip.unuse_pd(gone->pd);
    return kDone;
  });
}

// ---- Completion queues --------------------------------------------------------------------------

Expected<Cqn> Nic::create_cq(const CqParameters& parameters) {
  return impl_->control([&]() -> Expected<Cqn> { return impl_->chip.create_cq(parameters); });
}

Errno Nic::resize_cq(Cqn cq, std::uint64_t buffer, std::uint32_t entries, std::uint32_t cqe_size) {
  return impl_->control([&]() -> Errno {
    CompletionQueue* const queue = impl_->chip.find_cq(cq);
    if (queue == nullptr) return Errno{EINVAL};
    const auto limit = static_cast<std::uint32_t>(impl_->chip.limits().attributes.max_cqe) + 1;
    if (entries == 0 || (entries & (entries - 1)) != 0 || entries > limit ||
        (cqe_size != 64 && cqe_size != 128)) {
      return Errno{EINVAL};
    }
    return queue->resize(buffer, entries, cqe_size);
  });
}

Errno Nic::moderate_cq(Cqn cq, std::uint16_t count, std::uint16_t period_us) {
  return impl_->control([&]() -> Errno {
    CompletionQueue* const queue = impl_->chip.find_cq(cq);
    if (queue == nullptr) return Errno{EINVAL};
    queue->moderate(count, period_us);
    return kDone;
  });
}

Errno Nic::destroy_cq(Cqn cq) {
  return impl_->control([&]() -> Errno { return impl_->chip.destroy_cq(cq); });
}

// ---- Queue pairs --------------------------------------------------------------------------------

Expected<Qpn> Nic::create_qp(const QpParameters& parameters) {
  return impl_->control([&]() -> Expected<Qpn> { return impl_->chip.create_qp(parameters); });
}

Errno Nic::modify_qp(Qpn qp, const ibv_qp_attr& attributes, int mask) {
  return impl_->control([&]() -> Errno {
    QueuePair* const pair = impl_->chip.find_qp(qp);
    if (pair == nullptr) return Errno{EINVAL};
    return impl_->chip.modify_qp(*pair, attributes, mask, std::chrono::steady_clock::now());
  });
}

Errno Nic::query_qp(Qpn qp, ibv_qp_attr& attributes, ibv_qp_init_attr& initial) {
  return impl_->control([&]() -> Errno {
    const QueuePair* const pair = impl_->chip.find_qp(qp);
    if (pair == nullptr) return Errno{EINVAL};
    pair->query(attributes, initial);
    return kDone;
  });
}

Errno Nic::destroy_qp(Qpn qp) {
  return impl_->control([&]() -> Errno { return impl_->chip.destroy_qp(qp); });
}

void Nic::abandon() {
  if (impl_->abandoned.exchange(true)) return;
  impl_->engine.abandon();
}

}  // namespace qpair::softnic::nic
