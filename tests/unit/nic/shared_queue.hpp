#pragma once
// A shared receive queue made by hand.

#include <cstdint>
#include <optional>
#include <utility>

#include "harness.hpp"

namespace qpair::softnic::nic::testing_support {

// As libmlx5's mlx5_srq: a ring of WQEs of 64 bytes that is a list of free ones, posted at its head and given
// back at its tail.
class Shared {
 public:
  static constexpr std::uint32_t kShift = 6;

  Shared(Machine& machine, std::uint32_t entries, std::optional<XrcParameters> xrc = std::nullopt)
      : Shared(machine, entries, machine.pd, std::move(xrc)) {}
  Shared(Machine& machine, std::uint32_t entries, Pdn pd, std::optional<XrcParameters> xrc)
      : machine_(machine), entries_(entries), ring_(std::size_t{entries} << kShift), record_(4096) {
    for (std::uint32_t i = 0; i < entries; ++i) link(i, static_cast<std::uint16_t>(i + 1));
    number_ = machine.nic
                  ->create_srq({.pd = pd,
                                .buffer = ring_.address(),
                                .doorbell_record = record_.address(),
                                .wqe_count = entries,
                                .wqe_shift = kShift,
                                .xrc = std::move(xrc),
                                .sink = &machine.sink})
                  .value();
  }
  ~Shared() { destroy(); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  Srqn number() const { return number_; }
  std::uint32_t srqn() const { return static_cast<std::uint32_t>(number_); }
  const Memory& ring() const { return ring_; }
  Errno arm(std::uint32_t limit) { return machine_.nic->arm_srq(number_, limit); }
  std::uint32_t limit() {
    std::uint32_t limit = 0;
    EXPECT_EQ(0, machine_.nic->query_srq(number_, limit).value);
    return limit;
  }
  Errno destroy() {
    if (!std::exchange(alive_, false)) return Errno{0};
    return machine_.nic->destroy_srq(number_);
  }
  void keep_alive() { alive_ = true; }

  // Returns the WQE's index.
  std::uint16_t post(const Pair::Piece& piece) {
    const std::uint16_t index = head_;
    head_ = ring_.as<mlx5::SharedReceiveLink>(std::size_t{index} << kShift)->next_wqe_index;
    auto* const data = ring_.as<mlx5::DataSegment>((std::size_t{index} << kShift) + 16);
    data[0] = {piece.length, key(piece.lkey), piece.address};
    data[1] = {0, mlx5::kInvalidLkey, 0};
    store_record(++posted_);
    return index;
  }
  void give_back(std::uint16_t index) {
    link(tail_, index);
    tail_ = index;
  }
  void link(std::uint32_t from, std::uint16_t to) {
    ring_.as<mlx5::SharedReceiveLink>(std::size_t{from} << kShift)->next_wqe_index = to;
  }
  void store_record(std::uint32_t value) {
    __atomic_store_n(&record_.as<mlx5::be32>()->raw, mlx5::be32{value & 0xffff}.raw, __ATOMIC_RELEASE);
  }

 private:
  Machine& machine_;
  std::uint32_t entries_;
  Memory ring_;
  Memory record_;
  Srqn number_{};
  bool alive_ = true;
  std::uint16_t head_ = 0;
  std::uint16_t tail_ = static_cast<std::uint16_t>(entries_ - 1);
  std::uint32_t posted_ = 0;
};

}  // namespace qpair::softnic::nic::testing_support
