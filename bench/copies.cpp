// What moving bytes costs without RDMA, to compare with: memcpy() by one thread, of the same bytes again (in
// cache) and of ever other ones (not in cache); process_vm_writev() into another process, which sleeps.
//
//   build/bin/bench-copies --benchmark_filter=1048576
#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>

namespace {

constexpr std::size_t kSmallest = 2;
constexpr std::size_t kLargest = std::size_t{64} << 20;
constexpr std::size_t kBeyondCaches = std::size_t{512} << 20;  // bytes that all copies of a round touch

// Memory that is there: every page was written.
class Pages {
 public:
  explicit Pages(std::size_t size) : size_(size) {
    data_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    fill();
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::munmap(data_, size_); }

  void fill() const { std::memset(data_, 0x5a, size_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
  std::size_t size_;
};

void count(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(static_cast<std::size_t>(state.iterations()) * bytes));
}

void copy_in_cache(benchmark::State& state) {
  const auto size = static_cast<std::size_t>(state.range(0));
  const Pages from(size);
  const Pages to(size);
  for (auto unused : state) {
    static_cast<void>(unused);
    std::memcpy(to.data(), from.data(), size);
    benchmark::ClobberMemory();
  }
  count(state, size);
}

void copy_not_in_cache(benchmark::State& state) {
  const auto size = static_cast<std::size_t>(state.range(0));
  const std::size_t total = std::max(kBeyondCaches / 2, size);
  const Pages from(total);
  const Pages to(total);
  std::size_t offset = 0;
  for (auto unused : state) {
    static_cast<void>(unused);
    std::memcpy(to.data() + offset, from.data() + offset, size);
    benchmark::ClobberMemory();
    offset += size;
    if (offset + size > total) offset = 0;
  }
  count(state, size);
}

// A process that has memory of its own at the same addresses, and sleeps until its parent ends it.
class Sleeper {
 public:
  explicit Sleeper(const Pages& pages) {
    int ready[2];
    if (::pipe(ready) != 0) std::abort();
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      pages.fill();
      const char byte = 0;
      if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte = 0;
    if (pid_ < 0 || ::read(ready[0], &byte, 1) != 1) std::abort();
    ::close(ready[0]);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ~Sleeper() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

void process_vm_write(benchmark::State& state) {
  const auto size = static_cast<std::size_t>(state.range(0));
  const Pages from(size);
  const Pages to(size);
  const Sleeper sleeper(to);
  for (auto unused : state) {
    static_cast<void>(unused);
    // A call moves less when it is long; the rest follows.
    for (std::size_t done = 0; done < size;) {
      const iovec local_rest{from.data() + done, size - done};
      const iovec remote_rest{to.data() + done, size - done};
      const ssize_t moved = ::process_vm_writev(sleeper.pid(), &local_rest, 1, &remote_rest, 1, 0);
      if (moved <= 0) {
        state.SkipWithError("process_vm_writev() is not allowed here");
        return;
      }
      done += static_cast<std::size_t>(moved);
    }
  }
  count(state, size);
}

BENCHMARK(copy_in_cache)->RangeMultiplier(2)->Range(kSmallest, kLargest)->UseRealTime();
BENCHMARK(copy_not_in_cache)->RangeMultiplier(2)->Range(kSmallest, kLargest)->UseRealTime();
BENCHMARK(process_vm_write)->RangeMultiplier(2)->Range(kSmallest, kLargest)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
