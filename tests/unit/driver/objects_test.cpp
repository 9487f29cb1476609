// The life of objects: made, used by others, destroyed in order, or all at once when the descriptor is
// closed.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <infiniband/verbs.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <thread>

#include "device_harness.hpp"
#include "softnic/driver/runtime.hpp"
#include "softnic/nic/nic.hpp"

namespace qpair::softnic::driver::test {
namespace {

constexpr std::uint32_t kAllRights = IB_UVERBS_ACCESS_LOCAL_WRITE | IB_UVERBS_ACCESS_REMOTE_WRITE |
                                     IB_UVERBS_ACCESS_REMOTE_READ | IB_UVERBS_ACCESS_REMOTE_ATOMIC;

class Objects : public Device {
 protected:
  void SetUp() override {
    Device::SetUp();
    get_context();
  }
  int destroy_pd(std::uint32_t handle) {
    Ioctl call(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY);
    call.handle(UVERBS_ATTR_DESTROY_PD_HANDLE, handle);
    return call.send(file());
  }
  int destroy_mr(std::uint32_t handle) {
    Ioctl call(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY);
    call.handle(UVERBS_ATTR_DESTROY_MR_HANDLE, handle);
    return call.send(file());
  }
  ssize_t modify_qp(std::uint32_t handle, std::uint32_t mask, ib_uverbs_modify_qp command = {}) {
    command.qp_handle = handle;
    command.attr_mask = mask;
    return WriteCommand(IB_USER_VERBS_CMD_MODIFY_QP).with(command).send(file());
  }
  ib_uverbs_destroy_cq_resp cq_answer_{};
  ib_uverbs_destroy_qp_resp qp_answer_{};
};

TEST_F(Objects, APdIsDestroyedOnce) {
  const std::uint32_t pd = create_pd();
  EXPECT_EQ(destroy_pd(pd), 0);
  EXPECT_EQ(destroy_pd(pd), -ENOENT);
}

TEST_F(Objects, HandlesAreReusedLowestFirst) {
  const std::uint32_t first = create_pd();
  const std::uint32_t second = create_pd();
  EXPECT_EQ(destroy_pd(first), 0);
  EXPECT_EQ(create_pd(), first);
  EXPECT_EQ(create_pd(), second + 1);
}

TEST_F(Objects, APdWithAMemoryRegionIsBusy) {
  const Pages memory;
  const std::uint32_t pd = create_pd();
  ib_uverbs_reg_mr_resp mr{};
  ASSERT_GT(reg_mr(pd, memory.address(), 4096, kAllRights, mr), 0);
  EXPECT_EQ(destroy_pd(pd), -EBUSY);
  EXPECT_EQ(destroy_mr(mr.mr_handle), 0);
  EXPECT_EQ(destroy_pd(pd), 0);
}

TEST_F(Objects, QueuesAreBusyWhileAQueuePairUsesThem) {
  const std::uint32_t pd = create_pd();
  std::uint32_t cq = 0;
  std::uint32_t qp = 0;
  ASSERT_EQ(create_cq(cq), 0);
  ASSERT_EQ(create_qp(pd, cq, qp), 0);
  EXPECT_EQ(destroy_cq(cq, cq_answer_), -EBUSY);
  EXPECT_EQ(destroy_pd(pd), -EBUSY);
  EXPECT_EQ(destroy_qp(qp, qp_answer_), 0);
  EXPECT_EQ(destroy_qp(qp, qp_answer_), -ENOENT);
  EXPECT_EQ(destroy_cq(cq, cq_answer_), 0);
  EXPECT_EQ(destroy_pd(pd), 0);
}

TEST_F(Objects, ADoorbellPageMayGoBeforeTheQueuesThatUseIt) {
  std::uint32_t cq = 0;
  ASSERT_EQ(create_cq(cq), 0);
  Ioctl destroy_uar(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY);
  destroy_uar.handle(MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, uar_.handle);
  EXPECT_EQ(destroy_uar.send(file()), 0);
  EXPECT_EQ(destroy_cq(cq, cq_answer_), 0);
}

TEST_F(Objects, ClosingTheDescriptorReleasesWhatIsAlive) {
  const Pages memory;
  for (int round = 0; round < 3; ++round) {
    const std::uint32_t pd = create_pd();
    ib_uverbs_reg_mr_resp mr{};
    ASSERT_GT(reg_mr(pd, memory.address(), 4096, kAllRights, mr), 0);
    std::uint32_t cq = 0;
    std::uint32_t qp = 0;
    ASSERT_EQ(create_cq(cq, 15, create_channel()), 0);
    ASSERT_EQ(create_qp(pd, cq, qp), 0);
    uar_ = {};
    close_device();
    open();
    get_context();
  }
}

TEST_F(Objects, ClosingWhileOtherThreadsAreInsideACallWaitsForThem) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([held = file_] {
      for (int round = 0; round < 200; ++round) {
        struct {
          std::uint32_t handle;
          std::uint32_t pdn;
        } answer{};
        const ib_uverbs_alloc_pd command{.response = address_of(&answer)};
        EXPECT_GT(
            WriteCommand(IB_USER_VERBS_CMD_ALLOC_PD).with(command).answered_in(sizeof answer).send(*held), 0);
        WriteCommand(IB_USER_VERBS_CMD_DEALLOC_PD)
            .with(ib_uverbs_dealloc_pd{.pd_handle = answer.handle})
            .send(*held);
      }
    });
  }
  close_device();
  for (auto& thread : threads) thread.join();
}

