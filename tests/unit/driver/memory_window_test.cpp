// Memory windows: made and unmade by commands, bound elsewhere (on a send queue).

#include <infiniband/verbs.h>

#include "tests/unit/driver/device_harness.hpp"

namespace qpair::softnic::driver {
namespace {

using namespace test;

class MemoryWindow : public Device {
 protected:
  void SetUp() override {
    Device::SetUp();
    get_context();
    pd_ = create_pd();
  }

  ssize_t alloc(std::uint8_t type, ib_uverbs_alloc_mw_resp& answer) {
    ib_uverbs_alloc_mw command{};
    command.response = address_of(&answer);
    command.pd_handle = pd_;
    command.mw_type = type;
    return WriteCommand(IB_USER_VERBS_CMD_ALLOC_MW).with(command).answered_in(sizeof answer).send(file());
  }
  ssize_t dealloc(std::uint32_t handle) {
    return WriteCommand(IB_USER_VERBS_CMD_DEALLOC_MW)
        .with(ib_uverbs_dealloc_mw{.mw_handle = handle})
        .send(file());
  }
  ssize_t dealloc_pd() {
    return WriteCommand(IB_USER_VERBS_CMD_DEALLOC_PD)
        .with(ib_uverbs_dealloc_pd{.pd_handle = pd_})
        .send(file());
  }

  std::uint32_t pd_ = 0;
};

TEST_F(MemoryWindow, BothTypesHaveKeysOfTheirOwn) {
  ib_uverbs_alloc_mw_resp first{};
  ib_uverbs_alloc_mw_resp second{};
  ASSERT_GT(alloc(IBV_MW_TYPE_1, first), 0);
  ASSERT_GT(alloc(IBV_MW_TYPE_2, second), 0);
  EXPECT_NE(first.rkey >> 8, second.rkey >> 8);
  EXPECT_GT(dealloc(first.mw_handle), 0);
  EXPECT_EQ(dealloc(first.mw_handle), -ENOENT);
}

TEST_F(MemoryWindow, OtherTypesDoNotExist) {
  ib_uverbs_alloc_mw_resp answer{};
  for (const std::uint8_t type : {std::uint8_t{0}, std::uint8_t{3}, std::uint8_t{255}}) {
    EXPECT_EQ(alloc(type, answer), -EINVAL);
  }
}

TEST_F(MemoryWindow, ItsProtectionDomainIsBusy) {
  ib_uverbs_alloc_mw_resp answer{};
  ASSERT_GT(alloc(IBV_MW_TYPE_2, answer), 0);
  EXPECT_EQ(dealloc_pd(), -EBUSY);
  EXPECT_GT(dealloc(answer.mw_handle), 0);
  EXPECT_GT(dealloc_pd(), 0);
}

TEST_F(MemoryWindow, AnAnswerThatCannotBeWrittenUndoesIt) {
  ib_uverbs_alloc_mw command{};
  command.response = 8;
  command.pd_handle = pd_;
  command.mw_type = IBV_MW_TYPE_1;
  EXPECT_EQ(WriteCommand(IB_USER_VERBS_CMD_ALLOC_MW)
                .with(command)
                .answered_in(sizeof(ib_uverbs_alloc_mw_resp))
                .send(file()),
            -EFAULT);
  EXPECT_GT(dealloc_pd(), 0);
}

TEST_F(MemoryWindow, WhatIsLeftGoesWithTheDescriptor) {
  ib_uverbs_alloc_mw_resp answer{};
  ASSERT_GT(alloc(IBV_MW_TYPE_2, answer), 0);
  close_device();
  open();
  get_context();
  pd_ = create_pd();
  EXPECT_GT(dealloc_pd(), 0);
}

}  // namespace
}  // namespace qpair::softnic::driver
