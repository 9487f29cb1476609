// Memory windows: bound and ended on a send queue, used by the peer (IBTA vol. 1 10.6.7).

#include "tests/unit/nic/key_wqes.hpp"

namespace qpair::softnic::nic {
namespace {

using namespace testing_support;
using mlx5::CqeOpcode;
using mlx5::Opcode;
using mlx5::Syndrome;

constexpr int kRegionAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;

// The window is b's; a reaches for it.
class Windows : public testing::Test {
 protected:
  ~Windows() override {
    for (const Mkey window : windows) EXPECT_EQ(machine.nic->destroy_mr(window).value, 0);
  }

  Mkey window(ibv_mw_type type) {
    windows.push_back(machine.nic->create_mw({machine.pd, type}).value());
    return windows.back();
  }
  Binding all_of_it(Mkey window, std::uint8_t variant) const {
    return {.rkey = key(window),
            .variant = variant,
            .region = region,
            .address = memory.address(),
            .length = 4096};
  }
  static std::uint32_t with_variant(Mkey window, std::uint8_t variant) {
    return (key(window) & ~0xffU) | variant;
  }
  Wqe write_to(std::uint64_t address, std::uint32_t rkey, std::uint32_t length = 5) const {
    return Wqe(Opcode::RdmaWrite).remote(address, rkey).data(source.address(), length, lkey);
  }
  void expect_done(Completions& cq, Opcode opcode) {
    const mlx5::Cqe64 cqe = cq.next();
    EXPECT_EQ(mlx5::cqe_opcode(cqe.op_own), CqeOpcode::Request);
    EXPECT_EQ(cqe.sop_drop_qpn >> 24, static_cast<std::uint32_t>(opcode));
  }
  void expect_bind_error(Completions& cq) {
    const mlx5::ErrorCqe error = cq.next_error();
    EXPECT_EQ(error.syndrome, Syndrome::MemoryWindowBind);
    EXPECT_EQ(error.vendor_err, 0x78);
    EXPECT_EQ(error.wqe_opcode_qpn >> 24, static_cast<std::uint32_t>(Opcode::Umr));
  }
  void expect_refused(Completions& cq) { EXPECT_EQ(cq.next_error().syndrome, Syndrome::RemoteAccess); }

