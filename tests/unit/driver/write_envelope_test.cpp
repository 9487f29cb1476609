// What the kernel's verify_hdr() would refuse about the envelope of a write() command, and with which errno.

#include "device_harness.hpp"

namespace qpair::softnic::driver::test {
namespace {

class WriteEnvelope : public Device {
 protected:
  void SetUp() override {
    Device::SetUp();
    get_legacy_context();
  }

  WriteCommand query_device() {
    return std::move(WriteCommand(IB_USER_VERBS_CMD_QUERY_DEVICE)
                         .with(ib_uverbs_query_device{.response = address_of(&answer_)})
                         .answered_in(sizeof answer_));
  }

  struct Extended {
    ib_uverbs_cmd_hdr header;
    ib_uverbs_ex_cmd_hdr extension;
    ib_uverbs_ex_query_device command;
  };
  Extended query_device_extended() {
    return {.header = {.command = IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_QUERY_DEVICE,
                       .in_words = sizeof(ib_uverbs_ex_query_device) / 8,
                       .out_words = sizeof extended_answer_ / 8},
            .extension = {.response = address_of(&extended_answer_),
                          .provider_in_words = 0,
                          .provider_out_words = 0,
                          .cmd_hdr_reserved = 0},
            .command = {}};
  }
  ssize_t send(const Extended& command, std::size_t size = sizeof(Extended)) {
    return file().write(&command, size);
  }

