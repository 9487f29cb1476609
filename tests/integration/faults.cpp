// What a bad network and a dying peer do to a pair of queue pairs: nothing that a program could see, and an
// error in time. Two processes, each with a NIC of its own; the faults come from a seed.

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "qpair/qpair.hpp"
#include "tests/support/must.hpp"
#include "tests/support/peer_main.hpp"
#include "tests/support/peer_process.hpp"

namespace {

using qpair::IbvWc;
using qpair::MemoryRegion;
using qpair::PollTarget;
using qpair::RdmaBuffer;
using qpair::RdmaDomain;
using qpair::RdmaQueuePair;
using qpair::Result;
using qpair::testing::Failed;
using qpair::testing::must;

void require(bool condition, const std::string& what) {
  if (!condition) throw Failed(what);
}

// One side of the storm. The peer's exposed memory is written by this side alone, so a copy kept here says
// what every byte of it must be. A block takes part in one operation of a round: the order of a read and a
// later write is not defined (IBTA vol. 1 table 79), that of everything else is.
class StormSide {
 public:
  static constexpr std::size_t kBlocks = 256;
  static constexpr std::size_t kBlockSize = 16384;
  static constexpr std::size_t kCounters = 32;
  static constexpr std::size_t kReceives = 256;
  static constexpr std::size_t kMessageSize = 4096;
  static constexpr std::size_t kRound = 64;

  StormSide(int socket, std::uint64_t seed)
      : socket_(socket),
        random_(seed),
        domain_(must(RdmaDomain::create(), "open the device")),
        exposed_(must(domain_.allocate(kBlocks * kBlockSize + kCounters * 8), "allocate")),
        work_(must(domain_.allocate(kRound * kBlockSize), "allocate")),
        mailbox_(must(domain_.allocate(kReceives * kMessageSize), "allocate")),
        queue_pair_(must(RdmaQueuePair::create(domain_, config()), "create the queue pair")),
        model_(exposed_.size()) {
    remote_ = must(qpair::exchange_value(socket_, exposed_.buffer()), "exchange buffers");
    const auto peer =
        must(qpair::exchange_qp_info(socket_, must(queue_pair_.get_qp_info(), "info")), "exchange");
    must(queue_pair_.connect(peer), "connect");
    for (std::size_t slot = 0; slot < kReceives; ++slot) post_receive(slot);
    meet();
  }

  void run(std::uint64_t operations) {
    for (std::uint64_t done = 0; done < operations; done += kRound) round();
    // The peer may have many rounds to go, and needs receives for them.
    char done = 'd';
    require(::send(socket_, &done, 1, 0) == 1, "the peer is gone");
    ssize_t got = 0;
    while ((got = ::recv(socket_, &done, 1, MSG_DONTWAIT)) < 0) poll_receives();
    require(got == 1, "the peer is gone");
    const std::uint64_t mine = messages_sent_;
    const std::uint64_t expected = must(exchange_number(mine), "exchange");
    while (messages_received_ < expected) poll_receives();
    meet();
    poll_receives();
    require(messages_received_ == expected, "more messages arrived than were sent");
    check_exposed_against_the_peers_model();
  }

 private:
  static qpair::IbverbsConfig config() {
    qpair::IbverbsConfig config;
    config.qp_timeout = 13;  // 34 ms: what is lost comes soon, and a busy machine is no reason to give up
    config.min_rnr_timer = 1;
    return config;
  }

  Result<std::uint64_t> exchange_number(std::uint64_t mine) {
    std::string bytes(sizeof mine, '\0');
    std::memcpy(bytes.data(), &mine, sizeof mine);
    auto theirs = qpair::exchange(socket_, bytes, std::chrono::minutes(2));
    if (!theirs) return tl::unexpected(theirs.error());
    std::uint64_t number = 0;
    std::memcpy(&number, theirs->data(), std::min(theirs->size(), sizeof number));
    return number;
  }
  void meet() { must(exchange_number(0), "wait for the peer"); }

  void post_receive(std::size_t slot) {
    must(queue_pair_.recv(must(mailbox_.slice(slot * kMessageSize, kMessageSize), "slice")), "recv");
    slots_.push_back(slot);
  }

  std::uint64_t pick(std::uint64_t below) {
    return std::uniform_int_distribution<std::uint64_t>(0, below - 1)(random_);
  }

