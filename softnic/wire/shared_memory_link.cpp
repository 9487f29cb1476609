#include "softnic/wire/shared_memory_link.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

#include "softnic/explain/explain.hpp"
#include "softnic/wire/address.hpp"

namespace qpair::softnic::wire {
namespace {

using Outcome = LocalSocket::Outcome;
using Kind = LocalMessage::Kind;

// Of each direction between two NICs. Large enough for the windows of a few connections, small enough to stay
// in the processor's cache.
constexpr std::size_t kRingBytes = std::size_t{512} << 10;
constexpr std::size_t kMostNeighbours = 4096;
// Between two looks at the sockets while there is other work, and between two attempts where nobody listened.
constexpr std::chrono::microseconds kLookAgain{20};
constexpr std::chrono::milliseconds kTryAgain{50};
constexpr std::chrono::milliseconds kWantAgain{1};
constexpr unsigned kSpinsBeforeYield = 1000;

void ring_bell(const Descriptor& bell) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const long written = ::syscall(SYS_write, bell.get(), &one, sizeof one);
}

// A sleep or a copy is counted when it begins and when it ends.
bool is_odd(std::uint32_t count) {
  return (count & 1) != 0;
}

Shown& shown_by(const SharedSegment& segment) {
  return *reinterpret_cast<Shown*>(segment.bytes().data());
}

bool is_parted(const std::atomic<std::uint32_t>& parted) {
  return parted.load(std::memory_order_relaxed) != 0;
}

using CopyValues = std::array<std::uint64_t, kCopyCounters>;

void add(Copies& sum, const PacketRingHeader& header) {
  auto values = std::bit_cast<CopyValues>(sum);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values.at(i) += header.copies.at(i).load(std::memory_order_relaxed);
  }
  sum = std::bit_cast<Copies>(values);
}

}  // namespace

// ---- One neighbour ------------------------------------------------------------------------------

Neighbour::~Neighbour() {
  for (const File& file : files_) {
    if (!file.bytes.empty()) ::syscall(SYS_munmap, file.bytes.data(), file.bytes.size());
  }
}

std::span<const std::byte> Neighbour::shown() const {
  return shown_.bytes().empty() ? std::span<const std::byte>() : shown_.bytes().subspan(kShownHeader);
}

void Neighbour::count(const Copies& copies) {
  const auto values = std::bit_cast<CopyValues>(copies);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::atomic<std::uint64_t>& counter = ring_.header().copies.at(i);
    counter.store(counter.load(std::memory_order_relaxed) + values.at(i), std::memory_order_relaxed);
  }
}

std::optional<std::span<std::byte>> Neighbour::file(std::uint64_t id) const {
  const auto found = std::ranges::find(files_, id, &File::id);
  return found != files_.end() ? std::optional(found->bytes) : std::nullopt;
}

void Neighbour::want(std::uint32_t key, TimePoint now) {
  if (wanted_ == key && now < wanted_at_ + kWantAgain) return;
  wanted_ = key;
  wanted_at_ = now;
  socket_.send({.kind = Kind::Want, .value = key});
}

void Neighbour::handle(ReceivedMessage& received) {
  switch (received.message.kind) {
    case Kind::Welcome:
      return welcome(received);
    case Kind::File:
      return map_file(received.message, received.descriptors[0]);
    case Kind::Gone:
      return forget_file(received.message.value);
    case Kind::Refused:
      gone_ = refused_ = true;
      return;
    default:
      return;
  }
}

void Neighbour::welcome(ReceivedMessage& received) {
  if (received.message.version != LocalMessage::kVersion || !shown_.bytes().empty()) return;
  auto shown =
      SharedSegment::map(received.descriptors[0].get(), received.message.size, SharedSegment::Rights::Read);
  if (!shown || shown->bytes().size() < kShownHeader || !received.descriptors[1]) {
    socket_.send({.kind = Kind::Refused});
    gone_ = refused_ = true;
    return;
  }
  shown_ = *std::move(shown);
  bell_ = std::move(received.descriptors[1]);
}

// What cannot be mapped is remembered as empty, so that it is not asked for again.
void Neighbour::map_file(const LocalMessage& message, const Descriptor& fd) {
  if (std::ranges::find(files_, message.value, &File::id) != files_.end()) return;
  File file{.id = message.value, .bytes = {}};
  const long at = !fd || message.size == 0
                      ? -1
                      : ::syscall(SYS_mmap, nullptr, message.size, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_NORESERVE, fd.get(), 0L);
  if (at != -1) file.bytes = {reinterpret_cast<std::byte*>(at), message.size};
  files_.push_back(file);
}

