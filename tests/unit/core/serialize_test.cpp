#include "qpair/serialize.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace qpair {
namespace {

RdmaQpInfo sample_info() {
  RdmaQpInfo info;
  info.qp_num = 0xabcdef;
  info.lid = 65535;
  info.gid = *Gid::parse("::ffff:10.1.2.3");
  info.psn = 0xffffff;
  info.path_mtu = IBV_MTU_4096;
  info.max_dest_rd_atomic = 16;
  info.generation = 3;
  return info;
}

RdmaDevice sample_device() {
  RdmaPort port;
  port.port_num = 1;
  port.state = IBV_PORT_ACTIVE;
  port.physical_state = 5;
  port.link_layer = LinkLayer::Ethernet;
  port.gid = *Gid::parse("fe80::1");
  port.gid_tbl_len = 256;
  port.gids = {{0, *Gid::parse("fe80::1"), GidType::RoceV2, "eth0"},
               {3, *Gid::parse("10.0.0.1"), GidType::RoceV1, ""}};
  port.active_mtu = IBV_MTU_4096;
  port.max_msg_sz = 1U << 30;
  RdmaDevice device;
  device.name = "mlx5_0";
  device.vendor_id = 0x15b3;
  device.fw_ver = "28.39.1002";
  device.node_guid = 0xfedcba9876543210;
  device.ports = {port, port};
  device.max_qp = 131072;
  device.mlx5 = true;
  return device;
}

template <typename T>
void expect_round_trip(const T& value) {
  for (const Format format : {Format::Json, Format::Cbor}) {
    const std::string bytes = serialize(value, format);
    const Result<T> back = deserialize<T>(bytes);
    ASSERT_TRUE(back) << back.error() << "\n" << bytes;
    EXPECT_EQ(*back, value);
    EXPECT_EQ(serialize(*back, format), bytes);
  }
}

TEST(Serialize, EveryValueTypeComesBackAsItWas) {
  expect_round_trip(sample_info());
  RdmaQpInfo without_gid = sample_info();
  without_gid.gid.reset();
  expect_round_trip(without_gid);
  expect_round_trip(RdmaBuffer{~std::uint64_t{0}, 1, 2, 0xffffffffffff0000, 0x10000});
  expect_round_trip(IbverbsConfig{});
  IbverbsConfig config;
  config.device = "mlx5_0";
  config.gid_index = 3;
  config.path_mtu = IBV_MTU_256;
  config.max_rd_atomic = 0;
  config.psn = 0;
  config.use_gpu_direct = config.completion_events = true;
  config.threads = Threads::Many;
  expect_round_trip(config);
  expect_round_trip(*Gid::parse("2001:db8::1"));
  expect_round_trip(Gid{});
  for (const PollTarget target : {PollTarget::Send, PollTarget::Recv, PollTarget::Both})
    expect_round_trip(target);
  IbvWc wc;
  wc.wr_id = WrId{~std::uint64_t{0}};
  wc.status = IBV_WC_REM_ACCESS_ERR;
  wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  wc.vendor_err = 0x88;
  wc.byte_len = std::uint64_t{1} << 40;
  expect_round_trip(wc);
  expect_round_trip(sample_device());
  expect_round_trip(sample_device().ports[0]);
}

TEST(Serialize, JsonIsReadableAndStable) {
  EXPECT_EQ(serialize(sample_info()),
            R"({"type":"RdmaQpInfo","version":1,"qp_num":11259375,"lid":65535,"gid":"::ffff:10.1.2.3",)"
            R"("psn":16777215,"path_mtu":4096,"max_dest_rd_atomic":16,"generation":3})");
}

// The sample with one change, made on the JSON document.
template <typename Change>
Result<RdmaQpInfo> changed(Change change, Format format = Format::Json) {
  auto document = nlohmann::json::parse(serialize(sample_info()));
  change(document);
  if (format == Format::Json) return deserialize<RdmaQpInfo>(document.dump());
  std::string bytes;
  nlohmann::json::to_cbor(document, bytes);
  return deserialize<RdmaQpInfo>(bytes);
}

TEST(Serialize, ParserRefusesWhatIsNotExactlyRight) {
  using nlohmann::json;
  const struct {
    const char* why;
    void (*change)(json&);
    const char* message;
  } cases[] = {
      {"missing", [](json& d) { d.erase("psn"); }, "RdmaQpInfo.psn is missing"},
      {"unknown", [](json& d) { d["colour"] = 1; },
       "RdmaQpInfo has a field 'colour' that this version does not know"},
      {"text", [](json& d) { d["psn"] = "1"; }, "RdmaQpInfo.psn is not a whole number from 0 up"},
      {"negative", [](json& d) { d["psn"] = -1; }, "RdmaQpInfo.psn is not a whole number from 0 up"},
      {"fraction", [](json& d) { d["psn"] = 1.0; }, "RdmaQpInfo.psn is not a whole number from 0 up"},
      {"null", [](json& d) { d["psn"] = nullptr; }, "RdmaQpInfo.psn is not a whole number from 0 up"},
      {"25 bits", [](json& d) { d["qp_num"] = 0x1000000; },
       "RdmaQpInfo.qp_num is 16777216; at most 16777215 is allowed"},
      {"17 bits", [](json& d) { d["lid"] = 65536; }, "RdmaQpInfo.lid is 65536; at most 65535 is allowed"},
      {"gid", [](json& d) { d["gid"] = "no"; }, "RdmaQpInfo.gid is not a GID"},
      {"gid type", [](json& d) { d["gid"] = 5; }, "RdmaQpInfo.gid is not a string"},
      {"mtu", [](json& d) { d["path_mtu"] = 1500; },
       "RdmaQpInfo.path_mtu is 1500; 256, 512, 1024, 2048 and 4096 are allowed"},
      {"version", [](json& d) { d["version"] = 2; }, "RdmaQpInfo.version is 2, but this library speaks 1"},
      {"type", [](json& d) { d["type"] = "RdmaBuffer"; },
       "RdmaQpInfo.type is 'RdmaBuffer', but 'RdmaQpInfo' was expected"},
  };
  for (const auto& bad : cases) {
    for (const Format format : {Format::Json, Format::Cbor}) {
      const Result<RdmaQpInfo> result = changed(bad.change, format);
      ASSERT_FALSE(result) << bad.why;
      EXPECT_EQ(result.error().code(), ErrorCode::corrupt_message) << bad.why;
      EXPECT_EQ(result.error().message(), bad.message);
    }
  }
}

TEST(Serialize, ParserRefusesBytesThatAreNoMessage) {
  const std::string good = serialize(sample_info());
  const std::string cbor = serialize(sample_info(), Format::Cbor);
  const std::string deep = "{\"type\":" + std::string(100'000, '[');
  const std::string twice = R"({"type":"RdmaQpInfo",)" + good.substr(1);
  const std::string bad[] = {"",
                             "{",
                             "[]",
                             "null",
                             "17",
                             std::string("\0", 1),
                             good + "x",
                             good + good,
                             cbor + cbor,
                             cbor.substr(0, cbor.size() - 1),
                             good.substr(0, good.size() / 2),
                             deep,
                             "{\"a\":" + std::string(8, '[') + std::string(8, ']') + "}",
                             std::string(100'000, '\xa1'),
                             "\xa1\x61\x61" + std::string(200'000, '\x81'),
                             "\xbf\x61\x61\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
                             twice,
                             std::string(kMaxSerializedBytes + 1, ' ')};
  for (const std::string& bytes : bad) {
    const Result<RdmaQpInfo> result = deserialize<RdmaQpInfo>(bytes);
    ASSERT_FALSE(result) << bytes.substr(0, 80);
    EXPECT_EQ(result.error().code(), ErrorCode::corrupt_message);
    EXPECT_LT(result.error().message().size(), 400);
  }
  EXPECT_NE(deserialize<RdmaQpInfo>(twice).error().message().find("twice"), std::string::npos);
  EXPECT_NE(deserialize<RdmaQpInfo>(deep).error().message().find("deep"), std::string::npos);
}

TEST(Serialize, EveryPrefixOfAMessageIsRefused) {
  for (const Format format : {Format::Json, Format::Cbor}) {
    const std::string bytes = serialize(sample_device(), format);
    ASSERT_TRUE(deserialize<RdmaDevice>(bytes));
    for (std::size_t size = 0; size != bytes.size(); ++size) {
      EXPECT_FALSE(deserialize<RdmaDevice>(std::string_view(bytes).substr(0, size))) << size;
    }
  }
}

TEST(Serialize, ErrorInAListNamesItsPlace) {
  auto document = nlohmann::json::parse(serialize(sample_device()));
  document["ports"][1]["gids"][0]["type"] = "Token Ring";
  const Result<RdmaDevice> result = deserialize<RdmaDevice>(document.dump());
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message().find("RdmaDevice.ports [1]: ports.gids [0]: gids.type is 'Token Ring'"),
            std::string::npos)
      << result.error();
}

TEST(Serialize, BufferThatReachesBeyondTheAddressSpaceIsRefused) {
  const std::string bytes = serialize(RdmaBuffer{1, 1, 1, ~std::uint64_t{0}, 2});
  EXPECT_FALSE(deserialize<RdmaBuffer>(bytes));
}

TEST(Serialize, ThreadsAreOneOrMany) {
  auto document = nlohmann::json::parse(serialize(IbverbsConfig{}));
  EXPECT_EQ(document["threads"], "One");
  document["threads"] = "Some";
  const Result<IbverbsConfig> refused = deserialize<IbverbsConfig>(document.dump());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::corrupt_message);
}

TEST(Serialize, UnprintableTextIsRefusedAndNeverShown) {
  auto document = nlohmann::json::parse(serialize(IbverbsConfig{}));
  document["device"] = "\x1b[31m";
  EXPECT_FALSE(deserialize<IbverbsConfig>(document.dump()));
  document["device"] = "";
  document["\x1b[31m"] = 1;
  const Result<IbverbsConfig> result = deserialize<IbverbsConfig>(document.dump());
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message().find('\x1b'), std::string::npos);
}

TEST(Serialize, QueuePairOfAnotherProcessIsForeign) {
  const std::string elsewhere =
      R"({"type":"RdmaQueuePair","version":1,"process":"00000000000000000000000000000000","token":1})";
  const Result<RdmaQueuePair> result = deserialize<RdmaQueuePair>(elsewhere);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::foreign_process);
}

}  // namespace
}  // namespace qpair
