// On-demand paging: registrations of memory that need not be there, and advice about them.

#include <infiniband/verbs.h>

#include <vector>

#include "tests/unit/driver/device_harness.hpp"

namespace qpair::softnic::driver {
namespace {

using namespace test;

constexpr std::uint32_t kOnDemand = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND;
constexpr std::uint64_t kEverything = ~std::uint64_t{0};

class OnDemand : public Device {
 protected:
  void SetUp() override {
    Device::SetUp();
    get_context();
    pd_ = create_pd();
  }

  std::uint32_t lkey_of(std::uint64_t start, std::uint64_t length, std::uint32_t access = kOnDemand) {
    ib_uverbs_reg_mr_resp mr{};
    EXPECT_GT(reg_mr(pd_, start, length, access, mr), 0);
    return mr.lkey;
  }
  int advise(const std::vector<ib_uverbs_sge>& pieces,
             std::uint64_t advice = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
             std::uint32_t flags = IB_UVERBS_ADVISE_MR_FLAG_FLUSH) {
    return advise_for(pd_, pieces, advice, flags);
  }
  int advise_for(std::uint32_t pd, const std::vector<ib_uverbs_sge>& pieces, std::uint64_t advice,
                 std::uint32_t flags) {
    return Ioctl(UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR)
        .handle(UVERBS_ATTR_ADVISE_MR_PD_HANDLE, pd)
        .constant(UVERBS_ATTR_ADVISE_MR_ADVICE, advice)
        .value(UVERBS_ATTR_ADVISE_MR_FLAGS, flags)
        .attribute(UVERBS_ATTR_ADVISE_MR_SGE_LIST, address_of(pieces.data()),
                   static_cast<std::uint16_t>(pieces.size() * sizeof(ib_uverbs_sge)))
        .send(file());
  }

  std::uint32_t pd_ = 0;
  Pages memory_{2};
};

TEST_F(OnDemand, MemoryThatIsNotThereYetIsRegistered) {
  ib_uverbs_reg_mr_resp mr{};
  EXPECT_EQ(reg_mr(pd_, memory_.end(), 4096, IBV_ACCESS_LOCAL_WRITE, mr), -EFAULT);
  EXPECT_GT(reg_mr(pd_, memory_.end(), 4096, kOnDemand, mr), 0);
  EXPECT_EQ(reg_mr(pd_, memory_.address(), 0, kOnDemand, mr), -EINVAL);
  EXPECT_EQ(reg_mr(pd_, memory_.address(), kEverything, kOnDemand, mr), -EINVAL);
}

TEST_F(OnDemand, AllOfTheProgramsMemoryIsOneRegistration) {
  ib_uverbs_reg_mr_resp mr{};
  EXPECT_GT(reg_mr(pd_, 0, kEverything, kOnDemand, mr), 0);
  EXPECT_EQ(reg_mr(pd_, 0, kEverything, IBV_ACCESS_LOCAL_WRITE, mr), -EFAULT);
}

TEST_F(OnDemand, AdviceIsCheckedAsTheKernelDoes) {
  const std::uint32_t region = lkey_of(memory_.address(), memory_.size());
  const std::uint32_t read_only = lkey_of(memory_.address(), memory_.size(), IBV_ACCESS_ON_DEMAND);
  const std::uint32_t pinned = lkey_of(memory_.address(), memory_.size(), IBV_ACCESS_LOCAL_WRITE);
  const ib_uverbs_sge whole{.addr = memory_.address(), .length = 8192, .lkey = region};
  constexpr std::uint64_t kRead = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
  constexpr std::uint64_t kWrite = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
  for (const std::uint32_t flags : {0U, 1U}) {
    EXPECT_EQ(advise({whole}, kRead, flags), 0);
    EXPECT_EQ(advise({whole, whole}, kWrite, flags), 0);
    EXPECT_EQ(advise({whole}, 3, flags), -EOPNOTSUPP);
    EXPECT_EQ(advise({{whole.addr, whole.length, pinned}}, kRead, flags), -ENOENT);
    EXPECT_EQ(advise({{whole.addr, whole.length, region ^ 1}}, kRead, flags), -ENOENT);
    EXPECT_EQ(advise({whole, {whole.addr, whole.length, read_only}}, kWrite, flags), -EPERM);
    EXPECT_EQ(advise_for(create_pd(), {whole}, kRead, flags), -EPERM);
  }
  EXPECT_EQ(advise({whole}, kRead, 2), -EINVAL);
  EXPECT_EQ(advise({{whole.addr + 1, 8192, region}}), -EFAULT);
  EXPECT_EQ(advise({{whole.addr - 1, 1, region}}), -EFAULT);
}

TEST_F(OnDemand, OnlyWhoWaitsHearsOfMissingPages) {
  const std::uint32_t everything = lkey_of(0, kEverything);
  const ib_uverbs_sge hole{.addr = memory_.end(), .length = 4096, .lkey = everything};
  EXPECT_EQ(advise({hole}), -EFAULT);
  EXPECT_EQ(advise({hole}, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, 0), 0);
  EXPECT_EQ(advise({hole}, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT), 0);
}

}  // namespace
}  // namespace qpair::softnic::driver
