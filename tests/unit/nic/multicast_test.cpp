// Multicast groups: who gets what is sent to one, in this NIC and in another.

#include "tests/unit/nic/harness.hpp"

namespace qpair::softnic::nic {
namespace {

using namespace testing_support;
using mlx5::Opcode;

constexpr std::uint32_t kGrh = 40;
constexpr std::uint32_t kGroupQpn = 0xff'ffff;

ibv_gid gid(std::initializer_list<std::uint8_t> bytes) {
  ibv_gid result{};
  std::ranges::copy(bytes, result.raw);
  return result;
}
// A group of this process alone, so that tests that run at the same time do not hear each other.
ibv_gid own_group(std::uint8_t last) {
  const auto pid = static_cast<std::uint32_t>(getpid());
  return gid({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, static_cast<std::uint8_t>(pid >> 8),
              static_cast<std::uint8_t>(pid), last});
}

QpOptions datagrams() {
  QpOptions is;
  is.type = IBV_QPT_UD;
  return is;
}

class Member {
 public:
  explicit Member(Machine& machine, QpOptions options = datagrams())
      : machine_(machine), cq(machine, 64), qp(machine, cq, cq, options) {
    qp.connect(0);
  }
  void post_receive(std::uint32_t length = 100) { qp.receive({{memory.address(), length, key_}}); }
  void send(const ibv_gid& group, std::uint32_t qkey = datagrams().qkey) {
    qp.post(Wqe(Opcode::Send).datagram(group, kGroupQpn, qkey).inline_data("to the group"));
  }
  Errno attach(const ibv_gid& group) { return machine_.nic->attach_multicast(qp.number(), group); }
  Errno detach(const ibv_gid& group) { return machine_.nic->detach_multicast(qp.number(), group); }
  void expect_message_from(const Member& sender) {
    const mlx5::Cqe64 got = cq.next();
    EXPECT_EQ(got.byte_cnt, kGrh + 12);
    EXPECT_EQ(got.flags_rqpn & 0xff'ffff, sender.qp.qpn());
    EXPECT_EQ(memory.text(12, kGrh), "to the group");
  }

 private:
  Machine& machine_;

 public:
  Completions cq;
  Pair qp;
  Memory memory{4096};

 private:
  Mkey key_ = machine_.register_memory(memory);
};

TEST(Multicast, ReachesEveryMemberOfEveryNicTheSenderIncluded) {
  Machine here, there;
  const ibv_gid group = own_group(1);
  Member sender(here), neighbour(here), far(there), stranger(there);
  for (Member* const member : {&sender, &neighbour, &far}) {
    ASSERT_EQ(member->attach(group).value, 0);
    member->post_receive();
  }
  stranger.post_receive();
  sender.send(group);
  EXPECT_EQ(mlx5::cqe_opcode(sender.cq.next().op_own), mlx5::CqeOpcode::Request);
  sender.expect_message_from(sender);
  neighbour.expect_message_from(sender);
  far.expect_message_from(sender);
  EXPECT_EQ(far.memory.as<std::uint8_t>()[36], 239) << "the GRH shows the group";
  EXPECT_EQ(stranger.cq.peek(), nullptr);
}

TEST(Multicast, AMemberThatLeftAndAnotherQkeyGetNothing) {
  Machine machine;
  const ibv_gid group = own_group(2);
  QpOptions other = datagrams();
  other.qkey = 0x77;
  Member sender(machine), gone(machine), secret(machine, other), last(machine);
  for (Member* const member : {&gone, &secret, &last}) {
    ASSERT_EQ(member->attach(group).value, 0);
    member->post_receive();
  }
  ASSERT_EQ(gone.detach(group).value, 0);
  EXPECT_EQ(gone.detach(group).value, EINVAL);
  sender.send(group);
  last.expect_message_from(sender);  // attached last: the others would have had it before
  EXPECT_EQ(gone.cq.peek(), nullptr);
  EXPECT_EQ(secret.cq.peek(), nullptr);
}

TEST(Multicast, AQueuePairThatBlocksLoopbackIsNotGivenItsOwn) {
  Machine machine;
  const ibv_gid group = own_group(3);
  QpOptions blocking = datagrams();
  blocking.block_multicast_loopback = true;
  Member sender(machine, blocking), other(machine);
  for (Member* const member : {&sender, &other}) {
    ASSERT_EQ(member->attach(group).value, 0);
    member->post_receive();
  }
  sender.send(group);
  sender.cq.next();  // sent
  other.expect_message_from(sender);
  other.send(group);
  sender.expect_message_from(other);  // and not what it sent before
}

TEST(Multicast, TheTwoFormsOfAnIpv4GroupAreOne) {
  Machine machine;
  const ibv_gid group = own_group(4);
  ibv_gid long_form = group;
  long_form.raw[0] = 0xff;
  long_form.raw[1] = 0x0e;
  Member sender(machine), member(machine);
  ASSERT_EQ(member.attach(long_form).value, 0);
  member.post_receive();
  sender.send(group);
  member.expect_message_from(sender);
}

TEST(Multicast, AnIpv6GroupTravelsOnAnIpv4GroupOfItsOwn) {
  Machine machine;
  ibv_gid group = own_group(5);
  group.raw[0] = 0xff;
  group.raw[1] = 0x12;
  group.raw[2] = 0x40;
  Member sender(machine), member(machine);
  ASSERT_EQ(member.attach(group).value, 0);
  member.post_receive();
  sender.send(group);
  member.expect_message_from(sender);
}

TEST(Multicast, WhatCannotBeAttachedIsRefused) {
  Machine machine;
  Member member(machine);
  EXPECT_EQ(member.attach(machine.nic->gids().at(3).gid).value, EINVAL) << "no group";
  QpOptions uc;
  uc.type = IBV_QPT_UC;
  Completions cq(machine, 16);
  Pair connection(machine, cq, cq, uc);
  EXPECT_EQ(machine.nic->attach_multicast(connection.number(), own_group(6)).value, EINVAL);
}

TEST(Multicast, AQueuePairThatIsDestroyedLeavesItsGroups) {
  Machine machine;
  const ibv_gid group = own_group(7);
  Member sender(machine), stays(machine);
  ASSERT_EQ(stays.attach(group).value, 0);
  {
    Member goes(machine);
    ASSERT_EQ(goes.attach(group).value, 0);
  }
  stays.post_receive();
  sender.send(group);
  stays.expect_message_from(sender);
}

}  // namespace
}  // namespace qpair::softnic::nic
