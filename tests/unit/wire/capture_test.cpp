#include "softnic/wire/capture.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "softnic/wire/pcapng.hpp"
#include "softnic/wire/private_descriptors.hpp"
#include "tests/unit/wire/links.hpp"

namespace qpair::softnic::wire {
namespace {

const Endpoint kSelf = endpoint("127.71.1.1");
const Endpoint kPeer = endpoint("127.71.2.2");
const Endpoint kFar = endpoint("198.51.100.7");

// A SEND Only to queue pair 0x11; the CRC is left out, which no test here looks at.
Bytes roce_packet(std::uint8_t psn, std::size_t payload = 4) {
  Bytes packet(12 + payload + 4);
  packet[0] = std::byte{0x04};
  packet[2] = std::byte{0xff};
  packet[3] = std::byte{0xff};
  packet[7] = std::byte{0x11};
  packet[11] = std::byte{psn};
  return packet;
}

template <typename Integer>
Integer at(std::span<const std::byte> bytes, std::size_t offset) {
  Integer value{};
  EXPECT_LE(offset + sizeof(value), bytes.size());
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

struct Block {
  std::uint32_t type;
  Bytes body;  // without type and lengths
};

// An independent reading of the file, as strict as the format's draft.
std::vector<Block> read_blocks(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string raw{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(raw));
  std::vector<Block> blocks;
  for (std::size_t offset = 0; offset < bytes.size();) {
    const auto length = at<std::uint32_t>(bytes, offset + 4);
    if (length < 12 || length % 4 != 0 || offset + length > bytes.size() ||
        at<std::uint32_t>(bytes, offset + length - 4) != length) {
      ADD_FAILURE() << "broken block at " << offset;
      return blocks;
    }
    const auto body = bytes.subspan(offset + 8, length - 12);
    blocks.push_back({at<std::uint32_t>(bytes, offset), Bytes(body.begin(), body.end())});
    offset += length;
  }
  return blocks;
}

class CaptureTest : public testing::Test {
 protected:
  CaptureTest() {
    std::string pattern = testing::TempDir() + "qpair-capture-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/packets.pcapng";
  }
  ~CaptureTest() override { std::filesystem::remove_all(folder_); }

  struct Nic {
    RecordingLink* wire;
    std::unique_ptr<Capture> link;
  };
  Nic nic(const Endpoint& local) {
    auto file = CaptureFile::open(path_, local);
    EXPECT_TRUE(file) << file.error();
    auto wire = std::make_unique<RecordingLink>(local);
    RecordingLink* raw = wire.get();
    return {raw, std::make_unique<Capture>(std::move(wire), *std::move(file))};
  }
  std::vector<Block> packets() const {
    auto blocks = read_blocks(path_);
    std::erase_if(blocks, [](const Block& block) { return block.type != pcapng::kEnhancedPacket; });
    return blocks;
  }

  std::string folder_;
  std::string path_;
};

TEST_F(CaptureTest, AFileBeginsWithOneSectionAndOneInterface) {
  nic(kSelf);
  nic(kPeer);  // the second finds it there
  const auto blocks = read_blocks(path_);
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(blocks[0].type, pcapng::kSectionHeader);
  EXPECT_EQ(at<std::uint32_t>(blocks[0].body, 0), pcapng::kByteOrderMagic);
  EXPECT_EQ(at<std::uint16_t>(blocks[0].body, 4), 1);
  EXPECT_EQ(at<std::int64_t>(blocks[0].body, 8), -1);
  EXPECT_EQ(blocks[1].type, pcapng::kInterfaceDescription);
  EXPECT_EQ(at<std::uint16_t>(blocks[1].body, 0), pcapng::kLinkTypeRaw);
}

TEST_F(CaptureTest, APacketHasTheHeadersThatTheKernelGivesIt) {
  auto [wire, link] = nic(kSelf);
  send(*link, kPeer, roce_packet(7));
  link->flush();
  EXPECT_EQ(wire->sent.size(), 1U);
  const auto found = packets();
  ASSERT_EQ(found.size(), 1U);
  const Bytes& body = found[0].body;
  EXPECT_EQ(at<std::uint32_t>(body, 0), 0U);  // interface
  const std::uint32_t length = 20 + 8 + 20;
  EXPECT_EQ(at<std::uint32_t>(body, 12), length);
  EXPECT_EQ(at<std::uint32_t>(body, 16), length);
  const auto packet = std::span(body).subspan(20, length);
  const auto byte = [&](std::size_t i) { return std::to_integer<unsigned>(packet[i]); };
  EXPECT_EQ(byte(0), 0x45U);
  EXPECT_EQ(byte(2) << 8 | byte(3), length);
  EXPECT_EQ(byte(4) << 8 | byte(5), 0U);       // identification
  EXPECT_EQ(byte(6) << 8 | byte(7), 0x4000U);  // Don't Fragment
  EXPECT_EQ(byte(9), 17U);
  EXPECT_EQ(byte(15), 1U);
  EXPECT_EQ(byte(19), 2U);
  std::uint32_t sum = 0;  // the header's checksum makes its words sum up to all ones
  for (std::size_t i = 0; i < 20; i += 2) {
    sum += byte(i) << 8 | byte(i + 1);
  }
  EXPECT_EQ((sum & 0xffff) + (sum >> 16), 0xffffU);
  EXPECT_EQ(byte(20) << 8 | byte(21), kRoceUdpPort);
  EXPECT_EQ(byte(22) << 8 | byte(23), kRoceUdpPort);
  EXPECT_EQ(byte(24) << 8 | byte(25), 28U);
  EXPECT_TRUE(std::equal(packet.begin() + 28, packet.end(), roce_packet(7).begin()));
}

TEST_F(CaptureTest, EachPacketOfTwoRecordingNicsAppearsOnce) {
  auto one = nic(kSelf);
  auto two = nic(kPeer);
  send(*one.link, kPeer, roce_packet(1));
  one.link->flush();
  two.wire->incoming.push_back(one.wire->sent[0]);
  EXPECT_EQ(receive_all(*two.link).size(), 1U);
  EXPECT_EQ(packets().size(), 1U);
}

TEST_F(CaptureTest, APacketFromANicThatDoesNotRecordIsRecordedByItsReceiver) {
  auto [wire, link] = nic(kSelf);
  wire->incoming.push_back({kPeer, kSelf, roce_packet(1)});  // on this host, but without a capture
  wire->incoming.push_back({kFar, kSelf, roce_packet(2)});
  wire->incoming.push_back({kSelf, kSelf, roce_packet(3)});  // our own: recorded when it was sent
  EXPECT_EQ(receive_all(*link).size(), 3U);
  EXPECT_EQ(packets().size(), 2U);
}

TEST_F(CaptureTest, IPv6PacketsCarryAUdpChecksum) {
  const Endpoint six = endpoint("fd00::1");
  auto [wire, link] = nic(six);
  send(*link, endpoint("fd00::2"), roce_packet(1, 5));
  link->flush();
  const auto found = packets();
  ASSERT_EQ(found.size(), 1U);
  const auto packet = std::span(found[0].body).subspan(20);
  EXPECT_EQ(std::to_integer<unsigned>(packet[0]), 0x60U);
  EXPECT_NE(at<std::uint16_t>(packet, 46), 0);
}

TEST_F(CaptureTest, ManyProcessesWriteOneFileWithoutTearingEachOthersPackets) {
  constexpr unsigned kProcesses = 4;
  constexpr unsigned kPackets = 2000;
  for (unsigned process = 0; process < kProcesses; ++process) {
    if (::fork() == 0) {
      Endpoint local = kSelf;
      local.address[14] = static_cast<std::uint8_t>(process);
      auto file = CaptureFile::open(path_, local);
      Capture link(std::make_unique<RecordingLink>(local), *std::move(file));
      for (unsigned i = 0; i < kPackets; ++i) {
        send(link, kPeer, roce_packet(1, 4 + i % 1000 * 4));
        if (i % 10 == 0) {
          link.flush();
        }
      }
      link.flush();
      ::_exit(0);
    }
  }
  for (unsigned process = 0; process < kProcesses; ++process) {
    int status = 0;
    ::wait(&status);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(packets().size(), kProcesses * kPackets);
}

TEST_F(CaptureTest, AForkedChildDoesNotWriteItsParentsPacketsAgain) {
  auto [wire, link] = nic(kSelf);
  send(*link, kPeer, roce_packet(1));
  if (::fork() == 0) {
    link.reset();
    ::_exit(0);
  }
  ::wait(nullptr);
  link->flush();
  EXPECT_EQ(packets().size(), 1U);
}

TEST_F(CaptureTest, AnythingElsesFileIsLeftAlone) {
  std::ofstream(path_) << "a letter to my grandmother";
  const auto file = CaptureFile::open(path_, kSelf);
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error(), testing::HasSubstr("holds something other"));
  EXPECT_EQ(std::filesystem::file_size(path_), 26U);
}

TEST_F(CaptureTest, NobodyElseCanReadIt) {
  nic(kSelf);
  EXPECT_EQ(std::filesystem::status(path_).permissions() & std::filesystem::perms(0077),
            std::filesystem::perms::none);
}

// In a folder that all share, somebody else may have prepared the name.
TEST_F(CaptureTest, ALinkIsNotFollowed) {
  const std::string precious = folder_ + "/precious";
  std::ofstream(precious).flush();
  std::filesystem::create_symlink(precious, path_);
  const auto file = CaptureFile::open(path_, kSelf);
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error(), testing::HasSubstr("it is a symbolic link"));
  EXPECT_EQ(std::filesystem::file_size(precious), 0U);
}

TEST_F(CaptureTest, AnotherUsersFileIsNotUsed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make one";
  std::ofstream(path_).flush();
  ASSERT_EQ(::chown(path_.c_str(), 65534, 65534), 0);
  const auto file = CaptureFile::open(path_, kSelf);
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error(), testing::HasSubstr("it belongs to another user (65534)"));
  EXPECT_EQ(std::filesystem::file_size(path_), 0U);
}

TEST_F(CaptureTest, AFolderThatIsNotThereIsASentence) {
  const auto file = CaptureFile::open(folder_ + "/no/such/file", kSelf);
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error(), testing::HasSubstr("No such file or directory"));
}

