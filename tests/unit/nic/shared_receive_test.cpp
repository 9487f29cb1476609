// Shared receive queues: one list of receives, from which many queue pairs take.

#include <gtest/gtest.h>

#include <array>

#include "harness.hpp"
#include "shared_queue.hpp"

namespace {

using namespace qpair;
using namespace qpair::softnic::nic;
using namespace qpair::softnic::nic::testing_support;

QpOptions attached_to(const Shared& srq, std::uint8_t rnr_retry = 7) {
  QpOptions options;
  options.srq = srq.number();
  options.rnr_retry = rnr_retry;
  return options;
}

// A sender with a receiver that is attached to the shared receive queue.
struct Link {
  Link(Machine& machine, Completions& send_cq, Completions& receive_cq, const QpOptions& options)
      : sender(machine, send_cq, send_cq), receiver(machine, receive_cq, receive_cq, options) {
    sender.connect(receiver.qpn());
    receiver.connect(sender.qpn());
  }
  Pair sender, receiver;
};

class SharedReceives : public ::testing::Test {
 protected:
  Pair::Piece slot(std::size_t i, std::uint32_t size = 64) { return {memory.address() + i * 64, size, lkey}; }
  std::uint16_t send(Link& link, std::string_view text) {
    return link.sender.post(Wqe(mlx5::Opcode::Send).inline_data(text));
  }

