#include "softnic/driver/cm_file.hpp"

#include <sys/sysmacros.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <random>
#include <utility>
#include <vector>

#include "softnic/driver/guarded.hpp"
#include "softnic/driver/sysfs.hpp"
#include "softnic/driver/system.hpp"
#include "softnic/nic/address_resolution.hpp"

namespace qpair::softnic::driver {
namespace {

wire::Endpoint address_of(const nic::Nic& nic, unsigned& gid_index) {
  wire::Endpoint endpoint;
  // The last one of a card is the routable one of RoCE v2; InfiniBand's port has but one.
  const nic::GidEntry& entry = nic.gids().back();
  std::ranges::copy(nic::routable(entry.gid).raw, endpoint.address.begin());
  gid_index = entry.index;
  endpoint.port = wire::kRoceUdpPort;
  return endpoint;
}

wire::Endpoint address_of(const nic::Nic& nic) {
  unsigned index = 0;
  return address_of(nic, index);
}

// One for all files of a process; a child of fork() has a NIC of its own and starts anew. Without a lock: in
// the child it might be held by a thread that is not there.
std::shared_ptr<PortRegistry> port_registry(const std::string& scratch, const wire::Endpoint& nic) {
  struct Holder {
    unsigned generation;
    std::shared_ptr<PortRegistry> registry;
  };
  static constinit std::atomic<Holder*> current{nullptr};
  Holder* held = current.load(std::memory_order_acquire);
  if (held != nullptr && held->generation == fork_generation()) return held->registry;
  auto made =
      std::make_unique<Holder>(Holder{fork_generation(), std::make_shared<PortRegistry>(scratch, nic)});
  if (current.compare_exchange_strong(held, made.get(), std::memory_order_acq_rel)) {
    return made.release()->registry;  // kept: an older one belongs to the parent's files
  }
  return held->registry;
}

}  // namespace

// ---- Opening and closing ------------------------------------------------------------------------

CmFile::CmFile(std::shared_ptr<nic::Nic> nic, std::shared_ptr<PortRegistry> ports, int fd)
    : nic_(std::move(nic)),
      ports_(std::move(ports)),
      own_(address_of(*nic_)),
      signal_(fd),
      generation_(fork_generation()) {}

int CmFile::open(const std::string& scratch, std::shared_ptr<File>& file) {
  return guarded([&] {
    auto nic = share_nic();
    if (!nic) return -ENODEV;
    nic::install_fault_handler();
    const int fd = system::semaphore_eventfd();
    if (fd < 0) return fd;
    auto ports = port_registry(scratch, address_of(*nic));
    auto made = std::make_shared<CmFile>(std::move(nic), std::move(ports), fd);
    if (made->signal_.get() < 0) {
      const int error = made->signal_.get();
      system::close(fd);
      return error;
    }
    close_at_shut_down(made);
    file = std::move(made);
    return fd;
  });
}

CmFile::~CmFile() {
  if (!inherited()) {
    shut_down();
    return;
  }
  // The parent's: identifiers belong to its NIC, and a lock may be held by a thread that is not here.
  for (auto& [number, context] : contexts_) static_cast<void>(context.release());
  for (Waiting& event : events_) static_cast<void>(event.request.release());
  static_cast<void>(std::make_unique<std::shared_ptr<nic::Nic>>(std::move(nic_)).release());
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): that it leaks is meant

void CmFile::shut_down() {
  if (inherited()) return;
  static_cast<void>(guarded([&] {
    const UserAccess access;
    close_all();
    return 0;
  }));
  const std::scoped_lock lock(mutex_);
  nic_.reset();
}

void CmFile::close_all() {
  std::map<std::uint32_t, std::unique_ptr<CmContext>> contexts;
  std::vector<std::shared_ptr<cm::PortClaim>> ports;  // let go outside the lock
  locked([&](cm::Manager& manager, wire::TimePoint) {
    events_.clear();
    contexts.swap(contexts_);
    for (auto& [number, context] : contexts) {
      manager.numbers().give(number);
      for (const auto& [group, joined] : context->groups) manager.group_numbers().give(group);
      ports.push_back(context->id->port());
      context->id.reset();
    }
    return 0;
  });
}

std::shared_ptr<nic::Nic> CmFile::share() {
  const std::scoped_lock lock(mutex_);
  return nic_;
}

std::unique_ptr<nic::ManagementAgent> CmFile::make_manager(const nic::Nic& nic, nic::MadSender& sender) {
  cm::Port port;
  port.address = address_of(nic, port.gid_index);
  port.infiniband = nic.port().link_layer == IBV_LINK_LAYER_INFINIBAND;
  port.gid = port.gid_of(port.address);
  port.node_guid = nic.identity().node_guid;
  port.mtu = static_cast<std::uint8_t>(nic.port().active_mtu);
  port.ack_delay = nic.limits().attributes.local_ca_ack_delay;
  std::random_device source;
  return std::make_unique<cm::Manager>(sender, port, (std::uint64_t{source()} << 32) | source());
}

dev_t CmFile::device_number() const {
  return makedev(kCmMajor, kCmMinor);
}

// ---- Events -------------------------------------------------------------------------------------

// ucma_event_handler(): nobody hears of a request's fate before it was accepted.
void CmContext::happened(cm::Event event) {
  const bool request = event.type == cm::EventType::ConnectRequest;
  if (!request && uid == 0) return;
  if (request) --backlog;
  queue(std::move(event), uid, number_, std::nullopt);
}

void CmContext::happened_to_group(std::uint32_t group, cm::Event event) {
  queue(std::move(event), groups[group].uid, group, group);
}

void CmContext::queue(cm::Event event, std::uint64_t as, std::uint32_t number,
                      std::optional<std::uint32_t> group) {
  CmFile::Waiting waiting{
      .context = this, .response = {}, .request = std::move(event.request), .group = group};
  rdma_ucm_event_resp& response = waiting.response;
  response.uid = as;
  response.id = number;
  response.event = static_cast<std::uint32_t>(event.type);
  response.status = static_cast<std::uint32_t>(event.status);
  if (id->is_datagram()) {
    response.param.ud = event.ud;
  } else {
    response.param.conn = event.conn;
  }
  response.ece = {.vendor_id = event.ece.vendor, .attr_mod = event.ece.options};
  file_->push(std::move(waiting));
}

void CmFile::signal() {
  const std::uint64_t one = 1;
  system::write(signal_.get(), &one, sizeof one);
}

void CmFile::take_token() {
  std::uint64_t token = 0;
  system::read_without_waiting(signal_.get(), &token, sizeof token);
}

// The program's descriptor and ours are one open file: whether this waits is the program's O_NONBLOCK.
int CmFile::wait_for_event() {
  std::uint64_t token = 0;
  const ssize_t got = system::read(signal_.get(), &token, sizeof token);
  return got < 0 ? static_cast<int>(got) : 0;
}

void CmFile::push(Waiting event) {
  events_.push_back(std::move(event));
  signal();
}

void CmFile::push_back_first(Waiting event) {
  events_.push_front(std::move(event));
  signal();
}

bool CmFile::pop(Waiting& event) {
  if (events_.empty()) return false;
  event = std::move(events_.front());
  events_.pop_front();
  return true;
}

template <typename Of>
void CmFile::drop(const Of& of) {
  const auto kept = std::remove_if(events_.begin(), events_.end(), of);
  for (auto at = kept; at != events_.end(); ++at) take_token();
  events_.erase(kept, events_.end());
}

void CmFile::drop_events(const CmContext& context) {
  drop([&](const Waiting& event) { return event.context == &context; });
}

void CmFile::drop_group_events(std::uint32_t group) {
  drop([&](const Waiting& event) { return event.group == group; });
}

// ---- Identifiers --------------------------------------------------------------------------------

CmContext* CmFile::find(std::uint32_t number) {
  const auto at = contexts_.find(number);
  return at != contexts_.end() ? at->second.get() : nullptr;
}

CmContext* CmFile::find_group(std::uint32_t group) {
  for (const auto& [number, context] : contexts_) {
    if (context->groups.contains(group)) return context.get();
  }
  return nullptr;
}

CmContext& CmFile::add(std::uint32_t number, std::uint64_t uid) {
  auto context = std::make_unique<CmContext>(*this, number);
  context->uid = uid;
  return *(contexts_[number] = std::move(context));
}

std::unique_ptr<CmContext> CmFile::remove(std::uint32_t number) {
  const auto at = contexts_.find(number);
  if (at == contexts_.end()) return nullptr;
  drop_events(*at->second);
  auto context = std::move(at->second);
  contexts_.erase(at);
  return context;
}

// ucma_migrate_id(): with its events that wait.
void CmFile::take_over(CmFile& from, std::uint32_t number) {
  const auto at = from.contexts_.find(number);
  if (&from == this || at == from.contexts_.end()) return;
  std::unique_ptr<CmContext> context = std::move(at->second);
  from.contexts_.erase(at);
  context->move_to(*this);
  const auto kept =
      std::stable_partition(from.events_.begin(), from.events_.end(),
                            [&](const Waiting& event) { return event.context != context.get(); });
  for (auto event = kept; event != from.events_.end(); ++event) {
    from.take_token();
    push(std::move(*event));
  }
  from.events_.erase(kept, from.events_.end());
  contexts_[number] = std::move(context);
}

// ---- Commands -----------------------------------------------------------------------------------

// ucma_write().
ssize_t CmFile::write(const void* bytes, std::size_t size) {
  if (inherited()) return -EIO;
  return guarded([&]() -> ssize_t {
    const UserAccess access;
    rdma_ucm_cmd_hdr header{};
    const std::uint64_t at = reinterpret_cast<std::uintptr_t>(bytes);
    if (size < sizeof header) return -EINVAL;
    if (!copy_from_user(&header, at, sizeof header)) return -EFAULT;
    if (header.in + sizeof header > size) return -EINVAL;
    const int result =
        cm_command(*this, header.cmd, {.address = at + sizeof header, .size = header.in}, header.out);
    return result != 0 ? result : static_cast<ssize_t>(size);
  });
}

}  // namespace qpair::softnic::driver
