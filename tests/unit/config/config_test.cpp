#include "softnic/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace qpair::softnic {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// The environment of a test: set at its beginning, gone at its end.
class Config : public testing::Test {
 protected:
  Config() { clear(); }
  ~Config() override { clear(); }
  static void clear() {
    for (const char* name : {"ADDRESS", "INTERFACE", "MTU", "LOSS", "DUPLICATE", "REORDER", "CORRUPT",
                             "DELAY", "SEED", "CAPTURE", "TRACE", "STRICT", "QUIET", "ABI", "LINK_LAYER"}) {
      ::unsetenv((std::string("QPAIR_NIC_") + name).c_str());
    }
  }
  static void set(const std::string& name, const std::string& value) {
    ::setenv(("QPAIR_NIC_" + name).c_str(), value.c_str(), 1);
  }
  static NicConfig good(const std::string& name, const std::string& value) {
    set(name, value);
    const auto config = NicConfig::from_environment();
    EXPECT_TRUE(config) << config.error();
    return config.value_or(NicConfig{});
  }
  // The sentence, which always names the variable and the value.
  static std::string bad(const std::string& name, const std::string& value) {
    set(name, value);
    const auto config = NicConfig::from_environment();
    EXPECT_FALSE(config) << name << "=" << value;
    if (config) {
      return {};
    }
    EXPECT_THAT(config.error(), HasSubstr("QPAIR_NIC_" + name + "='" + value + "'"));
    return config.error();
  }
};

TEST_F(Config, NothingSetIsTheDefault) {
  const auto config = NicConfig::from_environment();
  ASSERT_TRUE(config);
  EXPECT_EQ(to_environment(*config).size(), 0U);
  EXPECT_EQ(config->mtu, 4096U);
}

TEST_F(Config, AnEmptyVariableIsAsGoodAsNone) {
  EXPECT_EQ(good("MTU", "").mtu, 4096U);
}

TEST_F(Config, TheLinkLayerIsEthernetOrInfiniBand) {
  EXPECT_FALSE(good("LINK_LAYER", "ethernet").infiniband);
  const NicConfig config = good("LINK_LAYER", "infiniband");
  EXPECT_TRUE(config.infiniband);
  EXPECT_THAT(to_environment(config),
              testing::ElementsAre(testing::Pair("QPAIR_NIC_LINK_LAYER", "infiniband")));
  EXPECT_THAT(bad("LINK_LAYER", "fddi"), HasSubstr("ethernet or infiniband"));
}

TEST_F(Config, ProbabilitiesAreFractionsOrPercentages) {
  EXPECT_DOUBLE_EQ(good("LOSS", "0.01").loss, 0.01);
  EXPECT_DOUBLE_EQ(good("LOSS", "1%").loss, 0.01);
  EXPECT_DOUBLE_EQ(good("LOSS", "0.5%").loss, 0.005);
  EXPECT_DOUBLE_EQ(good("LOSS", "0").loss, 0);
  EXPECT_DOUBLE_EQ(good("LOSS", "1").loss, 1);
  EXPECT_DOUBLE_EQ(good("LOSS", "100%").loss, 1);
  EXPECT_DOUBLE_EQ(good("DUPLICATE", "1e-3").duplicate, 1e-3);
  EXPECT_DOUBLE_EQ(good("REORDER", "2%").reorder, 0.02);
  EXPECT_DOUBLE_EQ(good("CORRUPT", "2%").corrupt, 0.02);
}

TEST_F(Config, WhatIsNoProbabilityIsRefusedWithASentence) {
  for (const char* text :
       {"-0.1", "1.5", "101%", "nan", "inf", "1 %", " 1", "1,5", "0.01x", "%", "ten", "0x1p-3"}) {
    EXPECT_THAT(bad("LOSS", text), HasSubstr("as 0.01 or 1%, from 0 to 1")) << text;
  }
}

TEST_F(Config, DurationsHaveUnits) {
  EXPECT_EQ(good("DELAY", "50us").delay, 50us);
  EXPECT_EQ(good("DELAY", "1ms").delay, 1ms);
  EXPECT_EQ(good("DELAY", "1.5ms").delay, 1500us);
  EXPECT_EQ(good("DELAY", "250ns").delay, 250ns);
  EXPECT_EQ(good("DELAY", "2s").delay, 2s);
  EXPECT_EQ(good("DELAY", "0").delay, 0ns);
  for (const char* text : {"50", "us", "-1us", "50 us", "1m", "11s", "nanus", "1e30s", "1us2"}) {
    EXPECT_THAT(bad("DELAY", text), HasSubstr("ns, us, ms or s")) << text;
  }
}

