// Ports between the processes of one user. Each registry here stands for a process: it has a scratch
// directory of its own, which is locked as long as it lives.

#include "softnic/driver/port_registry.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "softnic/driver/scratch_directory.hpp"
#include "softnic/wire/address.hpp"

namespace qpair::softnic::driver {
namespace {

namespace fs = std::filesystem;
using cm::PortSpace;

cm::Address at(const char* address, std::uint16_t port) {
  return cm::Address::of(*wire::parse_address(address), port);
}

class PortRegistryTest : public testing::Test {
 protected:
  PortRegistryTest() {
    std::string name = fs::temp_directory_path() / "port-test-XXXXXX";
    base_ = mkdtemp(name.data());
  }
  ~PortRegistryTest() override { fs::remove_all(base_); }

  struct Process {
    ScratchDirectory scratch;
    std::shared_ptr<PortRegistry> ports;
  };
  // Sees those below base_, and those in `places`.
  Process process(const char* nic, const std::vector<std::string>& places = {}) {
    return process_in(base_, nic, places);
  }
  static Process process_in(const std::string& base, const char* nic,
                            const std::vector<std::string>& places = {}) {
    auto scratch = ScratchDirectory::create_in(base);
    EXPECT_TRUE(scratch);
    auto ports = std::make_shared<PortRegistry>(scratch->path(), *wire::parse_address(nic), places);
    return {std::move(*scratch), std::move(ports)};
  }

  using Claim = std::shared_ptr<cm::PortClaim>;
  static int claim(Process& of, Claim& claim, const cm::Address& address, bool reuse = false,
                   PortSpace space = PortSpace::Tcp) {
    PortRegistry::Wish wish{.space = space, .address = address, .reuse = reuse};
    return of.ports->claim(wish, claim);
  }
  std::size_t links() const {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(base_)) count += entry.is_symlink() ? 1 : 0;
    return count;
  }

