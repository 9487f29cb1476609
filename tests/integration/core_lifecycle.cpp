// Making, connecting, failing, resetting and destroying queue pairs.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "src/queue_pair_state.hpp"
#include "tests/integration/core_fixture.hpp"

namespace qpair::test {
namespace {

ibv_qp_state state_of(const Side& side) {
  return MUST(side.queue_pair.state());
}

RdmaBuffer with_rkey(RdmaBuffer buffer, std::uint32_t rkey) {
  buffer.rkey = rkey;
  return buffer;
}

TEST(Creation, StartsInResetWithAutomaticFieldsChosen) {
  const Side side;
  EXPECT_EQ(state_of(side), IBV_QPS_RESET);
  EXPECT_COUNTERS(side.queue_pair, send, 0, 0, 0);
  const IbverbsConfig& config = side.queue_pair.config();
  EXPECT_EQ(config.device, shared_domain().device_name());
  EXPECT_TRUE(config.path_mtu);
  EXPECT_EQ(config.max_rd_atomic, 16);
  EXPECT_TRUE(config.gid_index);
  const RdmaQpInfo info = MUST(side.queue_pair.get_qp_info());
  EXPECT_EQ(info.qp_num, side.queue_pair.qp()->qp_num);
  ASSERT_TRUE(info.gid);
  EXPECT_EQ(info.gid->is_ipv4_mapped(), !is_iwarp());
  EXPECT_EQ(info.psn, config.psn);
  EXPECT_EQ(info.generation, 0);
}

TEST(Creation, GivesTheRawHandles) {
  const Side side;
  EXPECT_EQ(side.queue_pair.context(), shared_domain().context());
  EXPECT_EQ(side.queue_pair.qp()->send_cq, side.queue_pair.send_cq());
  EXPECT_EQ(side.queue_pair.qp()->recv_cq, side.queue_pair.recv_cq());
  if (!is_mlx5(side.queue_pair)) {
    EXPECT_EQ(side.queue_pair.dv_send_cq(), nullptr);
    EXPECT_EQ(side.queue_pair.dv_recv_cq(), nullptr);
    return;
  }
  EXPECT_GE(side.queue_pair.dv_qp()->sq.wqe_cnt, 512);
  EXPECT_GE(side.queue_pair.dv_send_cq()->cqe_cnt, side.queue_pair.dv_qp()->sq.wqe_cnt);
  EXPECT_GE(side.queue_pair.dv_recv_cq()->cqe_cnt, side.queue_pair.dv_qp()->rq.wqe_cnt);
}

TEST(Creation, RingsAreAsLargeAsAskedForAndNoLarger) {
  // One basic block for each put, and room for the completions: the promise of the defaults.
  const Side side;
  if (!is_mlx5(side.queue_pair)) GTEST_SKIP() << "rings are those of an mlx5";
  EXPECT_EQ(side.queue_pair.dv_qp()->sq.wqe_cnt, 512);
  EXPECT_EQ(side.queue_pair.dv_send_cq()->cqe_cnt, 512);
  EXPECT_EQ(side.queue_pair.dv_recv_cq()->cqe_cnt, 512);
}

TEST(Creation, TwoQueuePairsHaveDoorbellRegistersOfTheirOwn) {
  const Side one;
  const Side two;
  if (!is_mlx5(one.queue_pair)) GTEST_SKIP() << "registers are those of an mlx5";
  EXPECT_NE(one.queue_pair.dv_qp()->bf.reg, two.queue_pair.dv_qp()->bf.reg);
}

TEST(Creation, AnOutOfRangeConfigurationNamesFieldAndLimit) {
  if (!is_mlx5(Side().queue_pair)) GTEST_SKIP() << "limits are those of an mlx5";
  IbverbsConfig config;
  config.max_send_wr = 1'000'000;
  const Result<RdmaQueuePair> refused = RdmaQueuePair::create(shared_domain(), config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message().find("max_send_wr is 1000000; this device allows 1 to 32768"),
            std::string::npos)
      << refused.error();
  config = {};
  config.gid_index = std::uint8_t{200};
  EXPECT_NE(RdmaQueuePair::create(shared_domain(), config).error().message().find("gid_index is 200"),
            std::string::npos);
  config = {};
  config.device = "rxe7";
  EXPECT_EQ(RdmaQueuePair::create(shared_domain(), config).error().code(), ErrorCode::invalid_argument);
  config = {};
  config.max_send_wr = 32768;
  config.max_send_sge = 2;
  EXPECT_NE(RdmaQueuePair::create(shared_domain(), config)
                .error()
                .message()
                .find("max_send_wr is 32768; with max_send_sge 2 and max_inline_data 28 it needs 65536 basic "
                      "blocks, and "
                      "this device allows 32768"),
            std::string::npos);
  config = {};
  config.max_inline_data = 5000;
  EXPECT_EQ(RdmaQueuePair::create(shared_domain(), config).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(RdmaQueuePair::create(nullptr, nullptr).error().code(), ErrorCode::invalid_argument);
}

TEST(Creation, MoreThanThisDeviceAllowsIsRefusedWithTheLimit) {
  const auto most =
      static_cast<std::uint32_t>(MUST(RdmaDevice::find(shared_domain().device_name())).max_qp_wr);
  IbverbsConfig config;
  config.max_recv_wr = most + 1;
  const Result<RdmaQueuePair> refused = RdmaQueuePair::create(shared_domain(), config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  const std::string expected =
      "max_recv_wr is " + std::to_string(most + 1) + "; this device allows 1 to " + std::to_string(most);
  EXPECT_NE(refused.error().message().find(expected), std::string::npos) << refused.error();
}

TEST(Creation, LargestAndSmallestConfigurationsWork) {
  if (!is_mlx5(Side().queue_pair)) GTEST_SKIP() << "limits are those of an mlx5";
  IbverbsConfig small;
  small.max_send_wr = small.max_recv_wr = 1;
  small.max_inline_data = 0;
  IbverbsConfig large;
  large.max_send_wr = 2048;
  large.max_recv_wr = 32768;
  large.max_send_sge = large.max_recv_sge = 30;
  large.max_inline_data = 900;
  for (const IbverbsConfig& config : {small, large}) {
    Pair pair(config);
    MUST(pair.b.queue_pair.recv(pair.b.at(0, 8)));
    pair.a.fill(0, 8, 3);
    MUST(pair.a.queue_pair.send(pair.a.at(0, 8)));
    EXPECT_TRUE(wait_for(pair.b.queue_pair, PollTarget::Recv).is_valid());
    EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
    EXPECT_TRUE(pair.a.same(pair.b, 0, 0, 8));
  }
}

CONNECTED_TEST(Creation, ManyComeAndGoWithoutADescriptorLeft) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  IbverbsConfig config;
  config.completion_events = true;
  { const Pair warm_up(config); }
  const auto before = descriptors();
  for (int i = 0; i != 50; ++i) const Pair pair(config);
  EXPECT_EQ(descriptors(), before);
}

TEST(Creation, ADomainLivesAsLongAsWhatWasMadeFromIt) {
  std::optional<RdmaDomain> domain = MUST(RdmaDomain::create());
  MemoryRegion memory = MUST(domain->allocate(4096));
  RdmaQueuePair queue_pair = MUST(RdmaQueuePair::create(*domain));
  domain.reset();
  EXPECT_EQ(MUST(queue_pair.state()), IBV_QPS_RESET);
  MemoryRegion moved = std::move(memory);
  EXPECT_EQ(memory.buffer(), RdmaBuffer{});  // NOLINT(bugprone-use-after-move): a moved-from region is empty
  EXPECT_EQ(moved.size(), 4096);
}

// --- Memory ---

TEST(Memory, RegisteredBytesAreTheProgramsOwn) {
  std::vector<std::byte> bytes(100);
  const MemoryRegion region = MUST(shared_domain().register_buffer(bytes));
  EXPECT_EQ(region.buffer().addr, reinterpret_cast<std::uint64_t>(bytes.data()));
  EXPECT_EQ(region.buffer().size, 100);
  EXPECT_EQ(region.buffer().lkey, region.mr()->lkey);
  EXPECT_FALSE(region.slice(50, 51));
  EXPECT_EQ(shared_domain().register_buffer(nullptr, 10).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(shared_domain().register_buffer(bytes.data(), 0).error().code(), ErrorCode::invalid_argument);
  EXPECT_FALSE(shared_domain().register_buffer(reinterpret_cast<void*>(0x1000), 4096));
}

// The file behind an address, as another process would open it: its line of /proc/self/maps has the device
// and the inode.
std::optional<int> descriptor_of(const void* address) {
  std::ifstream maps("/proc/self/maps");
  unsigned long inode = 0;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    unsigned long found = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %lu", &begin, &end, &found) != 3) continue;
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    if (begin <= at && at < end) inode = found;
  }
  for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat status {};
    const int fd = std::stoi(open.path().filename());
    if (fstat(fd, &status) == 0 && status.st_ino == inode && inode != 0) return fd;
  }
  return {};
}

TEST(Memory, AllocatedBytesCanBeMappedElsewhere) {
  for (const std::size_t size : {std::size_t{4096}, std::size_t{100}, std::size_t{4} << 20}) {
    const MemoryRegion region = MUST(shared_domain().allocate(size));
    ASSERT_EQ(region.bytes().size(), size);
    EXPECT_EQ(region.buffer().addr % 4096, 0);
    EXPECT_EQ(std::count(region.bytes().begin(), region.bytes().end(), std::byte{}), size);
    const std::optional<int> file = descriptor_of(region.data());
    ASSERT_TRUE(file);
    EXPECT_NE(fcntl(*file, F_GETFD) & FD_CLOEXEC, 0);
    void* const view = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
    ASSERT_NE(view, MAP_FAILED);
    region.bytes()[size - 1] = std::byte{7};
    EXPECT_EQ(static_cast<std::byte*>(view)[size - 1], std::byte{7});
    munmap(view, size);
  }
}

TEST(Memory, TheFileBehindAllocatedBytesIsClosedWithThem) {
  std::optional<MemoryRegion> region = MUST(shared_domain().allocate(4096));
  const std::optional<int> file = descriptor_of(region->data());
  ASSERT_TRUE(file);
  MemoryRegion moved = std::move(*region);
  region.reset();
  EXPECT_NE(fcntl(*file, F_GETFD), -1);
  moved = MUST(shared_domain().allocate(4096));
  EXPECT_EQ(fcntl(*file, F_GETFD), -1);
}

// As from a device of the kernel's: programs end the thread that waits for asynchronous events so.
TEST(Events, AThreadThatWaitsForOneCanBeCancelled) {
  ibv_context* const context = shared_domain().context();
  pthread_t thread{};
  ASSERT_EQ(pthread_create(
                &thread, nullptr,
                [](void* of) -> void* {
                  ibv_async_event event{};
                  ibv_get_async_event(static_cast<ibv_context*>(of), &event);
                  return nullptr;
                },
                context),
            0);
  ASSERT_EQ(pthread_cancel(thread), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

TEST(Memory, AllocatingWorksWithoutADescriptor) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "UndefinedBehaviorSanitizer looks at objects through a pipe, for which it needs descriptors";
#endif
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const RdmaDomain& domain = shared_domain();
  rlimit none = limit;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Result<MemoryRegion> region = domain.allocate(4096);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_TRUE(region) << region.error();
  EXPECT_EQ(region->bytes()[4095], std::byte{});
}

TEST(Memory, AllocatingNothingOrMoreThanThereIsSaysSo) {
  EXPECT_EQ(shared_domain().allocate(0).error().code(), ErrorCode::invalid_argument);
  for (const std::size_t size : {~std::size_t{0}, std::size_t{1} << 62, std::size_t{1} << 47}) {
    const Result<MemoryRegion> refused = shared_domain().allocate(size);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::out_of_resources);
    EXPECT_NE(refused.error().message().find(fmt::format("cannot allocate {} bytes: this machine has", size)),
              std::string::npos)
        << refused.error();
  }
}

// Shared with the child, so the pages stay where the NIC knows them, whoever writes first after a fork.
CONNECTED_TEST(Memory, AllocatedBytesStayWithTheNicAfterAFork) {
  Pair pair;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pair.a.memory.bytes()[0] = std::byte{2};
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  pair.a.memory.bytes()[1] = std::byte{3};
  MUST(pair.a.queue_pair.put(pair.a.at(0, 2), pair.b.at(0, 2)));
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  EXPECT_EQ(pair.b.memory.bytes()[0], std::byte{2});
  EXPECT_EQ(pair.b.memory.bytes()[1], std::byte{3});
}

TEST(Memory, WhatIsNoDmaBufIsRefused) {
  const int fd = open("/dev/null", O_RDWR);
  EXPECT_FALSE(shared_domain().register_dmabuf(fd, 0, 4096, 0));
  close(fd);
}

// --- Connecting ---

TEST(Connecting, PostingComesAfterIt) {
  Side side;
  EXPECT_EQ(side.queue_pair.put(side.at(0, 8), side.at(8, 8)).error().code(), ErrorCode::not_connected);
  EXPECT_EQ(side.queue_pair.recv(side.at(0, 8)).error().code(), ErrorCode::not_connected);
  EXPECT_COUNTERS(side.queue_pair, send, 0, 0, 0);
  EXPECT_COUNTERS(side.queue_pair, recv, 0, 0, 0);
}

CONNECTED_TEST(Connecting, TakesTheSmallerMtu) {
  IbverbsConfig config;
  config.path_mtu = IBV_MTU_1024;
  Side a(4096, config);
  Side b;
  if (b.queue_pair.config().path_mtu < IBV_MTU_1024) GTEST_SKIP() << "the port has no larger MTU";
  connect(a, b);
  for (const Side* side : {&a, &b}) {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    ASSERT_EQ(ibv_query_qp(side->queue_pair.qp(), &attributes, IBV_QP_PATH_MTU, &initial), 0);
    EXPECT_EQ(attributes.path_mtu, IBV_MTU_1024);
  }
}

CONNECTED_TEST(Connecting, TwiceToTheSamePeerIsNothingAndToAnotherAnError) {
  Pair pair;
  const RdmaQpInfo peer = MUST(pair.b.queue_pair.get_qp_info());
  EXPECT_TRUE(pair.a.queue_pair.connect(peer));
  RdmaQpInfo another = peer;
  another.qp_num ^= 1;
  EXPECT_EQ(pair.a.queue_pair.connect(another).error().code(), ErrorCode::invalid_argument);
  MUST(pair.a.queue_pair.put(pair.a.at(0, 8), pair.b.at(0, 8)));
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
}

CONNECTED_TEST(Connecting, AnErrorNamesStepAndAttributeAndLeavesReset) {
  Side side;
  RdmaQpInfo peer = MUST(Side().queue_pair.get_qp_info());
  peer.gid.reset();
  const Result<void> refused = side.queue_pair.connect(peer);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("INIT → RTR: ah_attr.grh.dgid"), std::string::npos)
      << refused.error();
  peer = MUST(Side().queue_pair.get_qp_info());
  peer.qp_num = 0x1000000;
  EXPECT_NE(side.queue_pair.connect(peer).error().message().find("dest_qp_num"), std::string::npos);
  EXPECT_EQ(state_of(side), IBV_QPS_RESET);
  // …and nothing is in the way of connecting properly.
  Side other;
  connect(side, other);
  EXPECT_EQ(state_of(side), IBV_QPS_RTS);
}

// --- Failing ---

CONNECTED_TEST(Failing, WrongRkeyIsRemoteAccessThenEverythingIsFlushed) {
  Pair pair;
  const RdmaBuffer wrong = with_rkey(pair.b.at(0, 64), 0xdead00);
  MUST(pair.a.queue_pair.put(pair.a.at(0, 64), pair.b.at(0, 64)));
  MUST(pair.a.queue_pair.enqueue_put(pair.a.at(0, 64), wrong));
  for (int i = 0; i != 3; ++i) MUST(pair.a.queue_pair.enqueue_put(pair.a.at(0, 64), pair.b.at(0, 64)));
  MUST(pair.a.queue_pair.ring_doorbell());
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  const IbvWc failed = wait_for(pair.a.queue_pair, PollTarget::Send);
  EXPECT_EQ(failed.status, IBV_WC_REM_ACCESS_ERR) << failed;
  if (is_mlx5(pair.a.queue_pair)) {
    EXPECT_EQ(failed.vendor_err, 0x88);
  }
  EXPECT_EQ(failed.wr_id, WrId{1});
  EXPECT_EQ(failed.error()->code(), ErrorCode::remote_access);
  for (std::uint64_t i = 2; i != 5; ++i) {
    const IbvWc flushed = wait_for(pair.a.queue_pair, PollTarget::Send);
    EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR) << flushed;
    if (is_mlx5(pair.a.queue_pair)) {
      EXPECT_EQ(flushed.vendor_err, 0xf9);
    }
    EXPECT_EQ(flushed.wr_id, WrId{i});
  }
  EXPECT_COUNTERS(pair.a.queue_pair, send, 5, 5, 5);
  EXPECT_EQ(state_of(pair.a), IBV_QPS_ERR);
  // Work posted now is flushed too.
  MUST(pair.a.queue_pair.put(pair.a.at(0, 64), pair.b.at(0, 64)));
  EXPECT_EQ(wait_for(pair.a.queue_pair, PollTarget::Send).error()->code(), ErrorCode::flushed);
  EXPECT_EQ(pair.a.queue_pair.connect(MUST(pair.b.queue_pair.get_qp_info())).error().code(),
            ErrorCode::not_connected);
}

