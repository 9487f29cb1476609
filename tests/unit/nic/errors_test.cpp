// What goes wrong, and that it is told as a ConnectX tells it.

#include "tests/unit/nic/harness.hpp"

namespace qpair::softnic::nic {
namespace {

using namespace testing_support;
using mlx5::CqeOpcode;
using mlx5::Opcode;
using mlx5::Syndrome;

#define EXPECT_ERROR(cqe, expected_syndrome, expected_vendor_err)                      \
  do {                                                                                 \
    const mlx5::ErrorCqe error_ = (cqe);                                               \
    EXPECT_EQ(static_cast<int>(error_.syndrome), static_cast<int>(expected_syndrome)); \
    EXPECT_EQ(static_cast<int>(error_.vendor_err), (expected_vendor_err));             \
  } while (false)

class Errors : public testing::Test {
 protected:
  Wqe write(std::uint32_t length = 8) const {
    return Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey)).data(local.address(), length, lkey);
  }
  void expect_flushed(Completions& cq, std::uint16_t index) {
    const mlx5::ErrorCqe cqe = cq.next_error();
    EXPECT_ERROR(cqe, Syndrome::WorkRequestFlushed, 0xf9);
    EXPECT_EQ(cqe.wqe_counter, index);
  }
  bool in_error(Pair& qp) {
    return eventually([&] { return qp.state() == IBV_QPS_ERR; });
  }

  Machine machine;
  Connected pair{machine};
  Memory local{4096}, remote{4096};
  Mkey lkey = machine.register_memory(local);
  Mkey rkey = machine.register_memory(remote);
};

TEST_F(Errors, UnknownLocalKey) {
  pair.a.post(
      Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey)).data(local.address(), 8, Mkey{0x666600}));
  EXPECT_ERROR(pair.a_cq.next_error(), Syndrome::LocalProtection, 0x51);
  EXPECT_TRUE(in_error(pair.a));
  EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);  // the peer knows nothing of it
}

TEST_F(Errors, LocalBounds) {
  pair.a.post(
      Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey)).data(local.address() + 4090, 8, lkey));
  EXPECT_ERROR(pair.a_cq.next_error(), Syndrome::LocalProtection, 0x53);
}

TEST_F(Errors, ReadIntoMemoryWithoutLocalWrite) {
  const Mkey read_only = machine.register_memory(local, 0);
  pair.a.post(Wqe(Opcode::RdmaRead).remote(remote.address(), key(rkey)).data(local.address(), 8, read_only));
  EXPECT_ERROR(pair.a_cq.next_error(), Syndrome::LocalProtection, 0x53);
}

TEST_F(Errors, KeyOfAnotherProtectionDomain) {
  const Pdn other = machine.nic->create_pd().value();
  const Mkey foreign =
      machine.nic->create_mr({other, local.address(), local.size(), local.address(), Machine::kAllAccess})
          .value();
  pair.a.post(Wqe(Opcode::RdmaWrite).remote(remote.address(), key(rkey)).data(local.address(), 8, foreign));
  EXPECT_ERROR(pair.a_cq.next_error(), Syndrome::LocalProtection, 0x51);
  EXPECT_EQ(machine.nic->destroy_pd(other).value, EBUSY);
  EXPECT_EQ(machine.nic->destroy_mr(foreign).value, 0);
  EXPECT_EQ(machine.nic->destroy_pd(other).value, 0);
}

TEST_F(Errors, LocalPageThatTheProgramTookAway) {
  local.take_away();
  pair.a.post(write());
  EXPECT_ERROR(pair.a_cq.next_error(), Syndrome::LocalProtection, 0x52);
}