void Neighbour::forget_file(std::uint64_t id) {
  const auto found = std::ranges::find(files_, id, &File::id);
  if (found == files_.end()) return;
  if (!found->bytes.empty()) ::syscall(SYS_munmap, found->bytes.data(), found->bytes.size());
  files_.erase(found);
}

// The store of the ring's tail before, and the load of `asleep` here, must not change places: the other side
// does the same the other way round.
void Neighbour::wake() {
  if (shown_.bytes().empty()) {
    socket_.send({.kind = Kind::Knock});
    return;
  }
  ring_.settle_published();
  const std::uint32_t epoch = shown_by(shown_).asleep.load(std::memory_order_seq_cst);
  if (!is_odd(epoch) || epoch == rung_in_) return;
  rung_in_ = epoch;
  ring_bell(bell_);
}

// ---- Sessions that we began ---------------------------------------------------------------------

std::size_t SharedMemoryLink::AddressHash::operator()(const std::array<std::uint8_t, 16>& address) const {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  std::memcpy(&high, address.data(), sizeof high);
  std::memcpy(&low, address.data() + sizeof high, sizeof low);
  return static_cast<std::size_t>((low ^ (high << 1)) * 0x9e37'79b9'7f4a'7c15U);
}

std::unique_ptr<SharedMemoryLink> SharedMemoryLink::open(const Endpoint& local, std::size_t shown) {
  std::unique_ptr<SharedMemoryLink> link(new SharedMemoryLink);
  link->local_ = local;
  auto segment = SharedSegment::create("qpair-nic", kShownHeader + shown);
  link->bell_ = Descriptor(static_cast<int>(::syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK)));
  link->epoll_ = Descriptor(static_cast<int>(::syscall(SYS_epoll_create1, EPOLL_CLOEXEC)));
  if (!segment || !link->bell_ || !link->epoll_) return nullptr;
  link->shown_ = *std::move(segment);
  new (link->shown_.bytes().data()) Shown;
  link->listener_ = LocalSocket::listen(local);
  if (!link->listener_) return nullptr;
  link->scratch_.resize(kLongestPacket);
  link->spare_ = link->reserve_descriptor();
  link->watch(link->bell_.get());
  link->watch(link->listener_.get());
  return link;
}

Descriptor SharedMemoryLink::reserve_descriptor() const {
  return Descriptor(static_cast<int>(::syscall(SYS_fcntl, bell_.get(), F_DUPFD_CLOEXEC, 0)));
}