CONNECTED_TEST(Failing, PollingReturnsTheFailureAsAnErrorWithItsCompletion) {
  Pair pair;
  const WrId id = MUST(pair.a.queue_pair.put(pair.a.at(0, 64), with_rkey(pair.b.at(0, 64), 0)));
  Result<std::optional<IbvWc>> polled = std::optional<IbvWc>{};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (polled && !*polled && std::chrono::steady_clock::now() < deadline) {
    polled = pair.a.queue_pair.poll_send_completion();
  }
  ASSERT_FALSE(polled);
  EXPECT_EQ(polled.error().code(), ErrorCode::remote_access);
  ASSERT_TRUE(polled.error().wc());
  EXPECT_EQ(polled.error().wc()->wr_id, id);
  if (is_mlx5(pair.a.queue_pair)) {
    EXPECT_EQ(polled.error().vendor_err(), 0x88);
  }
  EXPECT_COUNTERS(pair.a.queue_pair, send, 1, 1, 1);
  EXPECT_FALSE(MUST(pair.a.queue_pair.poll_send_completion()));
}

CONNECTED_TEST(Failing, WrongLkeyIsLocalProtection) {
  Pair pair;
  RdmaBuffer wrong = pair.a.at(0, 64);
  wrong.lkey = 0xdead00;
  MUST(pair.a.queue_pair.put(wrong, pair.b.at(0, 64)));
  const IbvWc failed = wait_for(pair.a.queue_pair, PollTarget::Send);
  EXPECT_FALSE(failed.is_valid());
  if (is_mlx5(pair.a.queue_pair)) {
    EXPECT_EQ(failed.error()->code(), ErrorCode::local_protection) << failed;
    EXPECT_GE(failed.vendor_err, 0x51);
    EXPECT_LE(failed.vendor_err, 0x53);
  }
}

