#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "softnic/driver/file.hpp"

namespace qpair::softnic::driver {
namespace {

class CountedFile final : public File {
 public:
  explicit CountedFile(int& alive) : alive_(alive) { ++alive_; }
  ~CountedFile() override { --alive_; }

 private:
  int& alive_;
};

// A descriptor that is open and closes itself.
class OpenFile {
 public:
  OpenFile() : fd_(memfd_create("test", MFD_CLOEXEC)) {}
  ~OpenFile() {
    FileTable::instance().remove(fd_);
    close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

class FileTableTest : public testing::Test {
 protected:
  FileTable& table_ = FileTable::instance();
  int alive_ = 0;
  std::shared_ptr<File> file() { return std::make_shared<CountedFile>(alive_); }
};

TEST_F(FileTableTest, descriptors_that_were_not_installed_are_not_ours) {
  for (const int fd : {-1, 0, 1, 2, 1023, 4095, 4096, 1 << 20, 1 << 22, std::numeric_limits<int>::max()}) {
    EXPECT_EQ(table_.find(fd), nullptr) << fd;
    table_.remove(fd);
  }
}

TEST_F(FileTableTest, an_installed_descriptor_is_found_until_it_is_removed) {
  const OpenFile open;
  const auto installed = file();
  table_.install(open.fd(), installed);
  EXPECT_TRUE(FileTable::in_use());
  EXPECT_EQ(table_.find(open.fd()), installed);
  EXPECT_EQ(table_.find(open.fd() + 1), nullptr);
  table_.remove(open.fd());
  EXPECT_EQ(table_.find(open.fd()), nullptr);
}

TEST_F(FileTableTest, the_last_descriptor_of_a_file_destroys_it) {
  const OpenFile open;
  const int second = dup(open.fd());
  table_.install(open.fd(), file());
  table_.duplicate(open.fd(), second);
  table_.remove(open.fd());
  EXPECT_EQ(alive_, 1);
  EXPECT_NE(table_.find(second), nullptr);
  table_.remove(second);
  EXPECT_EQ(alive_, 0);
  close(second);
}

TEST_F(FileTableTest, a_descriptor_duplicated_onto_itself_stays) {
  const OpenFile open;
  table_.install(open.fd(), file());
  table_.duplicate(open.fd(), open.fd());
  EXPECT_NE(table_.find(open.fd()), nullptr);
}

TEST_F(FileTableTest, duplicating_a_foreign_descriptor_installs_nothing) {
  const OpenFile open;
  const OpenFile other;
  table_.duplicate(open.fd(), other.fd());
  EXPECT_EQ(table_.find(other.fd()), nullptr);
}

// fclose() on a stream made by fdopen() closes a descriptor without any hook.
TEST_F(FileTableTest, a_number_that_was_closed_behind_our_back_and_reused_is_foreign_again) {
  const int fd = memfd_create("device", MFD_CLOEXEC);
  table_.install(fd, file());
  close(fd);
  EXPECT_EQ(table_.find(fd), nullptr);
  EXPECT_EQ(alive_, 0);

  const int reused = memfd_create("somebody else's", MFD_CLOEXEC);
  table_.install(reused, file());
  ASSERT_EQ(dup2(STDIN_FILENO, reused), reused);
  EXPECT_EQ(table_.find(reused), nullptr);
  EXPECT_EQ(alive_, 0);
  close(reused);
}

TEST_F(FileTableTest, installing_over_an_old_entry_replaces_it) {
  const OpenFile open;
  table_.install(open.fd(), file());
  const auto newer = file();
  table_.install(open.fd(), newer);
  EXPECT_EQ(alive_, 1);
  EXPECT_EQ(table_.find(open.fd()), newer);
}

TEST_F(FileTableTest, a_range_of_descriptors_goes_at_once_and_nothing_else) {
  std::vector<std::unique_ptr<OpenFile>> open;
  for (int i = 0; i < 5; ++i) {
    open.push_back(std::make_unique<OpenFile>());
    table_.install(open.back()->fd(), file());
  }
  table_.remove_range(open[1]->fd(), open[3]->fd());
  EXPECT_EQ(alive_, 2);
  EXPECT_NE(table_.find(open[0]->fd()), nullptr);
  EXPECT_NE(table_.find(open[4]->fd()), nullptr);
  table_.remove_range(0, std::numeric_limits<int>::max());
  EXPECT_EQ(alive_, 0);
}

// posix_spawn() and Python's subprocess: the child closes descriptors in the parent's memory, then executes.
TEST_F(FileTableTest, a_child_of_vfork_that_closes_descriptors_leaves_the_parents_files_alone) {
  const OpenFile open;
  table_.install(open.fd(), file());
  const pid_t child = vfork();
  if (child == 0) {
    FileTable::instance().remove(open.fd());
    FileTable::instance().duplicate(open.fd(), 0);
    _exit(0);
  }
  ASSERT_GT(child, 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(alive_, 1);
  EXPECT_NE(table_.find(open.fd()), nullptr);
  EXPECT_EQ(table_.find(0), nullptr);
}

TEST_F(FileTableTest, a_child_of_fork_has_entries_of_its_own) {
  const OpenFile open;
  table_.install(open.fd(), file());
  table_.before_fork();
  const pid_t child = fork();
  if (child == 0) {
    table_.after_fork_in_child();
    const bool inherited = table_.find(open.fd()) != nullptr;
    table_.remove(open.fd());
    _exit(inherited && table_.find(open.fd()) == nullptr && alive_ == 0 ? 0 : 1);
  }
  table_.after_fork_in_parent();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(table_.find(open.fd()), nullptr);
}

TEST_F(FileTableTest, lookups_and_changes_from_many_threads_agree) {
  constexpr int kRounds = 2000;
  const OpenFile open;
  table_.install(open.fd(), file());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        EXPECT_NE(table_.find(open.fd()), nullptr);
        const OpenFile mine;
        table_.duplicate(open.fd(), mine.fd());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  table_.remove(open.fd());
  EXPECT_EQ(alive_, 0);
}

TEST(FileTest, calls_that_a_file_does_not_know_fail_as_in_the_kernel) {
  File file;
  int argument = 0;
  EXPECT_EQ(file.ioctl(1, &argument), -ENOTTY);
  EXPECT_EQ(file.write(&argument, sizeof argument), -EINVAL);
  EXPECT_EQ(file.read(0, &argument, sizeof argument), -EINVAL);
  EXPECT_EQ(file.before_mmap(4096, PROT_READ, MAP_SHARED, 0), -ENODEV);
  EXPECT_EQ(file.device_number(), 0U);
}

}  // namespace
}  // namespace qpair::softnic::driver
