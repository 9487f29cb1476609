// Rounds of the chip at times of the test's choice, over a network of the test's own.

#include "softnic/nic/chip.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>

#include "softnic/nic/tunables.hpp"
#include "softnic/wire/address.hpp"
#include "tests/unit/nic/harness.hpp"

namespace qpair::softnic::nic {
namespace {

using namespace std::chrono_literals;
using by_hand::Wqe;
using testing_support::Memory;
using testing_support::Sink;
using wire::TimePoint;

// Nobody answers, and packets that are nobody's may arrive without end.
class Network final : public wire::Link {
 public:
  wire::Endpoint local() const override { return *wire::parse_address("127.0.0.1"); }
  static wire::Endpoint peer() { return *wire::parse_address("127.0.0.2"); }
  std::span<std::byte> reserve(const wire::Endpoint&, std::size_t size) override {
    return std::span(packet_).first(size);
  }
  void commit() override { ++sent; }
  void flush() override {}
  std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint) override {
    if (!flooded) return 0;
    std::array<std::byte, 64> noise{};
    for (std::size_t i = 0; i < limit; ++i) receiver({peer(), local(), noise});
    return limit;
  }

  unsigned sent = 0;
  bool flooded = false;

 private:
  std::array<std::byte, 4096> packet_{};
};

class ChipRounds : public testing::Test {
 protected:
  ChipRounds() {
    auto link = std::make_unique<Network>();
    network = link.get();
    chip = std::make_unique<Chip>(std::move(link), 1024, "lo", 1);
    const Pdn pd = chip->create_pd().value();
    const UarId uar = chip->pages().add(page.data());
    for (std::size_t i = 0; i < kEntries; ++i) cqes.as<mlx5::Cqe64>(i * 64)->op_own = 0xf0;
    const Cqn cq =
        chip->create_cq({cqes.address(), records.address() + 64, kEntries, 64, uar, &sink}).value();
    QpParameters parameters{};
    parameters.type = IBV_QPT_RC;
    parameters.pd = pd;
    parameters.send_cq = parameters.recv_cq = cq;
    parameters.sq_buffer = parameters.buffer = ring.address();
    parameters.doorbell_record = records.address();
    parameters.sq_basic_blocks = 4;
    parameters.uar = uar;
    parameters.sink = &sink;
    qp = chip->find_qp(chip->create_qp(parameters).value());
    connect();
  }

  // To a peer that never answers: it fails after one timeout, of 4.3 s.
  void connect() {
    ibv_qp_attr is{};
    is.qp_state = IBV_QPS_INIT;
    is.port_num = 1;
    modify(is, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
    is.qp_state = IBV_QPS_RTR;
    is.path_mtu = IBV_MTU_1024;
    is.dest_qp_num = 17;
    is.max_dest_rd_atomic = is.max_rd_atomic = 1;
    is.ah_attr.is_global = 1;
    is.ah_attr.port_num = 1;
    is.ah_attr.grh.sgid_index = 3;
    std::ranges::copy(Network::peer().address, is.ah_attr.grh.dgid.raw);
    modify(is, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    is.qp_state = IBV_QPS_RTS;
    is.timeout = 20;
    modify(is, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                   IBV_QP_MAX_QP_RD_ATOMIC);
  }
  void modify(const ibv_qp_attr& attributes, int mask) {
    ASSERT_EQ(chip->modify_qp(*qp, attributes, mask, now).value, 0);
  }
  void send() {
    const auto wqe = Wqe(mlx5::Opcode::Send).bytes(0, static_cast<std::uint32_t>(qp->number()));
    std::ranges::copy(wqe, ring.data());
    *records.as<mlx5::be32>(4) = 1;
    std::memcpy(page.data() + mlx5::kBlueFlameOffset, wqe.data(), sizeof(std::uint64_t));
    chip->round(now);
    ASSERT_EQ(network->sent, 1U);
  }
  void round_after(std::chrono::milliseconds pause) {
    now += pause;
    chip->round(now);
  }
  bool has_failed() const {
    return mlx5::cqe_opcode(cqes.as<mlx5::Cqe64>()->op_own) == mlx5::CqeOpcode::RequestError;
  }

  static constexpr std::size_t kEntries = 4;
  Sink sink;
  Memory page{4096}, cqes{4096}, ring{4096}, records{4096};
  Network* network = nullptr;
  std::unique_ptr<Chip> chip;
  QueuePair* qp = nullptr;
  TimePoint now{1h};
};

TEST_F(ChipRounds, NobodyIsGivenUpBeforeWhatArrivedWasLookedAt) {
  send();
  network->flooded = true;
  round_after(5s);
  round_after(900ms);
  EXPECT_FALSE(has_failed());
  EXPECT_EQ(network->sent, 1U) << "nor asked again";
  network->flooded = false;
  round_after(1ms);
  EXPECT_TRUE(has_failed());
}

TEST_F(ChipRounds, WhoSendsWithoutEndDoesNotKeepOthersFromBeingGivenUp) {
  send();
  network->flooded = true;
  round_after(5s);
  round_after(kLongestBehind);
  EXPECT_TRUE(has_failed());
}

}  // namespace
}  // namespace qpair::softnic::nic
