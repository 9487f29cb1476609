// Memory keys made of pieces of others, laid out on a send queue (mlx5dv_wr_mkey_configure), and copies
// within the program's memory (mlx5dv_wr_memcpy).

#include "tests/unit/nic/key_wqes.hpp"

namespace qpair::softnic::nic {
namespace {

using namespace testing_support;
using mlx5::CqeOpcode;
using mlx5::KlmSegment;
using mlx5::Opcode;
using mlx5::Syndrome;

class IndirectKeys : public testing::Test {
 protected:
  ~IndirectKeys() override {
    for (const Mkey mkey : mkeys) EXPECT_EQ(machine.nic->destroy_mr(mkey).value, 0);
  }

  Mkey create(std::uint32_t entries = 8, bool peer_may_invalidate = false) {
    mkeys.push_back(machine.nic->create_mkey({machine.pd, entries, 0, peer_may_invalidate}).value());
    return mkeys.back();
  }
  KlmSegment piece(std::uint64_t offset, std::uint32_t length) const {
    return {length, key(plain), memory.address() + offset};
  }
  void lay_out_on(Pair& qp, Completions& cq, Mkey mkey, std::uint64_t length, std::vector<KlmSegment> pieces,
                  int access = Machine::kAllAccess) {
    qp.post(lay_out(mkey, access, length, std::move(pieces)));
    EXPECT_EQ(mlx5::cqe_opcode(cq.next().op_own), CqeOpcode::Request);
  }
  void expect_done(Completions& cq) { EXPECT_EQ(mlx5::cqe_opcode(cq.next().op_own), CqeOpcode::Request); }
  Wqe write_to(std::uint64_t address, Mkey rkey, std::uint32_t length) const {
    return Wqe(Opcode::RdmaWrite).remote(address, key(rkey)).data(source.address(), length, source_key);
  }