TEST_F(Objects, AnAnswerThatCannotBeWrittenUndoesTheCommand) {
  const Pages hole;
  WriteCommand command(IB_USER_VERBS_CMD_ALLOC_PD);
  command.with(ib_uverbs_alloc_pd{.response = hole.end() - 4}).answered_in(8);
  EXPECT_EQ(command.send(file()), -EFAULT);
  EXPECT_EQ(create_pd(), 0U);  // the handle is free again
}

// ---- Memory regions

TEST_F(Objects, MemoryThatIsNotThereIsNotRegistered) {
  const Pages memory(2);
  const std::uint32_t pd = create_pd();
  ib_uverbs_reg_mr_resp mr{};
  EXPECT_EQ(reg_mr(pd, memory.address(), 2 * 4096 + 1, kAllRights, mr), -EFAULT);
  const Pages with_hole(3);
  munmap(reinterpret_cast<void*>(with_hole.address() + 4096), 4096);
  EXPECT_EQ(reg_mr(pd, with_hole.address(), 3 * 4096, kAllRights, mr), -EFAULT);
  EXPECT_EQ(reg_mr(pd, 4096, 4096, kAllRights, mr), -EFAULT);
  EXPECT_EQ(reg_mr(pd, 0xffff'ffff'ffff'f000, 0x2000, kAllRights, mr), -EINVAL);
  EXPECT_EQ(reg_mr(pd, memory.address(), 0, kAllRights, mr), -EINVAL);
  EXPECT_EQ(reg_mr(4711, memory.address(), 4096, kAllRights, mr), -EINVAL);
}

TEST_F(Objects, ReadOnlyMemoryIsRegisteredForReadingOnly) {
  const Pages memory(1, PROT_READ);
  const std::uint32_t pd = create_pd();
  ib_uverbs_reg_mr_resp mr{};
  EXPECT_EQ(reg_mr(pd, memory.address(), 4096, kAllRights, mr), -EFAULT);
  EXPECT_GT(reg_mr(pd, memory.address(), 4096, IB_UVERBS_ACCESS_REMOTE_READ, mr), 0);
}

TEST_F(Objects, RemoteWritingNeedsLocalWriting) {
  const Pages memory;
  const std::uint32_t pd = create_pd();
  ib_uverbs_reg_mr_resp mr{};
  EXPECT_EQ(reg_mr(pd, memory.address(), 4096, IB_UVERBS_ACCESS_REMOTE_WRITE, mr), -EINVAL);
  EXPECT_EQ(reg_mr(pd, memory.address(), 4096, IB_UVERBS_ACCESS_REMOTE_ATOMIC, mr), -EINVAL);
  EXPECT_EQ(reg_mr(pd, memory.address(), 4096, 1U << 15, mr), -EINVAL);
  EXPECT_GT(reg_mr(pd, memory.address(), 4096, kAllRights | IB_UVERBS_ACCESS_RELAXED_ORDERING, mr), 0);
}

TEST_F(Objects, ReregisteringMovesARegionBetweenDomains) {
  const Pages memory(2);
  const std::uint32_t pd = create_pd();
  const std::uint32_t other = create_pd();
  ib_uverbs_reg_mr_resp mr{};
  ASSERT_GT(reg_mr(pd, memory.address(), 4096, kAllRights, mr), 0);
  ib_uverbs_rereg_mr_resp answer{};
  ib_uverbs_rereg_mr command{};
  command.response = address_of(&answer);
  command.mr_handle = mr.mr_handle;
  const auto send = [&, asked = &command] {
    return WriteCommand(IB_USER_VERBS_CMD_REREG_MR).with(*asked).answered_in(sizeof answer).send(file());
  };
  EXPECT_EQ(send(), -EINVAL);  // nothing to change
  command.flags = 0x80;
  EXPECT_EQ(send(), -EOPNOTSUPP);
  command.flags = 1U << 1;  // IB_MR_REREG_PD
  command.pd_handle = 4711;
  EXPECT_EQ(send(), -EINVAL);
  command.pd_handle = other;
  EXPECT_GT(send(), 0);
  EXPECT_EQ(destroy_pd(pd), 0);
  EXPECT_EQ(destroy_pd(other), -EBUSY);
  command.flags = 1U << 0;  // IB_MR_REREG_TRANS
  command.start = memory.address();
  command.length = 8192;
  command.hca_va = memory.address();
  EXPECT_GT(send(), 0);
  std::uint32_t lkey = 0;
  std::uint32_t rkey = 0;
  std::uint64_t length = 0;
  Ioctl query(UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR);
  query.handle(UVERBS_ATTR_QUERY_MR_HANDLE, mr.mr_handle)
      .pointer(UVERBS_ATTR_QUERY_MR_RESP_LKEY, lkey)
      .pointer(UVERBS_ATTR_QUERY_MR_RESP_RKEY, rkey)
      .pointer(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, length);
  EXPECT_EQ(query.send(file()), 0);
  EXPECT_EQ(length, 8192U);
  EXPECT_EQ(lkey, answer.lkey);
}

class DmaBuf : public Objects {
 protected:
  int reg(std::uint32_t pd, int fd, std::uint64_t offset, std::uint64_t length, std::uint32_t access) {
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
    Ioctl call(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR);
    call.handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE)
        .handle(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, pd)
        .value(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, offset)
        .value(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, length)
        .value(UVERBS_ATTR_REG_DMABUF_MR_IOVA, offset)
        .value(UVERBS_ATTR_REG_DMABUF_MR_FD, fd)
        .value(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, access)
        .pointer(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, lkey)
        .pointer(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, rkey);
    return call.send(file());
  }
};

TEST_F(DmaBuf, OnlyADmaBufIsOne) {
  const std::uint32_t pd = create_pd();
  const int memory = memfd_create("not a dma-buf", MFD_CLOEXEC);
  EXPECT_EQ(reg(pd, memory, 0, 4096, kAllRights), -EINVAL);
  EXPECT_EQ(reg(pd, 9999, 0, 4096, kAllRights), -EBADF);
  close(memory);
}

TEST_F(DmaBuf, ARealOneIsRegisteredAndKeptAfterItsDescriptorIsClosed) {
  const int maker = ::open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
  if (maker < 0) GTEST_SKIP() << "no /dev/udmabuf here";
  const int memory = memfd_create("udmabuf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(memory, 8192), 0);
  ASSERT_EQ(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  udmabuf_create request{};
  request.memfd = static_cast<std::uint32_t>(memory);
  request.size = 8192;
  const int dmabuf = ::ioctl(maker, UDMABUF_CREATE, &request);
  ASSERT_GE(dmabuf, 0);
  const std::uint32_t pd = create_pd();
  EXPECT_EQ(reg(pd, dmabuf, 0, 8192, kAllRights), 0);
  close(dmabuf);
  close(memory);
  close(maker);
  EXPECT_EQ(destroy_pd(pd), -EBUSY);
}

// ---- Completion queues

TEST_F(Objects, ACompletionQueueRoundsUpToAPowerOfTwoMinusOne) {
  std::uint32_t cq = 0;
  ASSERT_EQ(create_cq(cq, 9), 0);
  EXPECT_EQ(destroy_cq(cq, cq_answer_), 0);
  EXPECT_EQ(create_cq(cq, 0), -EINVAL);
  EXPECT_EQ(create_cq(cq, 1U << 23), -EINVAL);
  EXPECT_EQ(create_cq(cq, 1U << 20), -EFAULT);  // the ring is one page
  EXPECT_EQ(create_cq(cq, 9, 9999), -EBADF);
  EXPECT_EQ(create_cq(cq, 9, STDIN_FILENO), -EBADF);
}

TEST_F(Objects, AChannelOfAnotherDeviceIsNotMine) {
  const int channel = create_channel();
  std::shared_ptr<File> other;
  const int other_fd = open_device(other);
  ASSERT_GE(other_fd, 0);
  std::swap(file_, other);
  get_context();
  uar_ = {};
  std::uint32_t cq = 0;
  EXPECT_EQ(create_cq(cq, 9, channel), -EBADF);
  std::swap(file_, other);
  other.reset();
  close(other_fd);
}

TEST_F(Objects, ResizingACompletionQueueChecksTheNewRing) {
  std::uint32_t cq = 0;
  ASSERT_EQ(create_cq(cq), 0);
  const Pages ring(4);
  ib_uverbs_resize_cq_resp answer{};
  ib_uverbs_resize_cq command{};
  command.response = address_of(&answer);
  command.cq_handle = cq;
  command.cqe = 31;
  mlx5_ib_resize_cq driver{};
  driver.buf_addr = ring.address();
  driver.cqe_size = 64;
  const auto send = [&, asked = &command] {
    return WriteCommand(IB_USER_VERBS_CMD_RESIZE_CQ)
        .with(*asked)
        .with(driver)
        .answered_in(sizeof answer)
        .send(file());
  };
  EXPECT_GT(send(), 0);
  EXPECT_EQ(answer.cqe, 31U);
  command.cqe = 500;
  EXPECT_EQ(send(), -EFAULT);
  command.cqe = 63;
  driver.cqe_size = 32;
  EXPECT_EQ(send(), -EINVAL);
  command.cqe = 0;
  EXPECT_EQ(send(), -EINVAL);
  command.cq_handle = 4711;
  EXPECT_EQ(send(), -EINVAL);
}

// ---- Queue pairs

TEST_F(Objects, RingsOfAQueuePairAreChecked) {
  const std::uint32_t pd = create_pd();
  std::uint32_t cq = 0;
  std::uint32_t qp = 0;
  ASSERT_EQ(create_cq(cq), 0);
  const auto with = [&](auto change) {
    mlx5_ib_create_qp driver = default_qp();
    change(driver);
    return create_qp(pd, cq, qp, driver);
  };
  EXPECT_EQ(with([](auto& qp_) { qp_.sq_wqe_count = 17; }), -EINVAL);
  EXPECT_EQ(with([](auto& qp_) { qp_.sq_wqe_count = 1U << 16; }), -EINVAL);
  EXPECT_EQ(with([](auto& qp_) { qp_.rq_wqe_count = 3; }), -EINVAL);
  EXPECT_EQ(with([](auto& qp_) { qp_.rq_wqe_shift = 3; }), -EINVAL);
  EXPECT_EQ(with([](auto& qp_) { qp_.rq_wqe_shift = 200; }), -EINVAL);
  EXPECT_EQ(with([](auto& qp_) { qp_.flags = 1U << 30; }), -EINVAL);
  EXPECT_EQ(with([](auto& qp_) { qp_.uidx = 0xffffff; }), -EINVAL);
  EXPECT_EQ(with([](auto& qp_) { qp_.buf_addr = 4096; }), -EFAULT);
  EXPECT_EQ(with([](auto& qp_) { qp_.db_addr = 8; }), -EFAULT);
  EXPECT_EQ(with([](auto& qp_) { qp_.sq_wqe_count = 1024; }), -EFAULT);
  EXPECT_EQ(with([](auto&) {}), 0);
}

TEST_F(Objects, QueuePairsMoveThroughTheirStates) {
  const std::uint32_t pd = create_pd();
  std::uint32_t cq = 0;
  std::uint32_t qp = 0;
  ASSERT_EQ(create_cq(cq), 0);
  ASSERT_EQ(create_qp(pd, cq, qp), 0);
  ib_uverbs_modify_qp init{};
  init.qp_state = 1;
  init.port_num = 1;
  constexpr std::uint32_t kInitMask =
      1U << 0 | 1U << 3 | 1U << 4 | 1U << 5;  // state, access, pkey index, port
  auto wrong_port = init;
  wrong_port.port_num = 2;
  EXPECT_EQ(modify_qp(qp, kInitMask, wrong_port), -EINVAL);
  EXPECT_GT(modify_qp(qp, kInitMask, init), 0);
  EXPECT_EQ(modify_qp(qp, 1U << 30, init), -EOPNOTSUPP);
  EXPECT_EQ(modify_qp(4711, kInitMask, init), -EINVAL);
  // Values that no enum has never reach the NIC, asked for or not.
  ib_uverbs_modify_qp beyond{};
  beyond.qp_state = 8;
  beyond.cur_qp_state = 99;
  beyond.path_mtu = 9;
  beyond.path_mig_state = 200;
  for (const std::uint32_t mask : {1U << 0, 1U << 1, 1U << 8, 1U << 18}) {
    EXPECT_EQ(modify_qp(qp, mask, beyond), -EINVAL) << mask;
  }

  ib_uverbs_query_qp_resp answer{};
  const auto query =
      WriteCommand(IB_USER_VERBS_CMD_QUERY_QP)
          .with(ib_uverbs_query_qp{.response = address_of(&answer), .qp_handle = qp, .attr_mask = 1})
          .answered_in(sizeof answer)
          .send(file());
  EXPECT_GT(query, 0);
  EXPECT_EQ(answer.qp_state, 1);
  EXPECT_EQ(answer.port_num, 1);
}

TEST_F(Objects, AnAddressNeedsAGidThatThePortHas) {
  const std::uint32_t pd = create_pd();
  struct {
    std::uint32_t ah_handle;
    mlx5_ib_create_ah_resp driver;
  } answer{};
  ib_uverbs_create_ah command{};
  command.response = address_of(&answer);
  command.pd_handle = pd;
  command.attr.port_num = 1;
  command.attr.is_global = 1;
  command.attr.grh.sgid_index = 3;
  const auto send = [&, asked = &command] {
    return WriteCommand(IB_USER_VERBS_CMD_CREATE_AH).with(*asked).answered_in(sizeof answer).send(file());
  };
  EXPECT_GT(send(), 0);
  EXPECT_EQ(answer.driver.response_length, 10U);
  EXPECT_EQ(destroy_pd(pd), -EBUSY);
  const auto mac_of = [&](std::initializer_list<std::uint8_t> gid) {
    std::ranges::copy(gid, command.attr.grh.dgid);
    EXPECT_GT(send(), 0);
    return std::to_array(answer.driver.dmac);
  };
  using Mac = std::array<std::uint8_t, 6>;
  EXPECT_EQ(mac_of({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 71, 3, 4}), (Mac{2, 0x71, 127, 71, 3, 4}));
  EXPECT_EQ(mac_of({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 129, 3, 4}), (Mac{1, 0, 0x5e, 1, 3, 4}));
  EXPECT_EQ(mac_of({0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 5, 6, 7, 8}), (Mac{0x33, 0x33, 5, 6, 7, 8}));
  command.attr.grh.sgid_index = 200;
  EXPECT_EQ(send(), -EINVAL);
  command.attr.grh.sgid_index = 3;
  command.attr.is_global = 0;
  EXPECT_EQ(send(), -EINVAL);
}

TEST_F(Objects, AQueuePairCannotGoWhileItIsAttachedToAGroup) {
  const std::uint32_t pd = create_pd();
  std::uint32_t cq = 0;
  std::uint32_t datagrams = 0;
  std::uint32_t connection = 0;
  ASSERT_EQ(create_cq(cq), 0);
  ASSERT_EQ(create_qp(pd, cq, datagrams, default_qp(), IB_UVERBS_QPT_UD), 0);
  ASSERT_EQ(create_qp(pd, cq, connection), 0);
  ib_uverbs_attach_mcast command{};
  const std::initializer_list<std::uint8_t> group{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 71, 9, 9};
  const auto send = [&](std::uint32_t number, std::uint32_t qp, std::uint16_t lid) {
    std::ranges::copy(group, command.gid);
    command.qp_handle = qp;
    command.mlid = lid;
    const auto sent = WriteCommand(number).with(command).send(file());
    return sent < 0 ? static_cast<int>(sent) : 0;
  };
  constexpr std::uint32_t kAttach = IB_USER_VERBS_CMD_ATTACH_MCAST, kDetach = IB_USER_VERBS_CMD_DETACH_MCAST;
  EXPECT_EQ(send(kAttach, connection, 0), -EINVAL) << "datagrams only";
  EXPECT_EQ(send(kAttach, pd, 0), -EINVAL) << "not a queue pair";
  EXPECT_EQ(send(kDetach, datagrams, 0), -EINVAL) << "not attached";
  EXPECT_EQ(send(kAttach, datagrams, 0), 0);
  EXPECT_EQ(send(kAttach, datagrams, 0), 0) << "once more is once";
  EXPECT_EQ(send(kAttach, datagrams, 0xc001), 0);
  ib_uverbs_destroy_qp_resp answer{};
  EXPECT_EQ(destroy_qp(datagrams, answer), -EBUSY);
  EXPECT_EQ(send(kDetach, datagrams, 0), 0);
  EXPECT_EQ(send(kDetach, datagrams, 0), -EINVAL);
  EXPECT_EQ(destroy_qp(datagrams, answer), -EBUSY);
  EXPECT_EQ(send(kDetach, datagrams, 0xc001), 0);
  EXPECT_EQ(destroy_qp(datagrams, answer), 0);
}

TEST_F(Objects, AQueuePairGoesWithItsDeviceThoughItIsAttachedToAGroup) {
  const std::uint32_t pd = create_pd();
  std::uint32_t cq = 0;
  std::uint32_t datagrams = 0;
  ASSERT_EQ(create_cq(cq), 0);
  ASSERT_EQ(create_qp(pd, cq, datagrams, default_qp(), IB_UVERBS_QPT_UD), 0);
  ib_uverbs_attach_mcast command{};
  const std::initializer_list<std::uint8_t> group{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 71, 9, 9};
  std::ranges::copy(group, command.gid);
  command.qp_handle = datagrams;
  ASSERT_GE(WriteCommand(IB_USER_VERBS_CMD_ATTACH_MCAST).with(command).send(file()), 0);
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  EXPECT_EQ(current_nic()->query_qp(nic::Qpn{qpn_}, attributes, initial).value, 0);
  close_device();
  EXPECT_EQ(current_nic()->query_qp(nic::Qpn{qpn_}, attributes, initial).value, EINVAL);
}

// ---- Doorbell pages

TEST_F(Objects, DoorbellPagesAreMappedByTheirOffset) {
  const Uar first = create_uar();
  const Uar second = create_uar();
  EXPECT_NE(first.offset, second.offset);
  EXPECT_EQ(file().before_mmap(4096, PROT_WRITE, MAP_SHARED, static_cast<off_t>(first.offset)), 0);
  EXPECT_EQ(file().before_mmap(8192, PROT_WRITE, MAP_SHARED, static_cast<off_t>(first.offset)), -EINVAL);
  EXPECT_EQ(file().before_mmap(4096, PROT_WRITE, MAP_PRIVATE, static_cast<off_t>(first.offset)), -EINVAL);
  EXPECT_EQ(file().before_mmap(4096, PROT_WRITE, MAP_SHARED, static_cast<off_t>(second.offset + 4096)),
            -EINVAL);
  EXPECT_EQ(file().before_mmap(4096, PROT_WRITE, MAP_SHARED, 0), -EINVAL);  // no registers of its own
  EXPECT_EQ(file().before_mmap(4096, PROT_WRITE, MAP_SHARED, off_t{8} << 20), -EINVAL);  // device memory
  void* const page = mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(first.offset));
  ASSERT_NE(page, MAP_FAILED);
  file().after_mmap(page, 4096, static_cast<off_t>(first.offset));
  munmap(page, 4096);
}

TEST_F(Objects, ThousandsOfDoorbellPagesAreGivenAndThenRefused) {
  int made = 0;
  for (; made < 20'000; ++made) {
    Ioctl call(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC);
    std::uint64_t offset = 0;
    std::uint32_t length = 0;
    std::uint32_t page = 0;
    call.handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE)
        .constant(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, 0)
        .pointer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, offset)
        .pointer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, length)
        .pointer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, page);
    const int result = call.send(file());
    if (result != 0) {
      EXPECT_EQ(result, -ENOMEM);
      break;
    }
  }
  EXPECT_EQ(made, 8'192);
}

