#include "softnic/nic/completion_queue.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "qpair/mlx5/doorbell.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/doorbell_pages.hpp"
#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/id_table.hpp"
#include "softnic/nic/tracer.hpp"

namespace qpair::softnic::nic {
namespace {

// An arm record that no program writes (command bits that do not exist). Put there at creation, so that the
// first arm, which may well be the value 0 that libmlx5 initialises the record with, is seen as a change even
// when its doorbell was overwritten by another queue's in the same register. Hardware and libmlx5 never read
// the record's old value.
constexpr std::uint32_t kNeverArmed = 0xffff'ffff;

void* program(std::uint64_t address) {
  return reinterpret_cast<void*>(address);
}
void* record(const CqParameters& parameters, std::size_t entry) {
  return program(parameters.doorbell_record + entry * sizeof(std::uint32_t));
}

std::uint64_t device_clock() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

CompletionQueue::CompletionQueue(Cqn number, const CqParameters& parameters)
    : number_(number), parameters_(parameters), arm_record_(kNeverArmed) {
  if (!guarded_store32(record(parameters_, mlx5::kArmRecord), kNeverArmed)) arm_record_ = 0;
}

bool CompletionQueue::push(mlx5::Cqe64 cqe, Notice notice, const Payload* payload) {
  if (broken_) return false;
  if (!has_room()) return false;
  const auto begun = tracer != nullptr ? Tracer::Clock::now() : Tracer::TimePoint{};
  // An error entry has its syndrome where others have the time.
  if (mlx5::cqe_opcode(cqe.op_own) < mlx5::CqeOpcode::RequestError) cqe.timestamp = device_clock();
  if (!store(cqe, payload)) return false;
  if (tracer != nullptr) {
    tracer->completed(
        cqe, {static_cast<std::uint32_t>(number_), parameters_.doorbell_record, producer_ & kIdMask, begun});
  }
  ++producer_;
  unnotified_ = true;
  if (notice == Notice::Solicited) {
    after_solicited_ = producer_;
    unnotified_solicited_ = true;
  }
  notify(notice);
  return true;
}

bool CompletionQueue::store(mlx5::Cqe64& cqe, const Payload* payload) {
  const std::uint32_t slot = producer_ & (parameters_.entries - 1);
  const std::uint64_t entry = parameters_.buffer + std::uint64_t{slot} * parameters_.cqe_size;
  const bool wide = parameters_.cqe_size == 128;
  if (pages != nullptr && pages->lie_in(entry, parameters_.cqe_size)) {
    fail(fmt::format("one of the device's doorbell pages lies in its ring, at {:#x}", entry));
    return false;
  }
  if (payload != nullptr) {
    cqe.op_own =
        static_cast<std::uint8_t>(cqe.op_own | (wide ? mlx5::kInlineScatter64 : mlx5::kInlineScatter32));
    if (!wide) std::memcpy(static_cast<void*>(&cqe), payload->data(), 32);
  }
  if ((producer_ & parameters_.entries) != 0) cqe.op_own |= mlx5::kCqeOwnerMask;

  // All but the last 8 bytes first: those hold op_own.
  constexpr std::size_t kBody = sizeof cqe - sizeof(std::uint64_t);
  const std::uint64_t half = entry + (wide ? 64 : 0);
  std::uint64_t tail = 0;
  std::memcpy(&tail, reinterpret_cast<const std::byte*>(&cqe) + kBody, sizeof tail);
  if ((payload != nullptr && wide && !guarded_copy(program(entry), payload->data(), payload->size())) ||
      !guarded_copy(program(half), &cqe, kBody) || !guarded_store64(program(half + kBody), tail)) {
    fail(fmt::format("its ring at {:#x} is not mapped", parameters_.buffer));
    return false;
  }
  return true;
}

bool CompletionQueue::has_room() {
  if (parameters_.ignore_overrun || producer_ - consumer_ < parameters_.entries) return true;
  std::uint32_t raw = 0;
  if (!guarded_load32(record(parameters_, mlx5::kConsumerIndexRecord), raw)) {
    fail(fmt::format("its doorbell record at {:#x} is not mapped", parameters_.doorbell_record));
    return false;
  }
  const std::uint32_t index = mlx5::byte_swap(raw) & kIdMask;
  const std::uint32_t used = (producer_ - index) & kIdMask;
  if (used > parameters_.entries) {
    say_impossible_index(index);
    consumer_ = producer_;
    return true;
  }
  consumer_ = producer_ - used;
  if (used < parameters_.entries) return true;
  explain::say(
      explain::Kind::Finding,
      fmt::format("completion queue {:#x} overrun: all {} entries hold completions that were not polled "
                  "(consumer index record: {}), and another arrived",
                  static_cast<std::uint32_t>(number_), parameters_.entries, index));
  fail("overrun");
  return false;
}

// The program may have consumed no more than was completed, and never takes an index back.
void CompletionQueue::say_impossible_index(std::uint32_t index) const {
  const auto number = static_cast<std::uint32_t>(number_);
  const std::uint32_t completed = producer_ & kIdMask;
  const std::uint32_t too_far = (index - completed) & kIdMask;
  explain::say(
      explain::Kind::Finding,
      too_far <= kIdMask / 2
          ? fmt::format("completion queue {:#x}: the consumer index record says {}, {} ahead of what was "
                        "completed ({})",
                        number, index, too_far, completed)
          : fmt::format("completion queue {:#x}: the consumer index record says {}, {} behind what was "
                        "completed ({}); the ring has {} entries: it went back",
                        number, index, (completed - index) & kIdMask, completed, parameters_.entries));
}

void CompletionQueue::fail(const std::string& reason) {
  broken_ = true;
  explain::say(explain::Kind::Failure, fmt::format("completion queue {:#x} is in error: {}",
                                                   static_cast<std::uint32_t>(number_), reason));
  parameters_.sink->cq_event(number_, IBV_EVENT_CQ_ERR);
}

void CompletionQueue::notify(Notice notice) {
  if (armed_ == Armed::No) return;
  if (armed_ == Armed::Solicited && notice == Notice::Plain) return;
  if (!holds_back()) raise();
}

bool CompletionQueue::holds_back() {
  if (!is_moderated() || ++held_ >= moderation_count_) return false;
  if (held_until_ == wire::TimePoint::max()) {
    held_until_ = std::chrono::steady_clock::now() + std::chrono::microseconds(moderation_period_us_);
  }
  return true;
}

void CompletionQueue::expire(wire::TimePoint now) {
  if (held_ != 0 && held_until_ <= now && armed_ != Armed::No) raise();
}

void CompletionQueue::raise() {
  held_ = 0;
  held_until_ = wire::TimePoint::max();
  armed_ = Armed::No;
  fired_sequence_ = armed_sequence_;
  unnotified_ = unnotified_solicited_ = false;
  parameters_.sink->completion(number_);
}

void CompletionQueue::check_arm() {
  std::uint32_t raw = 0;
  if (broken_ || !guarded_load32(record(parameters_, mlx5::kArmRecord), raw)) return;
  if (raw == arm_record_) return;
  arm_record_ = raw;
  const std::uint32_t value = mlx5::byte_swap(raw);
  const auto sequence = static_cast<std::uint8_t>((value >> 28) & 3);
  // The program counts the sequence up when it takes an event. The same number again was written before it
  // saw the event that answered it: that event is still on its way, and there is one for each arm.
  if (sequence == fired_sequence_) return;
  armed_sequence_ = sequence;
  armed_ = (value & mlx5::kArmSolicited) != 0 ? Armed::Solicited : Armed::Any;

  // Completions that came between the program's last poll, up to its consumer index, and this arm; not those
  // that an event was raised for already: many programs take an event, arm, and only then poll. Hardware
  // keeps the same index (the CQ context's last_notified_index).
  const std::uint32_t consumed = value & kIdMask;
  const auto is_unpolled = [consumed](std::uint32_t index) {
    const std::uint32_t distance = (index - consumed) & kIdMask;
    return distance != 0 && distance <= kIdMask / 2;
  };
  if (armed_ == Armed::Any ? unnotified_ && is_unpolled(producer_)
                           : unnotified_solicited_ && is_unpolled(after_solicited_)) {
    notify(Notice::Solicited);
  }
}

Errno CompletionQueue::resize(std::uint64_t buffer, std::uint32_t entries, std::uint32_t cqe_size) {
  if (broken_) return Errno{EINVAL};
  if (!has_room()) return Errno{EINVAL};
  std::uint32_t raw = 0;
  if (!guarded_load32(record(parameters_, mlx5::kConsumerIndexRecord), raw)) return Errno{EFAULT};
  const std::uint32_t pending = (producer_ - mlx5::byte_swap(raw)) & kIdMask;
  if (pending >= entries) {
    explain::say(
        explain::Kind::Refusal,
        fmt::format("completion queue {:#x} cannot be resized to {} entries: {} completions wait in it",
                    static_cast<std::uint32_t>(number_), entries, pending));
    return Errno{EINVAL};
  }
  mlx5::Cqe64 mark{};
  mark.op_own = static_cast<std::uint8_t>(static_cast<unsigned>(mlx5::CqeOpcode::Resize) << 4);
  if (!store(mark, nullptr)) return Errno{EFAULT};
  ++producer_;
  consumer_ = producer_ - pending - 1;
  parameters_.buffer = buffer;
  parameters_.entries = entries;
  parameters_.cqe_size = cqe_size;
  return Errno{0};
}

void CompletionQueue::moderate(std::uint16_t count, std::uint16_t period_us) {
  moderation_count_ = count;
  moderation_period_us_ = period_us;
  if (!is_moderated()) expire(wire::TimePoint::max());
}

}  // namespace qpair::softnic::nic
