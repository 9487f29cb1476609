// A queue pair for many threads: alone it does what the ordinary one does; together its threads lose nothing,
// ring for nothing that is not written, and are never refused room that there is.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/core/fake_nic.hpp"

namespace qpair::test {
namespace {

using mlx5::Opcode;

std::vector<Put> puts_of(std::size_t count) {
  std::vector<Put> puts;
  for (std::uint64_t i = 0; i != count; ++i) puts.push_back({*kLocal.slice(i, i + 1), kRemote});
  return puts;
}

// --- Alone ---

TEST(Mlx5Many, WritesWhatTheOrdinaryOneWrites) {
  FakeNic one({.blocks = 32, .cq_entries = 32, .max_message = 0x800});
  ManyFakeNic many({.blocks = 32, .cq_entries = 32, .max_message = 0x800});
  const std::vector<RdmaBuffer> pieces(4, RdmaBuffer{0, 0xa, 0, 0x1000, 2});
  const std::vector<std::byte> data(100, std::byte{7});
  detail::Work inline_work = work_of(Opcode::RdmaWrite, {}, &kRemote, Signal::No);
  inline_work.is_inline = true;
  inline_work.inline_data = data;
  for (detail::DataPath* path :
       {static_cast<detail::DataPath*>(&one.path), static_cast<detail::DataPath*>(&many.path)}) {
    ASSERT_TRUE(path->enqueue_put(*kLocal.slice(0, 8), kRemote, Signal::Yes));  // 0
    ASSERT_TRUE(path->enqueue(work_of(Opcode::RdmaRead, pieces, &kRemote)));    // 1, 2
    ASSERT_TRUE(path->enqueue_get(kLocal, kRemote, Signal::Yes));               // two parts: 3, 4
    ASSERT_TRUE(path->enqueue(inline_work));                                    // 5, 6, 7
    ASSERT_TRUE(path->enqueue_puts(puts_of(20), Signal::No));                   // 8 to 27
    ASSERT_TRUE(path->ring_doorbell());
  }
  EXPECT_EQ(many.send_bytes(0, 28 * 64), one.send_bytes(0, 28 * 64));
  EXPECT_EQ(many.send_record(), 28);
  EXPECT_EQ(many.register_bytes(mlx5::kBlueFlameOffset, 8), one.register_bytes(mlx5::kBlueFlameOffset, 8));
}

TEST(Mlx5Many, NumbersWorkByWhereItBeginsAndCompletesItByThat) {
  ManyFakeNic nic({.blocks = 16, .cq_entries = 16, .max_message = 0x800});
  const std::vector<RdmaBuffer> pieces(4, RdmaBuffer{0, 0xa, 0, 0x1000, 2});
  EXPECT_EQ(nic.path.enqueue(work_of(Opcode::RdmaWrite, pieces, &kRemote)), WrId{0});  // 0, 1
  EXPECT_EQ(nic.path.enqueue_get(kLocal, kRemote, Signal::Yes), WrId{3});              // two parts: 2, 3
  EXPECT_EQ(nic.path.enqueue_put(*kLocal.slice(0, 8), kRemote, Signal::Yes), WrId{4});
  EXPECT_EQ(nic.send_record(), 0);
  ASSERT_TRUE(nic.path.ring_doorbell());
  EXPECT_EQ(nic.send_record(), 5);
  nic.complete(0, Opcode::RdmaWrite);
  nic.fail(2, Opcode::RdmaRead, mlx5::Syndrome::RemoteAccess, 0x88);  // its first part
  nic.fail(3, Opcode::RdmaRead, mlx5::Syndrome::WorkRequestFlushed, 0xf9);
  nic.fail(4, Opcode::RdmaWrite, mlx5::Syndrome::WorkRequestFlushed, 0xf9);
  IbvWc wcs[4];
  ASSERT_EQ(nic.path.take_send(wcs), 3);
  EXPECT_TRUE(wcs[0].is_valid());
  EXPECT_EQ(wcs[0].wr_id, WrId{0});
  EXPECT_EQ(wcs[1].wr_id, WrId{3});
  EXPECT_EQ(wcs[1].status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(wcs[2].wr_id, WrId{4});
  EXPECT_EQ(nic.path.send_counters().cq, 5);
  EXPECT_EQ(nic.send_consumer_index(), 4);
}

TEST(Mlx5Many, FullQueueIsRefusedAndNothingIsWritten) {
  ManyFakeNic nic({.blocks = 4});
  ASSERT_TRUE(nic.path.enqueue_puts(puts_of(3), Signal::Yes));
  const std::string before = nic.send_bytes(0, 256);
  EXPECT_EQ(nic.path.enqueue_puts(puts_of(2), Signal::Yes).error().code(), ErrorCode::queue_full);
  EXPECT_EQ(nic.path.enqueue_puts(puts_of(5), Signal::Yes).error().code(), ErrorCode::invalid_argument);
  std::vector<Put> wrong = puts_of(1);
  wrong[0].r.size = 0;
  EXPECT_EQ(nic.path.enqueue_puts(wrong, Signal::Yes).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(nic.send_bytes(0, 256), before);
  EXPECT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::Yes));
  EXPECT_EQ(nic.path.send_counters().wqe, 4);
}

TEST(Mlx5Many, NothingButUnsignaledWorkStillMakesRoom) {
  ManyFakeNic nic({.blocks = 8});
  IbvWc wc;
  for (std::uint16_t begin = 0; begin != 40; begin = static_cast<std::uint16_t>(begin + 4)) {
    for (int i = 0; i != 2; ++i) ASSERT_TRUE(nic.path.enqueue_put(kLocal, kRemote, Signal::No));
    ASSERT_TRUE(nic.path.enqueue_puts(puts_of(2), Signal::No));
    ASSERT_TRUE(nic.path.ring_doorbell());
    EXPECT_EQ(nic.send_bytes((begin + 3U) % 8, 12).substr(18), "00000008");
    EXPECT_EQ(nic.send_bytes((begin + 2U) % 8, 12).substr(18), "00000000");
    nic.complete(static_cast<std::uint16_t>(begin + 3), Opcode::RdmaWrite);
    EXPECT_EQ(nic.path.poll_send(wc), 0);  // consumed, not reported
    EXPECT_EQ(nic.path.send_counters().cq, begin + 4U);
  }
}

TEST(Mlx5Many, ResetStartsTheHardwareAgainAndGoesOnCounting) {
  ManyFakeNic nic;
  for (int i = 0; i != 3; ++i) ASSERT_TRUE(nic.path.post_put(kLocal, kRemote, Signal::Yes));
  nic.path.reset();
  EXPECT_EQ(nic.path.post_put(kLocal, kRemote, Signal::Yes).error().code(), ErrorCode::not_connected);
  EXPECT_EQ(nic.path.receive({&kLocal, 1}).error().code(), ErrorCode::not_connected);
  nic.path.open_receive();
  nic.path.open_send();
  const Result<WrId> id = nic.path.post_put(kLocal, kRemote, Signal::Yes);
  EXPECT_EQ(id, WrId{65536});
  EXPECT_EQ(nic.send_record(), 1);
  nic.complete(0, Opcode::RdmaWrite);
  IbvWc wc;
  ASSERT_EQ(nic.path.poll_send(wc), 1);
  EXPECT_EQ(wc.wr_id, *id);
}

// The NIC may run it when the doorbell record is stored, and another thread may have its place before the
// register is.
TEST(Mlx5Many, AWqeIsReadBeforeTheNicMayRunIt) {
  for (const std::uint32_t blue_flame : {0U, 256U}) {
    ManyFakeNic usual({.blue_flame = blue_flame});
    ManyFakeNic nic({.blue_flame = blue_flame, .record_in_wqe = true});
    const std::vector<std::byte> data(100, std::byte{7});
    detail::Work work = work_of(Opcode::RdmaWrite, {}, &kRemote);
    work.is_inline = true;
    work.inline_data = data;
    for (ManyFakeNic* const each : {&usual, &nic}) ASSERT_TRUE(each->path.post(work));
    EXPECT_NE(nic.send_bytes(0, 8), usual.send_bytes(0, 8));
    EXPECT_EQ(nic.register_bytes(mlx5::kBlueFlameOffset, 192),
              usual.register_bytes(mlx5::kBlueFlameOffset, 192));
  }
}

// --- The ring that they share ---

TEST(SharedRing, RingsUpToWhatIsNotFilledAndItsThreadRingsTheRest) {
  detail::SharedRing ring(8, 0);
  ring.allow(8);
  std::vector<std::uint64_t> rung;
  const auto bell = [&](std::uint64_t, std::uint64_t, std::uint64_t end) {
    EXPECT_EQ(ring.rung(), end);  // the NIC may be done before the bell returns
    rung.push_back(end);
  };
  const std::uint64_t first = *ring.reserve(1);
  const std::uint64_t slow = *ring.reserve(2);
  const std::uint64_t last = *ring.reserve(1);
  EXPECT_FALSE(ring.written(first, 1, 1));  // nobody asked for it
  ASSERT_TRUE(ring.wanted(last, 1, 1));
  ring.ring(bell);
  EXPECT_EQ(rung, (std::vector<std::uint64_t>{1}));  // `slow` is in the way
  ASSERT_TRUE(ring.written(slow, 2, 2));             // …and is asked for, through `last`
  ring.ring(bell);
  EXPECT_EQ(rung, (std::vector<std::uint64_t>{1, 4}));
  EXPECT_EQ(ring.rung(), 4);
  EXPECT_FALSE(ring.want_all());
}

TEST(SharedRing, WhoeverRingsRingsForThoseWhoComeMeanwhile) {
  detail::SharedRing ring(8, 0);
  ring.allow(8);
  std::vector<std::uint64_t> rung;
  const std::uint64_t mine = *ring.reserve(1);
  ASSERT_TRUE(ring.wanted(mine, 1, 1));
  ring.ring([&](std::uint64_t, std::uint64_t, std::uint64_t end) {
    rung.push_back(end);
    if (rung.size() == 1) {
      EXPECT_FALSE(ring.wanted(*ring.reserve(1), 1, 1));   // another thread, now
      EXPECT_FALSE(ring.written(*ring.reserve(1), 1, 1));  // a third, that does not ask
    }
  });
  EXPECT_EQ(rung, (std::vector<std::uint64_t>{1, 2}));
}

TEST(SharedRing, GivesNoMoreThanIsAllowed) {
  detail::SharedRing ring(4, 0);
  EXPECT_FALSE(ring.reserve(1));
  ring.allow(4);
  EXPECT_TRUE(ring.reserve(3));
  EXPECT_FALSE(ring.reserve(2));
  EXPECT_TRUE(ring.reserve(1));
}

// --- Together ---

// Runs what was rung: checks that every WQE is written, and completes it if it asks.
class NicThread {
 public:
  NicThread(ManyFakeNic& nic, std::uint32_t blocks)
      : nic_(nic), blocks_(blocks), thread_([this] { run(); }) {}
  ~NicThread() {
    stop_ = true;
    thread_.join();
  }
  [[nodiscard]] std::uint64_t wrong() const { return wrong_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  void run() {
    std::uint16_t at = 0;
    while (!stop_) {
      const auto end = static_cast<std::uint16_t>(nic_.rung());
      if (at == end) std::this_thread::yield();
      while (at != end) at = static_cast<std::uint16_t>(at + execute(at));
    }
  }
  // Returns the blocks that it took.
  std::uint32_t execute(std::uint16_t at) {
    const std::byte* block =
        nic_.send_ring().data() + std::size_t{at & (blocks_ - 1)} * mlx5::kBasicBlockSize;
    mlx5::ControlSegment control{};
    std::memcpy(&control, block, sizeof control);
    const std::uint32_t segments = control.qpn_ds & mlx5::kMaxSegments;
    const std::uint32_t index = (control.opmod_idx_opcode >> 8) & 0xffff;
    if (index != at || control.qpn_ds >> 8 != kQpn || segments < 3) {
      ++wrong_;
      return 1;
    }
    if (segments == 3) {
      mlx5::DataSegment piece{};
      std::memcpy(&piece, block + 2 * mlx5::kSegmentSize, sizeof piece);
      bytes_ += piece.byte_count;
    }
    if (control.fm_ce_se == mlx5::kCqUpdate) nic_.complete(at, Opcode::RdmaWrite);
    return mlx5::blocks_of(segments);
  }

  ManyFakeNic& nic_;
  std::uint32_t blocks_;
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> wrong_ = 0;
  std::atomic<std::uint64_t> bytes_ = 0;  // of one-block entries
  std::thread thread_;
};

TEST(Mlx5Many, ThreadsLoseNothingAndRingForNothingUnwritten) {
  constexpr std::uint32_t kBlocks = 32;
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kRounds = 3000;
  ManyFakeNic nic({.blocks = kBlocks, .cq_entries = kBlocks});
  NicThread chip(nic, kBlocks);
  const std::vector<std::byte> data(100, std::byte{7});  // 3 blocks
  std::atomic<std::uint64_t> completed = 0;
  std::atomic<std::uint64_t> failed = 0;
  std::atomic<std::uint64_t> ids = 0;       // sum of what the posts returned…
  std::atomic<std::uint64_t> seen_ids = 0;  // …and of what the polls did
  std::atomic<bool> stop = false;

  const auto poll = [&] {
    IbvWc wcs[8];
    const int count = nic.path.take_send(wcs);
    for (int i = 0; i != count; ++i) {
      if (!wcs[i].is_valid()) ++failed;
      seen_ids += static_cast<std::uint64_t>(wcs[i].wr_id);
    }
    completed += static_cast<std::uint64_t>(count);
    if (count == 0) std::this_thread::yield();
  };
  // What each thread does until there is room for it, polling in between.
  const auto insist = [&](auto&& post) {
    for (;;) {
      const Result<WrId> id = post();
      if (id) return static_cast<std::uint64_t>(*id);
      if (id.error().code() != ErrorCode::queue_full) ++failed;
      // Somebody's unrung work may be what fills the queue.
      static_cast<void>(nic.path.ring_doorbell());
      poll();
    }
  };
  const auto post = [&](std::uint64_t thread) {
    const RdmaBuffer piece = *kLocal.slice(0, thread + 1);
    std::vector<Put> puts(3, Put{piece, kRemote});
    detail::Work long_work = work_of(Opcode::RdmaWrite, {}, &kRemote);
    long_work.is_inline = true;
    long_work.inline_data = data;
    for (std::uint64_t round = 0; round != kRounds; ++round) {
      ids += insist([&] { return nic.path.post_put(piece, kRemote, Signal::Yes); });
      ids += insist([&] { return nic.path.enqueue_put(piece, kRemote, Signal::Yes); });
      insist([&] { return nic.path.enqueue_puts(puts, Signal::No); });
      ids += insist([&] { return nic.path.post(long_work); });
    }
    static_cast<void>(nic.path.ring_doorbell());
  };

  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i != kThreads; ++i) threads.emplace_back(post, i);
  std::thread poller([&] {
    while (!stop) poll();
  });
  for (std::thread& thread : threads) thread.join();
  constexpr std::uint64_t kSignaled = kThreads * kRounds * 3;
  while (completed != kSignaled && failed == 0 && chip.wrong() == 0) std::this_thread::yield();
  stop = true;
  poller.join();

