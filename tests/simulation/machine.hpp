#pragma once
// One machine: its emulated NIC, stepped by hand, and what its programs share. Killed, it loses the NIC with
// everything in it; the programs' memory stays to be looked at.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "softnic/nic/chip.hpp"
#include "tests/simulation/network.hpp"

namespace qpair::simulation {

namespace nic = softnic::nic;

// A word of this machine that every queue pair may add to: each addition has a bit of its own, so that the
// word says which were carried out, and twice is seen.
struct Ballot {
  alignas(8) std::uint64_t word = 0;
  unsigned given = 0;  // bits that belong to an addition
  std::uint32_t key = 0;
  static constexpr unsigned kBits = 56;
  static constexpr std::uint64_t kAddress = 0x7000'0000;
};

class Machine final : public nic::EventSink {
 public:
  Machine(unsigned number, Network& network, Log& log, std::uint64_t seed);

  // Kills it and starts another one in its place.
  void restart(bool same_numbers);
  // Lets the NIC work until it has nothing to do at this moment.
  void step();
  TimePoint deadline() const;

  void ring(std::uint64_t doorbell);

  unsigned number() const { return number_; }
  nic::Chip& chip() { return *chip_; }
  nic::Pdn pd() const { return pd_; }
  nic::UarId uar() const { return uar_; }
  Ballot& ballot() { return ballots_.back(); }
  const std::deque<Ballot>& ballots() const { return ballots_; }
  // What was raised for that queue pair since the last time; NIC events only.
  bool took_error_event(nic::Qpn qp) { return errors_.erase(static_cast<std::uint32_t>(qp)) != 0; }

  bool paused = false;
  unsigned life = 0;  // how often it was killed

  void completion(nic::Cqn) override {}
  void srq_event(nic::Srqn, ibv_event_type) override {}
  void cq_event(nic::Cqn cq, ibv_event_type event) override;
  void qp_event(nic::Qpn qp, ibv_event_type event) override;

 private:
  void start();

  struct alignas(64) Page {
    std::array<std::byte, 4096> bytes{};
  };

  unsigned number_;
  Network& network_;
  Log& log_;
  std::uint64_t seed_;
  std::unique_ptr<Page> page_;
  std::unique_ptr<nic::Chip> chip_;
  nic::Pdn pd_{};
  nic::UarId uar_{};
  std::deque<Ballot> ballots_;
  std::map<std::uint32_t, ibv_event_type> errors_;
  std::size_t half_ = 0;
};

}  // namespace qpair::simulation
