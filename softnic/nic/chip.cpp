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

constexpr std::uint32_t kFirstFreeQpn = 2;  // 0 and 1 are the management queue pairs
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
           std::uint64_t seed)
    : identity_(make_identity(link->local().address)),
      limits_(make_limits()),
      gids_(make_gids(link->local().address, net_device)),
      port_(make_port(mtu)),
      link_(std::move(link)),
      keys_(mix(seed, 1)),
      device_{gids_, limits_, port_, *link_, keys_, decoded_, {}, {}, 0},
      cqs_(mix(seed, 2) & 0xffff, 0x400),
      qps_(mix(seed, 3), kFirstFreeQpn) {
  limits_.attributes.node_guid = mlx5::byte_swap(identity_.node_guid);
  limits_.attributes.sys_image_guid = mlx5::byte_swap(identity_.system_image_guid);
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
  look_at_some();
  work.other = run_active(now);
  work.packets = receive(now);
  if (run_timers(now)) work.other = true;
  run_active(now);  // what arrived may have opened a window
  settle();
  link_->flush();
  if (!active_.empty()) work.other = true;
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
void Chip::look_at_some() {
  for (std::size_t i = 0; i < std::min(kLookAtOnce, all_.size()); ++i) {
    look_next_ = look_next_ + 1 < all_.size() ? look_next_ + 1 : 0;
    if (all_[look_next_]->look()) schedule(*all_[look_next_]);
  }
}

bool Chip::run_active(TimePoint now) {
  const std::size_t count = active_.size();
  for (std::size_t i = 0; i < count; ++i) {
    QueuePair& qp = *active_.front();
    active_.pop_front();
    qp.scheduled = false;
    if (qp.transport().transmit(kTransmitBudget, now)) schedule(qp);
    if (qp.transport().deadline() != TimePoint::max()) awaiting_ = &qp;
    watch_deadline(qp);
  }
  if (count != 0) link_->flush();
  return count != 0;
}

bool Chip::receive(TimePoint now) {
  return link_->poll([this, now](const wire::Frame& frame) { deliver(frame, now); }, kReceiveBatch, now) != 0;
}

void Chip::deliver(const wire::Frame& frame, TimePoint now) {
  const auto packet = roce::Packet::parse(frame.bytes);
  // What is damaged is dropped without a word: the sender's timer will repair it (IBTA vol. 1 9.6).
  if (!packet || (packet->partition_key() & kPartitionMask) != kDefaultPartition ||
      !roce::check_icrc(frame)) {
    ++packets_dropped_;
    return;
  }
  QueuePair* const qp = qps_.find(packet->destination_qpn());
  if (qp == nullptr) {
    ++packets_dropped_;
    return;
  }
  qp->transport().receive(*packet, frame.source, now);
  schedule(*qp);
  watch_deadline(*qp);
}

bool Chip::run_timers(TimePoint now) {
  bool any = false;
  while (const auto due = timers_.take_due(now)) {
    QueuePair* const qp = qps_.find(due->qpn);
    if (qp == nullptr || qp->timer != due->when) continue;
    qp->timer = TimePoint::max();
    if (qp->transport().deadline() <= now) {
      qp->transport().expire(now);
      schedule(*qp);
      any = true;
    }
    watch_deadline(*qp);
  }
  return any;
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
        if (qp->completes_on(number) && qp->state() != IBV_QPS_ERR) qp->fatal();
      }
    }
  }
}

bool Chip::anything_new() {
  doorbells_seen_ |= ring_doorbells();
  settle();
  return doorbells_seen_ || !active_.empty() || link_->ready();
}

bool Chip::anything_left() {
  if (anything_new()) return true;
  const bool everything = std::exchange(records_unknown_, false);
  if (everything || device_.watched_qps != 0) {
    for (QueuePair* const qp : all_) {
      if ((everything || qp->needs_looking()) && qp->look()) schedule(*qp);
    }
  }
  settle();
  return !active_.empty();
}

Chip::TimePoint Chip::deadline() const {
  TimePoint when = timers_.next();
  if (const auto of_link = link_->deadline()) when = std::min(when, *of_link);
  if (device_.watched_qps != 0) {
    when = std::min(when, std::chrono::steady_clock::now() + kErrorLook);
  }
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
  const auto number = cqs_.allocate();
  if (!number) return refuse(ENOMEM, "all completion queues are in use");
  all_cqs_.push_back(&cqs_.insert(*number, std::make_unique<CompletionQueue>(Cqn{*number}, parameters)));
  return Cqn{*number};
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
  cqs_.remove(static_cast<std::uint32_t>(number));
  return Errno{0};
}

namespace {

// Empty: within the limits.
std::string check_qp(const QpParameters& parameters, const DeviceLimits& limits) {
  const auto max_wr = static_cast<std::uint32_t>(limits.attributes.max_qp_wr);
  const auto ring = [max_wr](const char* name, std::uint32_t size) {
    if (size == 0 || (is_power_of_two(size) && size <= max_wr)) return std::string{};
    return fmt::format("its {} ring has {} entries; a power of two, at most {}", name, size, max_wr);
  };
  if (parameters.type !=
      IBV_QPT_RC) {  // unreliable connections and datagrams: a transport of their own goes there
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
  if (parameters.sink == nullptr) return "it has nowhere to report to";
  return {};
}

}  // namespace

Expected<Qpn> Chip::create_qp(const QpParameters& parameters) {
  if (const std::string error = check_qp(parameters, limits_); !error.empty()) {
    return refuse(parameters.type == IBV_QPT_RC ? EINVAL : EOPNOTSUPP, "create_qp refused: " + error);
  }
  CompletionQueue* const send_cq = find_cq(parameters.send_cq);
  CompletionQueue* const receive_cq = find_cq(parameters.recv_cq);
  if (send_cq == nullptr || receive_cq == nullptr)
    return refuse(EINVAL, "create_qp refused: no such completion queue");
  if (qps_.size() >= static_cast<std::size_t>(limits_.attributes.max_qp)) {
    return refuse(ENOMEM, fmt::format("all {} queue pairs are in use", limits_.attributes.max_qp));
  }
  if (!use_pd(parameters.pd)) return refuse(EINVAL, "create_qp refused: no such protection domain");
  const std::uint32_t number = *qps_.allocate();
  QueuePair& qp = qps_.insert(
      number, std::make_unique<QueuePair>(Qpn{number}, parameters, *send_cq, *receive_cq, device_));
  qp.place = all_.size();
  all_.push_back(&qp);
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
  std::erase(active_, qp);
  all_[qp->place] = all_.back();
  all_[qp->place]->place = qp->place;
  all_.pop_back();
  const Pdn pd = qp->parameters().pd;
  qps_.remove(static_cast<std::uint32_t>(number));
  unuse_pd(pd);
  return Errno{0};
}

}  // namespace qpair::softnic::nic
