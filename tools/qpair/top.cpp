// qpair top: live counters of the emulated NICs of this user's processes.

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.hpp"
#include "failure.hpp"
#include "process.hpp"
#include "table.hpp"
#include "top_report.hpp"
#include "units.hpp"

namespace qpair::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLinesWithoutTerminal = 10'000;

// The keyboard without echo and without waiting for a line, and no cursor; as it was before when this goes.
class Screen {
 public:
  Screen() {
    keyboard_ = ::isatty(STDIN_FILENO) != 0 && ::tcgetattr(STDIN_FILENO, &before_) == 0;
    if (keyboard_) {
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fmt::print("\x1b[?25l");
  }
  ~Screen() {
    if (keyboard_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
    std::fputs("\x1b[?25h", stdout);
    std::fflush(stdout);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  bool has_keyboard() const { return keyboard_; }

  static winsize size() {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) size = {24, 80, 0, 0};
    return size;
  }

  // From the top left corner; every line is cut at the right edge.
  static void draw(const std::string& text) {
    const std::size_t columns = size().ws_col;
    std::string screen = "\x1b[H";
    for (std::size_t start = 0; start < text.size();) {
      const std::size_t end = text.find('\n', start);
      std::string line = text.substr(start, end - start);
      while (display_width(line) > columns) line.pop_back();
      screen += line + "\x1b[K\n";
      start = end + 1;
    }
    fmt::print("{}\x1b[J", screen);
    std::fflush(stdout);
  }

 private:
  bool keyboard_ = false;
  termios before_{};
};

// Until the time is over. False: q was pressed, or a signal says to end.
bool wait_for(std::chrono::nanoseconds interval, bool keyboard, SignalWatch& signals) {
  const auto end = Clock::now() + interval;
  for (;;) {
    const auto left = end - Clock::now();
    if (left <= std::chrono::nanoseconds::zero()) return true;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec timeout{seconds.count(), (left - seconds).count()};
    std::array<pollfd, 2> fds{{{signals.fd(), POLLIN, 0}, {keyboard ? STDIN_FILENO : -1, POLLIN, 0}}};
    if (::ppoll(fds.data(), fds.size(), &timeout, nullptr) <= 0) continue;
    if (signals.received()) return false;
    if (fds[1].revents == 0) continue;
    char pressed = 0;
    if (::read(STDIN_FILENO, &pressed, 1) <= 0) keyboard = false;  // the terminal is gone
    if (pressed == 'q' || pressed == 'Q') return false;
  }
}

struct TopOptions {
  bool once = false;
  bool json = false;
  std::string interval = "1s";
  pid_t pid = 0;
};

class Top {
 public:
  explicit Top(const TopOptions& options)
      : options_(options),
        interval_(parse_duration(options.interval).value()),
        before_(read_nics(options.pid)) {}

  int run() {
    if (options_.pid != 0 && before_.nics.empty()) {
      throw Failure(
          fmt::format("process {} has no emulated NIC that can be read; `qpair top` shows those there are",
                      options_.pid));
    }
    const bool interactive = !options_.once && !options_.json && ::isatty(STDOUT_FILENO) != 0;
    return interactive ? run_on_screen() : run_on_paper();
  }

 private:
  std::vector<NicReport> next() {
    NicsReading now = read_nics(options_.pid);
    std::vector<NicReport> reports = compare(before_, now);
    elapsed_ = now.when - before_.when;
    before_ = std::move(now);
    return reports;
  }

  int run_on_screen() {
    const Screen screen;
    // The first one shows the averages since the NICs were made.
    std::vector<NicReport> reports = compare({}, before_);
    do {
      if (options_.pid != 0 && reports.empty()) break;  // it has ended
      const std::string heading =
          fmt::format("qpair top  {:%H:%M:%S}  every {}{}\n\n", fmt::localtime(std::time(nullptr)),
                      format_duration(interval_), screen.has_keyboard() ? "  (q ends)" : "");
      const std::size_t rows = Screen::size().ws_row;
      Screen::draw(heading + top_text(reports, rows > 4 ? rows - 3 : 1));
      if (!wait_for(interval_, screen.has_keyboard(), signals_)) break;
      reports = next();
    } while (true);
    return 0;
  }

  int run_on_paper() {
    while (wait_for(interval_, false, signals_)) {
      const std::vector<NicReport> reports = next();
      if (options_.json) {
        fmt::print("{}\n", top_json(reports, elapsed_).dump(options_.once ? 2 : -1));
      } else {
        fmt::print("{}{}", top_text(reports, kLinesWithoutTerminal), options_.once ? "" : "\n");
      }
      if (std::fflush(stdout) != 0) throw Failure("cannot write to standard output");
      if (options_.once || (options_.pid != 0 && reports.empty())) return 0;
    }
    return 0;
  }

  TopOptions options_;
  std::chrono::nanoseconds interval_;
  std::chrono::duration<double> elapsed_{0};
  SignalWatch signals_;
  NicsReading before_;
};

std::string check_interval(const std::string& text) {
  const auto interval = parse_duration(text);
  if (interval && interval->count() > 0) return {};
  return fmt::format("'{}' is not a time; write a number and its unit, as in 500ms or 2s, at most 10s", text);
}

}  // namespace

Command top_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("top", "Live counters of the emulated NICs of your processes");
  auto options = std::make_shared<TopOptions>();
  app->add_flag("--once", options->once, "Print what one interval shows, and end");
  app->add_flag("--json", options->json, "Print JSON, one object for each interval");
  app->add_option("--interval", options->interval, "Time between two readings (default 1s)")
      ->check(CLI::Validator([](std::string& text) { return check_interval(text); }, ""))
      ->type_name("TIME");
  app->add_option("--nic", options->pid, "Only the NIC of this process")
      ->check(CLI::PositiveNumber)
      ->type_name("PID");
  app->footer(
      "Rates are those of the last interval. RETX (retransmitted packets), RNR (NAKs for want of a receive) "
      "and\n"
      "ERR (work requests that failed or were refused) are counted since the NIC was made. The first 256 "
      "queue\n"
      "pairs of a NIC are shown one by one, the others in sum.\n\n"
      "Examples:\n"
      "  qpair top\n"
      "  qpair top --once --json --interval 100ms");
  return {app, [options] { return Top(*options).run(); }};
}

}  // namespace qpair::tool
