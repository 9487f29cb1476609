// The hardware protocol broken in one way at a time, and what the NIC says about it. What it says nothing
// about matters as much: a doorbell is a hint, and a correct program must never be accused.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/unit/nic/harness.hpp"

namespace qpair::softnic::nic {
namespace {

using namespace testing_support;
using mlx5::Opcode;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Findings : public testing::Test {
 protected:
  Findings() { testing::internal::CaptureStderr(); }
  ~Findings() override {
    if (capturing_) testing::internal::GetCapturedStderr();
  }

  Wqe write(std::uint32_t length = 8) const {
    return Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey)).data(local.address(), length, lkey);
  }
  // Destroying a queue pair takes every doorbell that was rung, so nothing is said afterwards.
  std::string said_until_the_end_of(Pair& qp) {
    qp.destroy();
    capturing_ = false;
    return testing::internal::GetCapturedStderr();
  }
  std::string says(std::string_view what) const {
    return fmt::format("queue pair {:#x}: {}", pair.a.qpn(), what);
  }

  Machine machine;
  Connected pair{machine};
  Memory local{4096}, remote{4096};
  Mkey lkey = machine.register_memory(local);
  Mkey rkey = machine.register_memory(remote);

 private:
  bool capturing_ = true;
};

TEST_F(Findings, record_behind_the_doorbell_is_said_once) {
  pair.a.write(write());
  pair.a.ring_without_record();
  const std::string said = said_until_the_end_of(pair.a);
  EXPECT_THAT(said, HasSubstr(says("the doorbell names WQE 0, but the send doorbell record says 0")));
  EXPECT_EQ(said.find("the doorbell names"), said.rfind("the doorbell names"));
}

TEST_F(Findings, record_in_the_receive_queues_place_is_suspected_in_every_state) {
  pair.a.post(write());
  pair.a_cq.next();
  pair.a.write(write());
  pair.a.store_receive_record(2);
  pair.a.ring_without_record();
  EXPECT_THAT(
      said_until_the_end_of(pair.a),
      HasSubstr(says("the doorbell names WQE 1, but the send doorbell record says 1; the receive record "
                     "says 2, as if the two were swapped")));
}

TEST_F(Findings, doorbell_before_the_queue_pair_is_ready_to_send) {
  for (const int state : {0, 1, 2}) {
    Pair early(machine, pair.a_cq, pair.a_cq);
    if (state > 0) {
      ASSERT_EQ(early.to_init().value, 0);
    }
    if (state > 1) {
      ASSERT_EQ(early.to_rtr(pair.b.qpn()).value, 0);
    }
    early.post(write());
    early.destroy();
  }
  const std::string said = said_until_the_end_of(pair.a);
  for (const char* state : {"RESET", "INIT", "RTR"}) {
    EXPECT_THAT(said, HasSubstr(fmt::format("its send doorbell was rung in state {};", state)));
  }
  EXPECT_THAT(said, Not(HasSubstr("the doorbell names")));
}

TEST_F(Findings, doorbell_of_a_queue_pair_without_a_send_queue) {
  Pair deaf(machine, pair.a_cq, pair.a_cq, {.send_blocks = 0});
  deaf.connect(pair.b.qpn());
  deaf.ring_with(mlx5::opmod_idx_opcode(3, Opcode::Send));
  deaf.destroy();
  EXPECT_THAT(said_until_the_end_of(pair.a), HasSubstr("it has no send queue"));
}

TEST_F(Findings, posting_over_a_request_that_is_not_complete) {
  // Nobody posts a receive, so the SEND waits, and its 64 blocks come round.
  const auto first = pair.a.post(Wqe(Opcode::Send).data(local.address(), 8, lkey));
  ASSERT_EQ(first, 0);
  for (int i = 0; i < 64; ++i) pair.a.write(write());
  pair.a.ring();
  ASSERT_EQ(pair.a.to_state(IBV_QPS_ERR).value, 0);  // looks at the record before anything else
  EXPECT_THAT(said_until_the_end_of(pair.a),
              HasSubstr(says("the send doorbell record says 65, 65 basic blocks after WQE 0, which is not "
                             "complete; the ring has 64: WQE 0 was overwritten")));
}

TEST_F(Findings, memory_key_zero_in_either_ring) {
  pair.a.post(Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey)).data(local.address(), 8, Mkey{0}));
  pair.a_cq.next_error();
  Connected other(machine);
  other.b.receive({{remote.address(), 8, rkey}, {remote.address(), 8, Mkey{0}}});
  other.a.post(Wqe(Opcode::Send).data(local.address(), 12, lkey));
  other.a_cq.next_error();
  EXPECT_THAT(said_until_the_end_of(pair.a),
              AllOf(HasSubstr(", send WQE 0: its data segment 0 names memory key 0"),
                    HasSubstr(", receive WQE 0: its data segment 1 names memory key 0")));
}

TEST_F(Findings, consumer_index_ahead_of_the_producer_and_behind_the_ring) {
  for (const std::uint32_t index : {100U, 0xff'fff0U}) {
    Connected small(machine, {}, 64, 4);
    for (int i = 0; i < 4; ++i) small.a.write(write());
    small.a.ring();
    ASSERT_TRUE(eventually([&] { return small.a_cq.peek(3) != nullptr; }));
    small.a_cq.store_consumer_index(index);
    small.a.post(write());
    ASSERT_TRUE(eventually([&] { return small.a_cq.peek(4) != nullptr; }));
  }
  EXPECT_THAT(
      said_until_the_end_of(pair.a),
      AllOf(HasSubstr("the consumer index record says 100, 96 ahead of what was completed (4)"),
            HasSubstr("the consumer index record says 16777200, 20 behind what was completed (4); the "
                      "ring has 4 entries: it went back")));
}

TEST_F(Findings, correct_programs_hear_nothing) {
  // One register, two queue pairs, indices that wrap, several WQEs for a doorbell, WQEs of several blocks; a
  // GPU library's doorbell that names the record and not the last WQE.
  Connected other(machine);
  for (int round = 0; round < 2000; ++round) {
    for (Connected* const at : {&pair, &other}) {
      for (int i = 0; i < 17; ++i) at->a.write(write());
      Wqe long_one(Opcode::RdmaWrite);
      long_one.remote(remote.address(), key(rkey));
      for (std::uint32_t i = 0; i < 10; ++i) long_one.data(local.address(), 1, lkey);
      at->a.write(long_one);
      at->a.store_send_record(at->a.send_index());
      if (round % 2 == 0) {
        at->a.ring_without_record();
      } else {
        at->a.ring_with(static_cast<std::uint32_t>(at->a.send_index()) << 8);
      }
    }
    for (Connected* const at : {&pair, &other}) {
      for (int i = 0; i < 18; ++i) at->a_cq.next();
    }
  }
  EXPECT_THAT(said_until_the_end_of(pair.a), IsEmpty());
}

}  // namespace
}  // namespace qpair::softnic::nic