TEST_F(Errors, RemoteKeyAndBoundsAndRights) {
  const Mkey no_write = machine.register_memory(remote, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  struct Case {
    std::uint64_t address;
    std::uint32_t key;
  };
  for (const Case& wrong : {Case{remote.address(), 0x12345678}, Case{remote.address() + 4089, key(rkey)},
                            Case{remote.address() - 1, key(rkey)}, Case{remote.address(), key(no_write)}}) {
    Connected fresh(machine);
    fresh.a.post(Wqe(Opcode::RdmaWrite).remote(wrong.address, wrong.key).data(local.address(), 8, lkey));
    EXPECT_ERROR(fresh.a_cq.next_error(), Syndrome::RemoteAccess, 0x88);
    EXPECT_TRUE(eventually([&] { return machine.sink.has(fresh.b.number(), IBV_EVENT_QP_ACCESS_ERR); }));
    EXPECT_TRUE(in_error(fresh.b));
  }
}

// The kernel's rxe says the same (drivers/infiniband/sw/rxe/rxe_resp.c, check_op_valid).
TEST_F(Errors, QueuePairThatAllowsNoRemoteWrites) {
  Connected fresh(machine, {.access = IBV_ACCESS_REMOTE_READ});
  fresh.a.post(write());
  EXPECT_ERROR(fresh.a_cq.next_error(), Syndrome::RemoteInvalidRequest, 0x8a);
  EXPECT_TRUE(eventually([&] { return machine.sink.has(fresh.b.number(), IBV_EVENT_QP_REQ_ERR); }));
}

TEST_F(Errors, DeregisteredKeyIsNotFoundAgain) {
  ASSERT_EQ(machine.nic->destroy_mr(rkey).value, 0);
  machine.register_memory(remote);
  pair.a.post(write());
  EXPECT_ERROR(pair.a_cq.next_error(), Syndrome::RemoteAccess, 0x88);
}

TEST_F(Errors, RemotePageThatItsProgramTookAway) {
  remote.take_away();
  pair.a.post(write());
  EXPECT_ERROR(pair.a_cq.next_error(), Syndrome::RemoteOperation, 0x89);
}

// The NIC itself opens closed doorbell pages: it would wait for itself for ever. Silicon refuses them, too:
// only memory is mapped on demand, and what is pinned cannot be replaced.
class DoorbellPagesInRegions : public Errors {
 protected:
  enum class Region { OnDemand, OlderThanThePage };

  // Nobody uses the page, so the NIC closes it when it sleeps next.
  Mkey region(Region kind) {
    if (kind == Region::OnDemand) {
      page = std::make_unique<DoorbellPage>(*machine.nic);
      return machine.nic->create_mr({machine.pd, 0, ~std::uint64_t{0}, 0, Machine::kAllAccess}).value();
    }
    const Mkey made = machine.register_memory(around);
    page = std::make_unique<DoorbellPage>(*machine.nic, around.data() + 4096);
    return made;
  }
  void expect_error(const Wqe& wqe, Syndrome syndrome, int vendor_err) {
    Connected fresh(machine);
    fresh.a.post(wqe);
    EXPECT_ERROR(fresh.a_cq.next_error(), syndrome, vendor_err);
  }
  void try_all(Region kind) {
    const Mkey everything = region(kind);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (const std::uint64_t at : {page->address() + 0x800, page->address() - 4}) {
      expect_error(Wqe(Opcode::RdmaWrite).remote(at, key(everything)).data(local.address(), 8, lkey),
                   Syndrome::RemoteAccess, 0x88);
    }
    expect_error(Wqe(Opcode::AtomicFetchAdd)
                     .remote(page->address() + 0x800, key(everything))
                     .atomic(1, 0)
                     .data(local.address(), 8, lkey),
                 Syndrome::RemoteAccess, 0x88);
    expect_error(
        Wqe(Opcode::RdmaRead).remote(remote.address(), key(rkey)).data(page->address(), 8, everything),
        Syndrome::LocalProtection, 0x51);
    pair.a.post(
        Wqe(Opcode::RdmaRead).remote(page->address(), key(everything)).data(local.address(), 8, lkey));
    EXPECT_EQ(mlx5::cqe_opcode(pair.a_cq.next().op_own), CqeOpcode::Request) << "only stores wait";
  }

  Memory around{3 * 4096};
  std::unique_ptr<DoorbellPage> page;
};

TEST_F(DoorbellPagesInRegions, AreNotStoredToThoughAllMemoryIsRegistered) {
  try_all(Region::OnDemand);
}

TEST_F(DoorbellPagesInRegions, AreNotStoredToThoughTheRegionWasThereFirst) {
  try_all(Region::OlderThanThePage);
}

TEST_F(DoorbellPagesInRegions, AreNoPlaceForCompletions) {
  const DoorbellPage other(*machine.nic);
  const std::uint64_t page_at = other.address();
  const auto create = [&](std::uint64_t ring, std::uint64_t record) {
    return machine.nic->create_cq({ring, record, 16, 64, machine.page->id(), &machine.sink});
  };
  EXPECT_EQ(create(page_at, local.address()).error().value, EFAULT);
  EXPECT_EQ(create(local.address(), page_at + 0x40).error().value, EFAULT);
  EXPECT_EQ(machine.nic->resize_cq(pair.a_cq.number(), page_at, 64, 64).value, EFAULT);
}

TEST_F(DoorbellPagesInRegions, AreNoPlaceForCompletionsThoughTheRingWasThereFirst) {
  const DoorbellPage over(*machine.nic, pair.a_cq.ring().data());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  pair.a.post(Wqe(Opcode::Nop));
  EXPECT_TRUE(eventually([&] { return machine.sink.has(pair.a_cq.number(), IBV_EVENT_CQ_ERR); }));
}

TEST_F(Errors, EverythingRungIsFlushedInOrder) {
  pair.a.write(Wqe(Opcode::RdmaWrite).remote(remote.address(), 1).data(local.address(), 8, lkey));
  pair.a.write(write());
  pair.a.write(Wqe(Opcode::RdmaWrite, 0)
                   .remote(remote.address(), key(rkey))
                   .data(local.address(), 8, lkey));  // unsignaled too
  Wqe long_one(Opcode::RdmaWrite);
  long_one.remote(remote.address(), key(rkey));
  for (std::uint32_t i = 0; i < 10; ++i) long_one.data(local.address(), 1, lkey);  // three basic blocks
  pair.a.write(long_one);
  pair.a.write(Wqe(Opcode::Nop));
  const auto a_receive = pair.a.receive({{local.address(), 8, lkey}});
  pair.a.ring();

  EXPECT_ERROR(pair.a_cq.next_error(), Syndrome::RemoteAccess, 0x88);
  for (const unsigned index : {1, 2, 3, 6}) expect_flushed(pair.a_cq, static_cast<std::uint16_t>(index));
  const mlx5::ErrorCqe receive = pair.a_cq.next_error();
  EXPECT_EQ(mlx5::cqe_opcode(receive.op_own), CqeOpcode::ResponderError);
  EXPECT_EQ(receive.wqe_counter, a_receive);

  // What is posted to it afterwards is flushed too, receives without a doorbell included.
  expect_flushed(pair.a_cq, pair.a.post(write()));
  expect_flushed(pair.a_cq, pair.a.receive({{local.address(), 8, lkey}}));
}

TEST_F(Errors, ModifyToErrFlushes) {
  pair.b.receive({{remote.address(), 8, rkey}});
  pair.b.receive({{remote.address(), 8, rkey}});
  ASSERT_EQ(pair.b.to_state(IBV_QPS_ERR).value, 0);
  expect_flushed(pair.b_cq, 0);
  expect_flushed(pair.b_cq, 1);
}

TEST_F(Errors, AfterResetTheQueuePairWorksAgain) {
  pair.a.post(Wqe(Opcode::RdmaWrite).remote(remote.address(), 1).data(local.address(), 8, lkey));
  pair.a_cq.next();
  ASSERT_TRUE(in_error(pair.b));
  for (Pair* const qp : {&pair.a, &pair.b}) ASSERT_EQ(qp->to_state(IBV_QPS_RESET).value, 0);
  pair.a.connect(pair.b.qpn());
  pair.b.connect(pair.a.qpn());
  local.fill("again");
  pair.a.post(write());
  const mlx5::Cqe64 cqe = pair.a_cq.next();
  EXPECT_EQ(mlx5::cqe_opcode(cqe.op_own), CqeOpcode::Request);
  EXPECT_EQ(cqe.wqe_counter, 0);
  EXPECT_EQ(remote.text(5), "again");
}

TEST_F(Errors, MessageLongerThanTheReceive) {
  pair.b.receive({{remote.address(), 4, rkey}});
  pair.a.post(Wqe(Opcode::Send).data(local.address(), 8, lkey));
  const mlx5::ErrorCqe cqe = pair.b_cq.next_error();
  EXPECT_EQ(mlx5::cqe_opcode(cqe.op_own), CqeOpcode::ResponderError);
  EXPECT_EQ(cqe.syndrome, Syndrome::LocalLength);
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::RemoteInvalidRequest);
}