  Machine machine;
  Memory memory{4096}, source{4096};
  Mkey region = machine.register_memory(memory, kRegionAccess);
  Mkey lkey = machine.register_memory(source);
  Connected pair{machine};
  std::vector<Mkey> windows;
};

TEST_F(Windows, Type2GivesAccessThatItsRegionDoesNot) {
  const Mkey mw = window(IBV_MW_TYPE_2);
  source.fill("hello");
  pair.b.post(bind(IBV_MW_TYPE_2, pair.b.qpn(), all_of_it(mw, 7)));
  expect_done(pair.b_cq, Opcode::Umr);
  pair.a.post(write_to(memory.address() + 100, with_variant(mw, 7)));
  expect_done(pair.a_cq, Opcode::RdmaWrite);
  EXPECT_EQ(memory.text(5, 100), "hello");
  pair.a.post(write_to(memory.address(), key(region)));
  expect_refused(pair.a_cq);
}

TEST_F(Windows, BoundsAndRightsAreTheWindowsOwn) {
  struct Case {
    std::uint64_t offset;
    std::uint32_t length;
    int access;
    bool allowed;
  };
  for (const Case& is : {Case{1024, 8, Machine::kAllAccess, true}, Case{1023, 8, Machine::kAllAccess, false},
                         Case{2041, 8, Machine::kAllAccess, false}, Case{2040, 8, Machine::kAllAccess, true},
                         Case{1024, 8, IBV_ACCESS_REMOTE_READ, false}}) {
    Connected fresh(machine);
    const Mkey mw = window(IBV_MW_TYPE_2);
    fresh.b.post(bind(IBV_MW_TYPE_2, fresh.b.qpn(),
                      {.rkey = key(mw),
                       .variant = 1,
                       .region = region,
                       .address = memory.address() + 1024,
                       .length = 1024,
                       .access = is.access}));
    expect_done(fresh.b_cq, Opcode::Umr);
    fresh.a.post(write_to(memory.address() + is.offset, with_variant(mw, 1), is.length));
    SCOPED_TRACE(is.offset);
    is.allowed ? expect_done(fresh.a_cq, Opcode::RdmaWrite) : expect_refused(fresh.a_cq);
  }
}

TEST_F(Windows, ZeroBasedWindowsBeginAtZero) {
  const Mkey mw = window(IBV_MW_TYPE_2);
  source.fill("zero");
  Binding binding = all_of_it(mw, 1);
  binding.address += 512;
  binding.length = 512;
  binding.zero_based = true;
  pair.b.post(bind(IBV_MW_TYPE_2, pair.b.qpn(), binding));
  expect_done(pair.b_cq, Opcode::Umr);
  pair.a.post(write_to(3, with_variant(mw, 1), 4));
  expect_done(pair.a_cq, Opcode::RdmaWrite);
  EXPECT_EQ(memory.text(4, 515), "zero");
}

TEST_F(Windows, Type1IsBoundAgainAndEndsWithABindToNothing) {
  const Mkey mw = window(IBV_MW_TYPE_1);
  pair.b.post(bind(IBV_MW_TYPE_1, pair.b.qpn(), all_of_it(mw, 1)));
  expect_done(pair.b_cq, Opcode::Umr);
  pair.b.post(bind(IBV_MW_TYPE_1, pair.b.qpn(), all_of_it(mw, 2)));
  expect_done(pair.b_cq, Opcode::Umr);
  pair.a.post(write_to(memory.address(), with_variant(mw, 2)));
  expect_done(pair.a_cq, Opcode::RdmaWrite);
  pair.b.post(unbind(IBV_MW_TYPE_1, with_variant(mw, 2)));
  expect_done(pair.b_cq, Opcode::Umr);
  pair.a.post(write_to(memory.address(), with_variant(mw, 2)));
  expect_refused(pair.a_cq);
}

TEST_F(Windows, TheKeyOfAnEarlierBindIsGone) {
  const Mkey mw = window(IBV_MW_TYPE_1);
  for (const std::uint8_t variant : {std::uint8_t{1}, std::uint8_t{2}}) {
    pair.b.post(bind(IBV_MW_TYPE_1, pair.b.qpn(), all_of_it(mw, variant)));
    expect_done(pair.b_cq, Opcode::Umr);
  }
  pair.a.post(write_to(memory.address(), with_variant(mw, 1)));
  expect_refused(pair.a_cq);
}

TEST_F(Windows, Type2ServesTheQueuePairThatBoundIt) {
  Connected other(machine);
  const Mkey mw = window(IBV_MW_TYPE_2);
  other.b.post(bind(IBV_MW_TYPE_2, other.b.qpn(), all_of_it(mw, 1)));
  expect_done(other.b_cq, Opcode::Umr);
  pair.a.post(write_to(memory.address(), with_variant(mw, 1)));
  expect_refused(pair.a_cq);
  other.a.post(write_to(memory.address(), with_variant(mw, 1)));
  expect_done(other.a_cq, Opcode::RdmaWrite);
}

TEST_F(Windows, Type1ServesEveryQueuePairOfItsProtectionDomain) {
  Connected other(machine);
  const Mkey mw = window(IBV_MW_TYPE_1);
  other.b.post(bind(IBV_MW_TYPE_1, other.b.qpn(), all_of_it(mw, 1)));
  expect_done(other.b_cq, Opcode::Umr);
  pair.a.post(write_to(memory.address(), with_variant(mw, 1)));
  expect_done(pair.a_cq, Opcode::RdmaWrite);
}

TEST_F(Windows, LocalInvalidateEndsItAndItCanBeBoundAgain) {
  const Mkey mw = window(IBV_MW_TYPE_2);
  // In one go: each takes effect before the next, and all complete.
  pair.b.write(bind(IBV_MW_TYPE_2, pair.b.qpn(), all_of_it(mw, 1)));
  pair.b.write(unbind(IBV_MW_TYPE_2, with_variant(mw, 1)));
  pair.b.write(bind(IBV_MW_TYPE_2, pair.b.qpn(), all_of_it(mw, 2)));
  pair.b.ring();
  for (int i = 0; i < 3; ++i) expect_done(pair.b_cq, Opcode::Umr);
  pair.a.post(write_to(memory.address(), with_variant(mw, 2)));
  expect_done(pair.a_cq, Opcode::RdmaWrite);
  pair.a.post(write_to(memory.address(), with_variant(mw, 1)));
  expect_refused(pair.a_cq);
}

TEST_F(Windows, ABindWaitsForTheWorkBeforeIt) {
  const Mkey mw = window(IBV_MW_TYPE_2);
  source.fill("first");
  pair.b.post(bind(IBV_MW_TYPE_2, pair.b.qpn(), all_of_it(mw, 1)));
  expect_done(pair.b_cq, Opcode::Umr);
  // b writes to a's memory through nothing special, then ends the window: order of completions.
  pair.b.write(write_to(source.address() + 100, key(lkey)));
  pair.b.write(unbind(IBV_MW_TYPE_2, with_variant(mw, 1)));
  pair.b.write(write_to(source.address() + 200, key(lkey)));
  pair.b.ring();
  expect_done(pair.b_cq, Opcode::RdmaWrite);
  expect_done(pair.b_cq, Opcode::Umr);
  expect_done(pair.b_cq, Opcode::RdmaWrite);
}

TEST_F(Windows, BindsThatAreRefused) {
  const Mkey without_bind = machine.register_memory(memory, IBV_ACCESS_LOCAL_WRITE);
  const Mkey read_only = machine.register_memory(memory, IBV_ACCESS_MW_BIND);
  const Pdn other = machine.nic->create_pd().value();
  const Mkey foreign =
      machine.nic->create_mr({other, memory.address(), memory.size(), memory.address(), kRegionAccess})
          .value();
  const auto expect_refusal = [&](const char* what, ibv_mw_type type, ibv_mw_type posted_as, auto&& change) {
    SCOPED_TRACE(what);
    Connected fresh(machine);
    Binding binding = all_of_it(window(type), 1);
    std::uint32_t qpn = fresh.b.qpn();
    change(binding, qpn);
    fresh.b.post(bind(posted_as, qpn, binding));
    expect_bind_error(fresh.b_cq);
    EXPECT_EQ(fresh.b.state(), IBV_QPS_ERR);
  };
  constexpr auto k1 = IBV_MW_TYPE_1;
  constexpr auto k2 = IBV_MW_TYPE_2;
  expect_refusal("no such window", k2, k2, [](Binding& is, std::uint32_t&) { is.rkey += 0x1000; });
  expect_refusal("a region is no window", k2, k2,
                 [&](Binding& is, std::uint32_t&) { is.rkey = key(region); });
  expect_refusal("no such region", k2, k2, [](Binding& is, std::uint32_t&) { is.region = Mkey{0x666600}; });
  expect_refusal("a window is no region", k2, k2,
                 [](Binding& is, std::uint32_t&) { is.region = Mkey{is.rkey}; });
  expect_refusal("region without MW_BIND", k2, k2,
                 [&](Binding& is, std::uint32_t&) { is.region = without_bind; });
  expect_refusal("writes without local write", k2, k2,
                 [&](Binding& is, std::uint32_t&) { is.region = read_only; });
  expect_refusal("another domain's region", k2, k2,
                 [&](Binding& is, std::uint32_t&) { is.region = foreign; });
  expect_refusal("before the region", k2, k2, [](Binding& is, std::uint32_t&) { is.address -= 1; });
  expect_refusal("past the region", k2, k2, [](Binding& is, std::uint32_t&) { is.address += 1; });
  expect_refusal("for another queue pair", k2, k2, [&](Binding&, std::uint32_t& qpn) { qpn = pair.b.qpn(); });
  expect_refusal("type 1 as type 2", k1, k2, [](Binding&, std::uint32_t&) {});
  expect_refusal("type 2 as type 1", k2, k1, [](Binding&, std::uint32_t&) {});
  EXPECT_EQ(machine.nic->destroy_mr(foreign).value, 0);
  EXPECT_EQ(machine.nic->destroy_pd(other).value, 0);
}

TEST_F(Windows, Type2ThatIsBoundMustBeInvalidatedFirst) {
  const Mkey mw = window(IBV_MW_TYPE_2);
  pair.b.write(bind(IBV_MW_TYPE_2, pair.b.qpn(), all_of_it(mw, 1)));
  pair.b.write(bind(IBV_MW_TYPE_2, pair.b.qpn(), all_of_it(mw, 2)));
  pair.b.ring();
  expect_done(pair.b_cq, Opcode::Umr);
  expect_bind_error(pair.b_cq);
}

TEST_F(Windows, InvalidationsThatAreRefused) {
  const Mkey mw = window(IBV_MW_TYPE_2);
  const Mkey type1 = window(IBV_MW_TYPE_1);
  pair.b.post(bind(IBV_MW_TYPE_2, pair.b.qpn(), all_of_it(mw, 1)));
  expect_done(pair.b_cq, Opcode::Umr);
  pair.b.post(bind(IBV_MW_TYPE_1, pair.b.qpn(), all_of_it(type1, 1)));
  expect_done(pair.b_cq, Opcode::Umr);
  const Mkey never_bound = window(IBV_MW_TYPE_2);
  for (const std::uint32_t rkey : {with_variant(mw, 1),     // on the wrong queue pair
                                   with_variant(mw, 2),     // with the wrong key
                                   with_variant(type1, 1),  // of the wrong type
                                   key(never_bound), key(region), 0U}) {
    Connected fresh(machine);
    SCOPED_TRACE(rkey);
    fresh.b.post(unbind(IBV_MW_TYPE_2, rkey));
    expect_bind_error(fresh.b_cq);
  }
  pair.a.post(write_to(memory.address(), with_variant(mw, 1)));
  expect_done(pair.a_cq, Opcode::RdmaWrite);
}

TEST_F(Windows, ThePeerInvalidatesWithItsSend) {
  const Mkey mw = window(IBV_MW_TYPE_2);
  source.fill("done");
  pair.b.post(bind(IBV_MW_TYPE_2, pair.b.qpn(), all_of_it(mw, 9)));
  expect_done(pair.b_cq, Opcode::Umr);
  pair.b.receive({{memory.address(), 64, region}});
  pair.a.post(
      Wqe(Opcode::SendInvalidate, mlx5::kCqUpdate, with_variant(mw, 9)).data(source.address(), 4, lkey));
  expect_done(pair.a_cq, Opcode::SendInvalidate);
  const mlx5::Cqe64 cqe = pair.b_cq.next();
  EXPECT_EQ(mlx5::cqe_opcode(cqe.op_own), CqeOpcode::ResponderSendInvalidate);
  EXPECT_EQ(cqe.imm_inval_pkey, with_variant(mw, 9));
  EXPECT_EQ(cqe.byte_cnt, 4U);
  EXPECT_EQ(memory.text(4), "done");
  pair.a.post(write_to(memory.address(), with_variant(mw, 9)));
  expect_refused(pair.a_cq);
}

TEST_F(Windows, InvalidationsByThePeerThatAreRefused) {
  const Mkey mw = window(IBV_MW_TYPE_2);
  const Mkey type1 = window(IBV_MW_TYPE_1);
  pair.b.post(bind(IBV_MW_TYPE_2, pair.b.qpn(), all_of_it(mw, 1)));
  expect_done(pair.b_cq, Opcode::Umr);
  pair.b.post(bind(IBV_MW_TYPE_1, pair.b.qpn(), all_of_it(type1, 1)));
  expect_done(pair.b_cq, Opcode::Umr);
  for (const std::uint32_t rkey : {with_variant(mw, 1),     // not over this queue pair
                                   with_variant(type1, 1),  // not of this type
                                   key(region), 0x6666'6600U}) {
    Connected fresh(machine);
    SCOPED_TRACE(rkey);
    fresh.b.receive({{memory.address(), 64, region}});
    fresh.a.post(Wqe(Opcode::SendInvalidate, mlx5::kCqUpdate, rkey).data(source.address(), 4, lkey));
    expect_refused(fresh.a_cq);
    EXPECT_EQ(mlx5::cqe_opcode(fresh.b_cq.next().op_own), CqeOpcode::ResponderError);
    EXPECT_EQ(fresh.b.state(), IBV_QPS_ERR);
  }
}

TEST_F(Windows, ARegionStaysWhileWindowsAreBoundToIt) {
  const Mkey mw = window(IBV_MW_TYPE_2);
  pair.b.post(bind(IBV_MW_TYPE_2, pair.b.qpn(), all_of_it(mw, 1)));
  expect_done(pair.b_cq, Opcode::Umr);
  EXPECT_EQ(machine.nic->destroy_mr(region).value, EBUSY);
  EXPECT_EQ(machine.nic
                ->change_mr(region, {machine.pd, memory.address(), 8, memory.address(), kRegionAccess},
                            IBV_REREG_MR_CHANGE_TRANSLATION)
                .value,
            EBUSY);
  // The window goes, bound as it is, and the region is free.
  windows.clear();
  EXPECT_EQ(machine.nic->destroy_mr(mw).value, 0);
  EXPECT_EQ(machine.nic->destroy_mr(region).value, 0);
}

TEST_F(Windows, AWindowsKeyIsNoLocalKey) {
  const Mkey mw = window(IBV_MW_TYPE_2);
  pair.b.write(bind(IBV_MW_TYPE_2, pair.b.qpn(), all_of_it(mw, 1)));
  pair.b.write(Wqe(Opcode::RdmaWrite)
                   .remote(source.address(), key(lkey))
                   .data(memory.address(), 5, Mkey{with_variant(mw, 1)}));
  pair.b.ring();
  expect_done(pair.b_cq, Opcode::Umr);
  EXPECT_EQ(pair.b_cq.next_error().syndrome, Syndrome::LocalProtection);
}

TEST_F(Windows, MalformedUpdatesFailAndDoNotCrash) {
  const Mkey mw = window(IBV_MW_TYPE_2);
  mlx5::UmrControlSegment too_long{};
  too_long.flags = mlx5::kUmrInline;
  too_long.mkey_mask = std::uint64_t{mlx5::kMkeyFree};
  too_long.klm_octowords = std::uint16_t{64};
  mlx5::UmrControlSegment unknown{};
  unknown.mkey_mask = std::uint64_t{1} << 12;  // signatures
  const mlx5::MkeyContextSegment context{};
  for (const Wqe& wqe : {Wqe(Opcode::Umr, mlx5::kCqUpdate, key(mw)),
                         Wqe(Opcode::Umr, mlx5::kCqUpdate, key(mw)).with(too_long).with(context),
                         Wqe(Opcode::Umr, mlx5::kCqUpdate, key(mw)).with(unknown).with(context)}) {
    Connected fresh(machine);
    fresh.b.post(wqe);
    EXPECT_EQ(fresh.b_cq.next_error().syndrome, Syndrome::LocalQpOperation);
    EXPECT_EQ(fresh.b.state(), IBV_QPS_ERR);
  }
}

}  // namespace
}  // namespace qpair::softnic::nic
