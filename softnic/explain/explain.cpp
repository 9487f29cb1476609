#include "softnic/explain/explain.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace qpair::softnic::explain {
namespace {

constexpr unsigned kKinds = 4;
constexpr std::string_view kPrefix = "qpair: ";
constexpr std::size_t kLongest = 2048;  // bytes of a line; more is cut
// A program that fails a million times a second wants the first few reasons and a count.
constexpr std::uint32_t kPerSecond = 20;

std::atomic<bool> quiet{false};
std::atomic<bool> strict{false};

// Floods are counted by kind. Only atomics: say() may run in a signal handler or in a child after fork(),
// where a mutex might be held by a thread that does not exist.
struct Meter {
  std::atomic<std::uint64_t> second{0};
  std::atomic<std::uint32_t> said{0};
  std::atomic<std::uint32_t> held_back{0};
};
std::array<Meter, kKinds> meters;

// One line, put together on the stack and written by one system call so that lines of several processes do
// not mix.
class Line {
 public:
  Line() { append(kPrefix); }

  void append(std::string_view text) {
    for (const char character : text) {
      if (size_ == kLongest) {
        cut_ = true;
        return;
      }
      const bool control = static_cast<unsigned char>(character) < 0x20 || character == 0x7f;
      buffer_[size_++] = control ? ' ' : character;
    }
  }

  void write() {
    if (cut_) {
      constexpr std::string_view kMark = "...";
      std::memcpy(buffer_.data() + kLongest - kMark.size(), kMark.data(), kMark.size());
    }
    buffer_[size_++] = '\n';
    std::size_t done = 0;
    while (done < size_) {
      // Not by libc: there a thread that is to be cancelled would end.
      const long written = ::syscall(SYS_write, STDERR_FILENO, buffer_.data() + done, size_ - done);
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written <= 0) {
        return;  // nobody reads: not worth more
      }
      done += static_cast<std::size_t>(written);
    }
  }

 private:
  std::array<char, kLongest + 1> buffer_;
  std::size_t size_ = 0;
  bool cut_ = false;
};

std::string_view plural(Kind kind) {
  switch (kind) {
    case Kind::Notice:
      return "notices";
    case Kind::Refusal:
      return "refused commands";
    case Kind::Failure:
      return "failed work requests";
    case Kind::Finding:
      return "protocol violations";
  }
  return "sentences";
}

void report_held_back(Kind kind, Meter& meter) {
  const std::uint32_t count = meter.held_back.exchange(0, std::memory_order_relaxed);
  if (count == 0) {
    return;
  }
  std::array<char, 16> digits{};
  const char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), count).ptr;
  Line line;
  line.append("… and ");
  line.append({digits.data(), static_cast<std::size_t>(end - digits.data())});
  line.append(" more ");
  line.append(plural(kind));
  line.write();
}

std::uint64_t this_second() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_sec) + 1;
}

// Whether this sentence is to be held back. When a new second begins, says how many were in the last.
bool too_many(Kind kind, Meter& meter) {
  const std::uint64_t now = this_second();
  if (meter.second.exchange(now, std::memory_order_relaxed) != now) {
    meter.said.store(0, std::memory_order_relaxed);
    report_held_back(kind, meter);
  }
  if (meter.said.fetch_add(1, std::memory_order_relaxed) < kPerSecond) {
    return false;
  }
  meter.held_back.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Says what is still held back when the process ends or the library goes.
struct LastWords {
  // A child has its own floods to tell of, not its parent's.
  LastWords() {
    ::pthread_atfork(nullptr, nullptr, [] {
      for (Meter& meter : meters) {
        meter.held_back.store(0, std::memory_order_relaxed);
      }
    });
  }
  ~LastWords() {
    if (!quiet.load(std::memory_order_relaxed)) {
      finish();
    }
  }
};
const LastWords last_words;

}  // namespace

void configure(Options options) noexcept {
  quiet.store(options.quiet, std::memory_order_relaxed);
  strict.store(options.strict, std::memory_order_relaxed);
}

void say(Kind kind, std::string_view sentence) noexcept {
  const int saved_errno = errno;
  Meter& meter = meters[static_cast<std::size_t>(kind) % kKinds];
  const bool fatal = kind == Kind::Finding && strict.load(std::memory_order_relaxed);
  // The sentence that ends the process is said even when quiet: dying without a word helps nobody.
  if (fatal || (!quiet.load(std::memory_order_relaxed) && !too_many(kind, meter))) {
    Line line;
    line.append(sentence);
    line.write();
  }
  if (fatal) {
    std::abort();
  }
  errno = saved_errno;
}

void finish() noexcept {
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    report_held_back(static_cast<Kind>(kind), meters[kind]);
  }
}

}  // namespace qpair::softnic::explain
