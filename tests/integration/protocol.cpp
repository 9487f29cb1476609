// The protocol between driver and hardware, broken in one way at a time by a program that writes WQEs,
// doorbell records and doorbells by hand. Each violation is named with the value that gave it away; with
// --strict it also ends the program. Programs that do it right hear nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <ostream>
#include <thread>

#include "qpair/mlx5/cqe.hpp"
#include "tests/integration/core_fixture.hpp"
#include "tests/support/by_hand.hpp"

namespace {

using namespace qpair::by_hand;
using qpair::mlx5::Opcode;

using testing::ExitedWithCode;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::KilledBySignal;

constexpr std::uint32_t kInline = qpair::mlx5::kInlineFlag;

struct Violation {
  const char* name;
  std::function<void()> commit;
  const char* sentence;  // part of what is said
};
std::ostream& operator<<(std::ostream& out, const Violation& violation) {
  return out << violation.name;
}

// One send WQE that is wrong in itself: its completion says so.
std::function<void()> post(std::function<Wqe(const HandPair&)> make) {
  return [make = std::move(make)] {
    HandPair pair;
    pair.a.post(make(pair));
    next(pair.a.send_cq());
  };
}

Wqe read_of(const HandPair& pair) {
  return Wqe(Opcode::RdmaRead).remote(pair.remote.address(), pair.remote.rkey());
}

// A completion queue's ring and record, for those who do not poll.
class CqRing {
 public:
  explicit CqRing(ibv_cq* cq) {
    mlx5dv_obj object{};
    object.cq = {cq, &rings_};
    expect(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ) == 0, "mlx5dv_init_obj");
  }
  std::uint32_t entries() const { return rings_.cqe_cnt; }
  void wait_for(std::uint32_t index) const {
    const auto* const entry = static_cast<const std::byte*>(rings_.buf) +
                              std::size_t{index & (rings_.cqe_cnt - 1)} * rings_.cqe_size + rings_.cqe_size -
                              1;
    const unsigned owner = (index & rings_.cqe_cnt) != 0 ? 1 : 0;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      const unsigned op_own = __atomic_load_n(reinterpret_cast<const std::uint8_t*>(entry), __ATOMIC_ACQUIRE);
      if (op_own >> 4 != 0xf && (op_own & 1) == owner) return;
      expect(std::chrono::steady_clock::now() < deadline, "no completion came");
    }
  }
  void store_consumer_index(std::uint32_t index) const {
    qpair::mlx5::store_record(reinterpret_cast<qpair::mlx5::be32*>(rings_.dbrec), index);
  }

 private:
  mlx5dv_cq rings_{};
};

void consume_what_never_was(std::uint32_t index) {
  HandPair pair({.cq_entries = 3});
  const CqRing cq(pair.a.send_cq());
  for (std::uint32_t i = 0; i < cq.entries(); ++i) pair.a.write(pair.write());
  pair.a.ring();
  cq.wait_for(cq.entries() - 1);
  cq.store_consumer_index(index);
  pair.a.post(pair.write());
  cq.wait_for(cq.entries());
}

// What the receive queue's owner finds when a message needs a buffer is a fatal error of its queue pair.
void receive_wrongly(const std::function<void(HandPair&)>& prepare) {
  HandPair pair;
  prepare(pair);
  pair.a.post(pair.send());
  expect(next_event().event_type == IBV_EVENT_QP_FATAL, "another event");
}

// A shared receive queue and its ring, a list of WQEs that each name the next.
struct SharedReceives {
  SharedReceives() {
    ibv_srq_init_attr initial{};
    initial.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
    srq.reset(ibv_create_srq(Device::get().pd, &initial));
    expect(srq != nullptr, "ibv_create_srq");
    mlx5dv_obj object{};
    object.srq = {srq.get(), &rings};
    expect(mlx5dv_init_obj(&object, MLX5DV_OBJ_SRQ) == 0, "mlx5dv_init_obj");
  }
  // struct mlx5_wqe_srq_next_seg of rdma-core's providers/mlx5/wqe.h, then data segments.
  void write_first(const HandQp::Piece& piece, std::uint16_t next_index) const {
    auto* const entry = static_cast<std::byte*>(rings.buf);
    const qpair::mlx5::be16 following = next_index;
    std::memcpy(entry + 2, &following, sizeof following);
    const qpair::mlx5::DataSegment segment{piece.length, piece.lkey, piece.address};
    std::memcpy(entry + 16, &segment, sizeof segment);
  }
  void store_record(std::uint32_t count) const {
    qpair::mlx5::store_record(reinterpret_cast<qpair::mlx5::be32*>(rings.dbrec), count);
  }
  Owned<ibv_srq> srq{nullptr, ibv_destroy_srq};
  mlx5dv_srq rings{};
};

