// As much as one process may hold, and as many processes as one machine may have: what grows with their
// number grows no faster. How long it took and what it cost is printed, not tested.

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "qpair/qpair.hpp"
#include "tests/support/peer_main.hpp"
#include "tests/support/peer_process.hpp"

namespace {

using Clock = std::chrono::steady_clock;

std::size_t resident_mib() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) >> 20;
}

// Of this process, the NIC's thread included.
std::chrono::milliseconds processor_time() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return std::chrono::milliseconds((used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 +
                                   (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000);
}

class Report {
 public:
  void done(const std::string& what) {
    const auto now = Clock::now();
    std::cout << "  " << what << ": " << (now - since_) / std::chrono::milliseconds(1) << " ms, "
              << (processor_time() - used_).count() << " ms of processor time, " << resident_mib()
              << " MiB resident\n";
    used_ = processor_time();
    since_ = Clock::now();
  }

 private:
  Clock::time_point since_ = Clock::now();
  std::chrono::milliseconds used_ = processor_time();
};

template <auto Destroy>
struct Destroyer {
  template <typename T>
  void operator()(T* object) const {
    EXPECT_EQ(Destroy(object), 0);
  }
};
using Context = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using Domain = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using Region = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using Queue = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using Pair = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;

// ---- One process --------------------------------------------------------------------------------

constexpr std::size_t kPairs = 10'000;
constexpr std::size_t kRegions = 100'000;
constexpr std::size_t kSlot = 64;  // bytes of a region
constexpr std::uint8_t kGidIndex = 3;

class OneProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    ASSERT_GT(count, 0);
    context_.reset(ibv_open_device(list[0]));
    ibv_free_device_list(list);
    ASSERT_TRUE(context_);
    domain_.reset(ibv_alloc_pd(context_.get()));
    queue_.reset(ibv_create_cq(context_.get(), 2 * kPairs, nullptr, nullptr, 0));
    ASSERT_TRUE(domain_ && queue_);
    ASSERT_EQ(ibv_query_gid(context_.get(), 1, kGidIndex, &gid_), 0);
  }

  void create_pairs() {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = queue_.get();
    attributes.cap = {
        .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    attributes.qp_type = IBV_QPT_RC;
    for (std::size_t i = 0; i < kPairs; ++i) {
      pairs_.emplace_back(ibv_create_qp(domain_.get(), &attributes));
      ASSERT_TRUE(pairs_.back()) << "queue pair " << i << ": " << std::strerror(errno);
    }
  }

  // Each with its neighbour.
  void connect(std::size_t i) {
    ibv_qp* const qp = pairs_[i].get();
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = kRights;
    ASSERT_EQ(
        ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS),
        0);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = pairs_[i ^ 1]->qp_num;
    attributes.max_dest_rd_atomic = 1;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.sgid_index = kGidIndex;
    attributes.ah_attr.grh.dgid = gid_;
    ASSERT_EQ(ibv_modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 18;
    attributes.retry_cnt = attributes.rnr_retry = 7;
    attributes.max_rd_atomic = 1;
    ASSERT_EQ(ibv_modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }

  void create_regions() {
    memory_.resize(kRegions * kSlot);
    for (std::size_t i = 0; i < kRegions; ++i) {
      regions_.emplace_back(ibv_reg_mr(domain_.get(), &memory_[i * kSlot], kSlot, kRights));
      ASSERT_TRUE(regions_.back()) << "region " << i << ": " << std::strerror(errno);
    }
  }

  // From a region of its own into one of its neighbour's that nobody else writes.
  void post(std::size_t i) {
    const std::size_t from = i;
    const std::size_t to = kRegions - 1 - i;
    std::memset(&memory_[from * kSlot], static_cast<int>(1 + i % 251), kSlot);
    ibv_sge piece{reinterpret_cast<std::uint64_t>(regions_[from]->addr), kSlot, regions_[from]->lkey};
    ibv_send_wr request{};
    request.wr_id = i;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma = {reinterpret_cast<std::uint64_t>(regions_[to]->addr), regions_[to]->rkey};
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(pairs_[i].get(), &request, &bad), 0);
  }

  // Each posted one was to complete once.
  void complete(std::size_t posted) {
    std::vector<bool> seen(kPairs, false);
    for (std::size_t completed = 0; completed < posted;) {
      ibv_wc completions[64];
      const int count = ibv_poll_cq(queue_.get(), 64, completions);
      ASSERT_GE(count, 0);
      for (int i = 0; i < count; ++i, ++completed) {
        ASSERT_EQ(completions[i].status, IBV_WC_SUCCESS) << ibv_wc_status_str(completions[i].status);
        ASSERT_FALSE(seen[completions[i].wr_id]) << "twice";
        seen[completions[i].wr_id] = true;
      }
    }
  }

  static constexpr int kRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  std::vector<unsigned char> memory_;
  Context context_;
  Domain domain_;
  Queue queue_;
  std::vector<Region> regions_;
  std::vector<Pair> pairs_;
  ibv_gid gid_{};
};