CONNECTED_TEST(Failing, ASendThatIsTooLongFailsOnBothSides) {
  Pair pair;
  MUST(pair.b.queue_pair.recv(pair.b.at(0, 10)));
  MUST(pair.a.queue_pair.send(pair.a.at(0, 20)));
  const IbvWc sent = wait_for(pair.a.queue_pair, PollTarget::Send);
  const IbvWc received = wait_for(pair.b.queue_pair, PollTarget::Recv);
  EXPECT_FALSE(sent.is_valid() || received.is_valid());
  if (is_mlx5(pair.a.queue_pair)) {
    EXPECT_EQ(sent.error()->code(), ErrorCode::length);
    EXPECT_EQ(received.error()->code(), ErrorCode::length);
  }
  EXPECT_TRUE(received.is_receive());
}

CONNECTED_TEST(Failing, PendingReceivesAreFlushed) {
  Pair pair;
  for (int i = 0; i != 3; ++i) MUST(pair.a.queue_pair.recv(pair.a.at(0, 8)));
  MUST(pair.a.queue_pair.put(pair.a.at(0, 64), with_rkey(pair.b.at(0, 64), 0)));
  EXPECT_FALSE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  for (std::uint64_t i = 0; i != 3; ++i) {
    const IbvWc flushed = wait_for(pair.a.queue_pair, PollTarget::Recv);
    EXPECT_EQ(flushed.error()->code(), ErrorCode::flushed);
    EXPECT_EQ(flushed.wr_id, WrId{i});
  }
  EXPECT_COUNTERS(pair.a.queue_pair, recv, 3, 3, 3);
}