const std::vector<Violation>& violations() {
  static const std::vector<Violation> all{
      // ---- Doorbells and records ----------------------------------------------------------------
      {"record_behind_the_doorbell",
       [] {
         HandPair pair;
         pair.a.write(pair.write());
         pair.a.ring_without_record();
         pair.a.destroy();
       },
       ": the doorbell names WQE 0, but the send doorbell record says 0: the record must be stored before"},
      {"record_ahead_of_the_ring",
       [] {
         HandPair pair;
         pair.a.write(pair.write());
         pair.a.store_send_record(1000);
         pair.a.ring_without_record();
         next(pair.a.send_cq());
       },
       ": the send doorbell record says 1000, 1000 basic blocks after WQE 0, which is not complete"},
      {"records_swapped",
       [] {
         HandPair pair;
         pair.a.write(pair.write());
         pair.a.store_receive_record(1);
         pair.a.ring_without_record();
         pair.a.destroy();
       },
       "but the send doorbell record says 0; the receive record says 1, as if the two were swapped"},
      {"doorbell_in_state_RTR",
       [] {
         HandQp early;
         const Registered memory(4096);
         early.to_init();
         early.to_ready_to_receive(early.number());
         early.post(Wqe(Opcode::Send).data(memory.address(), 8, memory.lkey()));
         early.destroy();
       },
       ": its send doorbell was rung in state RTR; a send queue works from RTS on"},
      {"doorbell_without_a_send_queue",
       [] {
         HandQp deaf({.sends = 0});
         HandQp neighbour;
         deaf.connect(deaf.number());
         neighbour.ring_for(deaf.number());
         neighbour.destroy();
       },
       ": a doorbell names send WQE 0, but it has no send queue"},
      {"doorbell_of_no_queue_pair",
       [] {
         HandPair pair;
         pair.a.ring_for(0x123456);
         pair.a.destroy();
       },
       "a doorbell was rung for queue pair 0x123456, which does not exist"},
      {"overwritten_before_completion",
       [] {
         HandPair pair;
         pair.a.post(pair.send());  // waits: no receive is posted for it
         for (std::uint32_t i = 0; i < pair.a.send_blocks(); ++i) pair.a.write(pair.write());
         pair.a.ring();
         pair.a.destroy();
       },
       "basic blocks after WQE 0, which is not complete; the ring has "},
      // ---- Control segments ---------------------------------------------------------------------
      {"index_that_skips", post([](const HandPair& pair) { return pair.write().claim_index(77); }),
       ", send WQE 0: its control segment says index 77: it was skipped, or overwritten before it completed"},
      {"wrong_queue_pair_number", post([](const HandPair& pair) { return pair.write().claim_qpn(0x5a5a5a); }),
       ", send WQE 0: its control segment names queue pair 0x5a5a5a"},
      {"no_segments", post([](const HandPair& pair) { return pair.write().claim_segments(0); }),
       ", send WQE 0: its control segment says ds 0, less than the control segment itself"},
      {"longer_than_what_was_rung",
       post([](const HandPair& pair) { return pair.write().claim_segments(63); }),
       "it has 63 segments, 16 basic blocks, but the doorbell record ends 1 blocks after its start"},
      {"longer_than_the_ring",
       [] {
         HandPair pair({.sends = 1});
         pair.a.write(pair.write().claim_segments(63));
         pair.a.store_send_record(static_cast<std::uint16_t>(pair.a.send_blocks()));
         pair.a.ring_without_record();
         next(pair.a.send_cq());
       },
       ", send WQE 0: it has 63 segments, 16 basic blocks, but"},
      {"opcode_that_does_not_exist", post([](const HandPair&) { return Wqe(static_cast<Opcode>(0x3f)); }),
       ", send WQE 0: opcode 0x3f (unknown opcode) does not exist"},
      // ---- The other segments -------------------------------------------------------------------
      {"fixed_segments_missing", post([](const HandPair& pair) { return pair.write().claim_segments(1); }),
       ", send WQE 0: RDMA WRITE with 1 segments: its fixed segments alone are 2"},
      {"inline_data_longer_than_its_wqe", post([](const HandPair& pair) {
         return Wqe(Opcode::RdmaWrite)
             .remote(pair.remote.address(), pair.remote.rkey())
             .data(pair.local.address(), kInline | 900, pair.local.lkey());
       }),
       ", send WQE 0: its inline segment at byte 32 has 900 bytes, but the WQE ends after 48 bytes"},
      {"read_into_inline_data",
       post([](const HandPair& pair) { return read_of(pair).inline_data("nowhere"); }),
       ", send WQE 0: RDMA READ with inline data: it needs memory to store to"},
      {"atomic_without_room_for_the_original", post([](const HandPair& pair) {
         return Wqe(Opcode::AtomicFetchAdd)
             .remote(pair.remote.address(), pair.remote.rkey())
             .atomic(1, 0)
             .data(pair.local.address(), 4, pair.local.lkey());
       }),
       ", send WQE 0: FETCH_ADD has room for 4 bytes of the original value, which is 8 bytes"},
      {"memory_key_zero", post([](const HandPair& pair) {
         return Wqe(Opcode::RdmaWrite)
             .remote(pair.remote.address(), pair.remote.rkey())
             .data(pair.local.address(), 8, 0);
       }),
       ", send WQE 0: its data segment 0 names memory key 0, which is never valid, for 8 bytes at 0x"},
      // ---- Receive rings ------------------------------------------------------------------------
      {"memory_key_zero_in_a_receive",
       [] {
         HandPair pair;
         pair.b.receive({{pair.remote.address(), 8, 0}});
         pair.a.post(pair.send());
         next(pair.b.receive_cq());
       },
       ", receive WQE 0: its data segment 0 names memory key 0, which is never valid, for 8 bytes at 0x"},
      {"receive_ring_overrun",
       [] {
         receive_wrongly([](HandPair& pair) {
           pair.b.store_receive_record(static_cast<std::uint16_t>(pair.b.receive_entries() + 7));
         });
       },
       ": the receive doorbell record says 23, 23 ahead of what was consumed; the ring has 16 entries"},
      {"receive_of_inline_data",
       [] {
         receive_wrongly([](HandPair& pair) {
           pair.b.receive({{pair.remote.address(), kInline | 8, pair.remote.lkey()}});
         });
       },
       ", receive WQE 0: its segment 0 has byte count 0x80000008, of which bit 31 must be clear"},
      {"shared_receive_ring_overrun",
       [] {
         SharedReceives receives;
         HandPair pair({}, {.srq = receives.srq.get()});
         receives.store_record(1000);
         pair.a.post(pair.send());
         expect(next_event().event_type == IBV_EVENT_SRQ_ERR, "another event");
       },
       ": its doorbell record says 1000, 1000 ahead of what was consumed; the ring has "},
      {"shared_receive_list_that_leads_nowhere",
       [] {
         SharedReceives receives;
         HandPair pair({}, {.srq = receives.srq.get()});
         receives.write_first({pair.remote.address(), 8, pair.remote.lkey()}, 5000);
         receives.store_record(2);
         pair.a.post(pair.send());
         next(pair.b.receive_cq());
         pair.a.post(pair.send());
         expect(next_event().event_type == IBV_EVENT_SRQ_ERR, "another event");
       },
       ": a WQE names 5000 as the next one; the ring has entries 0 to "},
      // ---- Completion queues --------------------------------------------------------------------
      {"completion_queue_overrun",
       [] {
         HandPair pair({.cq_entries = 3});
         for (int i = 0; i < 5; ++i) pair.a.write(pair.write());
         pair.a.ring();
         expect(next_event().event_type == IBV_EVENT_CQ_ERR, "another event");
       },
       " overrun: all 4 entries hold completions that were not polled (consumer index record: 0)"},
      {"consumer_index_ahead", [] { consume_what_never_was(100); },
       ": the consumer index record says 100, 96 ahead of what was completed (4)"},
      {"consumer_index_taken_back", [] { consume_what_never_was(0xff'fff0); },
       ": the consumer index record says 16777200, 20 behind what was completed (4); the ring has 4 entries: "
       "it went "
       "back"},
  };
  return all;
}

class Protocol : public testing::TestWithParam<Violation> {};

TEST_P(Protocol, violation_is_named) {
  testing::internal::CaptureStderr();
  GetParam().commit();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(GetParam().sentence));
}

TEST_P(Protocol, violation_ends_a_strict_program) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("QPAIR_NIC_STRICT", "1", 1);
        GetParam().commit();
        std::_Exit(0);
      },
      KilledBySignal(SIGABRT), HasSubstr(GetParam().sentence));
}