TEST_F(OneProcess, HoldsTenThousandConnectedQueuePairsAndAHundredThousandRegions) {
  Report report;
  create_pairs();
  report.done("10,000 queue pairs created");
  for (std::size_t i = 0; i < kPairs && !HasFatalFailure(); ++i) connect(i);
  report.done("connected");
  create_regions();
  report.done("100,000 regions registered");
  if (HasFatalFailure()) return;
  for (std::size_t i = 0; i < kPairs && !HasFatalFailure(); ++i) post(i);
  complete(kPairs);
  report.done("a write on each queue pair");
  for (std::size_t i = 0; i < kPairs; ++i) {
    const unsigned char* const slot = &memory_[(kRegions - 1 - i) * kSlot];
    for (std::size_t byte = 0; byte < kSlot; ++byte) ASSERT_EQ(slot[byte], 1 + i % 251) << "queue pair " << i;
  }
  for (std::size_t i = 0; i < 1000 && !HasFatalFailure(); ++i) {
    post(i % 2);
    complete(1);
  }
  report.done("1,000 writes one after another on two of them");
  pairs_.clear();
  report.done("queue pairs destroyed");
  regions_.clear();
  report.done("regions deregistered");
}

// ---- Many processes -----------------------------------------------------------------------------

using qpair::MemoryRegion;
using qpair::RdmaBuffer;
using qpair::RdmaDomain;
using qpair::RdmaQueuePair;

constexpr std::size_t kProcesses = 64;
constexpr std::size_t kMessage = 512;

struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename T>
T must(qpair::Result<T> result) {
  if (!result) throw Failed(result.error().message());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// Each has a doorbell register of its own, two of which lie on a page.
TEST(RdmaQueuePairs, AreNotLimitedByDoorbellPages) {
  constexpr std::size_t kCount = 4'000;
  Report report;
  const RdmaDomain domain = must(RdmaDomain::create());
  const MemoryRegion memory = must(domain.allocate(kCount * 2 * sizeof(std::uint64_t)));
  qpair::IbverbsConfig config;
  config.max_send_wr = config.max_recv_wr = 4;
  std::vector<RdmaQueuePair> pairs;
  for (std::size_t i = 0; i < kCount; ++i) pairs.push_back(must(RdmaQueuePair::create(domain, config)));
  for (std::size_t i = 0; i < kCount; ++i) must(pairs[i].connect(must(pairs[i ^ 1].get_qp_info())));
  report.done("4,000 queue pairs created and connected");
  auto* const words = reinterpret_cast<std::uint64_t*>(memory.data());
  for (std::size_t i = 0; i < kCount; ++i) {
    words[i] = i + 1;
    must(pairs[i].put(must(memory.slice(i * sizeof *words, sizeof *words)),
                      must(memory.slice((kCount + i) * sizeof *words, sizeof *words))));
  }
  for (RdmaQueuePair& pair : pairs) {
    while (!must(pair.poll_send_completion())) {
    }
  }
  report.done("a put on each");
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(words[kCount + i], i + 1);
}

void send_all(int socket, const std::string& bytes) {
  const std::uint32_t size = static_cast<std::uint32_t>(bytes.size());
  std::string framed(reinterpret_cast<const char*>(&size), sizeof size);
  framed += bytes;
  for (std::size_t done = 0; done < framed.size();) {
    const ssize_t sent = ::send(socket, framed.data() + done, framed.size() - done, MSG_NOSIGNAL);
    if (sent <= 0) throw Failed("the other process is gone");
    done += static_cast<std::size_t>(sent);
  }
}

void receive_exactly(int socket, char* to, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = ::recv(socket, to + done, size - done, 0);
    if (got <= 0) throw Failed("the other process is gone");
    done += static_cast<std::size_t>(got);
  }
}

std::string receive_all(int socket) {
  std::uint32_t size = 0;
  receive_exactly(socket, reinterpret_cast<char*>(&size), sizeof size);
  std::string bytes(size, '\0');
  receive_exactly(socket, bytes.data(), size);
  return bytes;
}

std::byte message(std::size_t from, std::size_t to, std::size_t byte) {
  return static_cast<std::byte>(from * 67 + to * 31 + byte * 7 + 1);
}

