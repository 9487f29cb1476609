#include "softnic/driver/scratch_directory.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
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

// Its maker, which has executed sleep(1); in the directory, or elsewhere.
class Sleeper {
 public:
  Sleeper(const std::string& base, const fs::path& parent, bool works_in_it) {
    int executed[2];
    EXPECT_EQ(pipe2(executed, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      auto directory = ScratchDirectory::create_in(base);
      if (!directory) _exit(1);
      fill(directory->path());
      if (chdir(works_in_it ? (directory->path() + "/sys/class/deep").c_str() : "/") != 0) _exit(1);
      execlp("sleep", "sleep", "100", nullptr);
      [[maybe_unused]] const ssize_t said = write(executed[1], "!", 1);
      _exit(1);
    }
    close(executed[1]);
    char byte = 0;
    EXPECT_EQ(read(executed[0], &byte, 1), 0) << "not executed";
    close(executed[0]);
    EXPECT_EQ(std::distance(fs::directory_iterator(parent), {}), 1);
    directory_ = *fs::directory_iterator(parent);
  }
  ~Sleeper() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  const fs::path& directory() const { return directory_; }

 private:
  pid_t child_ = -1;
  fs::path directory_;
};

// `cd /sys/class/infiniband/mlx5_0 && exec cat node_desc`.
TEST_F(ScratchDirectoryTest, a_process_that_executes_another_program_in_it_keeps_it_until_it_ends) {
  fs::path theirs;
  {
    const Sleeper sleeper(base_, parent(), true);
    theirs = sleeper.directory();
    { const auto mine = make(); }
    EXPECT_TRUE(fs::exists(theirs / "sys/class/deep/deeper/deepest/file"));
  }
  const auto mine = make();
  EXPECT_FALSE(fs::exists(theirs));
}

TEST_F(ScratchDirectoryTest, a_process_that_executes_another_program_elsewhere_has_left_it) {
  const Sleeper sleeper(base_, parent(), false);
  const auto mine = make();
  EXPECT_FALSE(fs::exists(sleeper.directory()));
}

// Whoever was killed may still be waited for, and its number may soon be another's: in a container the first
// process has the same each time.
TEST_F(ScratchDirectoryTest, what_the_dead_left_is_swept_up_whoever_has_their_numbers) {
  const pid_t zombie = fork();
  if (zombie == 0) _exit(0);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(zombie), &ended, WEXITED | WNOWAIT), 0);
  fs::create_directory(parent());
  fs::permissions(parent(), fs::perms::owner_all);
  std::vector<fs::path> left;
  for (const pid_t pid : {zombie, getpid(), getppid()}) {
    left.push_back(parent() / (std::to_string(pid) + "-abcdef"));
    fs::create_directory(left.back());
    fs::permissions(left.back(), fs::perms::owner_all);
  }
  const auto mine = make();
  for (const fs::path& path : left) EXPECT_FALSE(fs::exists(path)) << path;
  waitpid(zombie, nullptr, 0);
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

TEST_F(ScratchDirectoryTest, what_cannot_be_removed_without_descriptors_is_left_to_the_next_one) {
  auto directory = make();
  fill(directory.path());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(next);
  const rlimit four_more{static_cast<rlim_t>(next) + 4, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &four_more), 0);
  directory.remove();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(fs::exists(directory.path()));
  { const auto mine = make(); }
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

TEST_F(ScratchDirectoryTest, a_base_where_others_could_rename_it_is_not_used) {
  fs::permissions(base_, fs::perms::all);
  const auto made = ScratchDirectory::create_in(base_);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error(), testing::HasSubstr("other users could replace what is put there"));
  EXPECT_TRUE(fs::is_empty(base_));
  fs::permissions(base_, fs::perms::all | fs::perms::sticky_bit);  // as /tmp
  EXPECT_TRUE(ScratchDirectory::create_in(base_));
}

// Runs in a child that is another user, where this process may do that.
template <typename Action>
int as_another_user(Action&& action) {
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(99);
    _exit(action() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(ScratchDirectoryTest, another_user_can_take_its_name_and_gains_nothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  fs::permissions(base_, fs::perms::all | fs::perms::sticky_bit);
  const std::string name = parent();
  ASSERT_EQ(as_another_user([&] { return mkdir(name.c_str(), 0700) == 0; }), 0);
  EXPECT_FALSE(ScratchDirectory::create_in(base_)) << "a directory of another user";
  fs::remove(name);
  ASSERT_EQ(as_another_user([&] { return symlink("/etc", name.c_str()) == 0; }), 0);
  EXPECT_FALSE(ScratchDirectory::create_in(base_)) << "another user's link";
  fs::remove(name);
  ASSERT_EQ(as_another_user([&] { return symlink(base_.c_str(), name.c_str()) == 0; }), 0);
  EXPECT_FALSE(ScratchDirectory::create_in(base_)) << "another user's link to a directory of ours";
  fs::remove(name);
  ASSERT_EQ(as_another_user([&] { return std::ofstream(name).good(); }), 0);
  EXPECT_FALSE(ScratchDirectory::create_in(base_)) << "another user's file";
  EXPECT_TRUE(fs::exists(name)) << "and it is left alone";
}

TEST_F(ScratchDirectoryTest, another_user_sees_nothing_of_it) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  fs::permissions(base_, fs::perms::all | fs::perms::sticky_bit);
  const auto directory = make();
  fill(directory.path());
  const std::string inside = directory.path();
  EXPECT_EQ(as_another_user([&] {
              return access(inside.c_str(), F_OK) != 0 && access((inside + "/sys").c_str(), R_OK) != 0 &&
                     rename(parent().c_str(), (base_ + "/mine").c_str()) != 0;
            }),
            0);
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