  std::size_t some_size(std::size_t most) {
    switch (pick(8)) {
      case 0:
        return 0;
      case 1:
        return most;
      case 2:
        return 1 + pick(most);
      default:
        return 1 + pick(std::min<std::size_t>(most, 2048));
    }
  }

  void fill(std::span<std::byte> bytes) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
  }

  struct Pending {
    std::size_t slot;               // of work_
    std::vector<std::byte> expect;  // what work_ must hold when it is done; empty: nothing to check
  };

  void round() {
    std::vector<std::size_t> blocks(kBlocks);
    std::iota(blocks.begin(), blocks.end(), 0U);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    std::vector<std::pair<qpair::WrId, Pending>> pending;
    for (std::size_t i = 0; i < kRound; ++i) {
      Pending operation{i, {}};
      const auto id = must(post(i, blocks[i], operation), "post");
      pending.emplace_back(id, std::move(operation));
    }
    must(queue_pair_.ring_doorbell(), "ring");
    std::size_t completed = 0;
    while (completed < pending.size()) {
      std::array<IbvWc, 16> completions;
      const std::size_t n = must(queue_pair_.poll_completions(PollTarget::Send, completions), "poll");
      for (std::size_t i = 0; i < n; ++i) {
        const IbvWc& wc = completions[i];
        require(wc.is_valid(), "an operation failed: " + to_string(wc));
        require(wc.wr_id == pending[completed].first, "a completion is lost, doubled or out of order");
        const Pending& operation = pending[completed].second;
        require(std::equal(operation.expect.begin(), operation.expect.end(),
                           work_.bytes().subspan(operation.slot * kBlockSize).begin()),
                "what was read is not what was written");
        ++completed;
      }
      poll_receives();
    }
  }

  Result<qpair::WrId> post(std::size_t slot, std::size_t block, Pending& operation) {
    const std::uint64_t at = block * kBlockSize;
    const bool ring = pick(4) == 0;
    auto local = [&](std::size_t size) { return must(work_.slice(slot * kBlockSize, size), "slice"); };
    auto bytes = [&](std::size_t size) { return work_.bytes().subspan(slot * kBlockSize, size); };
    switch (pick(7)) {
      case 0:
      case 1: {
        const std::size_t size = some_size(kBlockSize);
        fill(bytes(size));
        std::ranges::copy(bytes(size), model_.begin() + static_cast<std::ptrdiff_t>(at));
        const RdmaBuffer r = must(remote_.slice(at, size), "slice");
        return ring ? queue_pair_.put(local(size), r) : queue_pair_.enqueue_put(local(size), r);
      }
      case 2: {
        const std::size_t size = some_size(kBlockSize);
        const auto from = model_.begin() + static_cast<std::ptrdiff_t>(at);
        operation.expect.assign(from, from + static_cast<std::ptrdiff_t>(size));
        const RdmaBuffer r = must(remote_.slice(at, size), "slice");
        return ring ? queue_pair_.get(local(size), r) : queue_pair_.enqueue_get(local(size), r);
      }
      case 3: {
        const std::size_t size = some_size(kBlockSize);
        fill(bytes(size));
        std::ranges::copy(bytes(size), model_.begin() + static_cast<std::ptrdiff_t>(at));
        const RdmaBuffer r = must(remote_.slice(at, size), "slice");
        return queue_pair_.enqueue_put_with_recv(local(size), r,
                                                 static_cast<std::uint32_t>(messages_sent_++));
      }
      case 4: {
        const std::size_t size = some_size(kMessageSize);
        std::ranges::fill(bytes(size), static_cast<std::byte>(messages_sent_));
        return queue_pair_.enqueue_send(local(size), static_cast<std::uint32_t>(messages_sent_++));
      }
      case 5: {
        const std::uint64_t add = random_();
        const std::uint64_t old = counter(pick(kCounters), [&](std::uint64_t value) { return value + add; });
        expect_original(operation, old);
        return queue_pair_.enqueue_fetch_add(local(8), counter_buffer_, add);
      }
      default: {
        const bool match = pick(2) == 0;
        const std::uint64_t swap = random_();
        const std::uint64_t old =
            counter(pick(kCounters), [&](std::uint64_t value) { return match ? swap : value; });
        expect_original(operation, old);
        return queue_pair_.enqueue_compare_swap(local(8), counter_buffer_, match ? old : ~old, swap);
      }
    }
  }