INSTANTIATE_TEST_SUITE_P(every, Protocol, testing::ValuesIn(violations()),
                         [](const auto& violation) { return violation.param.name; });

// ---- Correct programs ---------------------------------------------------------------------------

// Rings that wrap many times, WQEs of one and of several basic blocks, several for a doorbell, a register
// that queue pairs share, unsignaled work, receives, and a queue pair in error that goes on being posted to.
void post_by_hand() {
  HandPair pair;
  HandPair neighbour;
  for (int round = 0; round < 400; ++round) {
    for (HandPair* const at : {&pair, &neighbour}) {
      at->b.receive({{at->remote.address(), 64, at->remote.lkey()}});
      at->a.write(at->write(8, 0));
      Wqe wide(Opcode::RdmaWrite);
      wide.remote(at->remote.address(), at->remote.rkey());
      for (int i = 0; i < 7; ++i) wide.data(at->local.address(), 8, at->local.lkey());
      at->a.write(wide);
      at->a.write(at->send());
      at->a.ring();
    }
    for (HandPair* const at : {&pair, &neighbour}) {
      for (int i = 0; i < 2; ++i) expect(next(at->a.send_cq()).status == IBV_WC_SUCCESS, "a good WQE failed");
      expect(next(at->b.receive_cq()).status == IBV_WC_SUCCESS, "a good receive failed");
    }
  }
  pair.a.to_error();
  pair.a.post(pair.write());
  expect(next(pair.a.send_cq()).status == IBV_WC_WR_FLUSH_ERR, "not flushed");
}