  Machine machine;
  Memory memory{4096}, source{4096};
  Mkey plain = machine.register_memory(memory, IBV_ACCESS_LOCAL_WRITE);
  Mkey source_key = machine.register_memory(source);
  Connected pair{machine};
  std::vector<Mkey> mkeys;
};

TEST_F(IndirectKeys, AListIsWrittenToByThePeerPieceByPiece) {
  const Mkey mkey = create();
  source.fill("abcdefghij");
  lay_out_on(pair.b, pair.b_cq, mkey, 10, {piece(100, 3), piece(0, 1), piece(2000, 6)});
  pair.a.post(write_to(0, mkey, 10));
  expect_done(pair.a_cq);
  EXPECT_EQ(memory.text(3, 100), "abc");
  EXPECT_EQ(memory.text(1, 0), "d");
  EXPECT_EQ(memory.text(6, 2000), "efghij");
  pair.a.post(write_to(3, mkey, 2));
  expect_done(pair.a_cq);
  EXPECT_EQ(memory.text(1, 0), "a");
  EXPECT_EQ(memory.text(6, 2000), "bfghij");
}

TEST_F(IndirectKeys, AListIsGatheredLocally) {
  const Mkey mkey = create();
  memory.fill("one", 10);
  memory.fill("two", 50);
  lay_out_on(pair.a, pair.a_cq, mkey, 6, {piece(50, 3), piece(10, 3)}, 0);
  pair.a.post(Wqe(Opcode::RdmaWrite).remote(source.address(), key(source_key)).data(1, 4, mkey));
  expect_done(pair.a_cq);
  EXPECT_EQ(source.text(4), "woon");
}

TEST_F(IndirectKeys, InterleavedPiecesRepeatWithTheirStrides) {
  const Mkey mkey = create();
  source.fill("AAAbbAAAbbAAAbb");
  // Three rounds of 3 bytes from 0 on, 10 apart, and of 2 bytes from 100 on, 4 apart.
  const mlx5::RepeatBlockSegment block{std::uint32_t{5}, mlx5::kRepeatBlock, std::uint32_t{3},
                                       std::uint16_t{0}, std::uint16_t{2}};
  const mlx5::RepeatEntrySegment first{std::uint16_t{10}, std::uint16_t{3}, key(plain), memory.address()};
  const mlx5::RepeatEntrySegment second{std::uint16_t{4}, std::uint16_t{2}, key(plain),
                                        memory.address() + 100};
  lay_out_on(pair.b, pair.b_cq, mkey, 15,
             {std::bit_cast<KlmSegment>(block), std::bit_cast<KlmSegment>(first),
              std::bit_cast<KlmSegment>(second)});
  pair.a.post(write_to(0, mkey, 15));
  expect_done(pair.a_cq);
  EXPECT_EQ(memory.text(3, 20), "AAA");
  EXPECT_EQ(memory.text(3, 10), "AAA");
  EXPECT_EQ(memory.text(2, 108), "bb");
  EXPECT_EQ(memory.data()[3], std::byte{0});
  EXPECT_EQ(memory.data()[102], std::byte{0});
}

TEST_F(IndirectKeys, NullPiecesSwallowAndGiveZeros) {
  const Mkey mkey = create();
  source.fill("abcdef");
  lay_out_on(pair.b, pair.b_cq, mkey, 6,
             {piece(0, 2), {std::uint32_t{2}, kNullKey, std::uint64_t{0}}, piece(2, 2)});
  pair.a.post(write_to(0, mkey, 6));
  expect_done(pair.a_cq);
  EXPECT_EQ(memory.text(4), "abef");
  pair.a.post(Wqe(Opcode::RdmaRead).remote(0, key(mkey)).data(source.address() + 100, 6, source_key));
  expect_done(pair.a_cq);
  EXPECT_EQ(source.text(6, 100), std::string_view("ab\0\0ef", 6));
}

TEST_F(IndirectKeys, WhatCannotBeReachedFailsTheAccess) {
  struct Case {
    const char* what;
    std::uint64_t length;
    std::vector<KlmSegment> pieces;
    std::uint32_t written;
  };
  const Mkey unused = create();
  const Mkey read_only = machine.register_memory(memory, 0);
  for (const Case& is :
       {Case{"longer than the key", 4, {piece(0, 4)}, 5}, Case{"longer than its pieces", 9, {piece(0, 4)}, 9},
        Case{"a piece past its region", 8, {piece(4090, 8)}, 8},
        Case{"a piece of no key", 8, {{std::uint32_t{8}, std::uint32_t{0x666600}, memory.address()}}, 8},
        Case{"a piece without layout", 8, {{std::uint32_t{8}, key(unused), std::uint64_t{0}}}, 8},
        Case{"a piece without local write", 8, {{std::uint32_t{8}, key(read_only), memory.address()}}, 8}}) {
    SCOPED_TRACE(is.what);
    Connected fresh(machine);
    const Mkey mkey = create();
    lay_out_on(fresh.b, fresh.b_cq, mkey, is.length, is.pieces);
    fresh.a.post(write_to(0, mkey, is.written));
    EXPECT_EQ(fresh.a_cq.next_error().syndrome, Syndrome::RemoteAccess);
  }
}

TEST_F(IndirectKeys, NothingIsReachedBeforeTheFirstLayout) {
  const Mkey mkey = create();
  pair.a.post(write_to(0, mkey, 1));
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::RemoteAccess);
}

TEST_F(IndirectKeys, RightsAreTheKeysOwn) {
  const Mkey mkey = create();
  lay_out_on(pair.b, pair.b_cq, mkey, 8, {piece(0, 8)}, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  pair.a.post(write_to(0, mkey, 8));
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::RemoteAccess);
}

TEST_F(IndirectKeys, KeysWithinKeysGoSoDeepAndNoDeeper) {
  source.fill("deep");
  Mkey inner = create();
  lay_out_on(pair.b, pair.b_cq, inner, 8, {piece(0, 8)});
  for (int depth = 1; depth < 4; ++depth) {
    const Mkey outer = create();
    lay_out_on(pair.b, pair.b_cq, outer, 8, {{std::uint32_t{8}, key(inner), std::uint64_t{0}}});
    inner = outer;
  }
  pair.a.post(write_to(0, inner, 4));
  expect_done(pair.a_cq);
  EXPECT_EQ(memory.text(4), "deep");
  // A key that names itself.
  const Mkey circle = create();
  lay_out_on(pair.b, pair.b_cq, circle, 8, {{std::uint32_t{8}, key(circle), std::uint64_t{0}}});
  pair.a.post(write_to(0, circle, 4));
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::RemoteAccess);
}