  // Changes a counter in the model; returns what it was. counter_buffer_ is then the remote one.
  template <typename Change>
  std::uint64_t counter(std::size_t index, Change change) {
    const std::size_t at = kBlocks * kBlockSize + index * 8;
    std::uint64_t value = 0;
    std::memcpy(&value, &model_[at], 8);
    const std::uint64_t next = change(value);
    std::memcpy(&model_[at], &next, 8);
    counter_buffer_ = must(remote_.slice(at, 8), "slice");
    return value;
  }

  static void expect_original(Pending& operation, std::uint64_t value) {
    operation.expect.resize(8);
    std::memcpy(operation.expect.data(), &value, 8);
  }

  // Messages come once each, in order; the bytes of a SEND say which one it is.
  void poll_receives() {
    std::array<IbvWc, 16> completions;
    const std::size_t n = must(queue_pair_.poll_completions(PollTarget::Recv, completions), "poll");
    for (std::size_t i = 0; i < n; ++i) {
      const IbvWc& wc = completions[i];
      require(wc.is_valid(), "a receive failed: " + to_string(wc));
      require(wc.imm_data == static_cast<std::uint32_t>(messages_received_),
              "a message is lost, doubled or out of order");
      const std::size_t slot = slots_.front();
      slots_.erase(slots_.begin());
      if (wc.opcode == IBV_WC_RECV) {
        for (const std::byte byte : mailbox_.bytes().subspan(slot * kMessageSize, wc.byte_len)) {
          require(byte == static_cast<std::byte>(messages_received_),
                  "a message has other bytes than were sent");
        }
      }
      ++messages_received_;
      post_receive(slot);
    }
  }

  // Each side sends the model of what it wrote; the other compares its memory with it.
  void check_exposed_against_the_peers_model() {
    constexpr std::size_t kPiece = 1 << 19;
    for (std::size_t at = 0; at < model_.size(); at += kPiece) {
      const std::size_t size = std::min(kPiece, model_.size() - at);
      const auto theirs = must(
          qpair::exchange(socket_, {reinterpret_cast<const char*>(model_.data()) + at, size}), "exchange");
      require(theirs.size() == size && std::memcmp(theirs.data(), exposed_.bytes().data() + at, size) == 0,
              "the exposed memory is not what the peer wrote");
    }
  }

  int socket_;
  std::mt19937_64 random_;
  RdmaDomain domain_;
  MemoryRegion exposed_;
  MemoryRegion work_;
  MemoryRegion mailbox_;
  RdmaQueuePair queue_pair_;
  RdmaBuffer remote_;
  RdmaBuffer counter_buffer_;
  std::vector<std::byte> model_;
  std::vector<std::size_t> slots_;
  std::uint64_t messages_sent_ = 0;
  std::uint64_t messages_received_ = 0;
};