// The library's own way, from several threads that each have a pair of queue pairs.
void post_with_qpair() {
  using qpair::PollTarget;
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      qpair::test::Pair pair;
      for (int round = 0; round < 300; ++round) {
        for (int k = 0; k < 5; ++k) {
          qpair::test::value_of(pair.a.queue_pair.enqueue_put(pair.a.at(0, 4096), pair.b.at(8192, 4096)),
                                "put");
        }
        qpair::test::value_of(pair.a.queue_pair.ring_doorbell(), "ring");
        qpair::test::value_of(pair.b.queue_pair.get(pair.b.at(0, 100), pair.a.at(0, 100)), "get");
        for (int k = 0; k < 5; ++k)
          good += qpair::test::wait_for(pair.a.queue_pair, PollTarget::Send).is_valid() ? 1 : 0;
        good += qpair::test::wait_for(pair.b.queue_pair, PollTarget::Send).is_valid() ? 1 : 0;
      }
      qpair::test::value_of(pair.a.queue_pair.reset(), "reset");
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect(good == 4 * 300 * 6, "a good operation failed");
}

TEST(ProtocolDeathTest, correct_programs_hear_nothing_even_when_strict) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("QPAIR_NIC_STRICT", "1", 1);
        post_by_hand();
        post_with_qpair();
        std::_Exit(0);
      },
      ExitedWithCode(0), IsEmpty());
}

}  // namespace
