#include "softnic/driver/scratch_directory.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

namespace qpair::softnic::driver {
namespace {

namespace fs = std::filesystem;

class ScratchDirectoryTest : public testing::Test {
 protected:
  ScratchDirectoryTest() {
    std::string name = fs::temp_directory_path() / "scratch-test-XXXXXX";
    base_ = mkdtemp(name.data());
  }
  ~ScratchDirectoryTest() override { fs::remove_all(base_); }

  ScratchDirectory make() {
    auto made = ScratchDirectory::create_in(base_);
    EXPECT_TRUE(made) << made.error();
    return std::move(*made);
  }
  fs::path parent() const { return fs::path(base_) / ("qpair-" + std::to_string(geteuid())); }

  std::string base_;
};

void fill(const std::string& directory) {
  fs::create_directories(directory + "/sys/class/deep/deeper/deepest");
  for (int i = 0; i < 300; ++i) {
    std::ofstream(directory + "/sys/class/file-with-a-longish-name-" + std::to_string(i)) << i;
  }
  std::ofstream(directory + "/sys/class/deep/deeper/deepest/file") << "text";
  fs::create_directory_symlink("..", directory + "/sys/class/deep/up");
}

TEST_F(ScratchDirectoryTest, nobody_else_can_look_into_it) {
  const auto directory = make();
  struct stat status {};
  ASSERT_EQ(stat(directory.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
  ASSERT_EQ(stat(parent().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
}

TEST_F(ScratchDirectoryTest, it_goes_with_everything_in_it_and_the_last_one_takes_the_parent_along) {
  {
    const auto first = make();
    fill(first.path());
    {
      const auto second = make();
      EXPECT_NE(first.path(), second.path());
      fill(second.path());
    }
    EXPECT_TRUE(fs::exists(first.path() + "/sys/class/deep/deeper/deepest/file"));
    EXPECT_EQ(std::distance(fs::directory_iterator(parent()), {}), 1);
  }
  EXPECT_TRUE(fs::is_empty(base_));
}

TEST_F(ScratchDirectoryTest, links_are_removed_and_not_followed) {
  fs::create_directory(base_ + "/precious");
  std::ofstream(base_ + "/precious/file") << "text";
  {
    const auto directory = make();
    fs::create_directory_symlink(base_ + "/precious", directory.path() + "/link");
  }
  EXPECT_TRUE(fs::exists(base_ + "/precious/file"));
}

TEST_F(ScratchDirectoryTest, what_a_killed_process_left_is_swept_up_by_the_next_one) {
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto directory = ScratchDirectory::create_in(base_);
    if (!directory) _exit(1);
    fill(directory->path());
    const std::string path = directory->path();
    if (write(ready[1], path.data(), path.size()) < 0) _exit(1);
    pause();
    _exit(1);
  }
  std::string path(4096, '\0');
  const ssize_t length = read(ready[0], path.data(), path.size());
  ASSERT_GT(length, 0);
  path.resize(static_cast<std::size_t>(length));
  close(ready[0]);
  close(ready[1]);

  // Alive: left alone, even while it is stopped.
  kill(child, SIGSTOP);
  { const auto mine = make(); }
  EXPECT_TRUE(fs::exists(path + "/sys/class/deep/deeper/deepest/file"));

  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const auto mine = make();
  EXPECT_FALSE(fs::exists(path));
}

// A sweep must not take a directory whose maker is about to lock it.
TEST_F(ScratchDirectoryTest, processes_that_come_and_go_at_once_do_not_take_each_others) {
  constexpr int kProcesses = 8;
  constexpr int kRounds = 40;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      for (int round = 0; round < kRounds; ++round) {
        const auto directory = ScratchDirectory::create_in(base_);
        if (!directory) _exit(1);
        for (int look = 0; look < 20; ++look) {
          if (access(directory->path().c_str(), F_OK) != 0) _exit(2);
        }
      }
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_TRUE(fs::is_empty(base_));
}

TEST_F(ScratchDirectoryTest, a_child_that_forgets_it_leaves_it_to_the_parent) {
  auto directory = make();
  const pid_t child = fork();
  if (child == 0) {
    directory.forget();
    directory.remove();
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(directory.path()));
}

TEST_F(ScratchDirectoryTest, a_parent_directory_that_is_open_to_others_is_not_used) {
  fs::create_directory(parent());
  fs::permissions(parent(), fs::perms::all);
  const auto made = ScratchDirectory::create_in(base_);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error(), testing::HasSubstr(parent().string()));
}

TEST_F(ScratchDirectoryTest, a_base_that_is_not_there_is_named_in_the_error) {
  const auto made = ScratchDirectory::create_in(base_ + "/nowhere");
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error(), testing::HasSubstr("nowhere: No such file or directory"));
}

TEST_F(ScratchDirectoryTest, the_path_has_no_links_in_it) {
  fs::create_directory(base_ + "/real");
  fs::create_directory_symlink("real", base_ + "/link");
  const auto made = ScratchDirectory::create_in(base_ + "/link");
  ASSERT_TRUE(made);
  EXPECT_EQ(made->path(), fs::canonical(made->path()));
}

}  // namespace
}  // namespace qpair::softnic::driver
