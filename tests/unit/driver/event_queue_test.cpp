// Event descriptors: what poll() says, what read() gives, and what destroying an object reports.

#include <fcntl.h>
#include <poll.h>

#include <thread>

#include "device_harness.hpp"
#include "softnic/driver/event_file.hpp"
#include "softnic/driver/event_router.hpp"
#include "softnic/driver/private_fd.hpp"

namespace qpair::softnic::driver::test {
namespace {

bool readable(int fd) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&one, 1, 0) == 1 && (one.revents & POLLIN) != 0;
}

class Events : public ::testing::Test {
 protected:
  void SetUp() override {
    queue_ = open_event_file(EventKind::Completion, this, fd_);
    ASSERT_NE(queue_, nullptr);
    file_ = FileTable::instance().find(fd_);
  }
  void TearDown() override {
    file_.reset();
    if (fd_ >= 0) close_event_file(fd_);
  }
  void push(std::uint64_t element, const std::shared_ptr<EventCount>& count) {
    queue_->push({.element = element, .type = 0, .count = count});
  }
  ssize_t read(std::uint64_t& element) {
    ib_uverbs_comp_event_desc description{};
    const ssize_t size = file_->read(fd_, &description, sizeof description);
    element = description.cq_handle;
    return size;
  }
  void do_not_block() { fcntl(fd_, F_SETFL, O_NONBLOCK); }

  int fd_ = -1;
  std::shared_ptr<EventQueue> queue_;
  std::shared_ptr<File> file_;
  std::shared_ptr<EventCount> first_ = std::make_shared<EventCount>();
  std::shared_ptr<EventCount> second_ = std::make_shared<EventCount>();
};

TEST_F(Events, ADescriptorIsReadableWhileEventsWait) {
  EXPECT_FALSE(readable(fd_));
  push(1, first_);
  push(2, first_);
  EXPECT_TRUE(readable(fd_));
  std::uint64_t element = 0;
  EXPECT_EQ(read(element), 8);
  EXPECT_EQ(element, 1U);
  EXPECT_TRUE(readable(fd_));
  EXPECT_EQ(read(element), 8);
  EXPECT_EQ(element, 2U);
  EXPECT_FALSE(readable(fd_));
}

TEST_F(Events, ANonBlockingDescriptorSaysTryAgain) {
  do_not_block();
  std::uint64_t element = 0;
  EXPECT_EQ(read(element), -EAGAIN);
}

TEST_F(Events, ABlockingReadWaitsForTheEvent) {
  std::uint64_t element = 0;
  std::thread reader([&] { EXPECT_EQ(read(element), 8); });
  push(42, first_);
  reader.join();
  EXPECT_EQ(element, 42U);
}

TEST_F(Events, ABufferForLessThanAnEventIsInvalidAndLosesNothing) {
  push(1, first_);
  std::uint32_t half = 0;
  EXPECT_EQ(file_->read(fd_, &half, sizeof half), -EINVAL);
  std::uint64_t element = 0;
  EXPECT_EQ(read(element), 8);
}

TEST_F(Events, ABadBufferFaults) {
  push(1, first_);
  const Pages page;
  EXPECT_EQ(file_->read(fd_, reinterpret_cast<void*>(page.end() - 4), 8), -EFAULT);
}

TEST_F(Events, DestroyingAnObjectTakesItsUnreadEventsAndTellsHowManyWereRead) {
  do_not_block();
  push(1, first_);
  push(2, second_);
  push(1, first_);
  std::uint64_t element = 0;
  ASSERT_EQ(read(element), 8);
  EXPECT_EQ(queue_->drop(first_), 1U);
  ASSERT_EQ(read(element), 8);
  EXPECT_EQ(element, 2U);
  EXPECT_FALSE(readable(fd_));
  EXPECT_EQ(read(element), -EAGAIN);
  EXPECT_EQ(queue_->drop(second_), 1U);
}

TEST_F(Events, AReaderThatHeldTheTokenOfADroppedEventWaitsOn) {
  std::uint64_t element = 0;
  std::thread reader([&] { EXPECT_EQ(read(element), 8); });
  for (int i = 0; i < 100; ++i) {
    push(1, first_);
    queue_->drop(first_);
  }
  push(7, second_);
  reader.join();
  EXPECT_TRUE(element == 7 || element == 1);
}

TEST_F(Events, AfterTheDeviceIsClosedWhatWaitsIsReadAndThenItIsAnError) {
  push(1, first_);
  queue_->device_closed();
  std::uint64_t element = 0;
  EXPECT_EQ(read(element), 8);
  EXPECT_EQ(read(element), -EIO);
  EXPECT_EQ(read(element), -EIO);
  EXPECT_TRUE(readable(fd_));
}

