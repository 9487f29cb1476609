// Every operation of a queue pair, from end to end through libmlx5 and the emulated NIC.
#include <poll.h>

#include <set>

#include "tests/integration/core_fixture.hpp"

namespace qpair::test {
namespace {

CONNECTED_TEST(Operations, PutMovesBytes) {
  Pair pair;
  for (const std::uint64_t size : {1ULL, 7ULL, 64ULL, 4096ULL, 4097ULL, 300'000ULL}) {
    pair.a.fill(0, size, static_cast<unsigned>(size));
    const WrId id = MUST(pair.a.queue_pair.put(pair.a.at(0, size), pair.b.at(1000, size)));
    const IbvWc wc = wait_for(pair.a.queue_pair, PollTarget::Send);
    EXPECT_TRUE(wc.is_valid()) << wc;
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
    EXPECT_EQ(wc.qp_num, pair.a.queue_pair.qp()->qp_num);
    EXPECT_TRUE(pair.a.same(pair.b, 0, 1000, size)) << size;
  }
  EXPECT_COUNTERS(pair.a.queue_pair, send, 6, 6, 6);
  EXPECT_COUNTERS(pair.b.queue_pair, recv, 0, 0, 0);
}

CONNECTED_TEST(Operations, GetBringsBytes) {
  Pair pair;
  pair.b.fill(5, 70'000, 3);
  MUST(pair.a.queue_pair.get(pair.a.at(0, 70'000), pair.b.at(5, 70'000)));
  const IbvWc wc = wait_for(pair.a.queue_pair, PollTarget::Send);
  EXPECT_TRUE(wc.is_valid()) << wc;
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(wc.byte_len, 70'000);
  EXPECT_TRUE(pair.a.same(pair.b, 0, 5, 70'000));
}

CONNECTED_TEST(Operations, PutWithRecvNotifiesThePeer) {
  Pair pair;
  const WrId receive = MUST(pair.b.queue_pair.recv(pair.b.at(0, 0)));
  pair.a.fill(0, 5000, 9);
  MUST(pair.a.queue_pair.put_with_recv(pair.a.at(0, 5000), pair.b.at(100, 5000), 0x01020304));
  const IbvWc got = wait_for(pair.b.queue_pair, PollTarget::Recv);
  EXPECT_TRUE(got.is_valid()) << got;
  EXPECT_EQ(got.wr_id, receive);
  EXPECT_EQ(got.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_TRUE(got.has_imm());
  EXPECT_EQ(got.imm_data, 0x01020304);
  EXPECT_EQ(got.byte_len, 5000);
  if (is_mlx5(pair.b.queue_pair)) {
    EXPECT_EQ(got.src_qp, pair.a.queue_pair.qp()->qp_num);
  }
  EXPECT_TRUE(pair.a.same(pair.b, 0, 100, 5000));
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  EXPECT_COUNTERS(pair.b.queue_pair, recv, 1, 1, 1);
}

CONNECTED_TEST(Operations, ZeroBytesAreAValidPutAndNotification) {
  Pair pair;
  MUST(pair.b.queue_pair.recv(pair.b.at(0, 0), RdmaBuffer{}));
  MUST(pair.a.queue_pair.put(pair.a.at(0, 0), pair.b.at(0, 0)));
  MUST(pair.a.queue_pair.put_with_recv(pair.a.at(0, 0), pair.b.at(0, 0), 7));
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  EXPECT_EQ(wait_for(pair.b.queue_pair, PollTarget::Recv).imm_data, 7);
}

CONNECTED_TEST(Operations, SendFillsTheReceiveThatWasPosted) {
  IbverbsConfig config;
  config.max_recv_sge = 2;
  Pair pair(config);
  const RdmaBuffer pieces[] = {pair.b.at(0, 100), pair.b.at(1000, 500)};
  MUST(pair.b.queue_pair.recv(pieces));
  MUST(pair.b.queue_pair.recv(pair.b.at(2000, 64)));
  pair.a.fill(0, 300, 1);
  MUST(pair.a.queue_pair.send(pair.a.at(0, 300)));
  MUST(pair.a.queue_pair.send(pair.a.at(0, 8), 42));
  IbvWc got = wait_for(pair.b.queue_pair, PollTarget::Recv);
  EXPECT_EQ(got.opcode, IBV_WC_RECV);
  EXPECT_EQ(got.byte_len, 300);
  EXPECT_FALSE(got.has_imm());
  EXPECT_TRUE(pair.a.same(pair.b, 0, 0, 100));
  EXPECT_TRUE(pair.a.same(pair.b, 100, 1000, 200));
  got = wait_for(pair.b.queue_pair, PollTarget::Recv);
  EXPECT_EQ(got.imm_data, 42);
  EXPECT_EQ(got.byte_len, 8);
  EXPECT_EQ(wait_for(pair.a.queue_pair, PollTarget::Send).opcode, IBV_WC_SEND);
}

CONNECTED_TEST(Operations, InlineDataIsFreeAgainAtOnce) {
  IbverbsConfig config;
  config.max_inline_data = 200;
  Pair pair(config);
  std::string text(200, '?');
  for (std::size_t i = 0; i != text.size(); ++i) text[i] = static_cast<char>('a' + i % 26);
  const std::string kept = text;
  // Many times, so that the bytes also wrap around the ring's end.
  for (std::uint64_t i = 0; i != 2000; ++i) {
    text = kept;
    const std::size_t size = i % 201;
    MUST(pair.a.queue_pair.put_inline(std::as_bytes(std::span(text)).first(size), pair.b.at(0, 200)));
    text.assign(200, '!');
    ASSERT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
    ASSERT_EQ(std::string(pair.b.memory.data<char>(), size), kept.substr(0, size));
  }
  EXPECT_EQ(pair.a.queue_pair.put_inline(std::vector<std::byte>(201), pair.b.at(0, 201)).error().code(),
            ErrorCode::invalid_argument);
}

CONNECTED_TEST(Operations, PiecesAreGatheredAndScattered) {
  IbverbsConfig config;
  config.max_send_sge = 30;
  Pair pair(config);
  pair.a.fill(0, 100'000, 5);
  std::vector<RdmaBuffer> pieces;
  std::uint64_t total = 0;
  for (std::uint64_t i = 0; i != 30; ++i) {
    pieces.push_back(pair.a.at(total, i * 11));
    total += i * 11;
  }
  MUST(pair.a.queue_pair.put(pieces, pair.b.at(0, total)));
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  EXPECT_TRUE(pair.a.same(pair.b, 0, 0, total));
  pair.b.fill(0, total, 77);
  MUST(pair.a.queue_pair.get(pieces, pair.b.at(0, total)));
  EXPECT_EQ(wait_for(pair.a.queue_pair, PollTarget::Send).byte_len, total);
  EXPECT_TRUE(pair.a.same(pair.b, 0, 0, total));
}

CONNECTED_TEST(Operations, AtomicsChangeTheWordAndReturnWhatWasThere) {
  Pair pair;
  auto* word = reinterpret_cast<std::uint64_t*>(pair.b.memory.data() + 8);
  const auto* before = reinterpret_cast<const std::uint64_t*>(pair.a.memory.data());
  *word = 40;
  MUST(pair.a.queue_pair.fetch_add(pair.a.at(0, 8), pair.b.at(8, 8), 2));
  IbvWc wc = wait_for(pair.a.queue_pair, PollTarget::Send);
  EXPECT_EQ(wc.opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(wc.byte_len, 8);
  EXPECT_EQ(*word, 42);
  EXPECT_EQ(*before, 40);
  MUST(pair.a.queue_pair.compare_swap(pair.a.at(0, 8), pair.b.at(8, 8), 41, 1));
  wc = wait_for(pair.a.queue_pair, PollTarget::Send);
  EXPECT_EQ(wc.opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(*word, 42);
  EXPECT_EQ(*before, 42);
  MUST(pair.a.queue_pair.compare_swap(pair.a.at(0, 8), pair.b.at(8, 8), 42, 1));
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  EXPECT_EQ(*word, 1);
}

CONNECTED_TEST(Operations, LocalLongerThanRemoteIsRefused) {
  Pair pair;
  EXPECT_EQ(pair.a.queue_pair.put(pair.a.at(0, 9), pair.b.at(0, 8)).error().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(pair.a.queue_pair.get(pair.a.at(0, 9), pair.b.at(0, 8)).error().code(),
            ErrorCode::invalid_argument);
  EXPECT_COUNTERS(pair.a.queue_pair, send, 0, 0, 0);
}

// --- Ringing ---

CONNECTED_TEST(Ringing, WhatWasNotRungDoesNotRun) {
  Pair pair;
  pair.a.fill(0, 8, 1);
  MUST(pair.a.queue_pair.enqueue_put(pair.a.at(0, 8), pair.b.at(0, 8)));
  EXPECT_COUNTERS(pair.a.queue_pair, send, 1, 0, 0);
  // Other traffic through the same NIC gives it every chance to run ahead.
  Pair other;
  for (int i = 0; i != 50; ++i) {
    MUST(other.a.queue_pair.put(other.a.at(0, 8), other.b.at(0, 8)));
    EXPECT_TRUE(wait_for(other.a.queue_pair, PollTarget::Send).is_valid());
  }
  EXPECT_FALSE(MUST(pair.a.queue_pair.poll_send_completion()));
  EXPECT_FALSE(pair.a.same(pair.b, 0, 0, 8));
  MUST(pair.a.queue_pair.ring_doorbell());
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  EXPECT_TRUE(pair.a.same(pair.b, 0, 0, 8));
  EXPECT_COUNTERS(pair.a.queue_pair, send, 1, 1, 1);
}

CONNECTED_TEST(Ringing, PutAndEnqueueMixFreely) {
  Pair pair;
  pair.a.fill(0, 4096, 8);
  std::vector<WrId> ids;
  for (std::uint64_t i = 0; i != 64; ++i) {
    const RdmaBuffer l = pair.a.at(i * 64, 64);
    const RdmaBuffer r = pair.b.at(i * 64, 64);
    switch (i % 4) {
      case 0:
        ids.push_back(MUST(pair.a.queue_pair.enqueue_put(l, r)));
        break;
      case 1:
        ids.push_back(MUST(pair.a.queue_pair.put(l, r)));
        break;
      case 2:
        ids.push_back(MUST(pair.a.queue_pair.enqueue_get(pair.a.at(100'000, 64), r)));
        break;
      default:
        ids.push_back(MUST(pair.a.queue_pair.enqueue_put(l, r)));
    }
  }
  MUST(pair.a.queue_pair.ring_doorbell());
  for (const WrId id : ids) {
    const IbvWc wc = wait_for(pair.a.queue_pair, PollTarget::Send);
    EXPECT_TRUE(wc.is_valid()) << wc;
    EXPECT_EQ(wc.wr_id, id);
  }
  for (std::uint64_t i = 0; i != 64; ++i) {
    EXPECT_TRUE(i % 4 == 2 || pair.a.same(pair.b, i * 64, i * 64, 64)) << i;
  }
  EXPECT_COUNTERS(pair.a.queue_pair, send, 64, 64, 64);
}

CONNECTED_TEST(Ringing, SomebodyElseCanRingTheDoorbell) {
  Pair pair;
  if (!is_mlx5(pair.a.queue_pair)) {
    EXPECT_EQ(pair.a.queue_pair.get_doorbell().error().code(), ErrorCode::unsupported);
    return;
  }
  pair.a.fill(0, 16, 4);
  for (std::uint64_t i = 0; i != 2; ++i) {
    MUST(pair.a.queue_pair.enqueue_put(pair.a.at(i * 8, 8), pair.b.at(i * 8, 8)));
  }
  const DoorBell doorbell = MUST(pair.a.queue_pair.get_doorbell());
  EXPECT_EQ(doorbell.size, 8);
  doorbell.ring();
  EXPECT_COUNTERS(pair.a.queue_pair, send, 2, 2, 0);
  for (int i = 0; i != 2; ++i) EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  EXPECT_TRUE(pair.a.same(pair.b, 0, 0, 16));
}

CONNECTED_TEST(Ringing, FullQueueIsRefusedAndGoesOnAfterPolling) {
  IbverbsConfig config;
  config.max_send_wr = 16;
  Pair pair(config);
  std::uint64_t posted = 0;
  for (;;) {
    const Result<WrId> id = pair.a.queue_pair.enqueue_put(pair.a.at(0, 8), pair.b.at(0, 8));
    if (!id) {
      EXPECT_EQ(id.error().code(), ErrorCode::queue_full) << id.error();
      break;
    }
    ++posted;
  }
  EXPECT_GE(posted, 16);
  EXPECT_COUNTERS(pair.a.queue_pair, send, posted, 0, 0);
  MUST(pair.a.queue_pair.ring_doorbell());
  for (std::uint64_t i = 0; i != posted; ++i)
    EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  MUST(pair.a.queue_pair.put(pair.a.at(0, 8), pair.b.at(0, 8)));
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
}

CONNECTED_TEST(Ringing, UnsignaledWorkCompletesInSilence) {
  Pair pair;
  pair.a.fill(0, 1000, 6);
  for (int i = 0; i != 5000; ++i) {
    Result<WrId> id = pair.a.queue_pair.put(pair.a.at(0, 1000), pair.b.at(0, 1000), Signal::No);
    while (!id) {
      ASSERT_EQ(id.error().code(), ErrorCode::queue_full);
      ASSERT_FALSE(MUST(pair.a.queue_pair.poll_send_completion()));
      id = pair.a.queue_pair.put(pair.a.at(0, 1000), pair.b.at(0, 1000), Signal::No);
    }
  }
  WrId last{};
  for (;;) {
    const Result<WrId> id = pair.a.queue_pair.put(pair.a.at(0, 1000), pair.b.at(0, 1000));
    if (id) {
      last = *id;
      break;
    }
    ASSERT_EQ(id.error().code(), ErrorCode::queue_full);
    ASSERT_FALSE(MUST(pair.a.queue_pair.poll_send_completion()));
  }
  const IbvWc wc = wait_for(pair.a.queue_pair, PollTarget::Send);
  EXPECT_EQ(wc.wr_id, last);
  EXPECT_COUNTERS(pair.a.queue_pair, send, 5001, 5001, 5001);
  EXPECT_TRUE(pair.a.same(pair.b, 0, 0, 1000));
}

CONNECTED_TEST(Ringing, MoreThan65536OperationsInBatches) {
  Pair pair;
  std::uint64_t done = 0;
  auto* word = reinterpret_cast<std::uint64_t*>(pair.a.memory.data());
  for (std::uint64_t batch = 0; batch != 1100; ++batch) {
    for (std::uint64_t i = 0; i != 64; ++i) {
      word[i] = batch * 64 + i;
      MUST(pair.a.queue_pair.enqueue_put(pair.a.at(i * 8, 8), pair.b.at(i * 8, 8)));
    }
    MUST(pair.a.queue_pair.ring_doorbell());
    for (std::uint64_t i = 0; i != 64; ++i) {
      const IbvWc wc = wait_for(pair.a.queue_pair, PollTarget::Send);
      ASSERT_TRUE(wc.is_valid()) << wc;
      ASSERT_EQ(wc.wr_id, WrId{done++});
    }
    ASSERT_TRUE(pair.a.same(pair.b, 0, 0, 512));
  }
  EXPECT_COUNTERS(pair.a.queue_pair, send, 70'400, 70'400, 70'400);
}

CONNECTED_TEST(Ringing, MoreThan65536Receives) {
  Pair pair;
  constexpr std::uint64_t kBatch = 100;
  for (std::uint64_t first = 0; first != 66'000; first += kBatch) {
    for (std::uint64_t i = first; i != first + kBatch; ++i) {
      ASSERT_EQ(MUST(pair.b.queue_pair.recv(pair.b.at(0, 0))), WrId{i});
    }
    for (std::uint64_t i = first; i != first + kBatch; ++i) {
      MUST(pair.a.queue_pair.put_with_recv(pair.a.at(0, 0), pair.b.at(0, 0), static_cast<std::uint32_t>(i),
                                           Signal::No));
    }
    for (std::uint64_t i = first; i != first + kBatch; ++i) {
      const IbvWc wc = wait_for(pair.b.queue_pair, PollTarget::Recv);
      ASSERT_EQ(wc.wr_id, WrId{i});
      ASSERT_EQ(wc.imm_data, i);
      ASSERT_FALSE(MUST(pair.a.queue_pair.poll_send_completion()));
    }
  }
  EXPECT_COUNTERS(pair.b.queue_pair, recv, 66'000, 66'000, 66'000);
}

// --- Completions ---

CONNECTED_TEST(Completions, ManyAreTakenAtOnce) {
  Pair pair;
  for (std::uint64_t i = 0; i != 32; ++i) MUST(pair.a.queue_pair.put(pair.a.at(0, 8), pair.b.at(0, 8)));
  std::vector<IbvWc> all;
  std::vector<IbvWc> some(10);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (all.size() != 32 && std::chrono::steady_clock::now() < deadline) {
    const std::size_t count = MUST(pair.a.queue_pair.poll_completions(PollTarget::Send, some));
    ASSERT_LE(count, some.size());
    all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
  }
  ASSERT_EQ(all.size(), 32);
  for (std::uint64_t i = 0; i != 32; ++i) EXPECT_EQ(all[i].wr_id, WrId{i});
}

CONNECTED_TEST(Completions, OfAllKindsAreTakenInOrder) {
  Pair pair;
  std::byte word[8]{};
  for (int i = 0; i != 3; ++i) MUST(pair.a.queue_pair.enqueue_put(pair.a.at(0, 8), pair.b.at(0, 8)));
  MUST(pair.a.queue_pair.enqueue_get(pair.a.at(64, 16), pair.b.at(64, 16)));
  MUST(pair.a.queue_pair.enqueue_put_inline(word, pair.b.at(8, 8)));
  MUST(pair.a.queue_pair.enqueue_put(pair.a.at(0, 0), pair.b.at(0, 8)));
  RdmaBuffer wrong = pair.b.at(0, 8);
  wrong.rkey ^= 0x100;
  MUST(pair.a.queue_pair.enqueue_put(pair.a.at(0, 8), wrong));
  MUST(pair.a.queue_pair.enqueue_put(pair.a.at(0, 8), pair.b.at(0, 8)));
  MUST(pair.a.queue_pair.ring_doorbell());
  EXPECT_EQ(MUST(pair.a.queue_pair.poll_completions(PollTarget::Send, {})), 0);
  std::vector<IbvWc> some(64);
  std::vector<IbvWc> all;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (all.size() != 8 && std::chrono::steady_clock::now() < deadline) {
    const std::size_t count = MUST(pair.a.queue_pair.poll_completions(PollTarget::Send, some));
    all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
  }
  ASSERT_EQ(all.size(), 8);
  for (std::uint64_t i = 0; i != 8; ++i) {
    EXPECT_EQ(all[i].wr_id, WrId{i});
    EXPECT_EQ(all[i].is_valid(), i < 6);
  }
  EXPECT_EQ(all[3].opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(all[3].byte_len, 16);
  EXPECT_EQ(all[6].status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(all[7].status, IBV_WC_WR_FLUSH_ERR);
}

CONNECTED_TEST(Completions, BothSidesTakeTurns) {
  Pair pair;
  constexpr int kEach = 20;
  for (int i = 0; i != kEach; ++i) MUST(pair.b.queue_pair.recv(pair.b.at(0, 8)));
  for (int i = 0; i != kEach; ++i) {
    MUST(pair.a.queue_pair.send(pair.a.at(0, 8)));
    MUST(pair.b.queue_pair.put(pair.b.at(0, 8), pair.a.at(0, 8)));
  }
  for (int i = 0; i != kEach; ++i) EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  int sends = 0;
  int receives = 0;
  for (int i = 0; i != 2 * kEach; ++i) {
    const IbvWc wc = wait_for(pair.b.queue_pair, PollTarget::Both);
    EXPECT_TRUE(wc.is_valid());
    (wc.is_receive() ? receives : sends) += 1;
  }
  EXPECT_EQ(sends, kEach);
  EXPECT_EQ(receives, kEach);
}

CONNECTED_TEST(Completions, CanBeWaitedForWithoutPolling) {
  IbverbsConfig config;
  config.completion_events = true;
  Pair pair(config);
  for (int round = 0; round != 5; ++round) {
    for (auto& [queue_pair, target] :
         {std::pair{&pair.a.queue_pair, PollTarget::Send}, {&pair.b.queue_pair, PollTarget::Recv}}) {
      MUST(queue_pair->arm(target));
    }
    MUST(pair.b.queue_pair.recv(pair.b.at(0, 8)));
    MUST(pair.a.queue_pair.send(pair.a.at(0, 8)));
    for (auto& [queue_pair, target] :
         {std::pair{&pair.a.queue_pair, PollTarget::Send}, {&pair.b.queue_pair, PollTarget::Recv}}) {
      pollfd waiting{MUST(queue_pair->completion_fd()), POLLIN, 0};
      ASSERT_EQ(::poll(&waiting, 1, 30'000), 1);
      EXPECT_EQ(MUST(queue_pair->take_events()), 1);
      EXPECT_EQ(MUST(queue_pair->take_events()), 0);  // and does not block
      std::optional<IbvWc> wc = MUST(queue_pair->poll_completion_target(target));
      ASSERT_TRUE(wc);
      EXPECT_TRUE(wc->is_valid());
      EXPECT_FALSE(MUST(queue_pair->poll_completion_target(target)));
    }
  }
}

CONNECTED_TEST(Completions, EventsHaveToBeAskedForAtCreation) {
  Pair pair;
  EXPECT_EQ(pair.a.queue_pair.completion_fd().error().code(), ErrorCode::unsupported);
  EXPECT_EQ(pair.a.queue_pair.arm(PollTarget::Both).error().code(), ErrorCode::unsupported);
  EXPECT_EQ(pair.a.queue_pair.take_events().error().code(), ErrorCode::unsupported);
}

}  // namespace
}  // namespace qpair::test
