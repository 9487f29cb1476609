#include "tests/simulation/machine.hpp"

#include <cstring>

#include "qpair/mlx5/doorbell.hpp"

namespace qpair::simulation {
namespace {

constexpr std::uint32_t kPortMtu = 4096;
constexpr unsigned kTooManyRounds = 100'000;

}  // namespace

Machine::Machine(unsigned number, Network& network, Log& log, std::uint64_t seed)
    : number_(number), network_(network), log_(log), seed_(seed), page_(std::make_unique<Page>()) {
  start();
}

void Machine::start() {
  std::memset(page_->bytes.data(), 0, page_->bytes.size());
  chip_ = std::make_unique<nic::Chip>(network_.plug(number_), kPortMtu, "lo", seed_);
  uar_ = chip_->pages().add(page_->bytes.data());
  pd_ = chip_->create_pd().value();
  Ballot& ballot = ballots_.emplace_back();
  ballot.key = static_cast<std::uint32_t>(
      chip_->keys()
          .create({pd_, reinterpret_cast<std::uint64_t>(&ballot.word), sizeof ballot.word, Ballot::kAddress,
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC})
          .value());
  errors_.clear();
}

void Machine::restart(bool same_numbers) {
  ++life;
  if (!same_numbers) seed_ = Random(seed_).next();
  chip_.reset();
  start();
}

void Machine::step() {
  unsigned rounds = 0;
  do {
    while (chip_->round(log_.now)) {
      if (++rounds > kTooManyRounds) throw Violation(fmt::format("machine {} never comes to rest", number_));
    }
  } while (chip_->anything_left());
}

TimePoint Machine::deadline() const {
  return chip_->deadline(log_.now);
}

void Machine::ring(std::uint64_t doorbell) {
  __atomic_store_n(reinterpret_cast<std::uint64_t*>(page_->bytes.data() + mlx5::kBlueFlameOffset + half_),
                   doorbell, __ATOMIC_RELEASE);
  half_ ^= 0x100;
}

void Machine::cq_event(nic::Cqn cq, ibv_event_type event) {
  throw Violation(fmt::format("machine {}: completion queue {:#x} raised event {}", number_,
                              static_cast<std::uint32_t>(cq), static_cast<int>(event)));
}

void Machine::qp_event(nic::Qpn qp, ibv_event_type event) {
  log_.say("machine {}: queue pair {:#x} raises event {}", number_, static_cast<std::uint32_t>(qp),
           static_cast<int>(event));
  log_.digest(static_cast<std::uint64_t>(event));
  if (event == IBV_EVENT_QP_FATAL || event == IBV_EVENT_QP_REQ_ERR || event == IBV_EVENT_QP_ACCESS_ERR) {
    errors_.emplace(static_cast<std::uint32_t>(qp), event);
  }
}

}  // namespace qpair::simulation