TEST_F(Objects, TheClockPageTellsHowToTurnTicksIntoTime) {
  const off_t offset = off_t{MLX5_IB_MMAP_CLOCK_INFO} << 8 << 12;
  EXPECT_EQ(file().before_mmap(4096, PROT_READ | PROT_WRITE, MAP_SHARED, offset), -EPERM);
  ASSERT_EQ(file().before_mmap(4096, PROT_READ, MAP_SHARED, offset), 0);
  void* const page = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd_, offset);
  ASSERT_NE(page, MAP_FAILED);
  const auto* const info = static_cast<const mlx5_ib_clock_info*>(page);
  EXPECT_EQ(info->sign & MLX5_IB_CLOCK_INFO_KERNEL_UPDATING, 0U);
  EXPECT_GT(info->nsec, std::uint64_t{1'600'000'000} * 1'000'000'000);
  EXPECT_NE(info->cycles, 0U);
  munmap(page, 4096);
}

class LegacyDoorbells : public Device {
 protected:
  void SetUp() override {
    Device::SetUp();
    get_legacy_context();
  }
};

TEST_F(LegacyDoorbells, AContextHasTheRegistersThatItAskedFor) {
  EXPECT_EQ(context_.tot_bfregs, 16U);
  for (off_t page = 0; page < 8; ++page) {
    EXPECT_EQ(file().before_mmap(4096, PROT_WRITE, MAP_SHARED, page << 12), 0);
  }
  EXPECT_EQ(file().before_mmap(4096, PROT_WRITE, MAP_SHARED, off_t{8} << 12), -EINVAL);
  const off_t uncached = off_t{MLX5_IB_MMAP_NC_PAGE} << 8 << 12;
  EXPECT_EQ(file().before_mmap(4096, PROT_WRITE, MAP_SHARED, uncached), -EINVAL);
}

