// Error::message() carries the emulated NIC's reason, the remote side's included, without libqpair knowing
// that the NIC is emulated.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "tests/integration/core_fixture.hpp"

namespace qpair::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using testing::Not;

// A put that the peer refuses: its region is too short for it.
Error refused_put(Pair& pair) {
  RdmaBuffer beyond = pair.b.at(0, 8);
  beyond.addr += pair.b.memory.size();
  MUST(pair.a.queue_pair.put(pair.a.at(0, 8), beyond));
  return wait_for(pair.a.queue_pair, PollTarget::Send).error().value();
}

TEST(Reasons, a_refused_put_tells_which_key_covers_what_and_who_registered_it) {
  Pair pair;
  const Error error = refused_put(pair);
  EXPECT_EQ(error.code(), ErrorCode::remote_access);
  EXPECT_THAT(
      error.message(),
      AllOf(HasSubstr("remote access error (vendor error 0x88)"), HasSubstr("; the device says: queue pair "),
            HasSubstr("RDMA WRITE of 8 bytes failed: remote side refused: rkey"),
            HasSubstr("(1048576 bytes, registered by "), HasSubstr("the peer's RDMA WRITE asked for [0x")));
}

TEST(Reasons, outlive_the_queue_pair_and_copies_of_the_error) {
  std::optional<Error> error;
  {
    Pair pair;
    error = refused_put(pair);
  }
  const Error copy = *error;
  const Error moved = std::move(*error);
  EXPECT_THAT(copy.message(), HasSubstr("remote side refused: rkey"));
  EXPECT_EQ(moved.message(), copy.message());
  EXPECT_THAT(moved.within("step 3").message(),
              AllOf(HasSubstr("step 3: "), HasSubstr("remote side refused: rkey")));
}

TEST(Reasons, what_was_flushed_says_what_it_was_flushed_for) {
  Pair pair;
  RdmaBuffer beyond = pair.b.at(0, 8);
  beyond.addr += pair.b.memory.size();
  MUST(pair.a.queue_pair.enqueue_put(pair.a.at(0, 8), beyond));
  MUST(pair.a.queue_pair.enqueue_put(pair.a.at(0, 8), pair.b.at(0, 8)));
  MUST(pair.b.queue_pair.recv(pair.b.at(0, 8)));
  MUST(pair.a.queue_pair.ring_doorbell());
  wait_for(pair.a.queue_pair, PollTarget::Send);
  const IbvWc flushed = wait_for(pair.a.queue_pair, PollTarget::Send);
  ASSERT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_THAT(flushed.error()->message(), HasSubstr("remote side refused: rkey"));
  const IbvWc receive = wait_for(pair.b.queue_pair, PollTarget::Recv);
  ASSERT_EQ(receive.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_THAT(receive.error()->message(), HasSubstr("refused a request of its peer: rkey"));
}

TEST(Reasons, of_an_earlier_life_are_not_taken_for_this_one) {
  Pair pair;
  refused_put(pair);
  MUST(pair.a.queue_pair.reset());
  MUST(pair.b.queue_pair.reset());
  connect(pair.a, pair.b);
  MUST(pair.a.queue_pair.recv(pair.a.at(0, 8)));
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(pair.a.queue_pair.qp(), &attributes, IBV_QP_STATE), 0);
  const IbvWc flushed = wait_for(pair.a.queue_pair, PollTarget::Recv);
  ASSERT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_THAT(flushed.error()->message(), Not(HasSubstr("the device says")));
}

TEST(Reasons, of_a_local_error_name_the_local_key) {
  Pair pair;
  RdmaBuffer local = pair.a.at(0, 8);
  local.lkey ^= 1;
  MUST(pair.a.queue_pair.put(local, pair.b.at(0, 8)));
  const auto error = wait_for(pair.a.queue_pair, PollTarget::Send).error();
  EXPECT_THAT(error->message(), AllOf(HasSubstr("; the device says: "), HasSubstr("its low 8 bits differ")));
}

TEST(Reasons, can_be_read_by_anybody_at_the_kernels_interface) {
  Pair pair;
  refused_put(pair);
  const std::string path = std::string("/sys/class/infiniband/") +
                           ibv_get_device_name(shared_domain().context()->device) + "/failures";
  for (int time = 0; time < 2; ++time) {
    const int fd = open(path.c_str(), O_RDONLY);
    ASSERT_GE(fd, 0);
    std::array<char, 4096> text{};
    const ssize_t size = read(fd, text.data(), text.size());
    close(fd);
    ASSERT_GT(size, 0);
    EXPECT_THAT(std::string(text.data(), static_cast<std::size_t>(size)),
                HasSubstr(" send 10 0x88 now queue pair "));
  }
  std::FILE* const file = std::fopen(path.c_str(), "r");
  ASSERT_NE(file, nullptr);
  EXPECT_NE(std::fgetc(file), EOF);
  std::fclose(file);
}

}  // namespace
}  // namespace qpair::test