TEST_F(Errors, ReceiveIntoAnUnknownKey) {
  pair.b.receive({{remote.address(), 100, Mkey{0x5500}}});
  pair.a.post(Wqe(Opcode::Send).data(local.address(), 8, lkey));
  EXPECT_ERROR(pair.b_cq.next_error(), Syndrome::LocalProtection, 0x51);
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::RemoteOperation);
}

TEST_F(Errors, MalformedWorkRequestsFailAndDoNotCrash) {
  const auto good = [&] { return write(); };
  const std::vector<Wqe> wrong{
      good().claim_index(77),
      good().claim_qpn(5),
      good().claim_segments(0),
      good().claim_segments(63),
      good().claim_segments(1),
      Wqe(static_cast<Opcode>(0x3f)).data(local.address(), 8, lkey),
      Wqe(Opcode::Umr),
      Wqe(Opcode::LocalInvalidate),
      Wqe(Opcode::Mmo),
      Wqe(Opcode::RdmaRead).remote(remote.address(), key(rkey)).inline_data("no place to store to"),
      Wqe(Opcode::AtomicFetchAdd)
          .remote(remote.address(), key(rkey))
          .atomic(1, 0)
          .data(local.address(), 4, lkey),
      Wqe(Opcode::RdmaWrite)
          .remote(remote.address(), key(rkey))
          .data(local.address(), mlx5::kInlineFlag | 900, lkey),
  };
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    Connected fresh(machine);
    fresh.a.post(wrong[i]);
    const mlx5::ErrorCqe cqe = fresh.a_cq.next_error();
    SCOPED_TRACE(i);
    EXPECT_ERROR(cqe, Syndrome::LocalQpOperation, 0x68);
    EXPECT_EQ(fresh.a.state(), IBV_QPS_ERR) << i;
  }
}