// --- Resetting ---

CONNECTED_TEST(Resetting, MakesAFailedPairUsableAgain) {
  Pair pair;
  for (int round = 0; round != 5; ++round) {
    MUST(pair.a.queue_pair.put(pair.a.at(0, 64), with_rkey(pair.b.at(0, 64), 0)));
    MUST(pair.a.queue_pair.enqueue_put(pair.a.at(0, 64), pair.b.at(0, 64)));  // never rung
    EXPECT_FALSE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
    const RdmaQpInfo before = MUST(pair.a.queue_pair.get_qp_info());
    MUST(pair.a.queue_pair.reset());
    MUST(pair.b.queue_pair.reset());
    EXPECT_EQ(state_of(pair.a), IBV_QPS_RESET);
    const RdmaQpInfo after = MUST(pair.a.queue_pair.get_qp_info());
    EXPECT_NE(after.psn, before.psn);
    EXPECT_EQ(after.generation, before.generation + 1);
    EXPECT_EQ(pair.a.queue_pair.send_cq_idx(), pair.a.queue_pair.send_wqe_idx());
    EXPECT_EQ(pair.a.queue_pair.put(pair.a.at(0, 8), pair.b.at(0, 8)).error().code(),
              ErrorCode::not_connected);

    connect(pair.a, pair.b);
    pair.a.fill(0, 64, static_cast<unsigned>(round));
    const WrId id = MUST(pair.a.queue_pair.put(pair.a.at(0, 64), pair.b.at(0, 64)));
    const IbvWc wc = wait_for(pair.a.queue_pair, PollTarget::Send);
    EXPECT_TRUE(wc.is_valid()) << wc;
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_TRUE(pair.a.same(pair.b, 0, 0, 64));
    MUST(pair.b.queue_pair.recv(pair.b.at(100, 64)));
    MUST(pair.a.queue_pair.send(pair.a.at(0, 64)));
    EXPECT_TRUE(wait_for(pair.b.queue_pair, PollTarget::Recv).is_valid());
    EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  }
}

