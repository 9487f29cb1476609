#include "softnic/explain/explain.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

namespace qpair::softnic::explain {
namespace {

using testing::HasSubstr;

// Runs `story` in a process of its own, since limits and options are the process's; returns what it said.
struct Outcome {
  std::string said;
  int status = 0;
  auto lines() const { return std::count(said.begin(), said.end(), '\n'); }
};
template <typename Story>
Outcome tell(Story story) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    story();
    std::exit(0);
  }
  ::close(ends[1]);
  Outcome outcome;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = ::read(ends[0], buffer.data(), buffer.size())) > 0;) {
    outcome.said.append(buffer.data(), static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  ::waitpid(child, &outcome.status, 0);
  return outcome;
}

TEST(Explain, ASentenceIsOneLineWithOurName) {
  const auto outcome = tell([] { say(Kind::Failure, "rkey 0x1234 is not a key of this NIC"); });
  EXPECT_EQ(outcome.said, "qpair: rkey 0x1234 is not a key of this NIC\n");
}

TEST(Explain, LineBreaksAndEscapesInASentenceCannotForgeLines) {
  const auto outcome = tell([] { say(Kind::Notice, "one\ntwo\x1b[31m\r"); });
  EXPECT_EQ(outcome.said, "qpair: one two [31m \n");
}

TEST(Explain, AnEndlessSentenceIsCut) {
  const auto outcome = tell([] { say(Kind::Notice, std::string(100000, 'x')); });
  EXPECT_LT(outcome.said.size(), 4096U);
  EXPECT_THAT(outcome.said, testing::EndsWith("x...\n"));
}

TEST(Explain, AFloodIsCutToAFewAndACount) {
  const auto outcome = tell([] {
    for (int i = 0; i < 10000; ++i) {
      say(Kind::Failure, fmt::format("failure {}", i));
    }
  });
  EXPECT_THAT(outcome.said, HasSubstr("qpair: failure 0\n"));
  EXPECT_LT(outcome.lines(), 200);
  EXPECT_THAT(outcome.said, HasSubstr("more failed work requests\n"));
  // What was said and what was counted make up the whole.
  std::int64_t total = 0;
  for (std::size_t at = 0; at < outcome.said.size(); at = outcome.said.find('\n', at) + 1) {
    const std::string line = outcome.said.substr(at, outcome.said.find('\n', at) - at);
    int more = 0;
    total += std::sscanf(line.c_str(), "qpair: … and %d more", &more) == 1 ? more : 1;
  }
  EXPECT_EQ(total, 10000);
}

TEST(Explain, AFloodOfOneKindDoesNotSilenceTheOthers) {
  const auto outcome = tell([] {
    for (int i = 0; i < 1000; ++i) {
      say(Kind::Failure, "again");
    }
    say(Kind::Finding, "the doorbell record is ahead of the doorbell");
  });
  EXPECT_THAT(outcome.said, HasSubstr("qpair: the doorbell record is ahead of the doorbell\n"));
}

TEST(Explain, QuietSaysNothing) {
  const auto outcome = tell([] {
    configure({.quiet = true});
    for (int i = 0; i < 1000; ++i) {
      say(Kind::Failure, "again");
    }
    say(Kind::Finding, "finding");
  });
  EXPECT_EQ(outcome.said, "");
  EXPECT_EQ(outcome.status, 0);
}

TEST(Explain, StrictEndsTheProcessAtTheFirstFindingAndNotBefore) {
  const auto outcome = tell([] {
    configure({.strict = true});
    say(Kind::Notice, "a notice");
    say(Kind::Refusal, "a refusal");
    say(Kind::Failure, "a failure");
    say(Kind::Finding, "a finding");
    say(Kind::Notice, "never reached");
  });
  EXPECT_EQ(outcome.said, "qpair: a notice\nqpair: a refusal\nqpair: a failure\nqpair: a finding\n");
  ASSERT_TRUE(WIFSIGNALED(outcome.status));
  EXPECT_EQ(WTERMSIG(outcome.status), SIGABRT);
}

TEST(Explain, TheLastSentenceIsSaidEvenWhenQuiet) {
  const auto outcome = tell([] {
    configure({.quiet = true, .strict = true});
    say(Kind::Failure, "a failure");
    say(Kind::Finding, "a finding");
  });
  EXPECT_EQ(outcome.said, "qpair: a finding\n");
}

TEST(Explain, ErrnoIsLeftAlone) {
  const auto outcome = tell([] {
    ::close(STDERR_FILENO);  // say() will fail
    errno = EAGAIN;
    say(Kind::Notice, "into the void");
    std::_Exit(errno == EAGAIN ? 0 : 1);
  });
  EXPECT_EQ(outcome.status, 0);
}

TEST(Explain, AReaderThatWentAwayOrIsSlowDoesNotHoldTheProgramUp) {
  const auto outcome = tell([] {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_NONBLOCK), 0);
    ::dup2(ends[1], STDERR_FILENO);
    for (int i = 0; i < 100; ++i) {
      for (const Kind kind : {Kind::Notice, Kind::Refusal, Kind::Failure, Kind::Finding}) {
        say(kind, std::string(2000, 'x'));
      }
    }
    std::_Exit(0);
  });
  EXPECT_EQ(outcome.status, 0);
}

TEST(Explain, LinesOfManyThreadsStayWhole) {
  const auto outcome = tell([] {
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
      threads.emplace_back([number] {
        for (int i = 0; i < 5; ++i) {
          say(static_cast<Kind>(number), std::string(200, static_cast<char>('a' + number)));
        }
      });
    }
    for (auto& thread : threads) {
      thread.join();
    }
  });
  EXPECT_EQ(outcome.lines(), 20);
  for (char letter = 'a'; letter <= 'd'; ++letter) {
    EXPECT_THAT(outcome.said, HasSubstr("qpair: " + std::string(200, letter) + "\n"));
  }
}

TEST(Explain, AChildDoesNotTellOfItsParentsFlood) {
  const auto outcome = tell([] {
    for (int i = 0; i < 1000; ++i) {
      say(Kind::Failure, "again");
    }
    const pid_t child = ::fork();
    if (child == 0) {
      std::exit(0);
    }
    ::waitpid(child, nullptr, 0);
  });
  const auto first = outcome.said.rfind("more failed");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(outcome.said.find("more failed"), first);
}

}  // namespace
}  // namespace qpair::softnic::explain
