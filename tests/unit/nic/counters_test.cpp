// What the NIC counts, and what other processes see of it.
#include <unistd.h>

#include "softnic/observe/running_nics.hpp"
#include "tests/unit/nic/harness.hpp"

namespace qpair::softnic::nic {
namespace {

using namespace testing_support;

// This process's NIC, as another process of the user would read it.
observe::NicReading reading() {
  const auto nics = observe::running_nics(getpid());
  EXPECT_EQ(nics.size(), 1U);
  return nics.empty() ? observe::NicReading{} : nics.front();
}

class Counters : public testing::Test {
 protected:
  void write(Connected& pair, int times) {
    for (int i = 0; i < times; ++i) {
      pair.a.post(Wqe(mlx5::Opcode::RdmaWrite)
                      .remote(there.address(), key(there_key))
                      .data(here.address(), 3000, here_key));
      ASSERT_EQ(mlx5::cqe_opcode(pair.a_cq.next().op_own), mlx5::CqeOpcode::Request);
    }
  }

  Machine machine;
  Memory here{8192}, there{8192};
  Mkey here_key = machine.register_memory(here), there_key = machine.register_memory(there);
};

TEST_F(Counters, a_queue_pair_counts_for_itself_and_for_the_device) {
  Connected pair(machine);
  write(pair, 10);
  const observe::Counters total = machine.nic->counters();
  EXPECT_EQ(total.send_wqes, 10U);
  EXPECT_EQ(total.rx_write_requests, 10U);
  EXPECT_GE(total.packets_sent, 40U) << "three packets of 1024 bytes and an acknowledgment each";
  EXPECT_GE(total.bytes_sent, 30'000U);

  const auto nic = reading();
  EXPECT_EQ(nic.totals, total);
  EXPECT_EQ(nic.queue_pairs, 2U);
  ASSERT_EQ(nic.listed.size(), 2U);
  const auto& requester = nic.listed[0].who.qpn == pair.a.qpn() ? nic.listed[0] : nic.listed[1];
  const auto& responder = nic.listed[0].who.qpn == pair.a.qpn() ? nic.listed[1] : nic.listed[0];
  EXPECT_EQ(requester.who, (observe::QueuePairIdentity{pair.a.qpn(), pair.b.qpn(), IBV_QPT_RC, IBV_QPS_RTS}));
  EXPECT_EQ(requester.counters.send_wqes, 10U);
  EXPECT_EQ(requester.counters.rx_write_requests, 0U);
  EXPECT_EQ(responder.counters.send_wqes, 0U);
  EXPECT_EQ(responder.counters.rx_write_requests, 10U);
  EXPECT_EQ(requester.counters + responder.counters, total);
}

TEST_F(Counters, what_a_destroyed_queue_pair_counted_stays_in_the_sum) {
  {
    Connected pair(machine);
    write(pair, 5);
  }
  const auto nic = reading();
  EXPECT_EQ(nic.queue_pairs, 0U);
  EXPECT_TRUE(nic.listed.empty());
  EXPECT_EQ(nic.totals.send_wqes, 5U);
  EXPECT_EQ(machine.nic->counters().send_wqes, 5U);
}

TEST_F(Counters, a_reset_does_not_set_them_back) {
  Connected pair(machine);
  write(pair, 3);
  ASSERT_EQ(pair.a.to_state(IBV_QPS_RESET).value, 0);
  EXPECT_EQ(machine.nic->counters().send_wqes, 3U);
}

TEST_F(Counters, the_first_queue_pairs_are_listed_and_the_rest_are_summed) {
  Completions cq(machine, 16);
  std::vector<std::unique_ptr<Pair>> unused;
  const QpOptions small{.send_blocks = 1, .receives = 1};
  for (std::size_t i = 0; i < observe::kListedQueuePairs; ++i) {
    unused.push_back(std::make_unique<Pair>(machine, cq, cq, small));
  }
  {
    Connected late(machine);
    write(late, 4);
    const auto nic = reading();
    EXPECT_EQ(nic.queue_pairs, observe::kListedQueuePairs + 2);
    EXPECT_EQ(nic.unlisted_queue_pairs, 2U);
    EXPECT_EQ(nic.listed.size(), observe::kListedQueuePairs);
    EXPECT_EQ(nic.unlisted.send_wqes, 4U);
    EXPECT_EQ(nic.totals.send_wqes, 4U);
  }
  EXPECT_EQ(reading().unlisted_queue_pairs, 0U);
  unused.pop_back();
  EXPECT_EQ(reading().queue_pairs, observe::kListedQueuePairs - 1);
  const Pair next(machine, cq, cq, small);
  EXPECT_EQ(reading().unlisted_queue_pairs, 0U) << "it has the place that became free";
}

TEST_F(Counters, errors_are_counted_by_kind) {
  Connected pair(machine);
  pair.a.post(Wqe(mlx5::Opcode::RdmaWrite)
                  .remote(there.address(), key(there_key) ^ 0xff00)
                  .data(here.address(), 8, here_key));
  pair.a.post(
      Wqe(mlx5::Opcode::RdmaWrite).remote(there.address(), key(there_key)).data(here.address(), 8, here_key));
  EXPECT_EQ(pair.a_cq.next_error().syndrome, mlx5::Syndrome::RemoteAccess);
  EXPECT_EQ(pair.a_cq.next_error().syndrome, mlx5::Syndrome::WorkRequestFlushed);
  const observe::Counters total = machine.nic->counters();
  EXPECT_EQ(total.req_remote_access_errors, 1U);
  EXPECT_EQ(total.resp_remote_access_errors, 1U);
  EXPECT_EQ(total.req_cqe_error, 2U);
  EXPECT_EQ(total.req_cqe_flush_error, 1U);
}

TEST_F(Counters, the_page_goes_with_the_nic) {
  EXPECT_EQ(observe::running_nics(getpid()).size(), 1U);
  machine.page.reset();
  machine.nic.reset();
  EXPECT_TRUE(observe::running_nics(getpid()).empty());
}

}  // namespace
}  // namespace qpair::softnic::nic