CONNECTED_TEST(Resetting, OldCompletionsAreNotTakenForNewOnes) {
  Pair pair;
  for (int i = 0; i != 10; ++i) MUST(pair.a.queue_pair.put(pair.a.at(0, 8), pair.b.at(0, 8)));
  MUST(pair.a.queue_pair.reset());  // some have completed by now, some have not
  MUST(pair.b.queue_pair.reset());
  connect(pair.a, pair.b);
  EXPECT_FALSE(MUST(pair.a.queue_pair.poll_send_completion()));
  const WrId id = MUST(pair.a.queue_pair.put(pair.a.at(0, 8), pair.b.at(0, 8)));
  EXPECT_EQ(id, WrId{10});
  EXPECT_EQ(wait_for(pair.a.queue_pair, PollTarget::Send).wr_id, id);
}

// --- Indices that start near where they wrap ---

CONNECTED_TEST(Wrapping, CountersGoOnBeyondThirtyTwoBits) {
  // On a device the 16 bits that the hardware sees start at 0.
  constexpr std::uint64_t kStart = (std::uint64_t{1} << 32) - 65'536;
  Side b;
  if (!is_mlx5(b.queue_pair)) GTEST_SKIP() << "only an mlx5's counters can start elsewhere";
  MemoryRegion memory = MUST(shared_domain().allocate(4096));
  RdmaQueuePair queue_pair = MUST(detail::QueuePairState::create(nullptr, shared_domain().context(),
                                                                 shared_domain().pd(), {}, {kStart, kStart}));
  MUST(queue_pair.connect(MUST(b.queue_pair.get_qp_info())));
  MUST(b.queue_pair.connect(MUST(queue_pair.get_qp_info())));
  for (std::uint64_t done = 0; done != 66'000; done += 100) {
    for (int i = 0; i != 100; ++i) {
      MUST(queue_pair.enqueue_put(memory.buffer(), b.at(0, 4096), i == 99 ? Signal::Yes : Signal::No));
    }
    MUST(queue_pair.ring_doorbell());
    ASSERT_EQ(wait_for(queue_pair, PollTarget::Send).wr_id, WrId{kStart + done + 99});
  }
  EXPECT_COUNTERS(queue_pair, send, kStart + 66'000, kStart + 66'000, kStart + 66'000);
  EXPECT_COUNTERS(queue_pair, recv, kStart, kStart, kStart);
}

// --- Handles ---

CONNECTED_TEST(Handles, CopiesShareCountersAndCompletions) {
  Pair pair;
  RdmaQueuePair copy = pair.a.queue_pair;
  MUST(copy.put(pair.a.at(0, 8), pair.b.at(0, 8)));
  EXPECT_EQ(pair.a.queue_pair.send_wqe_idx(), 1);
  EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  EXPECT_EQ(copy.send_cq_idx(), 1);
  EXPECT_EQ(copy, pair.a.queue_pair);
  EXPECT_NE(copy, pair.b.queue_pair);
  RdmaQueuePair moved = std::move(copy);
  EXPECT_EQ(copy.send_cq_idx(), 1);  // NOLINT(bugprone-use-after-move): no handle is ever empty
  EXPECT_EQ(moved, copy);
}

TEST(Handles, TheLastOneDestroysTheQueuePair) {
  std::optional<RdmaQueuePair> first = MUST(RdmaQueuePair::create(shared_domain()));
  std::optional<RdmaQueuePair> second = first;
  first.reset();
  EXPECT_EQ(MUST(second->state()), IBV_QPS_RESET);
  const std::string ticket = serialize(*second);
  EXPECT_TRUE(deserialize<RdmaQueuePair>(ticket));
  second.reset();
  const Result<RdmaQueuePair> gone = deserialize<RdmaQueuePair>(ticket);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code(), ErrorCode::foreign_process);
}