  std::string base_;
};

TEST_F(PortRegistryTest, a_port_leads_to_the_nic_of_the_process_that_has_it) {
  auto server = process("127.71.0.1");
  auto client = process("127.71.0.2");
  EXPECT_FALSE(client.ports->find(PortSpace::Tcp, at("127.0.0.1", 7471)));
  Claim port;
  ASSERT_EQ(claim(server, port, at("0.0.0.0", 7471)), 0);
  const auto found = client.ports->find(PortSpace::Tcp, at("127.0.0.1", 7471));
  ASSERT_TRUE(found);
  EXPECT_EQ(wire::to_string(*found), "127.71.0.1");
  EXPECT_FALSE(client.ports->find(PortSpace::Udp, at("127.0.0.1", 7471))) << "another port space";
  EXPECT_FALSE(client.ports->find(PortSpace::Tcp, at("127.0.0.1", 7472)));
  EXPECT_TRUE(server.ports->find(PortSpace::Tcp, at("127.0.0.1", 7471))) << "its own, too";
}

TEST_F(PortRegistryTest, an_address_is_the_only_one_that_is_served) {
  auto server = process("127.71.0.1");
  auto client = process("127.71.0.2");
  Claim port;
  ASSERT_EQ(claim(server, port, at("127.0.0.1", 7471)), 0);
  EXPECT_TRUE(client.ports->find(PortSpace::Tcp, at("127.0.0.1", 7471)));
  EXPECT_FALSE(client.ports->find(PortSpace::Tcp, at("127.0.0.2", 7471)));
}

TEST_F(PortRegistryTest, a_port_belongs_to_one_process) {
  auto first = process("127.71.0.1");
  auto second = process("127.71.0.2");
  Claim any;
  Claim other;
  ASSERT_EQ(claim(first, any, at("0.0.0.0", 7471)), 0);
  EXPECT_EQ(claim(second, other, at("0.0.0.0", 7471)), EADDRNOTAVAIL);
  EXPECT_EQ(claim(second, other, at("127.0.0.1", 7471)), EADDRNOTAVAIL);
  EXPECT_EQ(claim(first, other, at("127.0.0.1", 7471)), EADDRNOTAVAIL) << "within a process, too";
  EXPECT_EQ(claim(second, other, at("0.0.0.0", 7471), false, PortSpace::Udp), 0);
  any.reset();
  Claim one;
  Claim two;
  EXPECT_EQ(claim(first, one, at("127.0.0.1", 7471)), 0);
  EXPECT_EQ(claim(second, two, at("127.0.0.1", 7471)), EADDRINUSE);
  EXPECT_EQ(claim(second, two, at("127.0.0.2", 7471)), 0);
}

TEST_F(PortRegistryTest, a_shared_port_has_no_second_owner_when_it_is_listened_to) {
  auto first = process("127.71.0.1");
  auto second = process("127.71.0.2");
  Claim one;
  Claim two;
  ASSERT_EQ(claim(first, one, at("0.0.0.0", 7471), true), 0);
  EXPECT_EQ(claim(second, two, at("0.0.0.0", 7471), false), EADDRNOTAVAIL) << "both have to want to";
  ASSERT_EQ(claim(second, two, at("0.0.0.0", 7471), true), 0);
  EXPECT_EQ(first.ports->listen(one), EADDRNOTAVAIL);
  two.reset();
  EXPECT_EQ(first.ports->listen(one), 0);
  ASSERT_EQ(claim(second, two, at("0.0.0.0", 7471), true), 0) << "to connect from it";
  const auto found = second.ports->find(PortSpace::Tcp, at("127.0.0.1", 7471));
  ASSERT_TRUE(found);
  EXPECT_EQ(wire::to_string(*found), "127.71.0.1") << "who listens is who is meant";
}

TEST_F(PortRegistryTest, port_zero_is_any_that_is_free) {
  auto first = process("127.71.0.1");
  PortRegistry::Wish one{.space = PortSpace::Tcp, .address = at("0.0.0.0", 0)};
  PortRegistry::Wish two = one;
  Claim a;
  Claim b;
  ASSERT_EQ(first.ports->claim(one, a), 0);
  ASSERT_EQ(first.ports->claim(two, b), 0);
  EXPECT_GE(one.address.port, 32768);
  EXPECT_NE(one.address.port, two.address.port);
}

TEST_F(PortRegistryTest, a_port_that_only_connects_leaves_no_trace) {
  auto first = process("127.71.0.1");
  PortRegistry::Wish wish{.space = PortSpace::Tcp, .address = at("0.0.0.0", 0), .shown = false};
  Claim port;
  ASSERT_EQ(first.ports->claim(wish, port), 0);
  EXPECT_EQ(links(), 0U);
}

TEST_F(PortRegistryTest, nothing_stays_behind) {
  auto first = process("127.71.0.1");
  Claim port;
  ASSERT_EQ(claim(first, port, at("0.0.0.0", 7471)), 0);
  ASSERT_EQ(first.ports->listen(port), 0);
  EXPECT_EQ(links(), 1U);
  port.reset();
  EXPECT_EQ(links(), 0U);
}

TEST_F(PortRegistryTest, processes_that_keep_their_files_elsewhere_are_found) {
  const fs::path elsewhere = fs::path(base_) / "elsewhere";
  fs::create_directory(elsewhere);
  auto server = process_in(elsewhere, "127.71.0.1");
  auto client = process("127.71.0.2", {elsewhere / ("qpair-" + std::to_string(geteuid()))});
  Claim port;
  ASSERT_EQ(claim(server, port, at("0.0.0.0", 7471)), 0);
  EXPECT_TRUE(client.ports->find(PortSpace::Tcp, at("127.0.0.1", 7471)));
}

// A process that was killed leaves its directory until the next one sweeps it; nobody holds its lock.
TEST_F(PortRegistryTest, ports_of_the_dead_are_free) {
  const auto living = process("127.71.0.2");
  const fs::path dead = fs::path(base_) / ("qpair-" + std::to_string(geteuid())) / "1-abcdef";
  fs::create_directories(dead / "ports");
  fs::permissions(dead, fs::perms::owner_all);
  fs::create_symlink("127.71.0.1,0,l", dead / "ports" / "tcp,7471,0.0.0.0,0");
  auto& ports = *living.ports;
  EXPECT_FALSE(ports.find(PortSpace::Tcp, at("127.0.0.1", 7471)));
}

TEST_F(PortRegistryTest, a_directory_that_others_may_write_to_is_not_believed) {
  auto server = process("127.71.0.1");
  auto client = process("127.71.0.2");
  Claim port;
  ASSERT_EQ(claim(server, port, at("0.0.0.0", 7471)), 0);
  ASSERT_EQ(chmod(server.scratch.path().c_str(), 0777), 0);
  EXPECT_FALSE(client.ports->find(PortSpace::Tcp, at("127.0.0.1", 7471)));
  ASSERT_EQ(chmod(server.scratch.path().c_str(), 0700), 0);
  EXPECT_TRUE(client.ports->find(PortSpace::Tcp, at("127.0.0.1", 7471)));
}

TEST_F(PortRegistryTest, entries_that_say_nothing_are_not_read) {
  using Registry = PortRegistry;
  EXPECT_TRUE(Registry::parse("tcp,7471,0.0.0.0,0", "127.71.0.1,1,lr"));
  EXPECT_TRUE(Registry::parse("udp,1,::1,12", "fd00::1,1,b"));
  for (const auto& [name, target] :
       {std::pair{"", ""}, std::pair{"tcp,7471,0.0.0.0", "127.71.0.1,1,l"},
        std::pair{"tcp,0,0.0.0.0,0", "127.71.0.1,1,l"}, std::pair{"tcp,99999,0.0.0.0,0", "127.71.0.1,1,l"},
        std::pair{"tcp,7x,0.0.0.0,0", "127.71.0.1,1,l"}, std::pair{"sctp,7471,0.0.0.0,0", "127.71.0.1,1,l"},
        std::pair{"tcp,7471,nowhere,0", "127.71.0.1,1,l"}, std::pair{"tcp,7471,0.0.0.0,0", "127.71.0.1"},
        std::pair{"tcp,7471,0.0.0.0,0", "nowhere,1,l"}, std::pair{",,,", ",,"}}) {
    EXPECT_FALSE(Registry::parse(name, target)) << name << " -> " << target;
  }
}

}  // namespace
}  // namespace qpair::softnic::driver
