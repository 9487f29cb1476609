#include "softnic/driver/sysfs.hpp"

#include <arpa/inet.h>
#include <fnmatch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace qpair::softnic::driver {
namespace {

namespace fs = std::filesystem;

nic::GidEntry entry(unsigned index, const char* address, bool roce_v2) {
  nic::GidEntry made{index, {}, roce_v2, "lo", 1};
  EXPECT_EQ(inet_pton(AF_INET6, address, made.gid.raw), 1);
  return made;
}

SysfsFacts facts() {
  SysfsFacts facts;
  facts.identity.node_guid = 0x0271'47ff'fe01'0203;
  facts.identity.system_image_guid = 0x0271'47ff'fe01'0203;
  facts.gids = {entry(0, "fe80::71", false), entry(1, "fe80::71", true), entry(2, "::ffff:127.71.1.2", false),
                entry(3, "::ffff:127.71.1.2", true)};
  facts.port = {};
  facts.port.state = IBV_PORT_ACTIVE;
  facts.port.phys_state = 5;
  facts.port.active_speed = 128;
  facts.port.active_width = 2;
  facts.port.link_layer = IBV_LINK_LAYER_ETHERNET;
  facts.port.gid_tbl_len = 255;
  facts.port.pkey_tbl_len = 1;
  facts.port.port_cap_flags = 0x04010000;
  return facts;
}

class SysfsTest : public testing::Test {
 protected:
  SysfsTest() {
    std::string name = fs::temp_directory_path() / "sysfs-test-XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~SysfsTest() override { fs::remove_all(root_); }

  SysfsTree write(const SysfsFacts& what = facts()) {
    auto tree = SysfsTree::write(what, root_);
    EXPECT_TRUE(tree) << tree.error();
    return *tree;
  }
  std::string read(const std::string& path) const {
    std::ifstream file(root_ + path);
    EXPECT_TRUE(file) << path;
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string resolved(const std::string& path) const {
    return fs::canonical(root_ + path).string().substr(fs::canonical(root_).string().size());
  }

  std::string root_;
};

constexpr const char* kDevice = "/sys/class/infiniband/mlx5_0";
constexpr const char* kPort = "/sys/class/infiniband/mlx5_0/ports/1";

TEST_F(SysfsTest, libibverbs_finds_the_device_and_its_node) {
  write();
  EXPECT_EQ(read("/sys/class/infiniband_verbs/abi_version"), "6\n");
  const std::string uverbs = "/sys/class/infiniband_verbs/uverbs0";
  EXPECT_EQ(read(uverbs + "/ibdev"), "mlx5_0\n");
  EXPECT_EQ(read(uverbs + "/dev"), "231:192\n");
  EXPECT_EQ(read(uverbs + "/abi_version"), "1\n");
  EXPECT_EQ(read(std::string(kDevice) + "/node_type"), "1: CA\n");
  EXPECT_EQ(read(std::string(kDevice) + "/node_guid"), "0271:47ff:fe01:0203\n");
  EXPECT_EQ(read(std::string(kDevice) + "/device/infiniband_verbs/uverbs0/ibdev"), "mlx5_0\n");
}

// libibverbs/init.c, match_modalias: the pattern that libmlx5 registers for a ConnectX-7.
TEST_F(SysfsTest, the_modalias_is_the_one_that_libmlx5_takes_for_its_own) {
  write();
  const std::string modalias = read(std::string(kDevice) + "/device/modalias");
  EXPECT_EQ(fnmatch("pci:v000015B3d00001021sv*", modalias.c_str(), 0), 0) << modalias;
}

TEST_F(SysfsTest, links_lead_where_they_lead_in_a_real_sysfs) {
  write();
  const std::string pci = "/sys/devices/pci7171:00/7171:00:00.0";
  EXPECT_EQ(resolved(kDevice), pci + "/infiniband/mlx5_0");
  EXPECT_EQ(resolved(std::string(kDevice) + "/device"), pci);
  EXPECT_EQ(resolved(std::string(kDevice) + "/subsystem"), "/sys/class/infiniband");
  EXPECT_EQ(resolved("/sys/class/infiniband_verbs/uverbs0/device"), pci);
  EXPECT_EQ(resolved("/sys/dev/char/231:192"), pci + "/infiniband_verbs/uverbs0");
  EXPECT_EQ(resolved("/sys/bus/pci/devices/7171:00:00.0"), pci);
  EXPECT_EQ(resolved(std::string(kDevice) + "/device/driver"), "/sys/bus/pci/drivers/mlx5_core");
  EXPECT_EQ(resolved(std::string(kDevice) + "/device/driver/module"), "/sys/module/mlx5_core");
}

TEST_F(SysfsTest, the_port_says_what_the_port_query_says) {
  write();
  const std::string port = kPort;
  EXPECT_EQ(read(port + "/state"), "4: ACTIVE\n");
  EXPECT_EQ(read(port + "/phys_state"), "5: LinkUp\n");
  EXPECT_EQ(read(port + "/link_layer"), "Ethernet\n");
  EXPECT_EQ(read(port + "/rate"), "400 Gb/sec (4X NDR)\n");
  EXPECT_EQ(read(port + "/lid"), "0x0\n");
  EXPECT_EQ(read(port + "/cap_mask"), "0x04010000\n");
  EXPECT_EQ(read(port + "/pkeys/0"), "0xffff\n");
  EXPECT_EQ(read(port + "/counters/port_xmit_data"), "0\n");
  EXPECT_EQ(read(port + "/hw_counters/out_of_sequence"), "0\n");
}

TEST_F(SysfsTest, counters_that_count_are_told_by_their_identity) {
  const auto tree = write();
  observe::Counters counted;
  counted.rx_write_requests = 7;
  counted.bytes_sent = 4000;
  struct stat status {};
  const auto counter = [&](const char* name) {
    EXPECT_EQ(stat((root_ + kPort + name).c_str(), &status), 0);
    return tree.counter({status.st_dev, status.st_ino});
  };
  ASSERT_NE(counter("/hw_counters/rx_write_requests"), nullptr);
  EXPECT_EQ(counter("/hw_counters/rx_write_requests")->value(counted), 7U);
  EXPECT_EQ(counter("/counters/port_xmit_data")->value(counted), 1000U);
  EXPECT_EQ(counter("/hw_counters/np_cnp_sent"), nullptr);
  EXPECT_EQ(counter("/state"), nullptr);
}

TEST_F(SysfsTest, rates_are_written_as_the_kernel_writes_them) {
  auto what = facts();
  what.port.active_speed = 1;
  what.port.active_width = 1;
  write(what);
  EXPECT_EQ(read(std::string(kPort) + "/rate"), "2.5 Gb/sec (1X)\n");
}

TEST_F(SysfsTest, every_place_of_the_gid_table_can_be_read) {
  write();
  const std::string port = kPort;
  EXPECT_EQ(read(port + "/gids/3"), "0000:0000:0000:0000:0000:ffff:7f47:0102\n");
  EXPECT_EQ(read(port + "/gids/4"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
  EXPECT_TRUE(fs::exists(root_ + port + "/gids/254"));
  EXPECT_FALSE(fs::exists(root_ + port + "/gids/255"));
  EXPECT_EQ(read(port + "/gid_attrs/types/2"), "IB/RoCE v1\n");
  EXPECT_EQ(read(port + "/gid_attrs/types/3"), "RoCE v2\n");
  EXPECT_EQ(read(port + "/gid_attrs/ndevs/3"), "lo\n");
}

TEST_F(SysfsTest, attributes_of_empty_gids_are_told_apart_by_their_identity) {
  const auto tree = write();
  struct stat status {};
  for (const char* name : {"/gid_attrs/types/4", "/gid_attrs/ndevs/254"}) {
    ASSERT_EQ(stat((root_ + kPort + name).c_str(), &status), 0);
    EXPECT_EQ((FileIdentity{status.st_dev, status.st_ino}), tree.invalid_attribute());
  }
  ASSERT_EQ(stat((root_ + kPort + "/gid_attrs/types/3").c_str(), &status), 0);
  EXPECT_NE((FileIdentity{status.st_dev, status.st_ino}), tree.invalid_attribute());
}

TEST_F(SysfsTest, the_device_node_has_a_placeholder) {
  const auto tree = write();
  struct stat status {};
  ASSERT_EQ(stat((root_ + "/dev/infiniband/uverbs0").c_str(), &status), 0);
  EXPECT_EQ((FileIdentity{status.st_dev, status.st_ino}), tree.node());
  EXPECT_EQ(status.st_mode & 0777U, 0666U);
}

// rdma-core's tests and UCX read the first name below device/net.
TEST_F(SysfsTest, the_net_device_is_the_machines_own) {
  write();
  EXPECT_EQ(fs::read_symlink(root_ + kDevice + "/device/net/lo"), "/sys/class/net/lo");
}

TEST_F(SysfsTest, a_directory_that_cannot_be_written_is_an_error_with_its_name) {
  const auto tree = SysfsTree::write(facts(), root_ + "/nowhere");
  ASSERT_FALSE(tree);
  EXPECT_THAT(tree.error(),
              testing::AllOf(testing::HasSubstr("nowhere"), testing::HasSubstr("No such file")));
}

}  // namespace
}  // namespace qpair::softnic::driver
