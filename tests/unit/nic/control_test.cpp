// Control calls: states, limits, objects that are in use, the device's identity; and the engine's manners.

#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "softnic/nic/address_resolution.hpp"
#include "tests/unit/nic/harness.hpp"

namespace qpair::softnic::nic {
namespace {

using namespace testing_support;
using mlx5::Opcode;

TEST(Control, GidTableIsARealCards) {
  Machine machine;
  const auto& gids = machine.nic->gids();
  ASSERT_EQ(gids.size(), 4U);
  EXPECT_EQ(gids[0].gid.raw[0], 0xfe);
  EXPECT_FALSE(gids[0].roce_v2);
  EXPECT_TRUE(gids[1].roce_v2);
  EXPECT_FALSE(gids[2].roce_v2);
  EXPECT_TRUE(gids[3].roce_v2);
  EXPECT_EQ(gids[3].gid.raw[10], 0xff);
  EXPECT_EQ(gids[3].gid.raw[12], 127);
  EXPECT_EQ(gids[3].net_device, "lo");
  // The link-local one leads to the same port.
  const ibv_gid resolved = routable(gids[0].gid);
  EXPECT_EQ(0, std::memcmp(resolved.raw, gids[3].gid.raw, 16));
  const ibv_port_attr port = machine.nic->port();
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.max_msg_sz, 1U << 30);
}

TEST(Control, AnInfiniBandPortHasALidThatLeadsToItsAddress) {
  const PortAddress address{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 71, 3, 9};
  const ibv_port_attr port = make_infiniband_port(2048, address);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
  EXPECT_EQ(port.lid, 0x0309);
  const PortAddress neighbour{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 71, 200, 1};
  const ibv_gid found = address_of_lid(port.lid, neighbour);
  EXPECT_EQ(0, std::memcmp(found.raw, address.data(), sizeof found.raw));
  const auto gids = make_infiniband_gids(address);
  ASSERT_EQ(gids.size(), 1U);
  EXPECT_TRUE(gids[0].infiniband);
  EXPECT_TRUE(gids[0].net_device.empty());
  const ibv_gid resolved = routable(gids[0].gid);
  EXPECT_EQ(0, std::memcmp(resolved.raw, address.data(), sizeof resolved.raw));
}

TEST(Control, ForeignLinkLocalGidIsLeftAlone) {
  ibv_gid gid{};
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  gid.raw[15] = 7;
  const ibv_gid same = routable(gid);
  EXPECT_EQ(0, std::memcmp(gid.raw, same.raw, 16));
}

TEST(Control, StateMachineRefusesShortcuts) {
  Machine machine;
  Completions cq(machine, 16);
  Pair qp(machine, cq, cq);
  EXPECT_EQ(qp.to_rtr(1).value, EINVAL);
  EXPECT_EQ(qp.to_rts().value, EINVAL);
  EXPECT_EQ(qp.to_state(IBV_QPS_ERR).value, EINVAL);  // from RESET
  EXPECT_EQ(qp.to_init().value, 0);
  EXPECT_EQ(qp.to_rts().value, EINVAL);
  EXPECT_EQ(qp.to_rtr(1).value, 0);
  EXPECT_EQ(qp.to_init().value, EINVAL);
  EXPECT_EQ(qp.to_rts().value, 0);
  EXPECT_EQ(qp.state(), IBV_QPS_RTS);
  EXPECT_EQ(qp.to_state(IBV_QPS_ERR).value, 0);
  EXPECT_EQ(qp.to_state(IBV_QPS_RESET).value, 0);
  EXPECT_EQ(qp.state(), IBV_QPS_RESET);
}

TEST(Control, MissingAndMisplacedAttributesAreRefused) {
  Machine machine;
  Completions cq(machine, 16);
  Pair qp(machine, cq, cq);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  EXPECT_EQ(qp.modify(attributes, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX).value, EINVAL);
  constexpr int kInit = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
  EXPECT_EQ(qp.modify(attributes, kInit | IBV_QP_TIMEOUT).value, EINVAL);
  attributes.port_num = 2;
  EXPECT_EQ(qp.modify(attributes, kInit).value, EINVAL);
  attributes.port_num = 1;
  attributes.pkey_index = 1;
  EXPECT_EQ(qp.modify(attributes, kInit).value, EINVAL);
  attributes.pkey_index = 0;
  EXPECT_EQ(qp.modify(attributes, kInit).value, 0);
}

TEST(Control, AttributesBeyondTheLimitsAreRefused) {
  Machine machine;
  Completions cq(machine, 16);
  Pair qp(machine, cq, cq);
  ASSERT_EQ(qp.to_init().value, 0);
  ibv_qp_attr good{};
  good.qp_state = IBV_QPS_RTR;
  good.path_mtu = IBV_MTU_1024;
  good.dest_qp_num = 5;
  good.max_dest_rd_atomic = 16;
  good.ah_attr.is_global = 1;
  good.ah_attr.port_num = 1;
  good.ah_attr.grh.sgid_index = 3;
  good.ah_attr.grh.dgid = machine.nic->gids()[3].gid;
  constexpr int kRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  const auto refused = [&](auto change) {
    ibv_qp_attr bad = good;
    change(bad);
    return qp.modify(bad, kRtr).value == EINVAL;
  };
  EXPECT_TRUE(refused([](ibv_qp_attr& a) { a.ah_attr.is_global = 0; }));
  EXPECT_TRUE(refused([](ibv_qp_attr& a) { a.ah_attr.grh.sgid_index = 4; }));
  EXPECT_TRUE(refused([](ibv_qp_attr& a) { a.max_dest_rd_atomic = 17; }));
  EXPECT_TRUE(refused([](ibv_qp_attr& a) { a.dest_qp_num = 1U << 24; }));
  EXPECT_TRUE(refused([](ibv_qp_attr& a) { a.min_rnr_timer = 32; }));
  EXPECT_TRUE(refused([](ibv_qp_attr& a) { a.path_mtu = static_cast<ibv_mtu>(6); }));
  EXPECT_EQ(qp.modify(good, kRtr).value, 0);
}

TEST(Control, QueryGivesBackWhatModifySet) {
  Machine machine;
  Completions cq(machine, 16);
  Pair qp(machine, cq, cq);
  qp.connect(77);
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(machine.nic->query_qp(qp.number(), attributes, initial).value, 0);
  EXPECT_EQ(attributes.dest_qp_num, 77U);
  EXPECT_EQ(attributes.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(attributes.sq_psn, 0xff'fff0U);
  EXPECT_EQ(attributes.rq_psn, 0xff'fff0U);
  EXPECT_EQ(attributes.retry_cnt, 7);
  EXPECT_EQ(attributes.max_rd_atomic, 16);
  EXPECT_EQ(attributes.ah_attr.grh.sgid_index, 3);
}

TEST(Control, DrainedSendQueueIsAnEventWhenAskedFor) {
  Machine machine;
  Connected pair(machine);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_SQD;
  attributes.en_sqd_async_notify = 1;
  ASSERT_EQ(pair.a.modify(attributes, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY).value, 0);
  EXPECT_TRUE(eventually([&] { return machine.sink.has(pair.a.number(), IBV_EVENT_SQ_DRAINED); }));
  // Nothing starts while it is drained; back in RTS it does.
  pair.a.post(Wqe(Opcode::Nop));
  ASSERT_EQ(pair.a.to_state(IBV_QPS_RTS).value, 0);
  pair.a_cq.next();
}

TEST(Control, FirstPacketEstablishesTheConnection) {
  Machine machine;
  Completions cq(machine, 16);
  Pair a(machine, cq, cq), b(machine, cq, cq);
  a.connect(b.qpn());
  ASSERT_EQ(b.to_init().value, 0);
  ASSERT_EQ(b.to_rtr(a.qpn()).value, 0);
  const Memory memory(4096);
  const Mkey mkey = machine.register_memory(memory);
  a.post(Wqe(Opcode::RdmaWrite).remote(memory.address(), key(mkey)).data(memory.address() + 64, 8, mkey));
  cq.next();
  EXPECT_TRUE(eventually([&] { return machine.sink.has(b.number(), IBV_EVENT_COMM_EST); }));
}

TEST(Control, ReregistrationChangesRightsAndPlace) {
  Machine machine;
  Connected pair(machine);
  const Memory local(4096), remote(8192);
  local.fill("moved");
  const Mkey lkey = machine.register_memory(local);
  const Mkey mkey =
      machine.nic->create_mr({machine.pd, remote.address(), 4096, remote.address(), IBV_ACCESS_LOCAL_WRITE})
          .value();
  ASSERT_EQ(machine.nic
                ->change_mr(mkey, {machine.pd, remote.address() + 4096, 4096, 0x1000, Machine::kAllAccess},
                            IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS)
                .value,
            0);
  pair.a.post(Wqe(Opcode::RdmaWrite).remote(0x1000, key(mkey)).data(local.address(), 5, lkey));
  EXPECT_EQ(mlx5::cqe_opcode(pair.a_cq.next().op_own), mlx5::CqeOpcode::Request);
  EXPECT_EQ(remote.text(5, 4096), "moved");
}

TEST(Control, RegistrationsThatMakeNoSenseAreRefused) {
  Machine machine;
  const auto error = [&](MrParameters parameters) {
    const auto key = machine.nic->create_mr(parameters);
    return key ? 0 : key.error().value;
  };
  EXPECT_EQ(error({machine.pd, 4096, 4096, 4096, IBV_ACCESS_REMOTE_WRITE}), EINVAL);  // without local write
  EXPECT_EQ(error({machine.pd, ~std::uint64_t{0} - 10, 4096, 0, 0}), EINVAL);
  EXPECT_EQ(error({machine.pd, 4096, 4096, ~std::uint64_t{0} - 10, 0}), EINVAL);
  EXPECT_EQ(error({Pdn{999}, 4096, 4096, 4096, 0}), EINVAL);
}

TEST(Control, QueuePairNumbersAreNotReusedAtOnce) {
  Machine machine;
  Completions cq(machine, 16);
  Qpn first{};
  {
    Pair qp(machine, cq, cq);
    first = qp.number();
  }
  Pair qp(machine, cq, cq);
  EXPECT_NE(qp.number(), first);
}

TEST(Control, ObjectsThatDoNotExistAreRefused) {
  Machine machine;
  EXPECT_EQ(machine.nic->destroy_qp(Qpn{1}).value, EINVAL);
  EXPECT_EQ(machine.nic->destroy_cq(Cqn{1}).value, EINVAL);
  EXPECT_EQ(machine.nic->destroy_mr(Mkey{1}).value, EINVAL);
  EXPECT_EQ(machine.nic->destroy_pd(Pdn{12345}).value, EINVAL);
}

TEST(Control, QueuePairsComeAndGoWhileOthersAreBusy) {
  Machine machine;
  Connected busy(machine);
  const Memory memory(1 << 20);
  const Mkey mkey = machine.register_memory(memory);
  Completions cq(machine, 16);
  for (int i = 0; i < 200; ++i) {
    busy.a.post(Wqe(Opcode::RdmaWrite)
                    .remote(memory.address(), key(mkey))
                    .data(memory.address() + (512 << 10), 256 << 10, mkey));
    Pair passing(machine, cq, cq);
    passing.connect(busy.b.qpn());
    busy.a_cq.next();
  }
}

TEST(Control, DestroyedWhileItsMessageIsUnderWay) {
  Machine machine;
  const Memory memory(1 << 20);
  const Mkey mkey = machine.register_memory(memory);
  for (int i = 0; i < 50; ++i) {
    Connected pair(machine);
    pair.a.post(Wqe(Opcode::RdmaWrite)
                    .remote(memory.address(), key(mkey))
                    .data(memory.address() + (512 << 10), 512 << 10, mkey));
  }
}

// Programs exit right after their last message.
TEST(Control, WhatWasRungBeforeItIsDestroyedIsSent) {
  Machine machine;
  const Memory memory(1 << 16);
  const Mkey mkey = machine.register_memory(memory);
  for (std::uint64_t i = 1; i <= 200; ++i) {
    Connected pair(machine);
    *memory.as<std::uint64_t>() = i;
    pair.a.post(
        Wqe(Opcode::RdmaWrite).remote(memory.address() + 4096, key(mkey)).data(memory.address(), 8, mkey));
    pair.a.destroy();
    pair.b.post(Wqe(Opcode::Nop));
    pair.b_cq.next();  // the engine has been around
    ASSERT_EQ(*reinterpret_cast<const volatile std::uint64_t*>(memory.address() + 4096), i);
  }
}

long processor_time_us(std::int64_t since) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<long>((usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 +
                           usage.ru_utime.tv_usec + usage.ru_stime.tv_usec - since);
}

TEST(EngineManners, IdleEngineTakesNoProcessorTime) {
  Machine machine;
  Connected pair(machine);
  pair.a.post(Wqe(Opcode::Nop));
  pair.a_cq.next();
  const long before = processor_time_us(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // to be idle is what is tested
  EXPECT_LT(processor_time_us(before), 30'000);
  // And it wakes up for the next doorbell.
  pair.a.post(Wqe(Opcode::Nop));
  pair.a_cq.next();
}

// Found by the address sanitizer's slowness: a store to a closed page waited for an engine that was too busy
// to sleep.
TEST(EngineManners, DoorbellAtAClosedPageIsHeardByABusyEngine) {
  Machine machine;
  const DoorbellPage first_page(*machine.nic);
  Connected busy(machine);
  Connected other(machine);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the engine sleeps, both pages are closed
  std::atomic<bool> stop{false};
  std::thread traffic([&] {
    while (!stop) {
      busy.a.post(Wqe(Opcode::Nop));
      busy.a_cq.next();
    }
  });
  first_page.store(mlx5::kBlueFlameOffset,
                   mlx5::be64{std::uint64_t{other.a.qpn()} << 8}.raw);  // does not block for good
  stop = true;
  traffic.join();
}

TEST(EngineManners, SendQueueThatHasToWaitDoesNotKeepTheEngineBusy) {
  Machine machine;
  Connected pair(machine);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_SQD;
  ASSERT_EQ(pair.a.modify(attributes, IBV_QP_STATE).value, 0);
  pair.a.post(Wqe(Opcode::Nop));  // waits for RTS
  const long before = processor_time_us(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(processor_time_us(before), 30'000);
  ASSERT_EQ(pair.a.to_state(IBV_QPS_RTS).value, 0);
  pair.a_cq.next();
}

TEST(EngineManners, ConnectedQueuePairCostsAtMostEightKibibytes) {
  Machine machine;
  Completions cq(machine, 16);
  const std::size_t count = 200;
  std::vector<std::unique_ptr<Pair>> pairs;
  pairs.push_back(std::make_unique<Pair>(machine, cq, cq));
  const std::size_t before = mallinfo2().uordblks;
  for (std::size_t i = 0; i < count; ++i) {
    pairs.push_back(std::make_unique<Pair>(machine, cq, cq));  // its rings are mmapped, not allocated
    pairs.back()->connect(pairs.front()->qpn());
  }
  EXPECT_LE((mallinfo2().uordblks - before) / count, 8192U);
}

// The child gets nothing that was half done.
TEST(EngineManners, TheEngineStandsStillAroundAFork) {
  Machine machine;
  Connected pair(machine);
  machine.nic->before_fork();
  pair.a.post(Wqe(Opcode::Nop));
  std::atomic<bool> called{false};
  std::jthread other([&] {
    EXPECT_TRUE(machine.nic->create_pd());
    called = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(pair.a_cq.peek(), nullptr);
  EXPECT_FALSE(called);
  machine.nic->after_fork_in_parent();
  pair.a_cq.next();
  other.join();
  EXPECT_TRUE(called);
}

// A library's handler that runs after the NIC's may wait for the thread that stores.
TEST(EngineManners, AStoreToADoorbellPageDoesNotWaitForTheEndOfAFork) {
  Machine machine;
  Connected pair(machine);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the engine closes the page and sleeps
  machine.nic->before_fork();
  std::atomic<bool> stored{false};
  std::jthread other([&] {
    pair.a.post(Wqe(Opcode::Nop));
    stored = true;
  });
  EXPECT_TRUE(eventually([&] { return stored.load(); }));
  machine.nic->after_fork_in_parent();
  pair.a_cq.next();
}

TEST(EngineManners, ForkedChildLeavesTheNicAlone) {
  Machine machine;
  Connected pair(machine);
  machine.nic->before_fork();
  const pid_t child = fork();
  if (child == 0) {
    machine.nic->after_fork_in_child();
    const bool refused = machine.nic->create_pd().error().value == ENODEV;
    machine.nic.reset();
    _exit(refused ? 0 : 1);
  }
  machine.nic->after_fork_in_parent();
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  pair.a.post(Wqe(Opcode::Nop));
  pair.a_cq.next();
}

}  // namespace
}  // namespace qpair::softnic::nic