TEST_F(Events, AfterTheDescriptorIsClosedEventsGoNowhere) {
  close_event_file(fd_);
  fd_ = -1;
  file_.reset();
  push(1, first_);
  EXPECT_EQ(queue_->drop(first_), 0U);
}

TEST_F(Events, WritingToAnEventDescriptorIsInvalid) {
  const std::uint64_t one = 1;
  EXPECT_EQ(file_->write(&one, sizeof one), -EINVAL);
}

TEST_F(Events, AQueueBelongsToOneDeviceAndOneKind) {
  EXPECT_EQ(find_event_queue(EventKind::Completion, this, fd_), queue_);
  EXPECT_EQ(find_event_queue(EventKind::Completion, &fd_, fd_), nullptr);
  EXPECT_EQ(find_event_queue(EventKind::Async, this, fd_), nullptr);
  EXPECT_EQ(find_event_queue(EventKind::Completion, this, std::int64_t{1} << 40), nullptr);
}

TEST_F(Events, TheRouterNamesObjectsByTheProgramsHandles) {
  int async_fd = -1;
  auto async = open_event_file(EventKind::Async, this, async_fd);
  ASSERT_NE(async, nullptr);
  EventRouter router;
  constexpr nic::Cqn kCq{5};
  constexpr nic::Qpn kQp{5};  // the same number is another object
  router.add(kCq, {.user_handle = 0xc0, .completions = queue_, .async = async});
  router.add(kQp, {.user_handle = 0x99, .completions = nullptr, .async = async});
  router.completion(kCq);
  router.completion(nic::Cqn{6});
  router.cq_event(kCq, IBV_EVENT_CQ_ERR);
  router.qp_event(kQp, IBV_EVENT_QP_FATAL);
  router.qp_event(kQp, IBV_EVENT_COMM_EST);

  std::uint64_t element = 0;
  ASSERT_EQ(read(element), 8);
  EXPECT_EQ(element, 0xc0U);
  const auto events = FileTable::instance().find(async_fd);
  ib_uverbs_async_event_desc description{};
  ASSERT_EQ(events->read(async_fd, &description, sizeof description), 16);
  EXPECT_EQ(description.element, 0xc0U);
  EXPECT_EQ(description.event_type, std::uint32_t{IBV_EVENT_CQ_ERR});
  ASSERT_EQ(events->read(async_fd, &description, sizeof description), 16);
  EXPECT_EQ(description.element, 0x99U);
  EXPECT_EQ(description.event_type, std::uint32_t{IBV_EVENT_QP_FATAL});

  EXPECT_EQ(router.remove(kQp, 0x99).async, 1U);
  EXPECT_FALSE(readable(async_fd));  // COMM_EST went with its queue pair
  const auto reported = router.remove(kCq);
  EXPECT_EQ(reported.completions, 1U);
  EXPECT_EQ(reported.async, 1U);
  EXPECT_EQ(router.remove(kCq).completions, 0U);
  close_event_file(async_fd);
}

TEST_F(Events, EveryHandleOnASharedQueuePairHearsOfIt) {
  int fd = -1;
  const auto async = open_event_file(EventKind::Async, this, fd);
  ASSERT_TRUE(async);
  EventRouter router;
  constexpr nic::Qpn kTarget{5};
  router.add(kTarget, {.user_handle = 1, .completions = nullptr, .async = async});
  router.add(kTarget, {.user_handle = 2, .completions = nullptr, .async = async});
  router.qp_event(kTarget, IBV_EVENT_QP_LAST_WQE_REACHED);
  const auto events = FileTable::instance().find(fd);
  ib_uverbs_async_event_desc description{};
  ASSERT_EQ(events->read(fd, &description, sizeof description), 16);
  const std::uint64_t first = description.element;
  EXPECT_EQ(router.remove(kTarget, first).async, 1U);
  EXPECT_EQ(router.remove(kTarget, 3 - first).async, 0U) << "its event was not read, and goes with it";
  router.qp_event(kTarget, IBV_EVENT_QP_FATAL);
  close_event_file(fd);
}

TEST(PrivateDescriptors, AreKnownWhileTheyLive) {
  const int pipe = memfd_create("any", MFD_CLOEXEC);
  EXPECT_FALSE(is_private_fd(pipe));
  int number = -1;
  {
    const PrivateFd duplicate(pipe);
    number = duplicate.get();
    ASSERT_GT(number, pipe);
    EXPECT_TRUE(is_private_fd(number));
  }
  EXPECT_FALSE(is_private_fd(number));
  EXPECT_FALSE(is_private_fd(-1));
  close(pipe);
}

}  // namespace
}  // namespace qpair::softnic::driver::test
