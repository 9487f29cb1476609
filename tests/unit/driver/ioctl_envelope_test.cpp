// What the kernel's uverbs_ioctl.c would refuse about a method's header and attributes, and with which errno.

#include "device_harness.hpp"

namespace qpair::softnic::driver::test {
namespace {

class IoctlEnvelope : public Device {
 protected:
  void SetUp() override {
    Device::SetUp();
    get_context();
  }
  Ioctl query_port() {
    Ioctl call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
    call.constant(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 1).pointer(UVERBS_ATTR_QUERY_PORT_RESP, answer_);
    return call;
  }
  ib_uverbs_query_port_resp_ex answer_{};
};

TEST_F(IoctlEnvelope, AWellFormedCallFillsItsOutputAndMarksIt) {
  auto call = query_port();
  EXPECT_EQ(call.send(file()), 0);
  EXPECT_EQ(answer_.legacy_resp.state, 4);
  EXPECT_NE(call[UVERBS_ATTR_QUERY_PORT_RESP].flags & UVERBS_ATTR_F_VALID_OUTPUT, 0);
}

TEST_F(IoctlEnvelope, OtherIoctlsAreNotATypewriters) {
  auto call = query_port();
  EXPECT_EQ(file().ioctl(0x5401, &call.header()), -ENOTTY);
}

TEST_F(IoctlEnvelope, TheHeaderIsCheckedFieldByField) {
  auto long_header = query_port();
  long_header.header().length += 1;
  EXPECT_EQ(long_header.send(file()), -EINVAL);
  auto many = query_port();
  many.header().num_attrs = 4000;
  many.header().length = static_cast<std::uint16_t>(24 + 4000 * 16);
  EXPECT_EQ(many.send(file()), -EINVAL);
  auto reserved1 = query_port();
  reserved1.header().reserved1 = 1;
  EXPECT_EQ(reserved1.send(file()), -EPROTONOSUPPORT);
  auto reserved2 = query_port();
  reserved2.header().reserved2 = 1;
  EXPECT_EQ(reserved2.send(file()), -EPROTONOSUPPORT);
  auto other_driver = query_port();
  other_driver.header().driver_id = 15;
  EXPECT_EQ(other_driver.send(file()), -EINVAL);
}

TEST_F(IoctlEnvelope, UnknownObjectsAndMethodsAreNotInTheProtocol) {
  EXPECT_EQ(Ioctl(UVERBS_OBJECT_DEVICE, 77).send(file()), -EPROTONOSUPPORT);
  EXPECT_EQ(Ioctl(UVERBS_OBJECT_COUNTERS, 0).send(file()), -EPROTONOSUPPORT);
  EXPECT_EQ(Ioctl(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT).send(file()), -EPROTONOSUPPORT);
  EXPECT_EQ(Ioctl(0xffff, 0xffff).send(file()), -EPROTONOSUPPORT);
}

TEST_F(IoctlEnvelope, AnUnknownAttributeMattersOnlyWhenItIsMandatory) {
  auto optional = query_port();
  optional.attribute(0x55, 0, 0, 0);
  EXPECT_EQ(optional.send(file()), 0);
  auto mandatory = query_port();
  mandatory.attribute(0x55, 0, 0, UVERBS_ATTR_F_MANDATORY);
  EXPECT_EQ(mandatory.send(file()), -EPROTONOSUPPORT);
}

TEST_F(IoctlEnvelope, AnAttributeCountsOnce) {
  auto call = query_port();
  call.constant(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 1);
  EXPECT_EQ(call.send(file()), -EINVAL);
}

TEST_F(IoctlEnvelope, AMissingMandatoryAttributeIsInvalid) {
  Ioctl call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
  call.constant(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 1);
  EXPECT_EQ(call.send(file()), -EINVAL);
}

TEST_F(IoctlEnvelope, ReservedFieldsOfAttributesMustBeZero) {
  auto call = query_port();
  call[UVERBS_ATTR_QUERY_PORT_RESP].attr_data.reserved = 1;
  EXPECT_EQ(call.send(file()), -EINVAL);
}

TEST_F(IoctlEnvelope, LengthsOfFixedInputsAreExact) {
  Ioctl short_port(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
  short_port.attribute(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 1, 4).pointer(UVERBS_ATTR_QUERY_PORT_RESP, answer_);
  EXPECT_EQ(short_port.send(file()), -EINVAL);
}

TEST_F(IoctlEnvelope, ALongerOutputIsClearedBeyondWhatIsKnown) {
  struct {
    ib_uverbs_query_port_resp_ex known;
    std::uint64_t unknown;
  } answer{};
  answer.unknown = 0x1234;
  Ioctl call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
  call.constant(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 1).pointer(UVERBS_ATTR_QUERY_PORT_RESP, answer);
  EXPECT_EQ(call.send(file()), 0);
  EXPECT_EQ(answer.unknown, 0U);
}

TEST_F(IoctlEnvelope, BadPointersFault) {
  const Pages page;
  EXPECT_EQ(file().ioctl(RDMA_VERBS_IOCTL, nullptr), -EFAULT);
  EXPECT_EQ(file().ioctl(RDMA_VERBS_IOCTL, reinterpret_cast<void*>(page.end() - 8)), -EFAULT);
  Ioctl call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
  call.constant(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 1)
      .attribute(UVERBS_ATTR_QUERY_PORT_RESP, page.end() - 8, sizeof answer_);
  EXPECT_EQ(call.send(file()), -EFAULT);
  // The header fits on the page, its attributes do not.
  auto cut = query_port();
  const std::uint64_t last = page.end() - sizeof(ib_uverbs_ioctl_hdr);
  std::memcpy(reinterpret_cast<void*>(last), &cut.header(), sizeof(ib_uverbs_ioctl_hdr));
  EXPECT_EQ(file().ioctl(RDMA_VERBS_IOCTL, reinterpret_cast<void*>(last)), -EFAULT);
}

TEST_F(IoctlEnvelope, HandlesNameNothingOrAnotherType) {
  const std::uint32_t pd = create_pd();
  Ioctl missing(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY);
  missing.handle(UVERBS_ATTR_DESTROY_PD_HANDLE, 4711);
  EXPECT_EQ(missing.send(file()), -ENOENT);
  Ioctl negative(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY);
  negative.handle(UVERBS_ATTR_DESTROY_PD_HANDLE, ~std::uint64_t{0});
  EXPECT_EQ(negative.send(file()), -EINVAL);
  Ioctl other(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY);
  other.handle(UVERBS_ATTR_DESTROY_MR_HANDLE, pd);
  EXPECT_EQ(other.send(file()), -EINVAL);
}

// has_ioctl_write() in rdma-core libibverbs/cmd_device.c and device.c depends on this answer before
// GET_CONTEXT.
TEST_F(Device, InvokeWriteWithoutARequestHasNoSpace) {
  Ioctl call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
  call.constant(UVERBS_ATTR_WRITE_CMD, IB_USER_VERBS_CMD_QUERY_DEVICE);
  EXPECT_EQ(call.send(file()), -ENOSPC);
}

TEST_F(IoctlEnvelope, InvokeWriteRunsTheLegacyCommands) {
  ib_uverbs_query_device_resp answer{};
  ib_uverbs_query_device command{.response = 0};
  Ioctl call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
  call.constant(UVERBS_ATTR_WRITE_CMD, IB_USER_VERBS_CMD_QUERY_DEVICE)
      .value(UVERBS_ATTR_CORE_IN, command)
      .pointer(UVERBS_ATTR_CORE_OUT, answer);
  EXPECT_EQ(call.send(file()), 0);
  EXPECT_EQ(answer.vendor_id, 0x02c9U);
  EXPECT_NE(call[UVERBS_ATTR_CORE_OUT].flags & UVERBS_ATTR_F_VALID_OUTPUT, 0);
}

TEST_F(IoctlEnvelope, TheGidTableSaysItsEntriesOneByOneAndTogether) {
  std::vector<ib_uverbs_gid_entry> table(256);
  std::uint64_t count = 0;
  Ioctl all(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE);
  all.constant(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, sizeof(ib_uverbs_gid_entry))
      .value(UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, std::uint32_t{0})
      .attribute(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, address_of(table.data()),
                 static_cast<std::uint16_t>(table.size() * sizeof table[0]))
      .pointer(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, count);
  ASSERT_EQ(all.send(file()), 0);
  ASSERT_GE(count, 4U);
  EXPECT_EQ(table[3].gid_index, 3U);
  EXPECT_EQ(table[3].gid_type, std::uint32_t{IB_UVERBS_GID_TYPE_ROCE_V2});
  ib_uverbs_gid_entry third{};
  Ioctl one(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY);
  one.constant(UVERBS_ATTR_QUERY_GID_ENTRY_PORT, 1)
      .constant(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, 3)
      .value(UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, std::uint32_t{0})
      .pointer(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, third);
  ASSERT_EQ(one.send(file()), 0);
  EXPECT_EQ(std::memcmp(&third, &table[3], sizeof third), 0);
  one[UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX].data = count;  // in the table, but empty
  EXPECT_EQ(one.send(file()), -ENODATA);
  one[UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX].data = 1U << 20;
  EXPECT_EQ(one.send(file()), -EINVAL);
  one[UVERBS_ATTR_QUERY_GID_ENTRY_PORT].data = 2;
  EXPECT_EQ(one.send(file()), -EINVAL);
}

TEST_F(Device, AContextRequestOfAnotherShapeIsRefused) {
  mlx5_ib_alloc_ucontext_req_v2 request{};
  request.total_num_bfregs = 16;
  mlx5_ib_alloc_ucontext_resp answer{};
  const auto send = [&](std::uint16_t size) {
    Ioctl call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
    call.attribute(UVERBS_ATTR_UHW_IN, address_of(&request), size).pointer(UVERBS_ATTR_UHW_OUT, answer);
    return call.send(file());
  };
  EXPECT_EQ(send(12), -EINVAL);
  request.comp_mask = 1;
  EXPECT_EQ(send(sizeof request), -EOPNOTSUPP);
  request.comp_mask = 0;
  request.flags = 0x80;
  EXPECT_EQ(send(sizeof request), -EOPNOTSUPP);
  request.flags = 0;
  request.num_low_latency_bfregs = 16;
  EXPECT_EQ(send(sizeof request), -EINVAL);
  request.num_low_latency_bfregs = 4;
  EXPECT_EQ(send(sizeof request), 0);
}

}  // namespace
}  // namespace qpair::softnic::driver::test
