// Extended reliable connections: the initiator's messages name the shared receive queue that they are for,
// and one target serves all of its domain.

#include <fcntl.h>
#include <gtest/gtest.h>

#include "harness.hpp"
#include "shared_queue.hpp"

namespace {

using namespace qpair;
using namespace qpair::softnic::nic;
using namespace qpair::softnic::nic::testing_support;

class Xrc : public ::testing::Test {
 protected:
  // A shared receive queue with a completion queue of its own.
  struct Mailbox {
    Mailbox(Machine& machine, Xrcdn domain, std::uint32_t user_index, Pdn pd, std::uint32_t cqes = 64)
        : cq(machine, cqes),
          srq(machine, 8, pd, XrcParameters{.domain = domain, .cq = cq.number(), .user_index = user_index}) {}
    Completions cq;
    Shared srq;
  };

  static QpOptions initiator() {
    QpOptions options;
    options.type = IBV_QPT_XRC_SEND;
    return options;
  }
  QpOptions target() const {
    QpOptions options;
    options.type = IBV_QPT_XRC_RECV;
    options.xrc_domain = domain;
    return options;
  }
  void SetUp() override {
    from.connect(to.qpn());
    to.connect(from.qpn());
  }
  void TearDown() override {
    from.destroy();
    to.destroy();
  }
  // The XRC segment comes right after the control segment.
  static Wqe request(mlx5::Opcode opcode, const Shared& srq) { return request(opcode, srq.srqn()); }
  static Wqe request(mlx5::Opcode opcode, std::uint32_t srqn) {
    Wqe wqe(opcode);
    wqe.with(mlx5::XrcSegment{.srqn = srqn, .reserved = {}});
    return wqe;
  }
  Pair::Piece slot(std::size_t i, std::uint32_t size = 64) const {
    return {memory.address() + i * 64, size, lkey};
  }

