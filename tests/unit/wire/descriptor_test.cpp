#include "softnic/wire/descriptor.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "softnic/wire/private_descriptors.hpp"

namespace qpair::softnic::wire {
namespace {

TEST(Descriptor, IsPrivateAndOutOfTheWayWhileItLives) {
  const int low = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  int number = -1;
  {
    const Descriptor descriptor(low);
    number = descriptor.get();
    EXPECT_GE(number, lowest_private_descriptor());
    EXPECT_TRUE(is_private_descriptor(number));
    EXPECT_FALSE(is_private_descriptor(low));
    EXPECT_EQ(::fcntl(low, F_GETFD), -1);  // moved, not copied
    EXPECT_EQ(::fcntl(number, F_GETFD), FD_CLOEXEC);
  }
  EXPECT_FALSE(is_private_descriptor(number));
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST(Descriptor, AFailedOpenIsNoDescriptor) {
  const Descriptor descriptor(-1);
  EXPECT_FALSE(descriptor);
  EXPECT_FALSE(is_private_descriptor(-1));
  EXPECT_FALSE(is_private_descriptor(kPrivateDescriptorLimit));
}

TEST(Descriptor, AForkedChildClosesNothingOfItsParents) {
  auto descriptor = std::make_unique<Descriptor>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = descriptor->get();
  if (::fork() == 0) {
    ::close(number);  // as after an abandoned NIC, and then the program gets the number
    const int other = ::open("/dev/zero", O_RDONLY);
    ::dup2(other, number);
    descriptor.reset();
    ::_exit(::fcntl(number, F_GETFD) >= 0 ? 0 : 1);
  }
  int status = 0;
  ::wait(&status);
  EXPECT_EQ(status, 0);
}

TEST(Descriptor, AnAbandonedOneIsClosedInTheChildAndLivesOnInTheParent) {
  auto descriptor = std::make_unique<Descriptor>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = descriptor->get();
  if (::fork() == 0) {
    descriptor->abandon();
    const bool closed = ::fcntl(number, F_GETFD) < 0 && !is_private_descriptor(number);
    ::_exit(closed ? 0 : 1);
  }
  int status = 0;
  ::wait(&status);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_private_descriptor(number));
  EXPECT_EQ(::fcntl(number, F_GETFD), FD_CLOEXEC);
}

}  // namespace
}  // namespace qpair::softnic::wire
