// A NIC that is not the kernel's against one that is: every operation of a reliable connection, in both
// directions. This process is preloaded with the emulated NIC; the other side is the same program on the
// kernel's rxe, started with --serve. As both sides are driven from here, a test says what each of them sees.
//
//   interop --serve PORT                              over there, natively
//   qpair run -- interop --peer ADDRESS:PORT [--gid N] [--peer-gid N] [GoogleTest's flags]

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/kernel/side.hpp"

namespace qpair::kernel_test {
namespace {

struct Setup {
  std::string host;
  std::uint16_t port = 0;
  std::uint8_t gid = 3;       // of the emulated NIC
  std::uint8_t peer_gid = 1;  // of the kernel's
} setup;

Side& emulated() {
  static const std::unique_ptr<Side> side = make_local_side();
  return *side;
}
Side& kernel() {
  static const std::unique_ptr<Side> side = make_remote_side(setup.host, setup.port);
  return *side;
}

std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i != size; ++i) {
    bytes[i] = static_cast<std::byte>(i * 31 + (i >> 8) * 7 + seed * 13 + 1);
  }
  return bytes;
}

bool is_emulated(const Side& side) {
  return &side == &emulated();
}

// A connection between two sides, of which the first begins.
struct Connected {
  Connected(Side& initiator, Side& target, const QpOptions& of_initiator, const QpOptions& of_target)
      : from(initiator), to(target) {
    from_info = from.create(with_gid(from, of_initiator));
    to_info = to.create(with_gid(to, of_target));
    to.connect(from_info);
    from.connect(to_info);
  }
  Connected(const Connected&) = delete;
  Connected& operator=(const Connected&) = delete;
  ~Connected() {
    try {
      from.destroy();
      to.destroy();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }

  static QpOptions with_gid(const Side& side, QpOptions options) {
    options.gid_index = is_emulated(side) ? setup.gid : setup.peer_gid;
    return options;
  }

  Work work(ibv_wr_opcode opcode, std::uint32_t offset, std::uint32_t length,
            std::uint32_t remote_offset = 0) {
    Work work;
    work.id = ++last_id;
    work.opcode = opcode;
    work.offset = offset;
    work.length = length;
    work.remote_address = to_info.address + remote_offset;
    work.rkey = to_info.rkey;
    return work;
  }

  void receive(std::uint32_t offset, std::uint32_t length) {
    Work work;
    work.id = ++last_receive;
    work.offset = offset;
    work.length = length;
    to.receive(work);
  }

  void expect_done(const Work& work, ibv_wc_opcode opcode) {
    const Completion done = from.wait(Queue::Send);
    EXPECT_EQ(done.id, work.id);
    EXPECT_EQ(done.status, IBV_WC_SUCCESS) << ibv_wc_status_str(static_cast<ibv_wc_status>(done.status));
    EXPECT_EQ(done.opcode, opcode);
  }
  Completion expect_failed(const Work& work, ibv_wc_status status) {
    const Completion done = from.wait(Queue::Send);
    EXPECT_EQ(done.id, work.id);
    EXPECT_EQ(done.status, status) << ibv_wc_status_str(static_cast<ibv_wc_status>(done.status));
    EXPECT_EQ(from.state(), IBV_QPS_ERR);
    return done;
  }

  Side& from;
  Side& to;
  QpInfo from_info;
  QpInfo to_info;
  std::uint64_t last_id = 0;
  std::uint64_t last_receive = 1000;
};

enum class Direction { EmulatedToKernel, KernelToEmulated };

std::string name(Direction direction) {
  return direction == Direction::EmulatedToKernel ? "emulated_to_kernel" : "kernel_to_emulated";
}

Connected connection(Direction direction, const QpOptions& initiator, const QpOptions& target) {
  return direction == Direction::EmulatedToKernel ? Connected(emulated(), kernel(), initiator, target)
                                                  : Connected(kernel(), emulated(), initiator, target);
}

// ---- Every operation at every path MTU ----------------------------------------------------------

class Messages : public testing::TestWithParam<std::tuple<Direction, std::uint32_t>> {
 protected:
  std::uint32_t mtu() const { return std::get<1>(GetParam()); }
  Connected connect() const {
    QpOptions options;
    options.mtu = mtu();
    return connection(std::get<0>(GetParam()), options, options);
  }
  // Nothing, every pad, and the edges of one packet and of several.
  std::vector<std::uint32_t> sizes() const {
    return {0, 1, 2, 3, 4, mtu() - 1, mtu(), mtu() + 1, 3 * mtu(), 5 * mtu() + 3, 70'001};
  }
};

INSTANTIATE_TEST_SUITE_P(Rc, Messages,
                         testing::Combine(testing::Values(Direction::EmulatedToKernel,
                                                          Direction::KernelToEmulated),
                                          testing::Values(256U, 512U, 1024U, 2048U, 4096U)),
                         [](const auto& test) {
                           return fmt::format("{}_mtu{}", name(std::get<0>(test.param)),
                                              std::get<1>(test.param));
                         });

TEST_P(Messages, Send) {
  Connected path = connect();
  for (const bool immediate : {false, true}) {
    for (const std::uint32_t size : sizes()) {
      SCOPED_TRACE(fmt::format("{} bytes", size));
      path.from.write(0, pattern(size, size));
      path.receive(4096, 100'000);
      Work work = path.work(immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, 0, size);
      work.immediate = 0x01020304 + size;
      path.from.send({work});
      const Completion got = path.to.wait(Queue::Receive);
      EXPECT_EQ(got.status, IBV_WC_SUCCESS);
      EXPECT_EQ(got.opcode, IBV_WC_RECV);
      EXPECT_EQ(got.bytes, size);
      EXPECT_EQ(got.id, path.last_receive);
      EXPECT_EQ((got.flags & IBV_WC_WITH_IMM) != 0, immediate);
      if (immediate) {
        EXPECT_EQ(got.immediate, work.immediate);
      }
      EXPECT_TRUE(path.to.read(4096, size) == pattern(size, size));
      path.expect_done(work, IBV_WC_SEND);
    }
  }
}

TEST_P(Messages, Write) {
  Connected path = connect();
  for (const std::uint32_t size : sizes()) {
    SCOPED_TRACE(fmt::format("{} bytes", size));
    path.from.write(0, pattern(size, size + 1));
    const Work work = path.work(IBV_WR_RDMA_WRITE, 0, size, 333);
    path.from.send({work});
    path.expect_done(work, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(path.to.read(333, size) == pattern(size, size + 1));
  }
}

TEST_P(Messages, WriteWithImmediate) {
  Connected path = connect();
  for (const std::uint32_t size : sizes()) {
    SCOPED_TRACE(fmt::format("{} bytes", size));
    path.from.write(0, pattern(size, size + 2));
    path.receive(0, 0);
    Work work = path.work(IBV_WR_RDMA_WRITE_WITH_IMM, 0, size, 111);
    work.immediate = 0xfffe0000 + size;
    path.from.send({work});
    const Completion got = path.to.wait(Queue::Receive);
    EXPECT_EQ(got.status, IBV_WC_SUCCESS);
    EXPECT_EQ(got.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(got.bytes, size);
    EXPECT_EQ(got.immediate, work.immediate);
    EXPECT_TRUE(path.to.read(111, size) == pattern(size, size + 2));
    path.expect_done(work, IBV_WC_RDMA_WRITE);
  }
}

TEST_P(Messages, Read) {
  Connected path = connect();
  for (const std::uint32_t size : sizes()) {
    SCOPED_TRACE(fmt::format("{} bytes", size));
    path.to.write(77, pattern(size, size + 3));
    const Work work = path.work(IBV_WR_RDMA_READ, 8, size, 77);
    path.from.send({work});
    path.expect_done(work, IBV_WC_RDMA_READ);
    EXPECT_TRUE(path.from.read(8, size) == pattern(size, size + 3));
  }
}

// ---- Atomics and many at once -------------------------------------------------------------------

class Operations : public testing::TestWithParam<Direction> {
 protected:
  Connected connect(const QpOptions& options = {}) const { return connection(GetParam(), options, options); }
};

constexpr auto kDirections = [](const auto& test) { return name(test.param); };
const auto kBothDirections = testing::Values(Direction::EmulatedToKernel, Direction::KernelToEmulated);

INSTANTIATE_TEST_SUITE_P(Rc, Operations, kBothDirections, kDirections);

std::uint64_t word(Side& side, std::uint32_t offset) {
  std::uint64_t value = 0;
  std::memcpy(&value, side.read(offset, 8).data(), 8);
  return value;
}
void set_word(Side& side, std::uint32_t offset, std::uint64_t value) {
  std::vector<std::byte> bytes(8);
  std::memcpy(bytes.data(), &value, 8);
  side.write(offset, bytes);
}

TEST_P(Operations, FetchAndAddAndCompareAndSwap) {
  Connected path = connect();
  set_word(path.to, 64, 0x0123456789abcdef);
  Work work = path.work(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 64);
  work.compare_add = 0x1111111111111111;
  path.from.send({work});
  path.expect_done(work, IBV_WC_FETCH_ADD);
  EXPECT_EQ(word(path.from, 0), 0x0123456789abcdefU);
  EXPECT_EQ(word(path.to, 64), 0x0123456789abcdefU + 0x1111111111111111U);
  for (const bool equal : {false, true}) {
    set_word(path.to, 64, 41);
    work = path.work(IBV_WR_ATOMIC_CMP_AND_SWP, 8, 8, 64);
    work.compare_add = equal ? 41 : 42;
    work.swap = 0xfedcba9876543210;
    path.from.send({work});
    path.expect_done(work, IBV_WC_COMP_SWAP);
    EXPECT_EQ(word(path.from, 8), 41U);
    EXPECT_EQ(word(path.to, 64), equal ? work.swap : 41U);
  }
}

// More than may be outstanding, so that the requester has to wait for responder resources.
TEST_P(Operations, ManyReadsAndAtomicsWithFewResponderResources) {
  for (const std::uint8_t resources : std::initializer_list<std::uint8_t>{1, 4, 16}) {
    SCOPED_TRACE(fmt::format("max_rd_atomic {}", resources));
    QpOptions options;
    options.max_reads = resources;
    Connected path = connect(options);
    path.to.write(0, pattern(40 * 3000, resources));
    set_word(path.to, 400'000, 5);
    std::vector<Work> list;
    for (std::uint32_t i = 0; i != 40; ++i) {
      list.push_back(path.work(IBV_WR_RDMA_READ, i * 3000, 3000, i * 3000));
      list.push_back(path.work(IBV_WR_ATOMIC_FETCH_AND_ADD, 500'000 + 8 * i, 8, 400'000));
      list.back().compare_add = 1;
    }
    path.from.send(list);
    for (const Work& work : list) {
      path.expect_done(work, work.opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_FETCH_ADD);
    }
    EXPECT_TRUE(path.from.read(0, 40 * 3000) == pattern(40 * 3000, resources));
    EXPECT_EQ(word(path.to, 400'000), 45U);
    for (std::uint32_t i = 0; i != 40; ++i) EXPECT_EQ(word(path.from, 500'000 + 8 * i), 5U + i);
  }
}

TEST_P(Operations, AFenceWaitsForTheReadBeforeIt) {
  Connected path = connect();
  path.to.write(0, pattern(50'000, 8));
  Work read = path.work(IBV_WR_RDMA_READ, 0, 50'000, 0);
  Work write = path.work(IBV_WR_RDMA_WRITE, 0, 50'000, 100'000);
  write.flags |= IBV_SEND_FENCE;
  path.from.send({read, write});
  path.expect_done(read, IBV_WC_RDMA_READ);
  path.expect_done(write, IBV_WC_RDMA_WRITE);
  EXPECT_TRUE(path.to.read(100'000, 50'000) == pattern(50'000, 8));
}

TEST_P(Operations, UnsignaledWorkIsDoneInOrder) {
  Connected path = connect();
  std::vector<Work> list;
  path.from.write(0, pattern(200 * 100, 3));
  for (std::uint32_t i = 0; i != 200; ++i) {
    list.push_back(path.work(IBV_WR_RDMA_WRITE, i * 100, 100, i * 100));
    list.back().flags = i == 199 ? IBV_SEND_SIGNALED : 0;
  }
  path.from.send(list);
  path.expect_done(list.back(), IBV_WC_RDMA_WRITE);
  EXPECT_TRUE(path.to.read(0, 200 * 100) == pattern(200 * 100, 3));
}

TEST_P(Operations, BothSidesSendAtOnce) {
  Connected path = connect();
  const std::uint32_t size = 100'000;
  path.from.write(0, pattern(size, 1));
  path.to.write(0, pattern(size, 2));
  const Work there = path.work(IBV_WR_RDMA_WRITE, 0, size, 200'000);
  Work back = there;
  back.remote_address = path.from_info.address + 200'000;
  back.rkey = path.from_info.rkey;
  std::vector<Work> forth(10, there);
  path.from.send(forth);
  path.to.send(std::vector<Work>(10, back));
  for (int i = 0; i != 10; ++i) {
    path.expect_done(there, IBV_WC_RDMA_WRITE);
    EXPECT_EQ(path.to.wait(Queue::Send).status, IBV_WC_SUCCESS);
  }
  EXPECT_TRUE(path.to.read(200'000, size) == pattern(size, 1));
  EXPECT_TRUE(path.from.read(200'000, size) == pattern(size, 2));
}

// ---- No receive posted --------------------------------------------------------------------------

class ReceiverNotReady : public Operations {};
INSTANTIATE_TEST_SUITE_P(Rc, ReceiverNotReady, kBothDirections, kDirections);

// How many RNR NAKs the kernel's side has seen, or sent.
std::uint64_t rnr_naks(Direction direction) {
  return kernel().counter(direction == Direction::KernelToEmulated ? "rcvd_rnr_err" : "send_rnr_err");
}

TEST_P(ReceiverNotReady, TheSenderTriesAgainUntilThereIsAReceive) {
  for (const std::uint32_t opcode : {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    Connected path = connect();
    path.from.write(0, pattern(10'000, opcode));
    const std::uint64_t before = rnr_naks(GetParam());
    const Work work = path.work(static_cast<ibv_wr_opcode>(opcode), 0, 10'000, 0);
    path.from.send({work});
    while (rnr_naks(GetParam()) < before + 2) {
    }
    path.receive(0, 10'000);
    const Completion got = path.to.wait(Queue::Receive);
    EXPECT_EQ(got.status, IBV_WC_SUCCESS);
    EXPECT_EQ(got.bytes, 10'000U);
    path.expect_done(work, opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RDMA_WRITE : IBV_WC_SEND);
    EXPECT_TRUE(path.to.read(0, 10'000) == pattern(10'000, opcode));
  }
}

TEST_P(ReceiverNotReady, TheSenderGivesUpAfterAsManyRetriesAsItMay) {
  for (const std::uint8_t retries : std::initializer_list<std::uint8_t>{0, 3}) {
    QpOptions options;
    options.rnr_retry = retries;
    options.min_rnr_timer = 1;  // 10 µs
    Connected path = connect(options);
    const Work work = path.work(IBV_WR_SEND, 0, 100);
    path.from.send({work});
    path.expect_failed(work, IBV_WC_RNR_RETRY_EXC_ERR);
    EXPECT_EQ(path.to.state(), IBV_QPS_RTS) << "the responder has done nothing wrong";
  }
}

// ---- Refusals -----------------------------------------------------------------------------------

class Refusals : public Operations {
 protected:
  // The connection is over for both sides, and the responder was told why.
  void expect_target_failed(Connected& path, ibv_event_type event) {
    EXPECT_EQ(path.to.state(), IBV_QPS_ERR);
    // rxe raises none for a responder's error (kernel drivers/infiniband/sw/rxe/rxe_resp.c).
    if (!is_emulated(path.to)) return;
    ibv_event_type raised = path.to.event();
    if (raised == IBV_EVENT_COMM_EST) raised = path.to.event();
    EXPECT_EQ(raised, event) << ibv_event_type_str(raised);
  }
  void refused(const QpOptions& target, Work (*make)(Connected&), ibv_wc_status status,
               ibv_event_type event) {
    Connected path = connection(GetParam(), {}, target);
    path.to.write(0, pattern(64, 9));
    const Work before = path.work(IBV_WR_SEND, 0, 0);
    path.receive(0, 0);
    const Work wrong = make(path);
    Work after = before;
    after.id = wrong.id + 1;
    path.from.send({before, wrong, after});
    path.expect_done(before, IBV_WC_SEND);
    const Completion failed = path.expect_failed(wrong, status);
    if (is_emulated(path.from)) {
      EXPECT_EQ(failed.vendor_error, status == IBV_WC_REM_ACCESS_ERR ? 0x88U : 0x8aU);
    }
    const Completion flushed = path.from.wait(Queue::Send);
    EXPECT_EQ(flushed.id, after.id);
    EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
    expect_target_failed(path, event);
    EXPECT_TRUE(path.to.read(0, 64) == pattern(64, 9)) << "nothing was written";
  }
};
INSTANTIATE_TEST_SUITE_P(Rc, Refusals, kBothDirections, kDirections);

Work with_wrong_key(Work work) {
  work.rkey ^= 0x00ab00;
  return work;
}

TEST_P(Refusals, AWrongKeyIsARemoteAccessError) {
  refused(
      {}, [](Connected& path) { return with_wrong_key(path.work(IBV_WR_RDMA_WRITE, 100, 64)); },
      IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  refused(
      {}, [](Connected& path) { return with_wrong_key(path.work(IBV_WR_RDMA_READ, 100, 64)); },
      IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  refused(
      {}, [](Connected& path) { return with_wrong_key(path.work(IBV_WR_ATOMIC_FETCH_AND_ADD, 104, 8)); },
      IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_P(Refusals, ARangeThatEndsOutsideOfTheRegionIsARemoteAccessError) {
  refused(
      {}, [](Connected& path) { return path.work(IBV_WR_RDMA_WRITE, 100, 5000, kMemorySize - 4999); },
      IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  refused(
      {}, [](Connected& path) { return path.work(IBV_WR_RDMA_READ, 100, 5000, kMemorySize - 4999); },
      IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_P(Refusals, ARightThatTheRegionDoesNotGiveIsARemoteAccessError) {
  QpOptions only_local;
  only_local.memory_rights = IBV_ACCESS_LOCAL_WRITE;
  refused(
      only_local, [](Connected& path) { return path.work(IBV_WR_RDMA_WRITE, 100, 64); },
      IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  refused(
      only_local, [](Connected& path) { return path.work(IBV_WR_RDMA_READ, 100, 64); }, IBV_WC_REM_ACCESS_ERR,
      IBV_EVENT_QP_ACCESS_ERR);
  refused(
      only_local, [](Connected& path) { return path.work(IBV_WR_ATOMIC_FETCH_AND_ADD, 104, 8); },
      IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_P(Refusals, ARightThatTheQueuePairDoesNotGiveIsAnInvalidRequest) {
  QpOptions only_local;
  only_local.qp_rights = IBV_ACCESS_LOCAL_WRITE;
  refused(
      only_local, [](Connected& path) { return path.work(IBV_WR_RDMA_WRITE, 100, 64); },
      IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  refused(
      only_local, [](Connected& path) { return path.work(IBV_WR_RDMA_READ, 100, 64); },
      IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

TEST_P(Refusals, AnAtomicThatIsNotAlignedIsAnInvalidRequest) {
  if (GetParam() == Direction::KernelToEmulated) {
    // rdma-core providers/rxe/rxe.c, validate_send_wr
    Connected path = connect();
    EXPECT_THROW(path.from.send({path.work(IBV_WR_ATOMIC_FETCH_AND_ADD, 104, 8, 4)}), std::runtime_error);
    return;
  }
  refused(
      {}, [](Connected& path) { return path.work(IBV_WR_ATOMIC_FETCH_AND_ADD, 104, 8, 4); },
      IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

TEST_P(Refusals, ASendThatIsTooLongFailsOnBothSides) {
  Connected path = connect();
  path.receive(0, 1000);
  const Work work = path.work(IBV_WR_SEND, 0, 1001);
  path.from.send({work});
  // As a ConnectX does. rxe takes the receive for malformed (kernel drivers/infiniband/sw/rxe/rxe_resp.c,
  // send_data_in: copy_data() has no -ENOSPC for it), which is an operation error of the responder's own.
  const bool as_connectx = is_emulated(path.to);
  path.expect_failed(work, as_connectx ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR);
  const Completion received = path.to.wait(Queue::Receive);
  EXPECT_EQ(received.id, path.last_receive);
  EXPECT_EQ(received.status, as_connectx ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_QP_OP_ERR);
}

TEST_P(Refusals, AnswersThatDoNotComeEndInRetriesExceeded) {
  QpOptions options;
  options.timeout = 10;  // 4.2 ms
  options.retry_cnt = 2;
  Connected path = connect(options);
  path.to.destroy();
  const Work work = path.work(IBV_WR_RDMA_WRITE, 0, 100);
  path.from.send({work});
  path.expect_failed(work, IBV_WC_RETRY_EXC_ERR);
}

// ---- On a network that loses packets ------------------------------------------------------------

// Run with the emulated NIC's --loss and the like; without them these are transfers as any.
class Transfers : public Operations {
 protected:
  static constexpr std::uint32_t kCount = 60;
  static constexpr std::uint32_t kSize = 6000;
};
INSTANTIATE_TEST_SUITE_P(Rc, Transfers, kBothDirections, kDirections);

TEST_P(Transfers, Writes) {
  Connected path = connect();
  path.from.write(0, pattern(kCount * kSize, 1));
  std::vector<Work> list;
  for (std::uint32_t i = 0; i != kCount; ++i) {
    list.push_back(path.work(IBV_WR_RDMA_WRITE, i * kSize, kSize, i * kSize));
  }
  path.from.send(list);
  for (const Work& work : list) path.expect_done(work, IBV_WC_RDMA_WRITE);
  EXPECT_TRUE(path.to.read(0, kCount * kSize) == pattern(kCount * kSize, 1));
}

TEST_P(Transfers, Reads) {
  Connected path = connect();
  path.to.write(0, pattern(kCount * kSize, 2));
  std::vector<Work> list;
  for (std::uint32_t i = 0; i != kCount; ++i) {
    list.push_back(path.work(IBV_WR_RDMA_READ, i * kSize, kSize, i * kSize));
  }
  path.from.send(list);
  for (const Work& work : list) path.expect_done(work, IBV_WC_RDMA_READ);
  EXPECT_TRUE(path.from.read(0, kCount * kSize) == pattern(kCount * kSize, 2));
}

TEST_P(Transfers, SendsArriveOnceAndInOrder) {
  Connected path = connect();
  path.from.write(0, pattern(kCount * kSize, 3));
  std::vector<Work> list;
  for (std::uint32_t i = 0; i != kCount; ++i) {
    path.receive(i * kSize, kSize);
    list.push_back(path.work(IBV_WR_SEND_WITH_IMM, i * kSize, kSize));
    list.back().immediate = i;
  }
  path.from.send(list);
  for (std::uint32_t i = 0; i != kCount; ++i) {
    const Completion got = path.to.wait(Queue::Receive);
    EXPECT_EQ(got.status, IBV_WC_SUCCESS);
    EXPECT_EQ(got.immediate, i);
    EXPECT_EQ(got.bytes, kSize);
  }
  for (const Work& work : list) path.expect_done(work, IBV_WC_SEND);
  EXPECT_TRUE(path.to.read(0, kCount * kSize) == pattern(kCount * kSize, 3));
}

TEST_P(Transfers, AtomicsAreCarriedOutOnce) {
  Connected path = connect();
  std::vector<Work> list;
  for (std::uint32_t i = 0; i != kCount; ++i) {
    list.push_back(path.work(IBV_WR_ATOMIC_FETCH_AND_ADD, 8 * i, 8, 0));
    list.back().compare_add = 1;
  }
  path.from.send(list);
  for (const Work& work : list) path.expect_done(work, IBV_WC_FETCH_ADD);
  EXPECT_EQ(word(path.to, 0), kCount);
  for (std::uint32_t i = 0; i != kCount; ++i) EXPECT_EQ(word(path.from, 8 * i), i);
}

// All that the kernel sent was taken for undamaged, whatever its IP identification.
class NoPacketWasDamaged : public testing::Environment {
 public:
  void TearDown() override { EXPECT_EQ(emulated().counter("rx_icrc_encapsulated"), 0U); }
};

int usage() {
  fmt::print(stderr, "usage: interop --serve PORT | --peer ADDRESS:PORT [--gid N] [--peer-gid N]\n");
  return 2;
}

int run(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    const std::string value = argv[i + 1];
    if (option == "--serve") return serve(static_cast<std::uint16_t>(std::stoi(value)));
    if (option == "--peer") {
      setup.host = value.substr(0, value.rfind(':'));
      setup.port = static_cast<std::uint16_t>(std::stoi(value.substr(value.rfind(':') + 1)));
    } else if (option == "--gid") {
      setup.gid = static_cast<std::uint8_t>(std::stoi(value));
    } else if (option == "--peer-gid") {
      setup.peer_gid = static_cast<std::uint8_t>(std::stoi(value));
    } else {
      return usage();
    }
  }
  if (setup.host.empty()) return usage();
  testing::AddGlobalTestEnvironment(new NoPacketWasDamaged);
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace qpair::kernel_test

int main(int argc, char** argv) {
  try {
    return qpair::kernel_test::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "interop: {}\n", error.what());
    return 2;
  }
}
