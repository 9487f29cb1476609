// The device's own commands: what a program may ask, and what it is told when the device refuses.

#include <array>

#include "softnic/driver/prm.hpp"
#include "tests/unit/driver/device_harness.hpp"

namespace qpair::softnic::driver {
namespace {

using namespace test;

TEST(Prm, FieldsAreBitsFromTheMostSignificantOn) {
  std::array<std::byte, 4> mailbox{std::byte{0x12}, std::byte{0x34}, std::byte{0x56}, std::byte{0x78}};
  EXPECT_EQ(prm::get(mailbox, {0, 16}), 0x1234U);
  EXPECT_EQ(prm::get(mailbox, {4, 12}), 0x234U);
  EXPECT_EQ(prm::get(mailbox, {24, 16}), 0x7800U);  // beyond the end there is nothing
  prm::set(mailbox, {6, 4}, 0xf);
  EXPECT_EQ(prm::get(mailbox, {0, 16}), 0x13f4U);
  prm::set(mailbox, {28, 64}, 0);
  EXPECT_EQ(prm::get(mailbox, {0, 32}), 0x13f45670U);
}

class Devx : public Device {
 protected:
  void SetUp() override {
    Device::SetUp();
    open_context(MLX5_IB_ALLOC_UCTX_DEVX);
  }

  void open_context(std::uint32_t flags) {
    mlx5_ib_alloc_ucontext_req_v2 request{};
    request.total_num_bfregs = 16;
    request.num_low_latency_bfregs = 4;
    request.max_cqe_version = 1;
    request.flags = flags;
    request.lib_caps = MLX5_LIB_CAP_4K_UAR | MLX5_LIB_CAP_DYN_UAR;
    Ioctl call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
    call.pointer(UVERBS_ATTR_UHW_IN, request).pointer(UVERBS_ATTR_UHW_OUT, context_);
    ASSERT_EQ(call.send(file()), 0);
  }
  struct Pd {
    std::uint32_t handle;
    std::uint32_t pdn;
  };
  Pd new_pd() {
    Pd answer{};
    const ib_uverbs_alloc_pd command{.response = address_of(&answer)};
    EXPECT_GT(WriteCommand(IB_USER_VERBS_CMD_ALLOC_PD).with(command).answered_in(sizeof answer).send(file()),
              0);
    return answer;
  }
  int general(std::span<const std::byte> in, std::span<std::byte> out) {
    return Ioctl(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_OTHER)
        .attribute(MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, address_of(in.data()),
                   static_cast<std::uint16_t>(in.size()))
        .attribute(MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, address_of(out.data()),
                   static_cast<std::uint16_t>(out.size()))
        .send(file());
  }
  int create(std::span<const std::byte> in, std::span<std::byte> out, std::uint32_t& handle) {
    Ioctl call(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_CREATE);
    call.handle(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE)
        .attribute(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, address_of(in.data()),
                   static_cast<std::uint16_t>(in.size()))
        .attribute(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, address_of(out.data()),
                   static_cast<std::uint16_t>(out.size()));
    const int failure = call.send(file());
    handle = static_cast<std::uint32_t>(call[MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE].data);
    return failure;
  }
  int destroy(std::uint32_t handle) {
    return Ioctl(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_DESTROY)
        .handle(MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, handle)
        .send(file());
  }
  // As mlx5dv_create_mkey() asks for one.
  static std::array<std::byte, 272> mkey_of(std::uint32_t pdn) {
    namespace mkc = prm::mkey_context;
    std::array<std::byte, 272> in{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::CreateMkey));
    const auto set = [&](prm::Field field, std::uint64_t value) {
      prm::set(in, field.in(prm::create_mkey::kContextAt), value);
    };
    set(mkc::kAccessMode, mkc::kListMode);
    set(mkc::kUmrEnabled, 1);
    set(mkc::kPd, pdn);
    set(mkc::kTranslationOctowords, 4);
    return in;
  }

  std::array<std::byte, 16> out_{};
};

TEST_F(Devx, CapabilitiesAreAsked) {
  std::array<std::byte, 16> in{};
  std::array<std::byte, 4112> out{};
  prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::QueryHcaCap));
  prm::set(in, prm::kOpMod, 1);  // general, current
  ASSERT_EQ(general(in, out), 0);
  EXPECT_EQ(prm::get(out, prm::hca_cap::kNumPorts.in(prm::hca_cap::kAt)), 1U);
  EXPECT_EQ(prm::get(out, prm::hca_cap::kLogMaxMessage.in(prm::hca_cap::kAt)), 30U);
  prm::set(in, prm::kOpMod, 0xf << 1 | 1);  // device memory
  out.fill(std::byte{1});
  ASSERT_EQ(general(in, out), 0);
  EXPECT_EQ(out[100], std::byte{0});
}

TEST_F(Devx, AnUnknownCommandIsAnsweredWithAStatus) {
  std::array<std::byte, 16> in{};
  prm::set(in, prm::kOpcode, 0xfff);
  EXPECT_EQ(general(in, out_), -EREMOTEIO);
  EXPECT_EQ(prm::get(out_, prm::kStatus), static_cast<std::uint64_t>(prm::Status::BadOperation));
  EXPECT_EQ(general(std::span(in).first(8), out_), -EINVAL);
}

TEST_F(Devx, AMemoryKeyKeepsItsProtectionDomain) {
  const Pd pd = new_pd();
  std::uint32_t handle = 0;
  ASSERT_EQ(create(mkey_of(pd.pdn), out_, handle), 0);
  EXPECT_NE(prm::get(out_, prm::create_mkey::kMkeyIndex), 0U);
  const ib_uverbs_dealloc_pd dealloc{.pd_handle = pd.handle};
  EXPECT_EQ(WriteCommand(IB_USER_VERBS_CMD_DEALLOC_PD).with(dealloc).send(file()), -EBUSY);
  EXPECT_EQ(destroy(handle), 0);
  EXPECT_EQ(destroy(handle), -ENOENT);
  EXPECT_GT(WriteCommand(IB_USER_VERBS_CMD_DEALLOC_PD).with(dealloc).send(file()), 0);
}

TEST_F(Devx, MemoryKeysThatAreRefused) {
  namespace mkc = prm::mkey_context;
  std::uint32_t handle = 0;
  EXPECT_EQ(create(mkey_of(0xabcdef), out_, handle), -EREMOTEIO);
  EXPECT_EQ(prm::get(out_, prm::kStatus), static_cast<std::uint64_t>(prm::Status::BadResource));
  const Pd pd = new_pd();
  for (const prm::Field field : {mkc::kSignature, mkc::kEncryption, mkc::kAccessModeHigh}) {
    auto in = mkey_of(pd.pdn);
    prm::set(in, field.in(prm::create_mkey::kContextAt), 1);
    EXPECT_EQ(create(in, out_, handle), -EREMOTEIO);
    EXPECT_EQ(prm::get(out_, prm::kStatus), static_cast<std::uint64_t>(prm::Status::BadParameter));
  }
}

TEST_F(Devx, AContextThatDidNotAskHasNone) {
  close_device();
  open();
  open_context(0);
  std::array<std::byte, 16> in{};
  prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::Nop));
  EXPECT_EQ(general(in, out_), -EINVAL);
}

}  // namespace
}  // namespace qpair::softnic::driver