  ib_uverbs_query_device_resp answer_{};
  ib_uverbs_ex_query_device_resp extended_answer_{};
};

TEST_F(WriteEnvelope, AWellFormedCommandAnswersItsOwnLength) {
  auto command = query_device();
  EXPECT_EQ(command.send(file()), static_cast<ssize_t>(command.bytes().size()));
  EXPECT_EQ(answer_.vendor_id, 0x02c9U);
}

TEST_F(WriteEnvelope, ShorterThanAHeaderIsInvalid) {
  auto command = query_device();
  for (const std::size_t size : {0U, 1U, 7U}) EXPECT_EQ(file().write(command.bytes().data(), size), -EINVAL);
}

TEST_F(WriteEnvelope, AWordCountThatIsNotTheLengthIsInvalid) {
  auto command = query_device();
  ++command.header().in_words;
  EXPECT_EQ(command.send(file()), -EINVAL);
}

TEST_F(WriteEnvelope, ATruncatedRequestHasNoSpace) {
  auto command = query_device();
  command.bytes().resize(sizeof(ib_uverbs_cmd_hdr));
  command.header().in_words = sizeof(ib_uverbs_cmd_hdr) / 4;
  EXPECT_EQ(command.send(file()), -ENOSPC);
}

TEST_F(WriteEnvelope, AResponseBufferThatIsTooSmallHasNoSpace) {
  auto command = query_device();
  --command.header().out_words;
  EXPECT_EQ(command.send(file()), -ENOSPC);
}

TEST_F(WriteEnvelope, ACommandAtABadAddressFaults) {
  const Pages page;
  EXPECT_EQ(file().write(reinterpret_cast<void*>(page.end()), 64), -EFAULT);
  EXPECT_EQ(file().write(nullptr, 64), -EFAULT);
  EXPECT_EQ(file().write(reinterpret_cast<void*>(0xffff'8000'0000'0000), 64), -EFAULT);
}

TEST_F(WriteEnvelope, ACommandThatRunsOffItsPageFaults) {
  const Pages page;
  auto command = query_device();
  const std::uint64_t last = page.end() - sizeof(ib_uverbs_cmd_hdr);
  std::memcpy(reinterpret_cast<void*>(last), command.bytes().data(), sizeof(ib_uverbs_cmd_hdr));
  EXPECT_EQ(file().write(reinterpret_cast<void*>(last), command.bytes().size()), -EFAULT);
}

TEST_F(WriteEnvelope, AResponseAtABadAddressFaults) {
  const Pages page;
  WriteCommand command(IB_USER_VERBS_CMD_QUERY_DEVICE);
  command.with(ib_uverbs_query_device{.response = page.end() - 8}).answered_in(sizeof answer_);
  EXPECT_EQ(command.send(file()), -EFAULT);
}

TEST_F(WriteEnvelope, UnknownCommandsAreNotSupported) {
  for (const std::uint32_t number : {41U, 49U, 200U, 255U}) {
    EXPECT_EQ(WriteCommand(number).with(std::uint64_t{0}).send(file()), -EOPNOTSUPP) << number;
  }
  EXPECT_EQ(WriteCommand(0x4000'0000 | IB_USER_VERBS_CMD_QUERY_DEVICE).with(std::uint64_t{0}).send(file()),
            -EINVAL);
}

TEST_F(WriteEnvelope, WhatTheDeviceDoesNotDoIsNotSupported) {
  for (const std::uint32_t number :
       {std::uint32_t{IB_USER_VERBS_CMD_POLL_CQ}, std::uint32_t{IB_USER_VERBS_CMD_POST_SEND},
        std::uint32_t{IB_USER_VERBS_CMD_REQ_NOTIFY_CQ}}) {
    EXPECT_EQ(WriteCommand(number).with(std::uint64_t{0}).send(file()), -EOPNOTSUPP) << number;
  }
}

TEST_F(WriteEnvelope, ExtendedCommandsAnswerWithTheLengthThatTheyFilled) {
  EXPECT_EQ(send(query_device_extended()), static_cast<ssize_t>(sizeof(Extended)));
  EXPECT_EQ(extended_answer_.response_length, sizeof extended_answer_);
}

TEST_F(WriteEnvelope, AnOlderProgramsShorterResponseIsFilledAsFarAsItGoes) {
  auto command = query_device_extended();
  const std::size_t old_size = offsetof(ib_uverbs_ex_query_device_resp, odp_caps);
  command.header.out_words = static_cast<std::uint16_t>(old_size / 8);
  extended_answer_.timestamp_mask = 77;
  EXPECT_GT(send(command), 0);
  EXPECT_EQ(extended_answer_.response_length, old_size);
  EXPECT_EQ(extended_answer_.timestamp_mask, 77U);
}

TEST_F(WriteEnvelope, ExtendedHeadersAreCheckedFieldByField) {
  auto short_header = query_device_extended();
  EXPECT_EQ(send(short_header, sizeof(ib_uverbs_cmd_hdr) + 8), -EINVAL);
  auto reserved = query_device_extended();
  reserved.extension.cmd_hdr_reserved = 1;
  EXPECT_EQ(send(reserved), -EINVAL);
  auto too_many_words = query_device_extended();
  too_many_words.extension.provider_in_words = 1;
  EXPECT_EQ(send(too_many_words), -EINVAL);
  auto no_response = query_device_extended();
  no_response.extension.response = 0;
  EXPECT_EQ(send(no_response), -EINVAL);
  auto no_room = query_device_extended();
  no_room.header.out_words = 0;
  EXPECT_EQ(send(no_room), -EINVAL);
  auto little_room = query_device_extended();
  little_room.header.out_words = 1;
  EXPECT_EQ(send(little_room), -ENOSPC);
}

TEST_F(WriteEnvelope, WhatAProgramOfTheFutureSaysMustBeZero) {
  struct {
    Extended known;
    std::uint64_t unknown;
  } command{.known = query_device_extended(), .unknown = 0};
  command.known.header.in_words += 1;
  EXPECT_GT(file().write(&command, sizeof command), 0);
  command.unknown = 1;
  EXPECT_EQ(file().write(&command, sizeof command), -EOPNOTSUPP);
}

TEST_F(WriteEnvelope, TheShortDestroyCqOfRdmaCore18IsUnderstood) {
  std::uint32_t cq = 0;
  ASSERT_EQ(create_cq(cq), 0);
  ib_uverbs_destroy_cq_resp answer{};
  struct {
    ib_uverbs_cmd_hdr header;
    ib_uverbs_destroy_cq command;
  } call{.header = {.command = IB_USER_VERBS_CMD_DESTROY_CQ, .in_words = 4, .out_words = 2},
         .command = {.response = address_of(&answer), .cq_handle = cq, .reserved = 0}};
  EXPECT_EQ(file().write(&call, 16), 16);
}

TEST_F(Device, CommandsBeforeGetContextAreInvalid) {
  ib_uverbs_query_device_resp answer{};
  EXPECT_EQ(WriteCommand(IB_USER_VERBS_CMD_QUERY_DEVICE)
                .with(ib_uverbs_query_device{.response = address_of(&answer)})
                .answered_in(sizeof answer)
                .send(file()),
            -EINVAL);
  EXPECT_EQ(file().before_mmap(4096, PROT_WRITE, MAP_SHARED, 0), -EINVAL);
}

TEST_F(WriteEnvelope, OneContextIsAllThatADescriptorHas) {
  ContextAnswer answer{};
  mlx5_ib_alloc_ucontext_req_v2 request{};
  request.total_num_bfregs = 16;
  WriteCommand again(IB_USER_VERBS_CMD_GET_CONTEXT);
  again.with(ib_uverbs_get_context{.response = address_of(&answer)}).with(request).answered_in(sizeof answer);
  EXPECT_EQ(again.send(file()), -EINVAL);
}

}  // namespace
}  // namespace qpair::softnic::driver::test