TEST_F(CaptureTest, AFullDiskEndsTheCaptureAndNotTheTraffic) {
  testing::internal::CaptureStderr();
  if (const pid_t child = ::fork(); child == 0) {
    auto [wire, link] = nic(kSelf);
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{8192, 8192};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 10; ++i) {
      send(*link, kPeer, roce_packet(1, 4000));
      link->flush();
    }
    ::_exit(wire->sent.size() == 10 ? 0 : 1);
  }
  int status = 0;
  ::wait(&status);
  EXPECT_EQ(status, 0);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("the capture to '" + path_ + "' ends here"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

TEST_F(CaptureTest, ADescriptorThatTheProgramReplacedIsNeverWrittenTo) {
  auto file = CaptureFile::open(path_, kSelf);
  ASSERT_TRUE(file);
  const std::string precious = folder_ + "/precious";
  std::ofstream(precious) << "precious";
  // The program closes every descriptor and opens its own file, which gets the number of ours.
  for (int fd = 3; fd < kPrivateDescriptorLimit; ++fd) {
    struct stat status {};
    struct stat ours {};
    if (::fstat(fd, &status) == 0 && ::stat(path_.c_str(), &ours) == 0 && status.st_ino == ours.st_ino) {
      const int other = ::open(precious.c_str(), O_WRONLY | O_APPEND);
      ::dup2(other, fd);
      ::close(other);
    }
  }
  testing::internal::CaptureStderr();
  Capture link(std::make_unique<RecordingLink>(kSelf), *std::move(file));
  send(link, kPeer, roce_packet(1));
  link.flush();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("closed or replaced"));
  EXPECT_EQ(std::filesystem::file_size(precious), 8U);
}

TEST_F(CaptureTest, TsharkDecodesItAsRoceV2) {
  if (std::system("tshark --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "tshark is not installed";
  }
  auto [wire, link] = nic(kSelf);
  for (std::uint8_t psn = 0; psn < 5; ++psn) {
    send(*link, kPeer, roce_packet(psn));
  }
  link->flush();
  // Without the guess that any SEND may carry RPC-over-RDMA, which makes noise of payloads that do not.
  const std::string command = "tshark --disable-protocol rpcordma -r " + path_ +
                              " -T fields -e infiniband.bth.psn -e ip.src -e _ws.malformed 2>&1";
  std::string output;
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 256> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) {
    const std::string text = line.data();
    if (text.find("root") == std::string::npos) {  // tshark's warning about its user
      output += text;
    }
  }
  EXPECT_EQ(::pclose(pipe), 0);
  std::string expected;
  for (int psn = 0; psn < 5; ++psn) {
    expected += std::to_string(psn) + "\t127.71.1.1\t\n";
  }
  EXPECT_EQ(output, expected);
}

}  // namespace
}  // namespace qpair::softnic::wire
