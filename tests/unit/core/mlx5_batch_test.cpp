// Runs of puts in one call, small puts inline, and completions in runs: the same as one by one.
#include <gtest/gtest.h>

#include "tests/unit/core/fake_nic.hpp"

namespace qpair::test {
namespace {

using mlx5::Opcode;

// Every field of every one is different.
std::vector<Put> puts_of(std::size_t count) {
  std::vector<Put> puts;
  for (std::uint64_t i = 0; i != count; ++i) {
    const auto key = static_cast<std::uint32_t>(i);
    puts.push_back({{i, 0x01020304 + key, 0x11121314 + key, 0x2122232425262728 + (i << 32), 0x31323334 + i},
                    {i, 0x41424344 + key, 0x51525354 + key, 0x6162636465666768 + (i << 40), 0x71727374 + i}});
  }
  return puts;
}

FakeOptions ring_of(std::uint32_t blocks) {
  return {.blocks = blocks, .cq_entries = blocks};
}

class Batch : public testing::TestWithParam<Signal> {};

TEST_P(Batch, IsWrittenAsOneByOneAlsoAroundTheRingsEnd) {
  FakeNic batch(ring_of(16));
  FakeNic single(ring_of(16));
  const std::vector<Put> puts = puts_of(11);
  IbvWc wc;
  for (std::uint16_t round = 0; round != 20; ++round) {
    const Result<WrId> last = batch.path.enqueue_puts(puts, GetParam());
    ASSERT_TRUE(last);
    EXPECT_EQ(*last, WrId{round * 11U + 10});
    for (const Put& put : puts) ASSERT_TRUE(single.path.enqueue_put(put.l, put.r, GetParam()));
    EXPECT_EQ(batch.send_bytes(0, 16 * 64), single.send_bytes(0, 16 * 64)) << round;
    for (FakeNic* nic : {&batch, &single}) {
      EXPECT_NE(nic->send_record(), (round + 1) * 11U);
      ASSERT_TRUE(nic->path.ring_doorbell());
      EXPECT_EQ(nic->send_record(), (round + 1) * 11U);
      nic->complete(static_cast<std::uint16_t>(round * 11 + 10), Opcode::RdmaWrite);
      static_cast<void>(nic->path.poll_send(wc));
      EXPECT_EQ(nic->path.send_counters().cq, (round + 1) * 11U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, Batch, testing::Values(Signal::Yes, Signal::No));

TEST(Batch, ThePortableWriterWritesTheSame) {
  const std::vector<Put> puts = puts_of(9);
  std::vector<std::byte> portable(puts.size() * 64);
  std::vector<std::byte> fastest(puts.size() * 64);
  detail::PutRun run{portable.data(), 0xfffc, detail::first_word(Opcode::RdmaWrite, kQpn), 0x8000000,
                     1U << 31};
  EXPECT_TRUE(detail::write_puts_portable(run, puts));
  run.at = fastest.data();
  EXPECT_TRUE(detail::put_writer()(run, puts));
  for (std::size_t i = 0; i != puts.size(); ++i) {
    for (std::size_t byte = 0; byte != 48; ++byte) {
      ASSERT_EQ(fastest[i * 64 + byte], portable[i * 64 + byte]) << "entry " << i << " byte " << byte;
    }
  }
}

TEST(Batch, IsAllOrNothing) {
  FakeNic nic(ring_of(8));
  std::vector<Put> puts = puts_of(4);
  ASSERT_TRUE(nic.path.enqueue_puts(std::span(puts).first(1), Signal::Yes));
  puts[2].r.size = puts[2].l.size - 1;
  EXPECT_EQ(nic.path.enqueue_puts(puts, Signal::Yes).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(nic.path.send_counters().wqe, 1);
  EXPECT_EQ(nic.path.enqueue_puts(puts_of(8), Signal::Yes).error().code(), ErrorCode::queue_full);
  EXPECT_EQ(nic.path.enqueue_puts(puts_of(9), Signal::Yes).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(nic.path.send_counters().wqe, 1);
  EXPECT_TRUE(nic.path.enqueue_puts(puts_of(7), Signal::Yes));
}

TEST(Batch, MayHoldWhatNeedsMoreThanOneEntry) {
  FakeNic nic({.blocks = 16, .cq_entries = 16, .max_message = 0x800});
  const std::vector<Put> puts = {
      {*kLocal.slice(0, 8), kRemote}, {kLocal, kRemote}, {*kLocal.slice(0, 0), kRemote}};
  EXPECT_EQ(nic.path.enqueue_puts(puts, Signal::Yes), WrId{3});  // the second takes two
  nic.path.reset();
  EXPECT_EQ(nic.path.enqueue_puts(puts, Signal::Yes).error().code(), ErrorCode::not_connected);
}

TEST(Inline, SmallPutsAreWrittenAsTheGeneralPathWritesThem) {
  FakeNic fast(ring_of(64));
  FakeNic general(ring_of(64));
  std::vector<std::byte> data(29);
  for (std::size_t i = 0; i != data.size(); ++i) data[i] = static_cast<std::byte>(i + 1);
  for (const Signal signal : {Signal::Yes, Signal::No}) {
    for (std::size_t size = 0; size <= data.size(); ++size) {
      const std::span<const std::byte> bytes = std::span(data).first(size);
      detail::Work work = work_of(Opcode::RdmaWrite, {}, &kRemote, signal);
      work.is_inline = true;
      work.inline_data = bytes;
      const Result<WrId> a = fast.path.enqueue_inline(bytes, kRemote, signal);
      const Result<WrId> b = general.path.enqueue(work);
      ASSERT_EQ(a.has_value(), b.has_value());
      if (a) {
        EXPECT_EQ(*a, *b);
      }
    }
  }
  EXPECT_EQ(fast.send_bytes(0, 64 * 64), general.send_bytes(0, 64 * 64));
  RdmaBuffer small = kRemote;
  small.size = 7;
  EXPECT_EQ(fast.path.enqueue_inline(std::span(data).first(8), small, Signal::Yes).error().code(),
            ErrorCode::invalid_argument);
}

// Successes of puts, and between them everything that ends their run.
TEST(Completions, InRunsAreThoseOneByOne) {
  for (const std::uint32_t cqe_size : {64U, 128U}) {
    for (const std::size_t room : {1U, 3U, 16U}) {
      FakeNic nic({.blocks = 16, .cq_entries = 16, .cqe_size = cqe_size, .max_message = 0x800});
      std::vector<IbvWc> wcs(room);
      for (std::uint64_t round = 0; round != 10; ++round) {
        const std::uint64_t first = nic.path.send_counters().wqe;
        for (int i = 0; i != 3; ++i)
          ASSERT_TRUE(nic.path.enqueue_put(*kLocal.slice(0, 8), kRemote, Signal::Yes));
        ASSERT_TRUE(nic.path.enqueue_get(*kLocal.slice(0, 8), kRemote, Signal::Yes));
        ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));  // two entries
        ASSERT_TRUE(nic.path.post_put(*kLocal.slice(0, 8), kRemote, Signal::Yes));
        const auto at = [&](std::uint64_t i) { return static_cast<std::uint16_t>(first + i); };
        for (std::uint64_t i = 0; i != 3; ++i) nic.complete(at(i), Opcode::RdmaWrite);
        nic.complete(at(3), Opcode::RdmaRead, 8);
        nic.complete(at(5), Opcode::RdmaWrite);
        nic.fail(at(6), Opcode::RdmaWrite, mlx5::Syndrome::RemoteAccess, 0x88);
        std::vector<IbvWc> all;
        while (const int count = nic.path.take_send(wcs))
          all.insert(all.end(), wcs.begin(), wcs.begin() + count);
        ASSERT_EQ(all.size(), 6);
        const std::uint64_t ids[] = {0, 1, 2, 3, 5, 6};
        for (std::size_t i = 0; i != 6; ++i) {
          EXPECT_EQ(all[i].wr_id, WrId{first + ids[i]});
          EXPECT_EQ(all[i].is_valid(), i != 5);
          EXPECT_EQ(all[i].opcode, i == 3 ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
          EXPECT_EQ(all[i].byte_len, i == 3 ? 8 : 0);
          EXPECT_EQ(all[i].qp_num, kQpn);
        }
        EXPECT_EQ(nic.send_consumer_index(), (round + 1) * 6);
        EXPECT_EQ(nic.path.send_counters().cq, first + 7);
      }
    }
  }
}

TEST(Completions, OneAtATimeInline) {
  FakeNic nic(ring_of(4));
  for (std::uint16_t i = 0; i != 20; ++i) {
    ASSERT_TRUE(i % 2 == 0 ? nic.path.post_put(kLocal, kRemote, Signal::Yes)
                           : nic.path.post_get(kLocal, kRemote, Signal::Yes));
    IbvWc wc;
    EXPECT_FALSE(nic.path.take_plain(wc));
    nic.complete(i, i % 2 == 0 ? Opcode::RdmaWrite : Opcode::RdmaRead, 4096);
    ASSERT_TRUE(nic.path.take_plain(wc));
    EXPECT_EQ(wc, (IbvWc{.wr_id = WrId{i},
                         .opcode = i % 2 == 0 ? IBV_WC_RDMA_WRITE : IBV_WC_RDMA_READ,
                         .byte_len = i % 2 == 0 ? 0U : 4096U,
                         .qp_num = kQpn}));
  }
}

TEST(Completions, InlineDeclinesWhatIsNotAPlainSuccess) {
  FakeNic nic(ring_of(8));
  IbvWc wc;
  ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  nic.complete(5, Opcode::RdmaWrite);  // never rung
  EXPECT_FALSE(nic.path.take_plain(wc));
  EXPECT_EQ(nic.path.poll_send(wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_GENERAL_ERR);
  nic.fail(0, Opcode::RdmaWrite, mlx5::Syndrome::RemoteAccess, 0x88);
  EXPECT_FALSE(nic.path.take_plain(wc));
  EXPECT_EQ(nic.path.poll_send(wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
}

}  // namespace
}  // namespace qpair::test