// Edge-triggered: everything is read until there is nothing, and of the bell nothing is.
void SharedMemoryLink::watch(int fd) const {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  event.data.fd = fd;
  ::syscall(SYS_epoll_ctl, epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

Neighbour* SharedMemoryLink::find(const Endpoint& destination) {
  if (latest_ == nullptr || latest_->endpoint_.address != destination.address) {
    const auto found = neighbours_.find(destination.address);
    Neighbour* const neighbour = found != neighbours_.end() ? found->second.get() : connect(destination);
    if (neighbour == nullptr) return nullptr;
    latest_ = neighbour;
  }
  return latest_->gone_ ? nullptr : latest_;
}

Neighbour* SharedMemoryLink::connect(const Endpoint& destination) {
  const auto absent = absent_.find(destination.address);
  if (absent != absent_.end() && now_ < absent->second) return nullptr;
  if (absent_.size() >= kMostNeighbours) absent_.clear();
  absent_[destination.address] = now_ + kTryAgain;
  if (neighbours_.size() >= kMostNeighbours) return nullptr;
  LocalSocket socket = LocalSocket::connect(destination);
  if (!socket) return nullptr;
  auto memory = SharedSegment::create("qpair-ring", PacketRing::size_for(kRingBytes));
  if (!memory) return nullptr;
  PacketRing ring(memory->bytes());
  ring.header().parted.store(shown_by(shown_).parted.load(std::memory_order_relaxed),
                             std::memory_order_relaxed);
  const std::array<int, 2> descriptors{memory->descriptor(), bell_.get()};
  const LocalMessage hello{
      .kind = Kind::Hello, .value = 0, .size = memory->bytes().size(), .address = local_.address};
  if (socket.send(hello, descriptors) != Outcome::Done) return nullptr;
  memory->close_descriptor();
  auto neighbour = std::make_unique<Neighbour>();
  neighbour->endpoint_ = destination;
  neighbour->memory_ = *std::move(memory);
  neighbour->ring_ = ring;
  watch(socket.get());
  neighbour->socket_ = std::move(socket);
  absent_.erase(destination.address);
  return neighbours_.emplace(destination.address, std::move(neighbour)).first->second.get();
}

void SharedMemoryLink::hear(Neighbour& neighbour) {
  while (!neighbour.gone_) {
    ReceivedMessage received;
    const Outcome outcome = neighbour.socket_.receive(received);
    if (outcome == Outcome::Nothing) return;
    if (outcome == Outcome::Closed) {
      // One that never said welcome may have had no room for us.
      neighbour.refused_ = neighbour.shown_.bytes().empty() || is_parted(shown_by(neighbour.shown_).parted);
      neighbour.gone_ = true;
    } else {
      neighbour.handle(received);
    }
  }
  over_ = true;
}

// ---- Sending ------------------------------------------------------------------------------------

std::span<std::byte> SharedMemoryLink::reserve(const Endpoint& destination, std::size_t size) {
  assert(size <= kLongestPacket);
  open_ = find(destination);
  if (open_ != nullptr) {
    const std::span<std::byte> room = open_->ring_.reserve(size);
    if (!room.empty()) return room;
    open_ = nullptr;
  }
  ++dropped_;
  return std::span(scratch_).first(size);
}

void SharedMemoryLink::commit() {
  if (open_ == nullptr) return;
  open_->ring_.publish();
  if (!open_->unflushed_) {
    if (unflushed_count_ == unflushed_.size()) flush();
    open_->unflushed_ = true;
    unflushed_[unflushed_count_++] = open_;
  }
  open_ = nullptr;
}

void SharedMemoryLink::flush() {
  for (std::size_t i = 0; i < unflushed_count_; ++i) {
    unflushed_[i]->unflushed_ = false;
    unflushed_[i]->wake();
  }
  unflushed_count_ = 0;
}

bool SharedMemoryLink::is_full(const Endpoint& destination, std::size_t size) {
  Neighbour* const neighbour = find(destination);
  if (neighbour == nullptr || neighbour->ring_.has_room(size)) return false;
  neighbour->ring_.header().producer_waits.store(1, std::memory_order_seq_cst);
  return !neighbour->ring_.has_room(size);
}

// ---- Sessions that others began -----------------------------------------------------------------

void SharedMemoryLink::accept() {
  if (!spare_) spare_ = reserve_descriptor();
  for (;;) {
    bool table_full = false;
    LocalSocket socket = listener_.accept(table_full);
    if (table_full && refuse_next()) continue;
    if (!socket) return;
    if (inbound_.size() >= kMostNeighbours) {
      socket.send({.kind = Kind::Refused});
      continue;
    }
    watch(socket.get());
    inbound_.push_back(std::make_unique<Inbound>());
    inbound_.back()->socket = std::move(socket);
    listen_to(*inbound_.back());
  }
}

// There is no descriptor for it, and the listener is watched by its edges: unless it is refused, it waits
// unnoticed.
bool SharedMemoryLink::refuse_next() {
  if (!spare_) return false;
  spare_ = {};
  bool table_full = false;
  LocalSocket socket = listener_.accept(table_full);
  const bool any = static_cast<bool>(socket);
  if (any) socket.send({.kind = Kind::Refused});
  socket = {};
  spare_ = reserve_descriptor();
  return any;
}

void SharedMemoryLink::listen_to(Inbound& inbound) {
  while (!inbound.over) {
    ReceivedMessage received;
    const Outcome outcome = inbound.socket.receive(received);
    if (outcome == Outcome::Nothing) return;
    if (outcome == Outcome::Closed) {
      inbound.over = true;
      inbound.refused = inbound.greeted && is_parted(inbound.ring.header().parted);
    } else if (received.message.kind == Kind::Refused) {
      inbound.over = inbound.refused = true;
    } else if (received.message.kind == Kind::Hello) {
      greet(inbound, received);
    } else if (received.message.kind == Kind::Want && inbound.greeted) {
      answer(inbound, static_cast<std::uint32_t>(received.message.value));
    }
  }
  over_ = true;
}

void SharedMemoryLink::greet(Inbound& inbound, ReceivedMessage& received) {
  auto memory = received.message.version == LocalMessage::kVersion &&
                        received.message.size == PacketRing::size_for(kRingBytes)
                    ? SharedSegment::map(received.descriptors[0].get(), received.message.size,
                                         SharedSegment::Rights::ReadWrite)
                    : std::nullopt;
  if (!memory || !received.descriptors[1] || inbound.greeted) return refuse(inbound);
  inbound.memory = *std::move(memory);
  inbound.ring = PacketRing(inbound.memory.bytes());
  inbound.bell = std::move(received.descriptors[1]);
  inbound.source = {received.message.address, kRoceUdpPort};
  inbound.greeted = true;
  const std::array<int, 2> descriptors{shown_.descriptor(), bell_.get()};
  const LocalMessage welcome{
      .kind = Kind::Welcome, .value = 0, .size = shown_.bytes().size(), .address = local_.address};
  // The user may have too many descriptors on their way in sockets (unix(7), ETOOMANYREFS).
  if (inbound.socket.send(welcome, descriptors) != Outcome::Done) refuse(inbound);
}

void SharedMemoryLink::refuse(Inbound& inbound) {
  inbound.socket.send({.kind = Kind::Refused});
  inbound.over = inbound.refused = over_ = true;
}

void SharedMemoryLink::answer(Inbound& inbound, std::uint32_t key) {
  const auto file = owner_ != nullptr ? owner_->file_of(key) : std::nullopt;
  if (!file) return;  // what is shown of the key says so
  const std::array<int, 1> descriptors{file->descriptor};
  inbound.files.insert(file->id);
  inbound.socket.send({.kind = Kind::File, .value = file->id, .size = file->size}, descriptors);
}

void SharedMemoryLink::file_gone(std::uint64_t id) {
  for (const auto& inbound : inbound_) {
    if (inbound->files.erase(id) == 0) continue;
    inbound->gone.push_back(id);
    tell_gone(*inbound);
  }
}

void SharedMemoryLink::tell_gone(Inbound& inbound) {
  while (!inbound.gone.empty() &&
         inbound.socket.send({.kind = Kind::Gone, .value = inbound.gone.back()}) != Outcome::Nothing) {
    inbound.gone.pop_back();
  }
}

// ---- Receiving ----------------------------------------------------------------------------------

std::size_t SharedMemoryLink::drain(Inbound& inbound, const Receiver& receiver, std::size_t limit) {
  std::size_t count = 0;
  while (count < limit) {
    const std::span<std::byte> packet = inbound.ring.front();
    if (packet.empty()) break;
    receiver({inbound.source, local_, packet});
    inbound.ring.pop();
    ++count;
  }
  if (inbound.ring.broken() && !inbound.over) {
    explain::say(explain::Kind::Notice,
                 fmt::format("what {} wrote into the memory that it shares with this NIC "
                             "makes no sense; the session with it is over",
                             to_string(inbound.source)));
    refuse(inbound);
  }
  if (count == 0) return 0;
  inbound.ring.settle_popped();
  std::atomic<std::uint32_t>& waits = inbound.ring.header().producer_waits;
  if (waits.load(std::memory_order_seq_cst) != 0 && waits.exchange(0) != 0) ring_bell(inbound.bell);
  return count;
}

std::size_t SharedMemoryLink::poll(const Receiver& receiver, std::size_t limit, TimePoint now) {
  now_ = now;
  if (now >= looked_ + kLookAgain) look_around(now);
  std::size_t delivered = 0;
  if (first_ >= inbound_.size()) first_ = 0;
  for (std::size_t i = 0; i < inbound_.size() && delivered < limit; ++i) {
    const std::size_t at = first_ + i < inbound_.size() ? first_ + i : first_ + i - inbound_.size();
    if (inbound_[at]->greeted) delivered += drain(*inbound_[at], receiver, limit - delivered);
  }
  ++first_;
  if (over_ && delivered < limit) bury(now);
  return delivered;
}

bool SharedMemoryLink::ready() const {
  return over_ || !departed_.empty() || std::ranges::any_of(inbound_, [](const auto& inbound) {
           return inbound->greeted && !inbound->ring.broken() && !inbound->ring.empty();
         });
}

void SharedMemoryLink::look_around(TimePoint now) {
  looked_ = now;
  for (const auto& inbound : inbound_) tell_gone(*inbound);
  std::array<epoll_event, 16> events;
  for (;;) {
    const long count = ::syscall(SYS_epoll_pwait, epoll_.get(), events.data(),
                                 static_cast<int>(events.size()), 0, nullptr, 0UL);
    for (long i = 0; i < count; ++i) {
      const int fd = events.at(static_cast<std::size_t>(i)).data.fd;
      if (fd == bell_.get()) continue;
      if (fd == listener_.get()) {
        accept();
        continue;
      }
      const auto inbound =
          std::ranges::find_if(inbound_, [fd](const auto& one) { return one->socket.get() == fd; });
      if (inbound != inbound_.end()) {
        listen_to(**inbound);
        continue;
      }
      const auto neighbour = std::ranges::find_if(
          neighbours_, [fd](const auto& one) { return one.second->socket_.get() == fd; });
      if (neighbour != neighbours_.end()) hear(*neighbour->second);
    }
    if (count < static_cast<long>(events.size())) return;
  }
}

// Sessions that are over, once everything that came in them was delivered.
void SharedMemoryLink::bury(TimePoint now) {
  over_ = false;
  std::erase_if(inbound_, [this](const std::unique_ptr<Inbound>& inbound) {
    if (!inbound->over) return false;
    if (inbound->greeted) {
      add(past_, inbound->ring.header());
      if (!inbound->refused) depart(inbound->source);
    }
    return true;
  });
  latest_ = nullptr;
  flush();
  std::erase_if(neighbours_, [this, now](const auto& one) {
    if (!one.second->gone_) return false;
    absent_[one.first] = now + kTryAgain;
    if (!one.second->refused_) depart(one.second->endpoint_);
    return true;
  });
}

void SharedMemoryLink::depart(const Endpoint& endpoint) {
  if (std::ranges::find(departed_, endpoint) == departed_.end()) departed_.push_back(endpoint);
}

std::optional<Endpoint> SharedMemoryLink::departed() {
  if (departed_.empty()) return std::nullopt;
  const Endpoint endpoint = departed_.front();
  departed_.pop_front();
  return endpoint;
}

// ---- Sleep --------------------------------------------------------------------------------------

bool SharedMemoryLink::sleeps() {
  shown_by(shown_).asleep.fetch_add(1, std::memory_order_seq_cst);
  if (!ready()) return true;
  wakes();
  return false;
}

void SharedMemoryLink::wakes() {
  shown_by(shown_).asleep.fetch_add(1, std::memory_order_relaxed);
}

// ---- What is shown ------------------------------------------------------------------------------

void SharedMemoryLink::wait_for_copies(std::chrono::nanoseconds patience) {
  for (const auto& inbound : inbound_) {
    if (!inbound->greeted || inbound->over) continue;
    const std::atomic<std::uint32_t>& copying = inbound->ring.header().copying;
    const std::uint32_t before = copying.load(std::memory_order_seq_cst);
    if (!is_odd(before)) continue;
    // The next copy may begin before this one's end is seen: it finds what is shown now.
    const auto until = std::chrono::steady_clock::now() + patience;
    for (unsigned spins = 1; copying.load(std::memory_order_seq_cst) == before; ++spins) {
      if (spins % kSpinsBeforeYield != 0) continue;
      ::sched_yield();
      if (!inbound->socket.is_connected()) break;
      if (std::chrono::steady_clock::now() < until) continue;
      explain::say(explain::Kind::Notice,
                   fmt::format("the process of {} was stopped while it copied to or from memory that is now "
                               "deregistered; the copy ends when it goes on",
                               to_string(inbound->source)));
      break;
    }
  }
}

void SharedMemoryLink::has_queue_pairs(bool any) {
  const std::uint32_t parted = any ? 0 : 1;
  shown_by(shown_).parted.store(parted, std::memory_order_relaxed);
  for (const auto& [address, neighbour] : neighbours_) {
    neighbour->ring_.header().parted.store(parted, std::memory_order_relaxed);
  }
}

Copies SharedMemoryLink::copies() const {
  Copies sum = past_;
  for (const auto& inbound : inbound_) {
    if (inbound->greeted) add(sum, inbound->ring.header());
  }
  return sum;
}

void SharedMemoryLink::abandon() {
  listener_.abandon();
  bell_.abandon();
  epoll_.abandon();
  spare_.abandon();
  shown_.abandon();
  for (const auto& inbound : inbound_) {
    inbound->socket.abandon();
    inbound->bell.abandon();
  }
  for (const auto& [address, neighbour] : neighbours_) {
    neighbour->socket_.abandon();
    neighbour->bell_.abandon();
  }
}

}  // namespace qpair::softnic::wire