CONNECTED_TEST(Handles, SerialisedOnesComeBackAliveInThisProcess) {
  Pair pair;
  for (const Format format : {Format::Json, Format::Cbor}) {
    RdmaQueuePair again = MUST(deserialize<RdmaQueuePair>(serialize(pair.a.queue_pair, format)));
    EXPECT_EQ(again, pair.a.queue_pair);
    MUST(again.put(pair.a.at(0, 8), pair.b.at(0, 8)));
    EXPECT_TRUE(wait_for(pair.a.queue_pair, PollTarget::Send).is_valid());
  }
}

TEST(Handles, SerialisedOnesHoldNoPointer) {
  const Side side;
  const std::string ticket = serialize(side.queue_pair);
  EXPECT_EQ(ticket.find(fmt::format("{}", reinterpret_cast<std::uintptr_t>(side.queue_pair.qp()))),
            std::string::npos);
  EXPECT_LT(ticket.size(), 120);
}

TEST(Handles, AForkedChildIsAnotherProcess) {
  const Side side;
  const std::string ticket = serialize(side.queue_pair);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Result<RdmaQueuePair> foreign = deserialize<RdmaQueuePair>(ticket);
    _exit(!foreign && foreign.error().code() == ErrorCode::foreign_process ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(deserialize<RdmaQueuePair>(ticket));
}

// --- Devices ---

TEST(Devices, AreListedWithPortsAndGids) {
  const std::vector<RdmaDevice> devices = MUST(RdmaDevice::all());
  ASSERT_EQ(devices.size(), 1);
  const RdmaDevice& device = devices[0];
  EXPECT_EQ(device.name, shared_domain().device_name());
  if (device.mlx5) {
    EXPECT_EQ(device.vendor_id, 0x2c9);  // the vendor's OUI, as on a real card
  }
  ASSERT_EQ(device.ports.size(), 1);
  EXPECT_TRUE(device.ports[0].is_active());
  EXPECT_EQ(device.ports[0].link_layer, LinkLayer::Ethernet);
  EXPECT_EQ(device.ports[0].gid.is_ipv4_mapped(), !is_iwarp());
  EXPECT_EQ(MUST(RdmaDevice::find(device.name)), device);
  EXPECT_EQ(MUST(RdmaDevice::first_available()), device);
  EXPECT_EQ(MUST(deserialize<RdmaDevice>(serialize(device, Format::Cbor))), device);
  const Result<RdmaDevice> none = RdmaDevice::find("mlx5_9");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::no_device);
  EXPECT_NE(none.error().message().find(device.name), std::string::npos);
}

}  // namespace
}  // namespace qpair::test