TEST_F(Errors, WorkBeforeAMalformedRequestStillCompletes) {
  local.fill("first");
  pair.a.write(write(5));
  pair.a.write(Wqe(Opcode::Umr));
  pair.a.write(write(5));
  pair.a.ring();
  EXPECT_EQ(mlx5::cqe_opcode(pair.a_cq.next().op_own), CqeOpcode::Request);
  EXPECT_ERROR(pair.a_cq.next_error(), Syndrome::LocalQpOperation, 0x68);
  expect_flushed(pair.a_cq, 2);
  EXPECT_EQ(remote.text(5), "first");
}

TEST_F(Errors, LongerThanAMessageMayBe) {
  Wqe wqe(Opcode::RdmaWrite);
  wqe.remote(remote.address(), key(rkey)).data(local.address(), 0, lkey);  // byte count 0 is 2 GiB
  pair.a.post(wqe);
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::LocalLength);
}

TEST_F(Errors, RecordFarAheadOfTheRing) {
  pair.a.write(write());
  pair.a.store_send_record(1000);  // the ring has 64 blocks
  pair.a.ring_without_record();
  EXPECT_ERROR(pair.a_cq.next_error(), Syndrome::LocalQpOperation, 0x68);
  EXPECT_TRUE(in_error(pair.a));
}

TEST_F(Errors, SendRingThatTheProgramTookAwayIsAFatalEvent) {
  pair.a.write(write());
  pair.a.send_ring().take_away();
  pair.a.ring();
  EXPECT_TRUE(eventually([&] { return machine.sink.has(pair.a.number(), IBV_EVENT_QP_FATAL); }));
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
}

TEST_F(Errors, DoorbellRecordThatTheProgramTookAwayIsAFatalEvent) {
  pair.a.write(write());
  pair.a.record().take_away();
  pair.a.ring_without_record();
  EXPECT_TRUE(eventually([&] { return machine.sink.has(pair.a.number(), IBV_EVENT_QP_FATAL); }));
}

TEST_F(Errors, ReceiveRingThatTheProgramTookAwayIsAFatalEvent) {
  pair.b.receive({{remote.address(), 8, rkey}});
  pair.b.receive_ring().take_away();
  pair.a.post(Wqe(Opcode::Send).data(local.address(), 8, lkey));
  EXPECT_TRUE(eventually([&] { return machine.sink.has(pair.b.number(), IBV_EVENT_QP_FATAL); }));
}

TEST_F(Errors, PeerThatIsGoneEndsInRetriesExceeded) {
  Connected fresh(machine, {.timeout = 1, .retry = 2});
  fresh.b.destroy();
  fresh.a.post(write());
  EXPECT_ERROR(fresh.a_cq.next_error(), Syndrome::TransportRetryExceeded, 0x81);
}

TEST_F(Errors, NoReceivePostedEndsInReceiverNotReady) {
  Connected fresh(machine, {.rnr_retry = 1});
  fresh.a.post(Wqe(Opcode::Send).data(local.address(), 8, lkey));
  EXPECT_EQ(fresh.a_cq.next_error().syndrome, Syndrome::RnrRetryExceeded);
}

}  // namespace
}  // namespace qpair::softnic::nic