  Machine machine;
  Memory memory{4096};
  Mkey lkey = machine.register_memory(memory);
  Completions send_cq{machine, 256}, receive_cq{machine, 256};
};

TEST_F(SharedReceives, GoToTheQueuePairWhoseMessageComesFirst) {
  Shared srq(machine, 8);
  Link one(machine, send_cq, receive_cq, attached_to(srq)),
      two(machine, send_cq, receive_cq, attached_to(srq));
  const auto first = srq.post(slot(0));
  const auto second = srq.post(slot(1));

  send(two, "to two");
  auto cqe = receive_cq.next();
  EXPECT_EQ(first, cqe.wqe_counter);
  EXPECT_EQ(two.receiver.qpn(), cqe.sop_drop_qpn & 0xff'ffff);
  EXPECT_EQ("to two", memory.text(6, 0));

  send(one, "to one");
  cqe = receive_cq.next();
  EXPECT_EQ(second, cqe.wqe_counter);
  EXPECT_EQ(one.receiver.qpn(), cqe.sop_drop_qpn & 0xff'ffff);
  EXPECT_EQ("to one", memory.text(6, 64));
}

TEST_F(SharedReceives, FollowTheProgramsListInWhateverOrderItWasLinked) {
  Shared srq(machine, 4);
  Link link(machine, send_cq, receive_cq, attached_to(srq));
  for (std::size_t i = 0; i < 3; ++i) srq.post(slot(i));
  for (int i = 0; i < 3; ++i) send(link, "x");
  for (std::uint16_t i = 0; i < 3; ++i) EXPECT_EQ(i, receive_cq.next().wqe_counter);
  // 3 is the last of the free list; then what comes back: 1, 0, 2.
  for (const std::uint16_t index : std::array<std::uint16_t, 3>{1, 0, 2}) srq.give_back(index);
  std::vector<std::uint16_t> posted;
  for (std::size_t i = 0; i < 3; ++i) posted.push_back(srq.post(slot(i)));
  EXPECT_EQ((std::vector<std::uint16_t>{3, 1, 0}), posted);
  for (int i = 0; i < 3; ++i) send(link, "y");
  for (const std::uint16_t index : posted) EXPECT_EQ(index, receive_cq.next().wqe_counter);
}

TEST_F(SharedReceives, EmptyMakeTheSenderWait) {
  Shared srq(machine, 4);
  Link patient(machine, send_cq, receive_cq, attached_to(srq));
  send(patient, "waits");
  srq.post(slot(0));
  EXPECT_EQ(mlx5::CqeOpcode::ResponderSend, mlx5::cqe_opcode(receive_cq.next().op_own));

  QpOptions sender;
  sender.rnr_retry = 0;
  Pair impatient(machine, send_cq, send_cq, sender);
  Pair receiver(machine, receive_cq, receive_cq, attached_to(srq));
  impatient.connect(receiver.qpn());
  receiver.connect(impatient.qpn());
  static_cast<void>(send_cq.next());  // the patient one's
  impatient.post(Wqe(mlx5::Opcode::Send).inline_data("does not"));
  EXPECT_EQ(mlx5::Syndrome::RnrRetryExceeded, send_cq.next_error().syndrome);
  EXPECT_EQ(IBV_QPS_RTS, receiver.state());
}

TEST_F(SharedReceives, SurviveAQueuePairThatFails) {
  Shared srq(machine, 8);
  Link failing(machine, send_cq, receive_cq, attached_to(srq)),
      other(machine, send_cq, receive_cq, attached_to(srq));
  const auto short_one = srq.post(slot(0, 4));
  const auto good = srq.post(slot(1));

  send(failing, "longer than four bytes");
  const auto error = receive_cq.next_error();
  EXPECT_EQ(mlx5::Syndrome::LocalLength, error.syndrome);
  EXPECT_EQ(short_one, error.wqe_counter);
  EXPECT_EQ(failing.receiver.qpn(), error.wqe_opcode_qpn & 0xff'ffff);
  EXPECT_TRUE(
      eventually([&] { return machine.sink.has(failing.receiver.number(), IBV_EVENT_QP_LAST_WQE_REACHED); }));
  EXPECT_EQ(nullptr, receive_cq.peek()) << "what is still in the shared receive queue is not flushed";

  send(other, "goes on");
  EXPECT_EQ(good, receive_cq.next().wqe_counter);
  EXPECT_EQ("goes on", memory.text(7, 64));
  EXPECT_FALSE(machine.sink.has(other.receiver.number(), IBV_EVENT_QP_LAST_WQE_REACHED));
}

TEST_F(SharedReceives, ThatAMessageHadTakenAreFlushedWithItsQueuePair) {
  Shared srq(machine, 8);
  Link link(machine, send_cq, receive_cq, attached_to(srq));
  const auto taken = srq.post({memory.address(), 4096, lkey});
  srq.post(slot(0));
  // A message of two packets, the second of which cannot be read: it never arrives.
  Memory halves(8192);
  const Mkey halves_key = machine.register_memory(halves);
  mprotect(halves.data() + 4096, 4096, PROT_NONE);
  link.sender.post(Wqe(mlx5::Opcode::Send).data(halves.address() + 2048, 4096, halves_key));
  EXPECT_EQ(mlx5::Syndrome::LocalProtection, send_cq.next_error().syndrome);

  EXPECT_EQ(0, link.receiver.to_state(IBV_QPS_ERR).value);
  const auto error = receive_cq.next_error();
  EXPECT_EQ(mlx5::Syndrome::WorkRequestFlushed, error.syndrome);
  EXPECT_EQ(taken, error.wqe_counter);
  EXPECT_EQ(nullptr, receive_cq.peek());
  EXPECT_TRUE(machine.sink.has(link.receiver.number(), IBV_EVENT_QP_LAST_WQE_REACHED));
}

TEST_F(SharedReceives, TellOnceWhenFewerThanTheLimitAreLeft) {
  Shared srq(machine, 8);
  Link link(machine, send_cq, receive_cq, attached_to(srq));
  for (std::size_t i = 0; i < 4; ++i) srq.post(slot(i));
  ASSERT_EQ(0, srq.arm(3).value);
  EXPECT_EQ(3U, srq.limit());

  send(link, "3 are left");
  static_cast<void>(receive_cq.next());
  EXPECT_EQ(0U, machine.sink.count(srq.number(), IBV_EVENT_SRQ_LIMIT_REACHED));
  send(link, "2 are left");
  static_cast<void>(receive_cq.next());
  EXPECT_EQ(1U, machine.sink.count(srq.number(), IBV_EVENT_SRQ_LIMIT_REACHED));
  EXPECT_EQ(0U, srq.limit()) << "it has to be armed again";
  send(link, "1 is left");
  static_cast<void>(receive_cq.next());
  EXPECT_EQ(1U, machine.sink.count(srq.number(), IBV_EVENT_SRQ_LIMIT_REACHED));

  ASSERT_EQ(0, srq.arm(2).value);
  EXPECT_EQ(2U, machine.sink.count(srq.number(), IBV_EVENT_SRQ_LIMIT_REACHED)) << "it is so already";
  EXPECT_EQ(EINVAL, srq.arm(8).value);
}

TEST_F(SharedReceives, GoNotBeforeTheirQueuePairs) {
  Shared srq(machine, 8);
  Pair user(machine, receive_cq, receive_cq, attached_to(srq));
  EXPECT_EQ(EBUSY, srq.destroy().value);
  srq.keep_alive();
  user.destroy();
  EXPECT_EQ(0, srq.destroy().value);
}

// ---- Programs that break the protocol ---------------------------------------------------------------

class BrokenLists : public SharedReceives {
 protected:
  // The shared receive queue and the queue pair that wanted a receive are in error.
  void expect_broken(Shared& srq, Link& link) {
    EXPECT_TRUE(eventually([&] { return machine.sink.has(link.receiver.number(), IBV_EVENT_QP_FATAL); }));
    EXPECT_EQ(1U, machine.sink.count(srq.number(), IBV_EVENT_SRQ_ERR));
    EXPECT_EQ(IBV_QPS_ERR, link.receiver.state());
  }
};

TEST_F(BrokenLists, LinkOutOfTheRing) {
  Shared srq(machine, 8);
  Link link(machine, send_cq, receive_cq, attached_to(srq));
  srq.link(0, 8);
  srq.post(slot(0));
  srq.store_record(2);
  send(link, "good");
  static_cast<void>(receive_cq.next());
  send(link, "from nowhere");
  expect_broken(srq, link);
}

TEST_F(BrokenLists, Circle) {
  Shared srq(machine, 8);
  Link one(machine, send_cq, receive_cq, attached_to(srq)),
      two(machine, send_cq, receive_cq, attached_to(srq));
  srq.post({memory.address(), 4096, lkey});
  srq.link(0, 0);
  srq.store_record(2);
  Memory halves(8192);
  const Mkey halves_key = machine.register_memory(halves);
  mprotect(halves.data() + 4096, 4096, PROT_NONE);
  one.sender.post(Wqe(mlx5::Opcode::Send).data(halves.address() + 2048, 4096, halves_key));
  EXPECT_EQ(mlx5::Syndrome::LocalProtection, send_cq.next_error().syndrome);  // and WQE 0 is taken
  send(two, "x");
  expect_broken(srq, two);
}

TEST_F(BrokenLists, RecordAheadOfTheRing) {
  Shared srq(machine, 8);
  Link link(machine, send_cq, receive_cq, attached_to(srq));
  srq.store_record(9);
  send(link, "x");
  expect_broken(srq, link);
}

TEST_F(BrokenLists, RingThatTheProgramTookAway) {
  Shared srq(machine, 8);
  Link link(machine, send_cq, receive_cq, attached_to(srq));
  srq.post(slot(0));
  srq.ring().take_away();
  send(link, "x");
  expect_broken(srq, link);
}

}  // namespace