TEST_F(LegacyDoorbells, ExtraPagesAreHandedOutOnce) {
  const off_t extra = off_t{MLX5_IB_MMAP_ALLOC_WC} << 8 << 12;
  EXPECT_EQ(file().before_mmap(4096, PROT_WRITE, MAP_SHARED, extra), 0);
  EXPECT_EQ(file().before_mmap(4096, PROT_WRITE, MAP_SHARED, extra), -EINVAL);
}

TEST_F(LegacyDoorbells, ManyQueuePairsShareTheRegisters) {
  const std::uint32_t pd = create_pd();
  std::uint32_t cq = 0;
  ASSERT_EQ(create_cq(cq), 0);
  for (int i = 0; i < 40; ++i) {
    std::uint32_t qp = 0;
    EXPECT_EQ(create_qp(pd, cq, qp), 0);
  }
}

// ---- fork()

TEST_F(Objects, TheChildOfAForkCannotUseTheParentsDevice) {
  const std::uint32_t pd = create_pd();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused = destroy_pd(pd) == -EIO && file().write("", 0) == -EIO &&
                         file().before_mmap(4096, PROT_WRITE, MAP_SHARED, 0) == -EIO;
    FileTable::instance().remove(fd_);
    file_.reset();
    std::shared_ptr<File> own;
    const int own_fd = open_device(own);
    _exit(refused && own_fd >= 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(destroy_pd(pd), 0);
}

}  // namespace
}  // namespace qpair::softnic::driver::test