  Machine machine;
  Memory memory{16384};
  Mkey lkey = machine.register_memory(memory);
  Xrcdn domain = machine.nic->open_xrcd(std::nullopt, O_CREAT).value();
  Completions send_cq{machine, 256};
  Pair from{machine, send_cq, send_cq, initiator()};
  Pair to{machine, send_cq, send_cq, target()};
};

TEST_F(Xrc, MessagesGoToTheSharedReceiveQueueThatTheyName) {
  Mailbox one(machine, domain, 0x111, machine.pd), two(machine, domain, 0x222, machine.pd);
  one.srq.post(slot(0));
  two.srq.post(slot(1));
  from.post(request(mlx5::Opcode::Send, two.srq).inline_data("to two"));
  from.post(request(mlx5::Opcode::Send, one.srq).inline_data("to one"));

  const auto second = two.cq.next();
  EXPECT_EQ(0x222U, second.srqn_uidx & 0xff'ffff) << "the program finds the queue by its own index";
  EXPECT_EQ(to.qpn(), second.sop_drop_qpn & 0xff'ffff);
  EXPECT_EQ("to two", memory.text(6, 64));
  EXPECT_EQ(0x111U, one.cq.next().srqn_uidx & 0xff'ffff);
  EXPECT_EQ("to one", memory.text(6, 0));
}

TEST_F(Xrc, LongMessagesArriveWhole) {
  Mailbox mailbox(machine, domain, 0, machine.pd);
  memory.fill("first", 0);
  memory.fill("last!", 7995);
  mailbox.srq.post({memory.address() + 8192, 8000, lkey});
  from.post(request(mlx5::Opcode::SendImm, mailbox.srq).data(memory.address(), 8000, lkey));
  const auto cqe = mailbox.cq.next();
  EXPECT_EQ(8000U, cqe.byte_cnt);
  EXPECT_EQ(mlx5::CqeOpcode::ResponderSendImm, mlx5::cqe_opcode(cqe.op_own));
  EXPECT_EQ("first", memory.text(5, 8192));
  EXPECT_EQ("last!", memory.text(5, 8192 + 7995));
}

TEST_F(Xrc, MemoryIsReachedInTheProtectionDomainOfTheSharedReceiveQueue) {
  const Pdn other = machine.nic->create_pd().value();
  const Mkey foreign =
      machine.nic->create_mr({other, memory.address(), memory.size(), memory.address(), Machine::kAllAccess})
          .value();
  {
    Mailbox here(machine, domain, 1, machine.pd), there(machine, domain, 2, other);
    memory.fill("abcdefgh", 4096);
    *memory.as<std::uint64_t>(512) = 40;

    // Reads of both domains are answered in one go, each with its own.
    from.write(request(mlx5::Opcode::RdmaRead, here.srq)
                   .remote(memory.address() + 4096, key(lkey))
                   .data(memory.address(), 4, lkey));
    from.write(request(mlx5::Opcode::RdmaRead, there.srq)
                   .remote(memory.address() + 4100, key(foreign))
                   .data(memory.address() + 4, 4, lkey));
    from.write(request(mlx5::Opcode::RdmaWrite, there.srq)
                   .remote(memory.address() + 64, key(foreign))
                   .inline_data("written"));
    from.write(request(mlx5::Opcode::AtomicFetchAdd, there.srq)
                   .remote(memory.address() + 512, key(foreign))
                   .atomic(2, 0)
                   .data(memory.address() + 520, 8, lkey));
    from.ring();
    for (int i = 0; i < 4; ++i) EXPECT_EQ(mlx5::CqeOpcode::Request, mlx5::cqe_opcode(send_cq.next().op_own));
    EXPECT_EQ("abcdefgh", memory.text(8, 0));
    EXPECT_EQ("written", memory.text(7, 64));
    EXPECT_EQ(42U, *memory.as<std::uint64_t>(512));
    EXPECT_EQ(40U, *memory.as<std::uint64_t>(520));

    from.post(
        request(mlx5::Opcode::RdmaWrite, here.srq).remote(memory.address(), key(foreign)).inline_data("no"));
    EXPECT_EQ(mlx5::Syndrome::RemoteAccess, send_cq.next_error().syndrome);
  }
  EXPECT_EQ(0, machine.nic->destroy_mr(foreign).value);
  EXPECT_EQ(0, machine.nic->destroy_pd(other).value);
}

TEST_F(Xrc, QueuesOfOtherDomainsAreRefused) {
  const Xrcdn other = machine.nic->open_xrcd(std::nullopt, O_CREAT).value();
  {
    Mailbox elsewhere(machine, other, 1, machine.pd);
    elsewhere.srq.post(slot(0));
    from.post(request(mlx5::Opcode::Send, elsewhere.srq).inline_data("x"));
    EXPECT_EQ(mlx5::Syndrome::RemoteAccess, send_cq.next_error().syndrome);
    EXPECT_TRUE(eventually([&] { return machine.sink.has(to.number(), IBV_EVENT_QP_ACCESS_ERR); }));
    EXPECT_TRUE(machine.sink.has(to.number(), IBV_EVENT_QP_LAST_WQE_REACHED));
    EXPECT_EQ(nullptr, elsewhere.cq.peek());
  }
  EXPECT_EQ(0, machine.nic->close_xrcd(other).value);
}

TEST_F(Xrc, BasicQueuesAndNumbersOfNothingAreRefused) {
  Shared basic(machine, 8);
  basic.post(slot(0));
  from.post(request(mlx5::Opcode::Send, basic).inline_data("x"));
  EXPECT_EQ(mlx5::Syndrome::RemoteAccess, send_cq.next_error().syndrome);
  EXPECT_EQ(IBV_QPS_ERR, to.state());
}

TEST_F(Xrc, EmptyQueueMakesOnlyItsMessageWait) {
  Mailbox mailbox(machine, domain, 1, machine.pd);
  from.post(request(mlx5::Opcode::Send, mailbox.srq).inline_data("waits"));
  mailbox.srq.post(slot(0));
  EXPECT_EQ(5U, mailbox.cq.next().byte_cnt);
}

TEST_F(Xrc, TooShortAReceiveFailsInTheQueuesOwnCompletionQueue) {
  Mailbox mailbox(machine, domain, 7, machine.pd);
  const auto index = mailbox.srq.post(slot(0, 2));
  from.post(request(mlx5::Opcode::Send, mailbox.srq).inline_data("longer"));
  const auto error = mailbox.cq.next_error();
  EXPECT_EQ(mlx5::Syndrome::LocalLength, error.syndrome);
  EXPECT_EQ(index, error.wqe_counter);
  EXPECT_EQ(7U, error.srqn_uidx & 0xff'ffff);
  EXPECT_EQ(to.qpn(), error.wqe_opcode_qpn & 0xff'ffff);
}

TEST_F(Xrc, AQueueThatGoesInTheMiddleOfAMessageEndsItsTarget) {
  auto mailbox = std::make_unique<Mailbox>(machine, domain, 7, machine.pd);
  mailbox->srq.post({memory.address(), 4096, lkey});
  // A message of two packets, the second of which cannot be read: it never arrives.
  Memory halves(8192);
  const Mkey halves_key = machine.register_memory(halves);
  mprotect(halves.data() + 4096, 4096, PROT_NONE);
  from.post(request(mlx5::Opcode::Send, mailbox->srq).data(halves.address() + 2048, 4096, halves_key));
  EXPECT_EQ(mlx5::Syndrome::LocalProtection, send_cq.next_error().syndrome);

  EXPECT_EQ(0, mailbox->srq.destroy().value);
  EXPECT_EQ(IBV_QPS_ERR, to.state());
  EXPECT_TRUE(machine.sink.has(to.number(), IBV_EVENT_QP_FATAL));
  EXPECT_EQ(mlx5::Syndrome::WorkRequestFlushed, mailbox->cq.next_error().syndrome);
}

TEST_F(Xrc, AnOverrunCompletionQueueIsAnErrorOfItsQueues) {
  Mailbox mailbox(machine, domain, 7, machine.pd, 2);
  for (std::size_t i = 0; i < 4; ++i) mailbox.srq.post(slot(i));
  for (int i = 0; i < 4; ++i) from.post(request(mlx5::Opcode::Send, mailbox.srq).inline_data("x"));
  EXPECT_TRUE(eventually([&] { return machine.sink.count(mailbox.srq.number(), IBV_EVENT_SRQ_ERR) == 1; }));
  EXPECT_TRUE(machine.sink.has(mailbox.cq.number(), IBV_EVENT_CQ_ERR));
}

TEST_F(Xrc, ATargetLivesAsLongAsAnybodyHasIt) {
  Sink second;
  EXPECT_EQ(EINVAL, machine.nic->share_qp(from.number(), domain, &second).value);
  EXPECT_EQ(EINVAL, machine.nic->share_qp(to.number(), Xrcdn{0xabcdef}, &second).value);
  ASSERT_EQ(0, machine.nic->share_qp(to.number(), domain, &second).value);
  EXPECT_EQ(0, machine.nic->destroy_qp(to.number(), &machine.sink).value);

  Mailbox mailbox(machine, domain, 7, machine.pd);
  mailbox.srq.post(slot(0));
  from.post(request(mlx5::Opcode::Send, mailbox.srq).inline_data("still here"));
  EXPECT_EQ(10U, mailbox.cq.next().byte_cnt);
  EXPECT_EQ(0, to.to_state(IBV_QPS_ERR).value);
  EXPECT_TRUE(second.has(to.number(), IBV_EVENT_QP_LAST_WQE_REACHED));
  EXPECT_FALSE(machine.sink.has(to.number(), IBV_EVENT_QP_LAST_WQE_REACHED));
  EXPECT_EQ(EBUSY, machine.nic->close_xrcd(domain).value);
}  // and the last handle goes with `to`

TEST(XrcDomains, AreFoundByTheirFile) {
  Machine machine;
  const FileIdentity file{.device = 1, .inode = 2};
  EXPECT_EQ(EAGAIN, machine.nic->open_xrcd(file, 0).error().value);
  const Xrcdn domain = machine.nic->open_xrcd(file, O_CREAT).value();
  EXPECT_EQ(domain, machine.nic->open_xrcd(file, 0).value());
  EXPECT_EQ(EINVAL, machine.nic->open_xrcd(file, O_CREAT | O_EXCL).error().value);
  EXPECT_NE(domain, machine.nic->open_xrcd(std::nullopt, O_CREAT).value());
  EXPECT_EQ(0, machine.nic->close_xrcd(domain).value);
  EXPECT_EQ(domain, machine.nic->open_xrcd(file, 0).value()) << "it was opened twice and closed once";
}

}  // namespace