TEST_F(Config, OnlyTheFiveMtusOfInfiniBandExist) {
  for (const std::uint32_t mtu : {256U, 512U, 1024U, 2048U, 4096U}) {
    EXPECT_EQ(good("MTU", std::to_string(mtu)).mtu, mtu);
  }
  for (const char* text : {"0", "128", "1500", "4097", "8192", "4096 ", "4k", "-256", "99999999999"}) {
    EXPECT_THAT(bad("MTU", text), HasSubstr("256, 512, 1024, 2048 or 4096")) << text;
  }
}

TEST_F(Config, SeedsAreWholeNumbers) {
  EXPECT_EQ(good("SEED", "42").seed, 42U);
  EXPECT_EQ(good("SEED", "0xdeadbeef").seed, 0xdeadbeefU);
  EXPECT_EQ(good("SEED", "18446744073709551615").seed, ~0ULL);
  for (const char* text : {"-1", "1.5", "18446744073709551616", "0x", "seed"}) {
    bad("SEED", text);
  }
}

TEST_F(Config, FlagsAreZeroOrOne) {
  EXPECT_TRUE(good("STRICT", "1").strict);
  EXPECT_FALSE(good("STRICT", "0").strict);
  EXPECT_TRUE(good("QUIET", "1").quiet);
  EXPECT_TRUE(good("ABI", "write").write_abi);
  EXPECT_FALSE(good("ABI", "ioctl").write_abi);
  for (const char* text : {"yes", "true", "2", "01"}) {
    EXPECT_THAT(bad("STRICT", text), HasSubstr("0 or 1"));
  }
  clear();
  bad("ABI", "netlink");
}

TEST_F(Config, AnAddressHasToBeOneOfThisMachine) {
  EXPECT_EQ(good("ADDRESS", "127.0.0.1").address, "127.0.0.1");
  EXPECT_EQ(good("ADDRESS", "127.99.1.2").address, "127.99.1.2");
  EXPECT_THAT(bad("ADDRESS", "203.0.113.77"), HasSubstr("no address of this machine"));
  EXPECT_THAT(bad("ADDRESS", "127.1"), HasSubstr("no IPv4 or IPv6 address"));
  EXPECT_THAT(bad("ADDRESS", "localhost"), HasSubstr("no IPv4 or IPv6 address"));
  EXPECT_THAT(bad("ADDRESS", "0.0.0.0"), HasSubstr("one machine"));
  EXPECT_THAT(bad("ADDRESS", "::"), HasSubstr("one machine"));
  EXPECT_THAT(bad("ADDRESS", "ff02::1"), HasSubstr("one machine"));
  EXPECT_THAT(bad("ADDRESS", "224.0.0.1"), HasSubstr("one machine"));
}

TEST_F(Config, AnInterfaceHasToExist) {
  EXPECT_EQ(good("INTERFACE", "lo").interface, "lo");
  const std::string sentence = bad("INTERFACE", "no-such-card0");
  EXPECT_THAT(sentence, HasSubstr("no network interface named 'no-such-card0'"));
  EXPECT_THAT(sentence, HasSubstr("lo"));  // what there is instead
}

TEST_F(Config, AddressAndInterfaceTogetherAreAContradiction) {
  set("ADDRESS", "127.0.0.1");
  EXPECT_THAT(bad("INTERFACE", "lo"), HasSubstr("choose one"));
}

TEST_F(Config, TheEnvironmentThatAConfigurationGivesMakesTheSameConfiguration) {
  NicConfig config;
  config.address = "127.0.0.5";
  config.mtu = 1024;
  config.loss = 0.015;
  config.duplicate = 1.0 / 3;
  config.reorder = 1e-7;
  config.corrupt = 0.25;
  config.delay = 12345ns;
  config.seed = ~0ULL;
  config.capture = "/tmp/some where.pcapng";
  config.strict = config.quiet = config.write_abi = true;
  const auto variables = to_environment(config);
  EXPECT_EQ(variables.size(), 12U);
  for (const auto& [name, value] : variables) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  const auto again = NicConfig::from_environment();
  ASSERT_TRUE(again) << again.error();
  EXPECT_EQ(to_environment(*again), variables);
  EXPECT_EQ(again->loss, config.loss);
  EXPECT_EQ(again->duplicate, config.duplicate);
  EXPECT_EQ(again->reorder, config.reorder);
}

}  // namespace
}  // namespace qpair::softnic
