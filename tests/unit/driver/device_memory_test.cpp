// Device memory: allocated in pages, mapped by the program, registered from zero on.

#include <infiniband/verbs.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <sys/wait.h>

#include "tests/unit/driver/device_harness.hpp"

namespace qpair::softnic::driver {
namespace {

using namespace test;

constexpr off_t offset_of(std::uint16_t page) {
  return off_t{MLX5_IB_MMAP_DEVICE_MEM << 8 | page} * 4096;
}

class DeviceMemory : public Device {
 protected:
  void SetUp() override {
    Device::SetUp();
    get_context();
    pd_ = create_pd();
  }

  struct Dm {
    std::uint32_t handle = 0;
    std::uint64_t start = 7;
    std::uint16_t page = 0xffff;
  };
  int alloc(std::uint64_t length, Dm& dm, std::uint32_t alignment = 0, std::uint64_t type = 0) {
    Ioctl call(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC);
    call.handle(UVERBS_ATTR_ALLOC_DM_HANDLE)
        .value(UVERBS_ATTR_ALLOC_DM_LENGTH, length)
        .value(UVERBS_ATTR_ALLOC_DM_ALIGNMENT, alignment)
        .pointer(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, dm.start)
        .pointer(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, dm.page)
        .constant(MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE, type);
    const int failure = call.send(file());
    dm.handle = static_cast<std::uint32_t>(call[UVERBS_ATTR_ALLOC_DM_HANDLE].data);
    return failure;
  }
  int free_dm(std::uint32_t handle) {
    return Ioctl(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE)
        .handle(UVERBS_ATTR_FREE_DM_HANDLE, handle)
        .send(file());
  }
  int register_dm(const Dm& dm, std::uint64_t offset, std::uint64_t length, std::uint32_t access,
                  std::uint32_t& handle) {
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
    Ioctl call(UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG);
    call.handle(UVERBS_ATTR_REG_DM_MR_HANDLE)
        .value(UVERBS_ATTR_REG_DM_MR_OFFSET, offset)
        .value(UVERBS_ATTR_REG_DM_MR_LENGTH, length)
        .handle(UVERBS_ATTR_REG_DM_MR_PD_HANDLE, pd_)
        .value(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, access)
        .handle(UVERBS_ATTR_REG_DM_MR_DM_HANDLE, dm.handle)
        .pointer(UVERBS_ATTR_REG_DM_MR_RESP_LKEY, lkey)
        .pointer(UVERBS_ATTR_REG_DM_MR_RESP_RKEY, rkey);
    const int failure = call.send(file());
    handle = static_cast<std::uint32_t>(call[UVERBS_ATTR_REG_DM_MR_HANDLE].data);
    if (failure == 0) {
      EXPECT_NE(lkey, 0U);
    }
    return failure;
  }
  int destroy_mr(std::uint32_t handle) {
    return Ioctl(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY)
        .handle(UVERBS_ATTR_DESTROY_MR_HANDLE, handle)
        .send(file());
  }
  int before_mmap(std::uint16_t page, std::size_t length, int flags = MAP_SHARED) {
    return file().before_mmap(length, PROT_READ | PROT_WRITE, flags, offset_of(page));
  }