  EXPECT_EQ(chip.wrong(), 0);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(completed, kSignaled);
  EXPECT_EQ(seen_ids, ids);
  const detail::Counters counters = nic.path.send_counters();
  EXPECT_EQ(counters.wqe, kThreads * kRounds * 8);
  EXPECT_EQ(counters.db, counters.wqe);
  EXPECT_EQ(chip.bytes(), kRounds * 5 * (1 + 2 + 3 + 4));
}

TEST(Mlx5Many, ThreadsPostReceivesTogether) {
  ManyFakeNic nic({.receives = 64, .cq_entries = 64});
  std::atomic<std::uint64_t> ids = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread != 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i != 16; ++i) ids += static_cast<std::uint64_t>(*nic.path.receive({&kLocal, 1}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ids, 63U * 64 / 2);
  EXPECT_EQ(nic.receive_record(), 64);
  EXPECT_EQ(nic.path.receive({&kLocal, 1}).error().code(), ErrorCode::queue_full);
  nic.receive(mlx5::CqeOpcode::ResponderSend, 5);
  IbvWc wc;
  ASSERT_EQ(nic.path.poll_receive(wc), 1);
  EXPECT_EQ(wc.wr_id, WrId{0});
  EXPECT_EQ(wc.byte_len, 5);
  EXPECT_TRUE(nic.path.receive({&kLocal, 1}));
}

}  // namespace
}  // namespace qpair::test
