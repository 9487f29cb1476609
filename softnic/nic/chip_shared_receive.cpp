// Shared receive queues of the chip: made, found and destroyed.

#include <fmt/format.h>

#include <bit>
#include <cerrno>

#include "softnic/explain/explain.hpp"
#include "softnic/nic/chip.hpp"

namespace qpair::softnic::nic {
namespace {

constexpr std::uint32_t kSmallestShift = 5;  // the link and one data segment
constexpr std::uint32_t kLargestShift = 10;
constexpr std::uint32_t kMostEntries = 1U << 16;  // a link has 16 bits

tl::unexpected<Errno> refuse(int error, const std::string& sentence) {
  explain::say(explain::Kind::Refusal, sentence);
  return tl::unexpected(Errno{error});
}

// Empty: as the device can have it.
std::string check(const SrqParameters& parameters) {
  if (!std::has_single_bit(parameters.wqe_count) || parameters.wqe_count > kMostEntries) {
    return fmt::format("its ring has {} entries; a power of two, at most {}", parameters.wqe_count,
                       kMostEntries);
  }
  if (parameters.wqe_shift < kSmallestShift || parameters.wqe_shift > kLargestShift) {
    return fmt::format("its WQEs have 2^{} bytes; 2^{} to 2^{}", parameters.wqe_shift, kSmallestShift,
                       kLargestShift);
  }
  if ((parameters.doorbell_record & 7) != 0) {
    return fmt::format("its doorbell record at {:#x} is not aligned to 8 bytes", parameters.doorbell_record);
  }
  if (parameters.sink == nullptr) return "it has nowhere to report to";
  return {};
}

}  // namespace

Expected<Srqn> Chip::create_srq(const SrqParameters& parameters) {
  if (const std::string error = check(parameters); !error.empty()) {
    return refuse(EINVAL, "create_srq refused: " + error);
  }
  if (srqs_.size() >= static_cast<std::size_t>(limits_.attributes.max_srq)) {
    return refuse(ENOMEM, fmt::format("all {} shared receive queues are in use", limits_.attributes.max_srq));
  }
  CompletionQueue* const cq = parameters.xrc ? find_cq(parameters.xrc->cq) : nullptr;
  if (parameters.xrc && cq == nullptr) return refuse(EINVAL, "create_srq refused: no such completion queue");
  if (!use_pd(parameters.pd)) return refuse(EINVAL, "create_srq refused: no such protection domain");
  if (parameters.xrc && !xrc_domains_.use(parameters.xrc->domain)) {
    unuse_pd(parameters.pd);
    return refuse(EINVAL, "create_srq refused: no such XRC domain");
  }
  const std::uint32_t number = *srqs_.allocate();
  SharedReceiveQueue& srq =
      srqs_.insert(number, std::make_unique<SharedReceiveQueue>(Srqn{number}, parameters, cq, decoded_));
  if (parameters.xrc) xrc_srqs_.push_back(&srq);
  return Srqn{number};
}

Errno Chip::destroy_srq(Srqn number) {
  SharedReceiveQueue* const srq = find_srq(number);
  if (srq == nullptr) return Errno{EINVAL};
  if (srq->users != 0) {
    return refuse(EBUSY, fmt::format("shared receive queue {:#x} is in use by {} queue pairs",
                                     static_cast<std::uint32_t>(number), srq->users))
        .value();
  }
  if (const auto& xrc = srq->parameters().xrc) {
    for (QueuePair* const qp : all_) qp->let_go_of(*srq);
    std::erase(xrc_srqs_, srq);
    xrc_domains_.unuse(xrc->domain);
  }
  const Pdn pd = srq->pd();
  srqs_.remove(static_cast<std::uint32_t>(number));
  unuse_pd(pd);
  return Errno{0};
}

}  // namespace qpair::softnic::nic