  std::uint32_t pd_ = 0;
};

TEST_F(DeviceMemory, PagesAreHandedOutUntilThereAreNone) {
  Dm half;
  Dm rest;
  Dm none;
  ASSERT_EQ(alloc(65536, half), 0);
  EXPECT_EQ(half.start, 0U);
  ASSERT_EQ(alloc(65536, rest), 0);
  EXPECT_NE(half.page, rest.page);
  EXPECT_EQ(alloc(4, none), -ENOMEM);
  EXPECT_EQ(free_dm(half.handle), 0);
  EXPECT_EQ(alloc(4, none), 0);
}

TEST_F(DeviceMemory, SizesAlignmentsAndKindsThatAreRefused) {
  Dm dm;
  EXPECT_EQ(alloc(0, dm), -EINVAL);
  EXPECT_EQ(alloc(131073, dm), -EINVAL);
  EXPECT_EQ(alloc(~std::uint64_t{0}, dm), -EINVAL);
  EXPECT_EQ(alloc(4, dm, 18), -EINVAL);
  EXPECT_EQ(alloc(4, dm, 0xffff'ffff), -EINVAL);
  EXPECT_EQ(alloc(4, dm, 0, MLX5_IB_UAPI_DM_TYPE_STEERING_SW_ICM), -EOPNOTSUPP);
}

TEST_F(DeviceMemory, AlignedToMoreThanAPage) {
  Dm first;
  Dm aligned;
  ASSERT_EQ(alloc(4, first), 0);
  ASSERT_EQ(alloc(4, aligned, 14), 0);
  EXPECT_EQ(aligned.page % 4, 0);
}

TEST_F(DeviceMemory, TheWholeOfItIsMappedAndNothingElse) {
  Dm dm;
  ASSERT_EQ(alloc(3 * 4096 - 5, dm), 0);
  EXPECT_EQ(before_mmap(dm.page, std::size_t{3} * 4096), 0);
  EXPECT_EQ(before_mmap(dm.page, std::size_t{2} * 4096), -EINVAL);
  EXPECT_EQ(before_mmap(dm.page, std::size_t{4} * 4096), -EINVAL);
  EXPECT_EQ(before_mmap(static_cast<std::uint16_t>(dm.page + 1), std::size_t{3} * 4096), -EINVAL);
  EXPECT_EQ(before_mmap(dm.page, std::size_t{3} * 4096, MAP_PRIVATE), -EINVAL);
  EXPECT_EQ(before_mmap(31, 4096), -EINVAL);
  EXPECT_EQ(free_dm(dm.handle), 0);
  EXPECT_EQ(before_mmap(dm.page, std::size_t{3} * 4096), -EINVAL);
}

TEST_F(DeviceMemory, NoDataOfAnEarlierOwnerIsLeft) {
  Dm dm;
  ASSERT_EQ(alloc(8, dm), 0);
  auto* const mapped = static_cast<std::uint64_t*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, offset_of(dm.page)));
  ASSERT_NE(mapped, MAP_FAILED);
  *mapped = 77;
  ASSERT_EQ(free_dm(dm.handle), 0);
  ASSERT_EQ(alloc(8, dm), 0);
  EXPECT_EQ(*mapped, 0U);
  munmap(mapped, 4096);
}

TEST_F(DeviceMemory, RegistrationsAreZeroBasedAndWithin) {
  constexpr std::uint32_t kAccess = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;
  Dm dm;
  std::uint32_t mr = 0;
  ASSERT_EQ(alloc(100, dm), 0);
  EXPECT_EQ(register_dm(dm, 0, 104, kAccess, mr), -EINVAL);
  EXPECT_EQ(register_dm(dm, 101, 0, kAccess, mr), -EINVAL);
  EXPECT_EQ(register_dm(dm, 4, ~std::uint64_t{0}, kAccess, mr), -EINVAL);
  EXPECT_EQ(register_dm(dm, 0, 100, IBV_ACCESS_LOCAL_WRITE, mr), -EINVAL);
  EXPECT_EQ(register_dm(dm, 0, 100, kAccess | IBV_ACCESS_MW_BIND, mr), -EINVAL);
  EXPECT_EQ(register_dm(dm, 0, 100, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE, mr), -EINVAL);
  ASSERT_EQ(register_dm(dm, 4, 96, kAccess, mr), 0);
  EXPECT_EQ(free_dm(dm.handle), -EBUSY);
  EXPECT_EQ(destroy_mr(mr), 0);
  EXPECT_EQ(free_dm(dm.handle), 0);
}

TEST_F(DeviceMemory, AnotherContextFindsItByItsHandle) {
  Dm dm;
  ASSERT_EQ(alloc(100, dm), 0);
  std::uint64_t start = 7;
  std::uint64_t length = 0;
  std::uint16_t page = 0;
  Ioctl call(UVERBS_OBJECT_DM, MLX5_IB_METHOD_DM_QUERY);
  call.handle(MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE, dm.handle)
      .pointer(MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET, start)
      .pointer(MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, page)
      .pointer(MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, length);
  ASSERT_EQ(call.send(file()), 0);
  EXPECT_EQ(start, 0U);
  EXPECT_EQ(page, dm.page);
  EXPECT_EQ(length, 100U);
}

TEST_F(DeviceMemory, AChildOfAForkAllocatesBesideItsParent) {
  Dm ours;
  ASSERT_EQ(alloc(4096, ours), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Dm its;
    const bool fine = alloc(4096, its) == 0 && its.page == ours.page + 1 &&
                      before_mmap(its.page, 4096) == 0 && free_dm(its.handle) == 0 && alloc(8192, its) == 0 &&
                      its.page == ours.page + 1;
    _exit(fine ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  // What it did not free stays taken, as long as the device is open.
  Dm next;
  ASSERT_EQ(alloc(4096, next), 0);
  EXPECT_EQ(next.page, ours.page + 3);
}

}  // namespace
}  // namespace qpair::softnic::driver