std::uint64_t storm_operations() {
  const char* text = std::getenv("QPAIR_TEST_OPERATIONS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 100'000;
}

void make_the_network_bad() {
  setenv("QPAIR_NIC_LOSS", "1%", 1);
  setenv("QPAIR_NIC_DUPLICATE", "1%", 1);
  setenv("QPAIR_NIC_REORDER", "1%", 1);
  setenv("QPAIR_NIC_SEED", "20", 1);
}

TEST(Faults, a_hundred_thousand_mixed_operations_survive_loss_duplicates_and_reordering) {
  make_the_network_bad();  // before this process touches the NIC; the peer inherits it
  qpair::testing::PeerProcess peer("storm");
  try {
    StormSide(peer.socket(), 1).run(storm_operations() / 2);
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
  EXPECT_EQ(peer.wait(), 0);
}

// A target that lets the other side write into 64 MiB.
void serve(int socket) {
  const RdmaDomain domain = must(RdmaDomain::create(), "open the device");
  const MemoryRegion memory = must(domain.allocate(64U << 20), "allocate");
  RdmaQueuePair queue_pair = must(RdmaQueuePair::create(domain), "create the queue pair");
  must(qpair::exchange_value(socket, memory.buffer()), "exchange buffers");
  const auto peer = must(qpair::exchange_qp_info(socket, must(queue_pair.get_qp_info(), "info")), "exchange");
  must(queue_pair.connect(peer), "connect");
  must(qpair::exchange(socket, "connected"), "exchange");
  char byte = 0;
  while (read(socket, &byte, 1) > 0) {
  }
}

RdmaBuffer meet_server(int socket, RdmaQueuePair& queue_pair, const RdmaBuffer& mine) {
  const auto remote = must(qpair::exchange_value(socket, mine), "exchange buffers");
  const auto info = must(qpair::exchange_qp_info(socket, must(queue_pair.get_qp_info(), "info")), "exchange");
  must(queue_pair.connect(info), "connect");
  must(qpair::exchange(socket, "connected"), "exchange");
  return remote;
}

TEST(Faults, a_killed_peer_ends_in_retries_exceeded_and_the_survivor_goes_on_with_another) {
  try {
    const RdmaDomain domain = must(RdmaDomain::create(), "open the device");
    const MemoryRegion memory = must(domain.allocate(64U << 20), "allocate");
    qpair::IbverbsConfig config;
    config.qp_timeout = 14;  // 67 ms
    config.retry_cnt = 3;
    RdmaQueuePair queue_pair = must(RdmaQueuePair::create(domain, config), "create the queue pair");
    {
      qpair::testing::PeerProcess peer("serve");
      const RdmaBuffer remote = meet_server(peer.socket(), queue_pair, memory.buffer());
      must(queue_pair.put(memory.buffer(), remote), "put");  // and see that it works
      for (;;) {
        if (must(queue_pair.poll_send_completion(), "first put")) break;
      }
      for (int i = 0; i < 8; ++i) must(queue_pair.put(memory.buffer(), remote), "put");
      peer.kill();
      peer.wait();
      // What was posted before may be there already: this is not.
      must(queue_pair.put(memory.buffer(), remote), "put");
      const auto killed = std::chrono::steady_clock::now();
      // What completed before the kill is fine; then one failure, and the rest is flushed.
      std::vector<IbvWc> completions;
      while (completions.size() < 9) {
        IbvWc wc;
        if (must(queue_pair.poll_completions(PollTarget::Send, {&wc, 1}), "poll") == 1)
          completions.push_back(wc);
        // IBTA vol. 1 9.7.6.1.3: a timeout lasts between once and four times 4.096 us * 2^timeout; the rest
        // is slack for a loaded machine.
        const auto most =
            4 * std::chrono::microseconds(67'109) * (config.retry_cnt + 1) + std::chrono::seconds(20);
        require(std::chrono::steady_clock::now() - killed < most, "the failure did not come in time");
      }
      const auto failure = std::ranges::find_if_not(completions, &IbvWc::is_valid);
      ASSERT_NE(failure, completions.end());
      EXPECT_EQ(failure->status, IBV_WC_RETRY_EXC_ERR);
      EXPECT_EQ(failure->vendor_err, 0x81U);
      EXPECT_EQ(failure->error()->code(), qpair::ErrorCode::transport_retry_exceeded);
      for (auto wc = failure + 1; wc != completions.end(); ++wc) {
        EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc->vendor_err, 0xf9U);
      }
      EXPECT_EQ(must(queue_pair.state(), "state"), IBV_QPS_ERR);
    }
    must(queue_pair.reset(), "reset");
    qpair::testing::PeerProcess other("serve");
    const RdmaBuffer remote = meet_server(other.socket(), queue_pair, memory.buffer());
    memory.bytes()[12345] = std::byte{77};
    must(queue_pair.put(memory.buffer(), remote), "put to the new peer");
    while (!must(queue_pair.poll_send_completion(), "the new peer's completion")) {
    }
    memory.bytes()[12345] = std::byte{0};
    must(queue_pair.get(memory.buffer(), remote), "get from the new peer");
    while (!must(queue_pair.poll_send_completion(), "the new peer's completion")) {
    }
    EXPECT_EQ(memory.bytes()[12345], std::byte{77});
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

}  // namespace

int main(int count, char** arguments) {
  return qpair::testing::run_tests_or_peer(count, arguments, [](const std::string& role, int socket) {
    if (role == "storm") StormSide(socket, 2).run(storm_operations() / 2);
    if (role == "serve") serve(socket);
  });
}
