#include "softnic/nic/chip.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "softnic/explain/explain.hpp"
#include "softnic/nic/tunables.hpp"
#include "softnic/roce/packet.hpp"

namespace qpair::softnic::nic {
namespace {

using explain::Kind;

constexpr std::uint32_t kFirstFreeQpn = 2;   // 0 and 1 are the management queue pairs
constexpr std::uint32_t kFirstFreeSrqn = 1;  // 0 in a CQE of version 0 says: not from a shared receive queue
constexpr std::uint16_t kPartitionMask = 0x7fff;
constexpr std::uint16_t kDefaultPartition =
    0x7fff;  // of 0xffff: full membership is not compared (IBTA vol. 1 10.9.3)

std::uint32_t mix(std::uint64_t seed, std::uint64_t purpose) {  // splitmix64's finisher
  std::uint64_t value = seed + purpose * 0x9e37'79b9'7f4a'7c15U;
  value = (value ^ (value >> 30)) * 0xbf58'476d'1ce4'e5b9U;
  value = (value ^ (value >> 27)) * 0x94d0'49bb'1331'11ebU;
  return static_cast<std::uint32_t>(value ^ (value >> 31));
}

bool is_power_of_two(std::uint32_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

tl::unexpected<Errno> refuse(int error, const std::string& sentence) {
  explain::say(Kind::Refusal, sentence);
  return tl::unexpected(Errno{error});
}

}  // namespace

Chip::Chip(std::unique_ptr<wire::Link> link, std::uint32_t mtu, const std::string& net_device,
           std::uint64_t seed, bool infiniband)
    : identity_(make_identity(link->local().address)),
      limits_(make_limits()),
      gids_(infiniband ? make_infiniband_gids(link->local().address)
                       : make_gids(link->local().address, net_device)),
      port_(infiniband ? make_infiniband_port(mtu, link->local().address) : make_port(mtu)),
      link_(std::move(link)),
      management_(*link_),
      keys_(mix(seed, 1), pages_),
      device_{gids_, limits_, port_, *link_, keys_, decoded_, srqs_, qps_, {}, {}, 0},
      cqs_(mix(seed, 2) & 0xffff, 0x400),
      srqs_(mix(seed, 4), kFirstFreeSrqn),
      qps_(mix(seed, 3), kFirstFreeQpn),
      multicast_(*link_) {
  limits_.attributes.node_guid = mlx5::byte_swap(identity_.node_guid);
  limits_.attributes.sys_image_guid = mlx5::byte_swap(identity_.system_image_guid);
  link_->has_queue_pairs(false);
}

Chip::~Chip() {
  // Queue pairs refer to completion queues.
  for (QueuePair* const qp : std::exchange(all_, {})) qps_.remove(static_cast<std::uint32_t>(qp->number()));
}

// ---- One round ----------------------------------------------------------------------------------

Chip::Work Chip::round(TimePoint now) {
  Work work;
  awaiting_ = nullptr;
  const bool seen_before = std::exchange(doorbells_seen_, false);
  work.doorbells = ring_doorbells() || seen_before;
  look_at(kLookAtOnce);
  work.other = run_active(now);
  work.packets = receive(now);
  if (run_timers(now)) work.other = true;
  schedule_waiting();
  run_active(now);  // what arrived may have opened a window
  settle();
  link_->flush();
  if (!active_.empty()) work.other = true;
  if (now >= counted_ + kCountAgain) {
    counted_ = now;
    count_active();
  }
  if (tracer_) tracer_->round_over(!work);
  // Asked at the end: the answer may have come in the same round.
  work.awaiting = awaiting_ != nullptr && awaiting_->transport().deadline() != TimePoint::max();
  return work;
}

bool Chip::ring_doorbells() {
  bool news = false;
  bool armed = false;
  records_unknown_ |= pages_.scan(
      [&](const SendDoorbell& doorbell) {
        QueuePair* const qp = qps_.find(doorbell.qpn);
        if (qp == nullptr) {
          explain::say(
              Kind::Finding,
              fmt::format("a doorbell was rung for queue pair {:#x}, which does not exist", doorbell.qpn));
        } else if (qp->rung(doorbell.opmod_idx_opcode)) {
          schedule(*qp);
          news = true;
        }
      },
      [&] { armed = true; });
  if (armed) check_arms();
  return news || armed;
}

bool Chip::admit(TimePoint now) {
  return pages_.admit(now, [this](UarId uar) {
    for (QueuePair* const qp : all_) {
      if (qp->parameters().uar == uar && qp->look()) {
        schedule(*qp);
        doorbells_seen_ = true;
      }
    }
  });
}

void Chip::check_arms() {
  for (CompletionQueue* const cq : all_cqs_) cq->check_arm();
}

// Doorbells that were overwritten by another queue pair's: a few records in every round.
void Chip::look_at(std::size_t count) {
  for (std::size_t i = 0; i < std::min(count, all_.size()); ++i) {
    look_next_ = look_next_ + 1 < all_.size() ? look_next_ + 1 : 0;
    if (all_[look_next_]->look()) schedule(*all_[look_next_]);
  }
}

bool Chip::look_further() {
  if (std::exchange(records_unknown_, false)) unlooked_ = all_.size();
  const std::size_t count = std::min(unlooked_, kLookBeforeRest);
  look_at(count);
  unlooked_ -= count;
  return unlooked_ != 0 || !active_.empty();
}

bool Chip::run_active(TimePoint now) {
  const std::size_t count = active_.size();
  for (std::size_t i = 0; i < count; ++i) {
    QueuePair& qp = *active_.front();
    active_.pop_front();
    qp.scheduled = false;
    if (tracer_) tracer_->speaks(static_cast<std::uint32_t>(qp.number()));
    if (qp.transport().transmit(kTransmitBudget, now) || qp.has_local_work()) {
      schedule(qp);
    } else if (!qp.waiting && qp.transport().waits_for_room()) {
      qp.waiting = true;
      waiting_.push_back(&qp);
    }
    if (qp.transport().deadline() != TimePoint::max()) awaiting_ = &qp;
    watch_deadline(qp);
    if (!std::exchange(qp.uncounted, true)) uncounted_.push_back(&qp);
  }
  if (count != 0) link_->flush();
  return count != 0;
}

void Chip::schedule_waiting() {
  std::erase_if(waiting_, [this](QueuePair* qp) {
    if (qp->transport().waits_for_room()) return false;
    qp->waiting = false;
    schedule(*qp);
    return true;
  });
}

bool Chip::receive(TimePoint now) {
  const std::size_t count =
      link_->poll([this, now](const wire::Frame& frame) { deliver(frame, now); }, kReceiveBatch, now);
  behind_since_ = count < kReceiveBatch ? TimePoint::max() : std::min(behind_since_, now);
  bool any = count != 0;
  while (const auto departed = link_->departed()) {
    any = true;
    for (QueuePair* const qp : all_) qp->transport().peer_departed(*departed);
  }
  return any;
}

void Chip::deliver(const wire::Frame& frame, TimePoint now) {
  const auto packet = roce::Packet::parse(frame.bytes);
  // What is damaged is dropped without a word: the sender's timer will repair it (IBTA vol. 1 9.6).
  if (!packet || (packet->partition_key() & kPartitionMask) != kDefaultPartition) {
    ++packets_dropped_;
    return;
  }
  if (!roce::check_icrc(frame)) {
    ++packets_dropped_;
    counters_.count_bad_crc();
    return;
  }
  if (packet->destination_qpn() == kManagementQpn) {
    if (!management_.receive(*packet, frame.source, now)) ++packets_dropped_;
    return;
  }
  if (packet->destination_qpn() == roce::kMulticastQpn) return deliver_to_group(*packet, frame);
  QueuePair* const qp = qps_.find(packet->destination_qpn());
  if (qp == nullptr || frame.destination.address != link_->local().address) {
    ++packets_dropped_;
    return;
  }
  qp->transport().receive(*packet, frame.source, now);
  schedule(*qp);
  watch_deadline(*qp);
}

void Chip::deliver_to_group(const roce::Packet& packet, const wire::Frame& frame) {
  const bool ours = frame.source.address == link_->local().address;
  for (QueuePair* const qp : multicast_.members(frame.destination)) {
    const bool own = ours && packet.deth().source_qpn == static_cast<std::uint32_t>(qp->number());
    if (own && qp->parameters().block_multicast_loopback) continue;
    qp->transport().receive_multicast(packet, frame.source, frame.destination);
    schedule(*qp);
  }
}

bool Chip::run_timers(TimePoint now) {
  bool any = management_.expire(now);
  for (CompletionQueue* const cq : moderated_cqs_) cq->expire(now);
  // That nobody answers cannot be said before everything that arrived was looked at. Who sends without end
  // does not keep others from learning it.
  if (behind_since_ <= now && now - behind_since_ < kLongestBehind) return any;
  // One whose deadline does not move is looked at again in the next round, not in this one for ever.
  due_.clear();
  while (const auto due = timers_.take_due(now)) due_.push_back(*due);
  for (const Timers::Entry& due : due_) {
    QueuePair* const qp = qps_.find(due.qpn);
    if (qp == nullptr || qp->timer != due.when) continue;
    qp->timer = TimePoint::max();
    if (qp->transport().deadline() <= now) {
      expire(*qp, now);
      schedule(*qp);
      any = true;
    }
    watch_deadline(*qp);
  }
  return any;
}

void Chip::expire(QueuePair& qp, TimePoint now) {
  if (!tracer_) return qp.transport().expire(now);
  const std::uint64_t timeouts = qp.transport().counters().local_ack_timeout_err;
  tracer_->speaks(static_cast<std::uint32_t>(qp.number()));
  qp.transport().expire(now);
  if (qp.transport().counters().local_ack_timeout_err != timeouts) {
    tracer_->timeout(static_cast<std::uint32_t>(qp.number()));
  }
}

void Chip::schedule(QueuePair& qp) {
  if (qp.scheduled) return;
  qp.scheduled = true;
  active_.push_back(&qp);
}

void Chip::watch_deadline(QueuePair& qp) {
  const TimePoint deadline = qp.transport().deadline();
  if (deadline >= qp.timer) return;
  qp.timer = deadline;
  timers_.add(deadline, static_cast<std::uint32_t>(qp.number()));
}

void Chip::settle() {
  while (!device_.failed_qps.empty() || !device_.failed_cqs.empty()) {
    for (const Qpn number : std::exchange(device_.failed_qps, {})) {
      if (QueuePair* const qp = find_qp(number)) qp->fatal();
    }
    for (const Cqn number : std::exchange(device_.failed_cqs, {})) {
      const CompletionQueue* const cq = find_cq(number);
      if (cq == nullptr) continue;
      for (QueuePair* const qp : all_) {
        if (qp->completes_on(number) && qp->state() != IBV_QPS_ERR) {
          qp->fatal_because(fmt::format("its completion queue {:#x} is", static_cast<std::uint32_t>(number)));
        }
      }
      for (SharedReceiveQueue* const srq : xrc_srqs_) {
        if (srq->completes()->on == cq) srq->fail("its completion queue is in error");
      }
    }
  }
}

void Chip::count_active() {
  for (QueuePair* const qp : uncounted_) {
    qp->uncounted = false;
    counters_.count(*qp);
  }
  uncounted_.clear();
  if (host_) counters_.count(host_->copies());
}

bool Chip::anything_new() {
  count_active();
  doorbells_seen_ |= ring_doorbells();
  settle();
  return doorbells_seen_ || !active_.empty() || link_->ready();
}

bool Chip::anything_left() {
  if (anything_new()) return true;
  while (look_further() && active_.empty()) {
  }
  if (device_.watched_qps != 0) {
    for (QueuePair* const qp : all_) {
      if (qp->needs_looking() && qp->look()) schedule(*qp);
    }
  }
  settle();
  return !active_.empty();
}

void Chip::trace_with(std::unique_ptr<Tracer> tracer) {
  tracer_ = std::move(tracer);
  device_.tracer = tracer_.get();
}

void Chip::share(wire::SharedMemoryLink& link) {
  host_ = std::make_unique<HostMemory>(link);
  device_.host = host_.get();
  keys_.show_to(host_.get());
}

void Chip::abandon() {
  pages_.abandon();
  link_->abandon();
  if (host_) host_->abandon();
  counters_.abandon();
  if (tracer_) tracer_->abandon();
}

observe::Counters Chip::count_all() {
  for (QueuePair* const qp : all_) counters_.count(*qp);
  count_active();
  return counters_.totals();
}

Chip::TimePoint Chip::deadline(TimePoint now) const {
  TimePoint when = std::min(timers_.next(), management_.deadline());
  if (const auto of_link = link_->deadline()) when = std::min(when, *of_link);
  if (device_.watched_qps != 0) {
    when = std::min(when, now + kErrorLook);
  }
  if (tracer_) when = std::min(when, tracer_->deadline());
  for (const CompletionQueue* const cq : moderated_cqs_) when = std::min(when, cq->deadline());
  return when;
}

// ---- Objects ------------------------------------------------------------------------------------

Expected<Pdn> Chip::create_pd() {
  if (pds_.size() >= static_cast<std::size_t>(limits_.attributes.max_pd)) {
    return refuse(ENOMEM, fmt::format("all {} protection domains are in use", limits_.attributes.max_pd));
  }
  while (next_pd_ == 0 || next_pd_ > kIdMask || pds_.contains(next_pd_)) next_pd_ = (next_pd_ + 1) & kIdMask;
  pds_.emplace(next_pd_, 0);
  return Pdn{next_pd_++};
}

Errno Chip::destroy_pd(Pdn pd) {
  const auto at = pds_.find(static_cast<std::uint32_t>(pd));
  if (at == pds_.end()) return Errno{EINVAL};
  if (at->second != 0) {
    return refuse(EBUSY, fmt::format("protection domain {} is in use by {} memory regions and queue pairs",
                                     at->first, at->second))
        .value();
  }
  pds_.erase(at);
  return Errno{0};
}

bool Chip::use_pd(Pdn pd) {
  const auto at = pds_.find(static_cast<std::uint32_t>(pd));
  if (at == pds_.end()) return false;
  ++at->second;
  return true;
}

void Chip::unuse_pd(Pdn pd) {
  const auto at = pds_.find(static_cast<std::uint32_t>(pd));
  if (at != pds_.end() && at->second != 0) --at->second;
}

Errno Chip::check_memory(const char* what, std::uint64_t address, std::uint64_t size) {
  if (!pages_.lie_in(address, size)) return Errno{0};
  explain::say(Kind::Refusal,
               fmt::format("{} refused: one of the device's doorbell pages lies in [{:#x}, +{})", what,
                           address, size));
  return Errno{EFAULT};
}

Expected<Cqn> Chip::create_cq(const CqParameters& parameters) {
  const auto limit = static_cast<std::uint32_t>(limits_.attributes.max_cqe) + 1;
  if (!is_power_of_two(parameters.entries) || parameters.entries > limit) {
    return refuse(EINVAL,
                  fmt::format("a completion queue of {} entries: the ring is a power of two, at most {}",
                              parameters.entries, limit));
  }
  if ((parameters.cqe_size != 64 && parameters.cqe_size != 128) || parameters.sink == nullptr ||
      (parameters.doorbell_record & 7) != 0) {
    return refuse(
        EINVAL,
        fmt::format("a completion queue with entries of {} bytes and its doorbell record at {:#x}: they "
                    "are 64 or 128 bytes, the record is aligned to 8",
                    parameters.cqe_size, parameters.doorbell_record));
  }
  const std::uint64_t ring = std::uint64_t{parameters.entries} * parameters.cqe_size;
  Errno bad = check_memory("the ring of a completion queue", parameters.buffer, ring);
  if (bad.value == 0) {
    bad = check_memory("the doorbell record of a completion queue", parameters.doorbell_record, 8);
  }
  if (bad.value != 0) return tl::unexpected(bad);
  const auto number = cqs_.allocate();
  if (!number) return refuse(ENOMEM, "all completion queues are in use");
  all_cqs_.push_back(&cqs_.insert(*number, std::make_unique<CompletionQueue>(Cqn{*number}, parameters)));
  all_cqs_.back()->tracer = tracer_.get();
  all_cqs_.back()->pages = &pages_;
  return Cqn{*number};
}

void Chip::moderate(CompletionQueue& cq, std::uint16_t count, std::uint16_t period_us) {
  cq.moderate(count, period_us);
  std::erase(moderated_cqs_, &cq);
  if (cq.is_moderated()) moderated_cqs_.push_back(&cq);
}

Errno Chip::destroy_cq(Cqn number) {
  CompletionQueue* const cq = find_cq(number);
  if (cq == nullptr) return Errno{EINVAL};
  if (cq->users != 0) {
    return refuse(EBUSY, fmt::format("completion queue {:#x} is in use by {} queues",
                                     static_cast<std::uint32_t>(number), cq->users))
        .value();
  }
  std::erase(all_cqs_, cq);
  std::erase(moderated_cqs_, cq);
  if (tracer_) tracer_->completion_queue_gone(static_cast<std::uint32_t>(number));
  cqs_.remove(static_cast<std::uint32_t>(number));
  return Errno{0};
}

namespace {

bool is_supported(ibv_qp_type type) {
  return type == IBV_QPT_RC || type == IBV_QPT_UC || type == IBV_QPT_UD || type == IBV_QPT_XRC_SEND ||
         type == IBV_QPT_XRC_RECV || type == kDcInitiator || type == kDcTarget;
}

// Empty: within the limits.
std::string check_qp(const QpParameters& parameters, const DeviceLimits& limits) {
  const auto max_wr = static_cast<std::uint32_t>(limits.attributes.max_qp_wr);
  const auto ring = [max_wr](const char* name, std::uint32_t size) {
    if (size == 0 || (is_power_of_two(size) && size <= max_wr)) return std::string{};
    return fmt::format("its {} ring has {} entries; a power of two, at most {}", name, size, max_wr);
  };
  if (!is_supported(parameters.type)) {
    return fmt::format("queue pair type {} is not supported", static_cast<unsigned>(parameters.type));
  }
  if (std::string error = ring("send", parameters.sq_basic_blocks); !error.empty()) return error;
  if (std::string error = ring("receive", parameters.rq_wqe_count); !error.empty()) return error;
  constexpr std::uint32_t kMaxShift = 10;  // 64 segments, more than max_sge of them and a signature
  if (parameters.rq_wqe_count != 0 && (parameters.rq_wqe_shift < 4 || parameters.rq_wqe_shift > kMaxShift)) {
    return fmt::format("its receive WQEs have 2^{} bytes; 2^4 to 2^{}", parameters.rq_wqe_shift, kMaxShift);
  }
  if ((parameters.doorbell_record & 7) != 0) {
    return fmt::format("its doorbell record at {:#x} is not aligned to 8 bytes", parameters.doorbell_record);
  }
  if (parameters.type == kDcTarget && !parameters.srq) {
    return "a DC target receives from a shared receive queue, and none was given";
  }
  if (parameters.sink == nullptr) return "it has nowhere to report to";
  return {};
}

bool has_send_side(ibv_qp_type type) {
  return type != IBV_QPT_XRC_RECV && type != kDcTarget;
}
bool has_receive_side(ibv_qp_type type) {  // whose completions go to a queue of its own
  return type != IBV_QPT_XRC_RECV && type != IBV_QPT_XRC_SEND && type != kDcInitiator;
}

}  // namespace

Expected<Qpn> Chip::create_qp(const QpParameters& parameters) {
  if (const std::string error = check_qp(parameters, limits_); !error.empty()) {
    return refuse(is_supported(parameters.type) ? EINVAL : EOPNOTSUPP, "create_qp refused: " + error);
  }
  const bool is_target = parameters.type == IBV_QPT_XRC_RECV;
  CompletionQueue* const send_cq =
      has_send_side(parameters.type) ? find_cq(parameters.send_cq) : &no_completions_.queue();
  CompletionQueue* const receive_cq =
      has_receive_side(parameters.type) ? find_cq(parameters.recv_cq) : &no_completions_.queue();
  if (send_cq == nullptr || receive_cq == nullptr)
    return refuse(EINVAL, "create_qp refused: no such completion queue");
  SharedReceiveQueue* const srq = parameters.srq ? find_srq(*parameters.srq) : nullptr;
  if (parameters.srq && srq == nullptr)
    return refuse(EINVAL, "create_qp refused: no such shared receive queue");
  if (qps_.size() >= static_cast<std::size_t>(limits_.attributes.max_qp)) {
    return refuse(ENOMEM, fmt::format("all {} queue pairs are in use", limits_.attributes.max_qp));
  }
  if (is_target ? !xrc_domains_.use(parameters.xrc_domain) : !use_pd(parameters.pd)) {
    return refuse(EINVAL,
                  fmt::format("create_qp refused: no such {} domain", is_target ? "XRC" : "protection"));
  }
  const std::uint32_t number = *qps_.allocate();
  QueuePair& qp = qps_.insert(
      number, std::make_unique<QueuePair>(Qpn{number}, parameters, *send_cq, *receive_cq, srq, device_));
  qp.place = all_.size();
  all_.push_back(&qp);
  if (all_.size() == 1) link_->has_queue_pairs(true);
  counters_.enter(qp);
  if (tracer_) tracer_->queue_pair_made(number, parameters.type);
  return Qpn{number};
}

Errno Chip::modify_qp(QueuePair& qp, const ibv_qp_attr& attributes, int mask, TimePoint now) {
  // Doorbells of the life that ends with a reset must not be taken for the next one's.
  ring_doorbells();
  const Errno error = qp.modify(attributes, mask, now);
  settle();
  if (error.value != 0) return error;
  schedule(qp);
  watch_deadline(qp);
  return error;
}

Errno Chip::destroy_qp(Qpn number) {
  QueuePair* const qp = find_qp(number);
  if (qp == nullptr) return Errno{EINVAL};
  ring_doorbells();  // its own, so that none is left to name a queue pair that is gone
  // What was rung before is sent: a NIC of silicon would have done so long ago. Programs count on it that
  // exit right after their last message.
  qp->look();
  qp->transport().transmit(kTransmitBudget, std::chrono::steady_clock::now());
  settle();
  link_->flush();
  multicast_.forget(*qp);
  std::erase(active_, qp);
  std::erase(uncounted_, qp);
  std::erase(waiting_, qp);
  all_[qp->place] = all_.back();
  all_[qp->place]->place = qp->place;
  all_.pop_back();
  if (all_.empty() && !ends_) link_->has_queue_pairs(false);
  counters_.leave(*qp);
  const QpParameters parameters = qp->parameters();
  qps_.remove(static_cast<std::uint32_t>(number));
  if (parameters.type == IBV_QPT_XRC_RECV) {
    xrc_domains_.unuse(parameters.xrc_domain);
  } else {
    unuse_pd(parameters.pd);
  }
  return Errno{0};
}

}  // namespace qpair::softnic::nic
