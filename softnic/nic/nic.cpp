#include "softnic/nic/nic.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <new>
#include <random>
#include <type_traits>

#include "softnic/explain/explain.hpp"
#include "softnic/nic/address_resolution.hpp"
#include "softnic/nic/chip.hpp"
#include "softnic/nic/engine.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/wire/address.hpp"
#include "softnic/wire/make_link.hpp"

namespace qpair::softnic::nic {

class Nic::Impl {
 public:
  Impl(std::unique_ptr<wire::Link> link, std::uint32_t mtu, const std::string& net_device, std::uint64_t seed,
       bool infiniband)
      : chip(std::move(link), mtu, net_device, seed, infiniband), engine(chip) {}

  // One control call: refused in a child of fork(), under the engine's lock, and out of memory is an errno.
  template <typename Call>
  auto control(Call&& call) -> decltype(call()) {
    using Result = decltype(call());
    if (abandoned.load(std::memory_order_relaxed)) return failure<Result>(ENODEV);
    try {
      const OnlyFaultSignals signals;
      const Engine::Control lock(engine);
      return call();
    } catch (const std::bad_alloc&) {
      return failure<Result>(ENOMEM);
    }
  }

  // A memory key, which uses its protection domain.
  template <typename Create>
  Expected<Mkey> create_key(Pdn pd, Create&& create) {
    return control([&]() -> Expected<Mkey> {
      if (!chip.use_pd(pd)) return tl::unexpected(Errno{EINVAL});
      auto key = create(chip.keys());
      if (!key) chip.unuse_pd(pd);
      return key;
    });
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

// A trace that cannot be made is worth a sentence, not the program's failure.
std::unique_ptr<Tracer> make_tracer(const std::string& path, const wire::Endpoint& local) {
  if (path.empty()) return nullptr;
  auto file = observe::TraceFile::open(path);
  if (file) return std::make_unique<Tracer>(*std::move(file), local);
  explain::say(explain::Kind::Notice, file.error());
  return nullptr;
}

}  // namespace

Nic::Nic(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Nic::~Nic() {
  // In a child of fork() nothing of it may be touched: a lock may be held by a thread that does not exist
  // here.
  if (impl_ && impl_->abandoned.load(std::memory_order_relaxed)) static_cast<void>(impl_.release());
}

tl::expected<std::unique_ptr<Nic>, std::string> Nic::create(const NicConfig& config) {
  auto made = wire::make_link(config, kShownBytes);
  if (!made) return tl::unexpected(std::move(made.error()));
  std::unique_ptr<wire::Link>* const link = &made->link;
  if (config.infiniband) {
    const std::uint16_t lid = lid_of((*link)->local().address);
    if (lid == 0 || lid >= kFirstMulticastLid) {
      return tl::unexpected(fmt::format(
          "the address {} cannot be that of an InfiniBand port: its last two bytes are its LID, {:#x}, "
          "and LIDs from 1 to {:#x} are for ports",
          wire::to_string((*link)->local()), lid, kFirstMulticastLid - 1));
    }
  }
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
  auto tracer = make_tracer(config.trace, (*link)->local());
  // Above the faults: it shows what the queue pairs sent, and what of it did not arrive.
  if (tracer) *link = std::make_unique<TracedLink>(std::move(*link), *tracer);
  auto page = observe::CounterPage::create((*link)->local());
  auto impl = std::make_unique<Impl>(std::move(*link), mtu, net_device, random_seed(), config.infiniband);
  impl->chip.counters().show_on(std::move(page));
  if (made->host != nullptr) impl->chip.share(*made->host);
  if (tracer) impl->chip.trace_with(std::move(tracer));
  return std::unique_ptr<Nic>(new Nic(std::move(impl)));
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

bool Nic::has_doorbells_in(std::uint64_t address, std::uint64_t length) {
  return impl_->control([&]() -> Expected<bool> { return impl_->chip.pages().lie_in(address, length); })
      .value_or(false);
}

// ---- Protection domains and memory --------------------------------------------------------------

Expected<Pdn> Nic::create_pd() {
  return impl_->control([&]() -> Expected<Pdn> { return impl_->chip.create_pd(); });
}

Errno Nic::destroy_pd(Pdn pd) {
  return impl_->control([&]() -> Errno { return impl_->chip.destroy_pd(pd); });
}

Expected<Mkey> Nic::create_mr(const MrParameters& parameters) {
  return impl_->create_key(parameters.pd, [&](MemoryKeys& keys) { return keys.create(parameters); });
}

Expected<Mkey> Nic::create_mw(const MwParameters& parameters) {
  return impl_->create_key(parameters.pd, [&](MemoryKeys& keys) { return keys.create_window(parameters); });
}

Expected<Mkey> Nic::create_mkey(const MkeyParameters& parameters) {
  return impl_->create_key(parameters.pd, [&](MemoryKeys& keys) { return keys.create_indirect(parameters); });
}

Expected<MrParameters> Nic::query_mr(Mkey key) {
  return impl_->control([&]() -> Expected<MrParameters> {
    const MrParameters* const found = impl_->chip.keys().find(key);
    if (found == nullptr) return tl::unexpected(Errno{ENOENT});
    return *found;
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
    impl_->chip.unuse_pd(*gone);
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
    const std::uint64_t ring = std::uint64_t{entries} * cqe_size;
    if (const Errno error = impl_->chip.check_memory("the new ring of a completion queue", buffer, ring);
        error.value != 0) {
      return error;
    }
    return queue->resize(buffer, entries, cqe_size);
  });
}

Errno Nic::moderate_cq(Cqn cq, std::uint16_t count, std::uint16_t period_us) {
  return impl_->control([&]() -> Errno {
    CompletionQueue* const queue = impl_->chip.find_cq(cq);
    if (queue == nullptr) return Errno{EINVAL};
    impl_->chip.moderate(*queue, count, period_us);
    return kDone;
  });
}

Errno Nic::destroy_cq(Cqn cq) {
  return impl_->control([&]() -> Errno { return impl_->chip.destroy_cq(cq); });
}

// ---- Shared receive queues and XRC domains ------------------------------------------------------

Expected<Xrcdn> Nic::open_xrcd(const std::optional<FileIdentity>& file, int flags) {
  return impl_->control([&]() -> Expected<Xrcdn> { return impl_->chip.xrc_domains().open(file, flags); });
}

Errno Nic::close_xrcd(Xrcdn domain) {
  return impl_->control([&]() -> Errno { return impl_->chip.xrc_domains().close(domain); });
}

Expected<Srqn> Nic::create_srq(const SrqParameters& parameters) {
  return impl_->control([&]() -> Expected<Srqn> { return impl_->chip.create_srq(parameters); });
}

Errno Nic::arm_srq(Srqn srq, std::uint32_t limit) {
  return impl_->control([&]() -> Errno {
    SharedReceiveQueue* const queue = impl_->chip.find_srq(srq);
    if (queue == nullptr || limit >= queue->parameters().wqe_count) return Errno{EINVAL};
    queue->arm(limit);
    return kDone;
  });
}

Errno Nic::query_srq(Srqn srq, std::uint32_t& limit) {
  return impl_->control([&]() -> Errno {
    const SharedReceiveQueue* const queue = impl_->chip.find_srq(srq);
    if (queue == nullptr) return Errno{EINVAL};
    limit = queue->limit();
    return kDone;
  });
}

Errno Nic::destroy_srq(Srqn srq) {
  return impl_->control([&]() -> Errno { return impl_->chip.destroy_srq(srq); });
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

Errno Nic::share_qp(Qpn qp, Xrcdn domain, EventSink* sink) {
  return impl_->control([&]() -> Errno {
    QueuePair* const pair = impl_->chip.find_qp(qp);
    if (pair == nullptr || pair->parameters().type != IBV_QPT_XRC_RECV ||
        pair->parameters().xrc_domain != domain) {
      return Errno{EINVAL};
    }
    pair->listeners().add(sink);
    return kDone;
  });
}

Errno Nic::destroy_qp(Qpn qp, EventSink* sink) {
  return impl_->control([&]() -> Errno {
    QueuePair* const pair = impl_->chip.find_qp(qp);
    if (pair == nullptr) return Errno{EINVAL};
    if (pair->listeners().shared()) {
      pair->listeners().remove(sink);
      return kDone;
    }
    return impl_->chip.destroy_qp(qp);
  });
}

observe::Counters Nic::counters() {
  return impl_->control([&]() -> Expected<observe::Counters> { return impl_->chip.count_all(); })
      .value_or(observe::Counters{});
}

std::string Nic::failures() {
  const auto text = impl_->control([&]() -> Expected<std::string> { return impl_->chip.failures().text(); });
  return text.value_or(std::string{});
}

Errno Nic::with_agent(const MakeAgent& make, const UseAgent& use, Bytes stores) {
  return impl_->control([&]() -> Errno {
    const Errno bad = impl_->chip.check_memory("an answer", stores.address, stores.size);
    if (bad.value != 0) return bad;
    if (const int error = impl_->engine.start(); error != 0) return Errno{error};
    ManagementPort& port = impl_->chip.management();
    if (port.agent() == nullptr) port.attach(make(port));
    use(*port.agent(), std::chrono::steady_clock::now());
    impl_->chip.link().flush();
    return kDone;
  });
}

Errno Nic::attach_multicast(Qpn qp, const ibv_gid& group) {
  return impl_->control([&]() -> Errno {
    QueuePair* const pair = impl_->chip.find_qp(qp);
    return pair == nullptr ? Errno{EINVAL} : impl_->chip.multicast().attach(*pair, group);
  });
}

Errno Nic::detach_multicast(Qpn qp, const ibv_gid& group) {
  return impl_->control([&]() -> Errno {
    QueuePair* const pair = impl_->chip.find_qp(qp);
    return pair == nullptr ? Errno{EINVAL} : impl_->chip.multicast().detach(*pair, group);
  });
}

void Nic::end() {
  impl_->control([&]() -> void { impl_->chip.end(); });
}

void Nic::before_fork() {
  impl_->engine.hold();
  // A thread that is blocked at a page may have a lock that another library's handler waits for.
  impl_->chip.pages().open_all();
}

void Nic::after_fork_in_parent() {
  impl_->engine.release();
}

void Nic::after_fork_in_child() {
  impl_->abandoned.store(true);
  impl_->engine.abandon();
  impl_->engine.release();
}

}  // namespace qpair::softnic::nic