// One of the processes: a queue pair to each of the others, and an inbox with a place for each.
class Member {
 public:
  Member(int socket, std::size_t self)
      : socket_(socket),
        self_(self),
        domain_(must(RdmaDomain::create())),
        inbox_(must(domain_.allocate(kProcesses * kMessage))),
        outbox_(must(domain_.allocate(kProcesses * kMessage))),
        readback_(must(domain_.allocate(kProcesses * kMessage))) {
    qpair::IbverbsConfig config;
    config.max_send_wr = config.max_recv_wr = 4;
    config.qp_timeout = 18;  // 64 NICs share few processors
    for (std::size_t i = 0; i < kProcesses; ++i) {
      pairs_.push_back(must(RdmaQueuePair::create(domain_, config)));
      for (std::size_t byte = 0; byte < kMessage; ++byte) {
        outbox_.bytes()[i * kMessage + byte] = message(self, i, byte);
      }
    }
  }

  void run() {
    send_all(socket_, qpair::serialize(inbox_.buffer(), qpair::Format::Cbor));
    for (RdmaQueuePair& pair : pairs_) {
      send_all(socket_, qpair::serialize(must(pair.get_qp_info()), qpair::Format::Cbor));
    }
    std::vector<RdmaBuffer> inboxes;
    for (RdmaQueuePair& pair : pairs_) {
      inboxes.push_back(must(qpair::deserialize<RdmaBuffer>(receive_all(socket_))));
      must(pair.connect(must(qpair::deserialize<qpair::RdmaQpInfo>(receive_all(socket_)))));
    }
    meet();
    for (std::size_t i = 0; i < kProcesses; ++i) {
      must(pairs_[i].put(place(outbox_.buffer(), i), place(inboxes[i], self_)));
    }
    complete("write");
    meet();
    check_inbox();
    for (std::size_t i = 0; i < kProcesses; ++i) {
      must(pairs_[i].get(place(readback_.buffer(), i), place(inboxes[i], self_)));
    }
    complete("read");
    if (std::memcmp(readback_.data(), outbox_.data(), outbox_.size()) != 0) {
      throw Failed("what was read back is not what was written");
    }
    meet();
  }

 private:
  static RdmaBuffer place(const RdmaBuffer& box, std::size_t i) {
    return must(box.slice(i * kMessage, kMessage));
  }
  void meet() {
    send_all(socket_, "here");
    receive_all(socket_);
  }
  void complete(const std::string& what) {
    for (std::size_t i = 0; i < kProcesses; ++i) {
      for (;;) {
        auto completion = pairs_[i].poll_send_completion();
        if (!completion)
          throw Failed(what + " to " + std::to_string(i) + ": " + completion.error().message());
        if (*completion) break;
      }
    }
  }
  void check_inbox() {
    for (std::size_t i = 0; i < kProcesses; ++i) {
      for (std::size_t byte = 0; byte < kMessage; ++byte) {
        if (inbox_.bytes()[i * kMessage + byte] != message(i, self_, byte)) {
          throw Failed("the message from " + std::to_string(i) + " is wrong at byte " + std::to_string(byte));
        }
      }
    }
  }

  int socket_;
  std::size_t self_;
  RdmaDomain domain_;
  MemoryRegion inbox_;
  MemoryRegion outbox_;
  MemoryRegion readback_;
  std::vector<RdmaQueuePair> pairs_;
};

TEST(ManyProcesses, SixtyFourAreConnectedEachWithEach) {
  Report report;
  std::vector<std::unique_ptr<qpair::testing::PeerProcess>> members;
  for (std::size_t i = 0; i < kProcesses; ++i) {
    members.push_back(std::make_unique<qpair::testing::PeerProcess>(std::to_string(i)));
  }
  try {
    std::vector<std::string> inboxes(kProcesses);
    std::vector<std::vector<std::string>> infos(kProcesses);
    for (std::size_t i = 0; i < kProcesses; ++i) {
      inboxes[i] = receive_all(members[i]->socket());
      for (std::size_t j = 0; j < kProcesses; ++j) infos[i].push_back(receive_all(members[i]->socket()));
    }
    report.done("64 processes started, 4096 queue pairs created");
    for (std::size_t i = 0; i < kProcesses; ++i) {
      for (std::size_t j = 0; j < kProcesses; ++j) {
        send_all(members[i]->socket(), inboxes[j]);
        send_all(members[i]->socket(), infos[j][i]);
      }
    }
    for (const char* what :
         {"connected, each with each and with itself", "written", "checked and read back"}) {
      for (const auto& member : members) receive_all(member->socket());
      for (const auto& member : members) send_all(member->socket(), "all here");
      report.done(what);
    }
  } catch (const Failed& failure) {
    ADD_FAILURE() << failure.what();
  }
  for (const auto& member : members) EXPECT_EQ(member->wait(), 0);
}

}  // namespace

int main(int count, char** arguments) {
  return qpair::testing::run_tests_or_peer(
      count, arguments, [](const std::string& role, int socket) { Member(socket, std::stoul(role)).run(); });
}
