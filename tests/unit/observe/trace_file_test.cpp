#include "softnic/observe/trace_file.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace qpair::softnic::observe {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class TraceFileTest : public testing::Test {
 protected:
  TraceFileTest() {
    std::string name = fs::temp_directory_path() / "trace-test-XXXXXX";
    folder_ = mkdtemp(name.data());
    path_ = folder_ / "trace.json";
  }
  ~TraceFileTest() override { fs::remove_all(folder_); }

  static std::string content(const fs::path& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  fs::path folder_;
  fs::path path_;
};

TEST_F(TraceFileTest, LinesAreElementsOfAnArrayThatNobodyCloses) {
  auto trace = *TraceFile::open(path_);
  trace->line(R"({{"n":{}}})", 7);
  EXPECT_THAT(content(path_), Not(HasSubstr("7"))) << "not before it is flushed";
  trace->flush();
  EXPECT_THAT(content(path_), StartsWith("[\n{"));
  EXPECT_THAT(content(path_), EndsWith(",\n{\"n\":7},\n"));
}

TEST_F(TraceFileTest, SeveralWriteToOneFile) {
  auto one = *TraceFile::open(path_);
  auto other = *TraceFile::open(path_);
  one->line("1");
  other->line("2");
  other.reset();
  one.reset();
  EXPECT_THAT(content(path_), EndsWith("}},\n2,\n1,\n"));
  EXPECT_EQ(content(path_).find("[\n"), content(path_).rfind("[\n")) << "begun once";
}

TEST_F(TraceFileTest, TheProcessNumberGoesIntoTheName) {
  const auto trace = TraceFile::open(folder_ / "a-%p-%p.json");
  ASSERT_TRUE(trace);
  EXPECT_TRUE(
      fs::exists(folder_ / ("a-" + std::to_string(getpid()) + "-" + std::to_string(getpid()) + ".json")));
}

TEST_F(TraceFileTest, AFileOfAnotherKindIsLeftAlone) {
  std::ofstream(path_) << "[\n{}]";
  const auto trace = TraceFile::open(path_);
  ASSERT_FALSE(trace);
  EXPECT_THAT(trace.error(), HasSubstr("something other"));
  EXPECT_EQ(content(path_), "[\n{}]");
  EXPECT_THAT(TraceFile::open(folder_).error(), HasSubstr("Is a directory"));
  EXPECT_THAT(TraceFile::open(folder_ / "missing/file").error(), HasSubstr("No such file"));
}

TEST_F(TraceFileTest, ItIsForNobodyElseAndNoLinkIsFollowed) {
  const auto trace = TraceFile::open(path_);
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(path_, folder_ / "link");
  EXPECT_THAT(TraceFile::open(folder_ / "link").error(), HasSubstr("symbolic link"));
}

TEST_F(TraceFileTest, MoreThanTheBufferHoldsIsWrittenInBetween) {
  {
    auto trace = *TraceFile::open(path_);
    for (int i = 0; i < 10'000; ++i) trace->line("\"{:0100}\"", i);
  }
  const std::string text = content(path_);
  EXPECT_THAT(text, EndsWith("9999\",\n"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 10'002);
}

TEST_F(TraceFileTest, AnEventThatIsTooLongIsLeftOutWhole) {
  auto trace = *TraceFile::open(path_);
  trace->line("\"{}\"", std::string(5000, 'x'));
  trace->line("1");
  trace->flush();
  EXPECT_THAT(content(path_), EndsWith("}},\n1,\n"));
}

TEST(PlainText, NeedsNoEscaping) {
  EXPECT_EQ(plain_text("ib_write_bw 1"), "ib_write_bw 1");
  EXPECT_EQ(plain_text("a\"b\\c\nd\x7f\xc3\xa4"), "a?b?c?d???");
}

}  // namespace
}  // namespace qpair::softnic::observe
