// What a program sees of the emulated device through libc, and that it sees nothing else change.

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_user_cm.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

extern "C" {  // what <fcntl.h> and <unistd.h> turn calls into with _FORTIFY_SOURCE, and old binaries call
int __open_2(const char*, int);
int __openat_2(int, const char*, int);
ssize_t __read_chk(int, void*, size_t, size_t);
ssize_t __readlink_chk(const char*, char*, size_t, size_t);
char* __realpath_chk(const char*, char*, size_t);
int __xstat(int, const char*, struct stat*);
int __fxstat(int, int, struct stat*);
}

namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kNode = "/dev/infiniband/uverbs0";
constexpr const char* kDevice = "/sys/class/infiniband/mlx5_0";
constexpr const char* kPci = "/sys/devices/pci7171:00/7171:00:00.0";

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  operator int() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

bool is_device(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISCHR(status.st_mode) && status.st_rdev == makedev(231, 192);
}

std::string content(int fd) {
  std::array<char, 256> text{};
  const ssize_t size = read(fd, text.data(), text.size());
  return size < 0 ? std::strerror(errno) : std::string(text.data(), static_cast<std::size_t>(size));
}

// The test in a child process: 0 when it holds.
template <typename Test>
int in_child(const Test& test) {
  const pid_t child = fork();
  if (child == 0) _exit(test() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(device_node, is_a_character_device_however_a_program_asks) {
  struct stat status {};
  ASSERT_EQ(stat(kNode, &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
  EXPECT_EQ(status.st_rdev, makedev(231, 192));
  status = {};
  ASSERT_EQ(lstat(kNode, &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
  status = {};
  ASSERT_EQ(__xstat(1, kNode, &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
  struct stat64 large {};
  ASSERT_EQ(fstatat64(AT_FDCWD, kNode, &large, 0), 0);
  EXPECT_TRUE(S_ISCHR(large.st_mode));
  struct statx extended {};
  ASSERT_EQ(statx(AT_FDCWD, kNode, 0, STATX_BASIC_STATS, &extended), 0);
  EXPECT_TRUE(S_ISCHR(extended.stx_mode));
  EXPECT_EQ(extended.stx_rdev_major, 231U);
  EXPECT_EQ(extended.stx_rdev_minor, 192U);
}

TEST(device_node, can_be_read_and_written_by_anybody_but_not_executed) {
  EXPECT_EQ(access(kNode, R_OK | W_OK), 0);
  EXPECT_EQ(faccessat(AT_FDCWD, kNode, R_OK | W_OK, AT_EACCESS), 0);
  EXPECT_EQ(euidaccess(kNode, R_OK | W_OK), 0);
  EXPECT_EQ(access(kNode, X_OK), -1);
  EXPECT_EQ(errno, EACCES);
}

TEST(device_node, opens_under_every_name_that_libc_has_for_open) {
  const Fd directory(open("/dev/infiniband", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_GE(directory, 0);
  constexpr int kFlags = O_RDWR | O_CLOEXEC;
  EXPECT_TRUE(is_device(Fd(open(kNode, kFlags))));
  EXPECT_TRUE(is_device(Fd(open64(kNode, kFlags))));
  EXPECT_TRUE(is_device(Fd(openat(AT_FDCWD, kNode, kFlags))));
  EXPECT_TRUE(is_device(Fd(openat(directory, "uverbs0", kFlags))));
  EXPECT_TRUE(is_device(Fd(openat64(directory, "./uverbs0", kFlags))));
  EXPECT_TRUE(is_device(Fd(__open_2(kNode, kFlags))));
  EXPECT_TRUE(is_device(Fd(__openat_2(directory, "uverbs0", kFlags))));
  EXPECT_TRUE(is_device(Fd(open("/dev/char/231:192", kFlags))));
  EXPECT_TRUE(is_device(Fd(open("//dev/.//shm/../infiniband///uverbs0", kFlags))));
}

TEST(device_node, close_on_exec_and_non_blocking_are_as_asked_for) {
  const Fd kept(open(kNode, O_RDWR));
  const Fd closed(open(kNode, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  EXPECT_EQ(fcntl(kept, F_GETFD), 0);
  EXPECT_EQ(fcntl(closed, F_GETFD), FD_CLOEXEC);
  EXPECT_NE(fcntl(closed, F_GETFL) & O_NONBLOCK, 0);
  int on = 1;
  EXPECT_EQ(ioctl(kept, FIONBIO, &on), 0);
  EXPECT_NE(fcntl(kept, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(ioctl(kept, FIOCLEX), 0);
  EXPECT_EQ(fcntl(kept, F_GETFD), FD_CLOEXEC);
}

TEST(device_node, an_open_that_cannot_be_is_refused_as_by_the_kernel) {
  EXPECT_EQ(open(kNode, O_RDONLY | O_DIRECTORY), -1);
  EXPECT_EQ(errno, ENOTDIR);
  EXPECT_EQ(open(kNode, O_RDWR | O_CREAT | O_EXCL, 0600), -1);
  EXPECT_EQ(errno, EEXIST);
}

TEST(device_node, what_is_not_there_is_not_there) {
  for (const char* path : {"/dev/infiniband/umad0", "/dev/infiniband/uverbs1", "/sys/class/infiniband_mad",
                           "/sys/class/infiniband/mlx5_1", "/sys/class/infiniband_cm/x"}) {
    errno = 0;
    EXPECT_EQ(access(path, F_OK), -1) << path;
    EXPECT_EQ(errno, ENOENT) << path;
  }
}

TEST(sysfs, directories_are_listed) {
  std::set<std::string> names;
  DIR* directory = opendir("/sys/class/infiniband");
  ASSERT_NE(directory, nullptr);
  while (const dirent* entry = readdir(directory)) names.insert(entry->d_name);
  closedir(directory);
  EXPECT_EQ(names, (std::set<std::string>{".", "..", "mlx5_0"}));

  dirent** entries = nullptr;
  const int count = scandir("/dev/infiniband/", &entries, nullptr, alphasort);
  ASSERT_EQ(count, 4);
  EXPECT_STREQ(entries[2]->d_name, "rdma_cm");
  EXPECT_STREQ(entries[3]->d_name, "uverbs0");
  for (int i = 0; i < count; ++i) free(entries[i]);
  free(entries);
}

TEST(sysfs, files_are_read_by_path_by_stream_and_relative_to_a_directory) {
  const Fd directory(open(kDevice, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_GE(directory, 0);
  EXPECT_EQ(content(Fd(openat(directory, "node_type", O_RDONLY))), "1: CA\n");
  EXPECT_EQ(content(Fd(open("/sys/class/infiniband/mlx5_0/device/vendor", O_RDONLY))), "0x15b3\n");
  std::array<char, 64> line{};
  FILE* stream = fopen("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "r");
  ASSERT_NE(stream, nullptr);
  EXPECT_STREQ(fgets(line.data(), line.size(), stream), "Ethernet\n");
  stream = freopen("/sys/class/infiniband/mlx5_0/ports/1/state", "r", stream);
  ASSERT_NE(stream, nullptr);
  EXPECT_STREQ(fgets(line.data(), line.size(), stream), "4: ACTIVE\n");
  fclose(stream);
}

// libibverbs takes EINVAL for "no GID here" and everything else for an error (cmd_device.c,
// query_sysfs_gid_type).
TEST(sysfs, the_type_of_an_empty_gid_cannot_be_read) {
  const Fd type(open("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/15", O_RDONLY));
  ASSERT_GE(type, 0);
  EXPECT_EQ(content(type), "Invalid argument");
  EXPECT_EQ(content(Fd(open("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3", O_RDONLY))),
            "RoCE v2\n");
}

TEST(sysfs, paths_that_libc_reports_are_those_of_a_real_sysfs) {
  std::array<char, PATH_MAX> path{};
  EXPECT_STREQ(realpath("/sys/class/infiniband/mlx5_0/device", path.data()), kPci);
  EXPECT_STREQ(__realpath_chk(kDevice, path.data(), path.size()),
               "/sys/devices/pci7171:00/7171:00:00.0/infiniband/mlx5_0");
  char* allocated = canonicalize_file_name("/sys/class/infiniband/mlx5_0/device/driver");
  EXPECT_STREQ(allocated, "/sys/bus/pci/drivers/mlx5_core");
  free(allocated);
  EXPECT_STREQ(realpath(kPci, path.data()), kPci) << "what realpath said can be asked again";
  EXPECT_STREQ(realpath(kNode, path.data()), kNode);

  path = {};
  ASSERT_GT(readlink(kDevice, path.data(), path.size()), 0);
  EXPECT_STREQ(path.data(), "../../devices/pci7171:00/7171:00:00.0/infiniband/mlx5_0");
  path = {};
  ASSERT_GT(__readlink_chk("/sys/class/infiniband/mlx5_0/device", path.data(), path.size(), path.size()), 0);
  EXPECT_STREQ(path.data(), "../../../7171:00:00.0");
  const Fd open_file(open("/sys/class/infiniband/mlx5_0/fw_ver", O_RDONLY));
  const ssize_t length =
      readlink(("/proc/self/fd/" + std::to_string(open_file)).c_str(), path.data(), path.size());
  ASSERT_GT(length, 0);
  EXPECT_EQ(std::string_view(path.data(), static_cast<std::size_t>(length)),
            "/sys/devices/pci7171:00/7171:00:00.0/infiniband/mlx5_0/fw_ver");
}

TEST(sysfs, a_program_can_go_there) {
  EXPECT_EQ(in_child([] {
              std::array<char, PATH_MAX> path{};
              if (chdir("/sys/class/infiniband/mlx5_0/ports/1") != 0) return false;
              const bool named = std::string_view(getcwd(path.data(), path.size())) ==
                                 "/sys/devices/pci7171:00/7171:00:00.0/infiniband/mlx5_0/ports/1";
              return named && content(Fd(open("../../node_type", O_RDONLY))) == "1: CA\n";
            }),
            0);
}

TEST(sysfs, patterns_find_the_devices_files) {
  glob_t found{};
  ASSERT_EQ(glob("/sys/class/infiniband/*/ports/*/gids/[0-3]", 0, nullptr, &found), 0);
  ASSERT_EQ(found.gl_pathc, 4U);
  EXPECT_STREQ(found.gl_pathv[3], "/sys/class/infiniband/mlx5_0/ports/1/gids/3");
  globfree(&found);
  EXPECT_EQ(glob("/sys/class/infiniband/none*", 0, nullptr, &found), GLOB_NOMATCH);
  globfree(&found);
}

TEST(netlink, is_refused_for_rdma_only) {
  EXPECT_EQ(socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA), -1);
  EXPECT_EQ(errno, EPROTONOSUPPORT);
  EXPECT_GE(Fd(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)), 0);
  EXPECT_GE(Fd(socket(AF_INET, SOCK_DGRAM, 0)), 0);
}

TEST(descriptors, duplicates_are_the_same_open_device) {
  const Fd device(open(kNode, O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(is_device(Fd(dup(device))));
  EXPECT_TRUE(is_device(Fd(fcntl(device, F_DUPFD_CLOEXEC, 100))));
  const Fd target(open("/dev/null", O_RDONLY));
  EXPECT_FALSE(is_device(target));
  ASSERT_EQ(dup2(device, target), target);
  EXPECT_TRUE(is_device(target));
  const Fd null(open("/dev/null", O_RDONLY));
  ASSERT_EQ(dup3(null, target, O_CLOEXEC), target);
  EXPECT_FALSE(is_device(target));
  EXPECT_TRUE(is_device(device));
  EXPECT_EQ(dup2(9999, device), -1);
  EXPECT_TRUE(is_device(device)) << "a dup2() that fails leaves its target open";
}

TEST(descriptors, closing_is_seen_however_it_is_done) {
  const int closed = open(kNode, O_RDWR);
  ASSERT_EQ(close(closed), 0);
  EXPECT_EQ(close(closed), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(in_child([] {
              const int device = open(kNode, O_RDWR);
              if (close_range(3, ~0U, 0) != 0 || fcntl(device, F_GETFD) != -1) return false;
              const int again = open(kNode, O_RDWR);
              closefrom(3);
              return again >= 0 && fcntl(again, F_GETFD) == -1;
            }),
            0);
}

TEST(descriptors, a_number_that_was_closed_by_fclose_belongs_to_its_next_owner) {
  const int device = open(kNode, O_RDWR);
  FILE* stream = fdopen(device, "r+");
  ASSERT_NE(stream, nullptr);
  fclose(stream);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  ASSERT_EQ(ends[0], device);
  EXPECT_FALSE(is_device(ends[0]));
  ASSERT_EQ(write(ends[1], "text", 4), 4);
  EXPECT_EQ(content(ends[0]), "text");
  close(ends[0]);
  close(ends[1]);
}

TEST(descriptors, nonsense_is_refused_and_harms_nobody) {
  const Fd device(open(kNode, O_RDWR | O_CLOEXEC));
  EXPECT_EQ(ioctl(device, TCGETS, nullptr), -1);
  EXPECT_THAT(errno, testing::AnyOf(ENOTTY, EINVAL));
  EXPECT_EQ(write(device, "x", 1), -1);
  std::array<char, 8> bytes{};
  EXPECT_EQ(read(device, bytes.data(), bytes.size()), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(__read_chk(device, bytes.data(), bytes.size(), bytes.size()), -1);
  iovec vector{bytes.data(), bytes.size()};
  EXPECT_EQ(readv(device, &vector, 1), -1);
  EXPECT_EQ(writev(device, &vector, 1), -1);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, device, 1L << 40), MAP_FAILED);
  EXPECT_TRUE(is_device(device));
}

TEST(processes, a_spawned_child_that_closes_the_device_leaves_it_to_its_parent) {
  const Fd device(open(kNode, O_RDWR | O_CLOEXEC));
  const pid_t child = vfork();
  if (child == 0) {
    close(device);
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_device(device));
  EXPECT_EQ(system("exit 7"), 7 << 8);
  EXPECT_TRUE(is_device(device));
}

TEST(streams, may_change_their_mode_without_a_path) {
  const Fd file(open("/dev/null", O_RDWR));
  FILE* const stream = fdopen(dup(file), "r");
  ASSERT_NE(stream, nullptr);
  FILE* const again = freopen(nullptr, "r", stream);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(fclose(again), 0);
}

TEST(signals, that_a_child_of_vfork_resets_stay_as_they_are_in_the_parent) {
  const Fd device(open(kNode, O_RDWR | O_CLOEXEC));
  struct sigaction mine {};
  mine.sa_handler = [](int) { _exit(3); };
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGSEGV, &mine, &before), 0);
  const pid_t child = vfork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  struct sigaction now {};
  EXPECT_EQ(sigaction(SIGSEGV, &before, &now), 0);
  EXPECT_EQ(now.sa_handler, mine.sa_handler);
}

TEST(signals, that_are_held_and_ignored_stay_the_programs) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer puts handlers of its own in front, and does not know sigset()";
#endif
  const Fd device(open(kNode, O_RDWR | O_CLOEXEC));
  struct sigaction mine {};
  mine.sa_handler = [](int) { _exit(3); };
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGSEGV, &mine, &before), 0);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  EXPECT_EQ(sigset(SIGSEGV, SIG_HOLD), mine.sa_handler);
  EXPECT_EQ(sigset(SIGSEGV, mine.sa_handler), SIG_HOLD);
  EXPECT_EQ(sigignore(SIGSEGV), 0);
#pragma GCC diagnostic pop
  struct sigaction now {};
  EXPECT_EQ(sigaction(SIGSEGV, &before, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
}

TEST(processes, a_thread_that_waits_for_a_connection_event_can_be_cancelled) {
  const Fd channel(open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC));
  ASSERT_GE(channel, 0);
  int number = channel;
  pthread_t thread{};
  ASSERT_EQ(pthread_create(
                &thread, nullptr,
                [](void* of) -> void* {
                  rdma_ucm_event_resp answer{};
                  struct {
                    rdma_ucm_cmd_hdr header;
                    rdma_ucm_get_event body;
                  } command{{RDMA_USER_CM_CMD_GET_EVENT, sizeof(rdma_ucm_get_event), sizeof answer},
                            {reinterpret_cast<std::uintptr_t>(&answer)}};
                  return reinterpret_cast<void*>(write(*static_cast<int*>(of), &command, sizeof command));
                },
                &number),
            0);
  usleep(20'000);
  ASSERT_EQ(pthread_cancel(thread), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

TEST(processes, a_device_is_never_a_standard_stream) {
  EXPECT_EQ(in_child([] {
              for (const int standard : {0, 1, 2}) close(standard);
              const int device = open(kNode, O_RDWR | O_CLOEXEC);
              return device > 2;
            }),
            0);
}

TEST(processes, a_forked_child_gets_a_device_of_its_own) {
  const Fd device(open(kNode, O_RDWR | O_CLOEXEC));
  std::array<char, 64> gid{};
  const Fd file(open("/sys/class/infiniband/mlx5_0/ports/1/gids/3", O_RDONLY));
  ASSERT_GT(read(file, gid.data(), gid.size()), 0);
  EXPECT_EQ(in_child([&] {
              const bool inherited = ioctl(device, 0, nullptr) == -1;
              const Fd own(open(kNode, O_RDWR));
              const Fd own_gid(open("/sys/class/infiniband/mlx5_0/ports/1/gids/3", O_RDONLY));
              return inherited && is_device(own) && content(own_gid) != gid.data() && close(device) == 0;
            }),
            0);
  EXPECT_TRUE(is_device(device));
  EXPECT_EQ(access(kDevice, F_OK), 0) << "the child removed its own files only";
}

TEST(processes, forking_while_others_open_and_close_does_not_hang) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "AddressSanitizer's allocator may be locked for ever in the child of a program with threads";
#endif
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop) failures += is_device(Fd(open(kNode, O_RDWR | O_CLOEXEC))) ? 0 : 1;
    });
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(in_child([] { return access(kNode, R_OK) == 0; }), 0);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

sigjmp_buf after_fault;
void on_fault(int, siginfo_t* info, void*) {
  siglongjmp(after_fault, info->si_addr == nullptr ? 1 : 2);
}
void simple_handler(int) {}

// Stores where nothing may be stored; what the handler made of it.
__attribute__((noinline)) int fault() {
  const int caught = sigsetjmp(after_fault, 1);
  if (caught != 0) return caught;
  void* hole = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile char*>(hole) = 1;
  return 0;
}

TEST(signals, the_programs_handlers_are_reported_and_called) {
  const Fd device(open(kNode, O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(is_device(device));
  for (const int number : {SIGSEGV, SIGBUS}) {
    struct sigaction original {};
    ASSERT_EQ(sigaction(number, nullptr, &original), 0);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ASSERT_EQ(sigaction(number, &action, nullptr), 0);
    struct sigaction told {};
    ASSERT_EQ(sigaction(number, nullptr, &told), 0);
    EXPECT_EQ(told.sa_sigaction, &on_fault);
    EXPECT_EQ(told.sa_flags & (SA_SIGINFO | SA_NODEFER), SA_SIGINFO | SA_NODEFER);
    EXPECT_EQ(reinterpret_cast<void*>(signal(number, simple_handler)), reinterpret_cast<void*>(on_fault));
    EXPECT_EQ(signal(number, SIG_DFL), &simple_handler);
    ASSERT_EQ(sigaction(SIGSEGV, &action, nullptr), 0);
    EXPECT_EQ(fault(), 2);
    ASSERT_EQ(sigaction(number, &original, nullptr), 0);
  }
}

TEST(signals, a_program_that_crashes_dies_of_the_signal) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    const int device = open(kNode, O_RDWR);
    raise(SIGSEGV);
    _exit(device);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGSEGV);
}

TEST(transparency, other_files_are_untouched_and_so_is_errno) {
  errno = 1234;
  const Fd null(open("/dev/null", O_RDWR));
  ASSERT_GE(null, 0);
  struct stat status {};
  EXPECT_EQ(stat("/dev/null", &status), 0);
  EXPECT_EQ(status.st_rdev, makedev(1, 3));
  EXPECT_EQ(access("/sys/class/net", R_OK), 0);
  EXPECT_EQ(access("/dev/shm", R_OK), 0);
  EXPECT_EQ(errno, 1234);
  for (const char* path :
       {"/dev/infinibandx", "/sys/class/infinibands", "/dev/infini", "/sys/class/infinib"}) {
    EXPECT_EQ(access(path, F_OK), -1);
    EXPECT_EQ(errno, ENOENT);
  }
  int (*const volatile open_anything)(const char*, int, ...) = open;
  EXPECT_EQ(open_anything(nullptr, O_RDONLY), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(open("", O_RDONLY), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(access(std::string(PATH_MAX + 10, '/').append("dev/infiniband").c_str(), F_OK), -1);
  EXPECT_EQ(errno, ENAMETOOLONG);
}

TEST(transparency, a_new_file_gets_its_mode) {
  std::string name = "/tmp/qpair-mode-XXXXXX";
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const mode_t before = umask(0);
  const std::string path = name + "/file";
  EXPECT_GE(Fd(open(path.c_str(), O_WRONLY | O_CREAT, 0640)), 0);
  umask(before);
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0640U);
  unlink(path.c_str());
  rmdir(name.c_str());
}

}  // namespace