TEST_F(IndirectKeys, ALayoutHasAsManyEntriesAsTheKeyWasMadeFor) {
  const Mkey mkey = create(2);
  pair.b.post(lay_out(mkey, Machine::kAllAccess, 3, {piece(0, 1), piece(1, 1), piece(2, 1)}));
  EXPECT_EQ(pair.b_cq.next_error().syndrome, Syndrome::MemoryWindowBind);
}

TEST_F(IndirectKeys, AtomicsNeedTheirBytesTogether) {
  const Mkey mkey = create();
  lay_out_on(pair.b, pair.b_cq, mkey, 16, {piece(0, 8), piece(16, 4), piece(32, 4)});
  const auto add = [&](std::uint64_t address) {
    return Wqe(Opcode::AtomicFetchAdd)
        .remote(address, key(mkey))
        .atomic(5, 0)
        .data(source.address(), 8, source_key);
  };
  pair.a.post(add(0));
  expect_done(pair.a_cq);
  EXPECT_EQ(*memory.as<std::uint64_t>(), 5U);
  pair.a.post(add(8));
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::RemoteInvalidRequest);
}

TEST_F(IndirectKeys, ThePeerInvalidatesOneThatWasMadeForIt) {
  const Mkey mkey = create(8, true);
  lay_out_on(pair.b, pair.b_cq, mkey, 8, {piece(0, 8)});
  pair.b.receive({{memory.address(), 64, plain}});
  pair.a.post(Wqe(Opcode::SendInvalidate, mlx5::kCqUpdate, key(mkey)).data(source.address(), 4, source_key));
  expect_done(pair.a_cq);
  EXPECT_EQ(mlx5::cqe_opcode(pair.b_cq.next().op_own), CqeOpcode::ResponderSendInvalidate);
  pair.a.post(write_to(0, mkey, 1));
  EXPECT_EQ(pair.a_cq.next_error().syndrome, Syndrome::RemoteAccess);
}

class Copies : public IndirectKeys {
 protected:
  Wqe copy(std::uint64_t from, Mkey from_key, std::uint64_t to, Mkey to_key, std::uint32_t length) const {
    Wqe wqe(Opcode::Mmo);
    wqe.modifier(mlx5::kMmoDma)
        .with(mlx5::MmoSegment{})
        .data(from, length, from_key)
        .data(to, length, to_key);
    return wqe;
  }
};

TEST_F(Copies, MemoryIsCopiedBetweenTwoRegions) {
  source.fill("copied");
  pair.a.post(copy(source.address(), source_key, memory.address() + 7, plain, 6));
  const mlx5::Cqe64 cqe = pair.a_cq.next();
  EXPECT_EQ(cqe.sop_drop_qpn >> 24, static_cast<std::uint32_t>(Opcode::Mmo));
  EXPECT_EQ(memory.text(6, 7), "copied");
}

TEST_F(Copies, ALongOneTakesManyRoundsAndWhatFollowsWaits) {
  constexpr std::size_t kSize = std::size_t{5} << 20;
  Memory from(kSize), to(kSize);
  const Mkey from_key = machine.register_memory(from);
  const Mkey to_key = machine.register_memory(to);
  for (std::size_t i = 0; i < kSize / 8; ++i) from.as<std::uint64_t>()[i] = i * 0x9e37'79b9'7f4a'7c15;
  pair.a.write(copy(from.address(), from_key, to.address(), to_key, kSize));
  pair.a.write(Wqe(Opcode::RdmaWrite)
                   .remote(memory.address() + 1, key(plain))
                   .data(source.address(), 0, source_key)
                   .claim_segments(2));
  pair.a.ring();
  expect_done(pair.a_cq);
  EXPECT_EQ(std::memcmp(from.data(), to.data(), kSize), 0);
  expect_done(pair.a_cq);
}

TEST_F(Copies, ProtectionIsChecked) {
  const Mkey read_only = machine.register_memory(memory, 0);
  for (const Mkey wrong : {read_only, Mkey{0x666600}}) {
    Connected fresh(machine);
    fresh.a.post(copy(source.address(), source_key, memory.address(), wrong, 6));
    EXPECT_EQ(fresh.a_cq.next_error().syndrome, Syndrome::LocalProtection);
  }
}

}  // namespace
}  // namespace qpair::softnic::nic
