// Gid, RdmaBuffer, IbverbsConfig, Error, IbvWc, Named: what plain values do.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "qpair/qpair.hpp"

namespace qpair {
namespace {

// --- Gid ---

TEST(Gid, ReadsAndWritesAddresses) {
  EXPECT_EQ(to_string(*Gid::parse("fe80::1")), "fe80::1");
  EXPECT_EQ(to_string(*Gid::parse("0000:0000:0000:0000:0000:ffff:0a00:0001")), "::ffff:10.0.0.1");
  EXPECT_EQ(*Gid::parse("10.0.0.1"), *Gid::parse("::ffff:10.0.0.1"));
  for (const std::string_view bad :
       {"", "10.0.0", "fe80::1%eth0", "fe80::1 ", "hello", "1:2:3:4:5:6:7:8:9"}) {
    EXPECT_FALSE(Gid::parse(bad)) << bad;
  }
  EXPECT_FALSE(Gid::parse(std::string_view("::1\0", 4)));
  EXPECT_FALSE(Gid::parse(std::string(1000, '1')));
}

TEST(Gid, KnowsItsHalvesAndKinds) {
  const Gid gid = *Gid::parse("fe80:0:0:1:2:3:4:5");
  EXPECT_EQ(gid.subnet_prefix(), 0xfe80000000000001);
  EXPECT_EQ(gid.interface_id(), 0x0002000300040005);
  EXPECT_TRUE(gid.is_link_local());
  EXPECT_FALSE(gid.is_ipv4_mapped());
  EXPECT_TRUE(Gid::parse("127.71.3.4")->is_ipv4_mapped());
  EXPECT_FALSE(Gid::parse("127.71.3.4")->is_link_local());
  EXPECT_TRUE(Gid::parse("169.254.1.1")->is_link_local());
  EXPECT_TRUE(Gid{}.is_zero());
  EXPECT_EQ(Gid::from(gid.to_ibv()), gid);
}

GidEntry entry(std::uint32_t index, const char* address, GidType type) {
  return {index, *Gid::parse(address), type, ""};
}

TEST(Gid, TheAutomaticChoiceIsRoceV2AndRoutable) {
  // A ConnectX's table: link-local and IPv4, each as v1 and v2.
  std::vector<GidEntry> table = {
      entry(0, "fe80::1", GidType::RoceV1),     entry(1, "fe80::1", GidType::RoceV2),
      entry(2, "10.0.0.1", GidType::RoceV1),    entry(3, "10.0.0.1", GidType::RoceV2),
      entry(4, "2001:db8::1", GidType::RoceV2), entry(5, "10.0.0.2", GidType::RoceV2)};
  EXPECT_EQ(choose_gid(table)->index, 3);
  table.erase(table.begin() + 5);
  table.erase(table.begin() + 3);
  EXPECT_EQ(choose_gid(table)->index, 4);
  table.pop_back();
  EXPECT_EQ(choose_gid(table)->index, 1);
  table.erase(table.begin() + 1);
  EXPECT_EQ(choose_gid(table)->index, 0);
  EXPECT_FALSE(choose_gid({}));
  const GidEntry empty;
  EXPECT_FALSE(choose_gid({&empty, 1}));
}

// --- RdmaBuffer ---

TEST(RdmaBuffer, SlicesWithinItsBounds) {
  const RdmaBuffer buffer{7, 1, 2, 0x1000, 100};
  const RdmaBuffer part = *buffer.slice(10, 90);
  EXPECT_EQ(part, (RdmaBuffer{7, 1, 2, 0x100a, 90}));
  EXPECT_EQ(buffer.slice(100, 0)->size, 0);
  for (const auto& [offset, length] : {std::pair<std::uint64_t, std::uint64_t>{10, 91},
                                       {101, 0},
                                       {~std::uint64_t{0}, 1},
                                       {50, ~std::uint64_t{0}}}) {
    const Result<RdmaBuffer> refused = buffer.slice(offset, length);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  }
  EXPECT_EQ(buffer.slice(10, 91).error().message(),
            "the slice from 10 of 91 bytes is not inside a buffer of 100 bytes");
}

// --- IbverbsConfig ---

DeviceLimits connectx() {
  DeviceLimits limits;
  limits.device.max_qp_wr = 32768;
  limits.device.max_cqe = 4194303;
  limits.device.max_sge = 30;
  limits.device.max_qp_rd_atom = 16;
  limits.device.max_qp_init_rd_atom = 16;
  limits.device.phys_port_cnt = 1;
  limits.port.gid_tbl_len = 255;
  limits.port.pkey_tbl_len = 1;
  limits.port.active_mtu = IBV_MTU_4096;
  return limits;
}

TEST(IbverbsConfig, DefaultsAreValid) {
  const Result<void> valid = validate({}, connectx());
  EXPECT_TRUE(valid) << valid.error();
}

TEST(IbverbsConfig, EveryFieldIsCheckedAndTheErrorNamesItsValueAndLimit) {
  const struct {
    void (*change)(IbverbsConfig&);
    const char* message;
  } cases[] = {
      {[](IbverbsConfig& c) { c.port_num = 0; }, "port_num is 0; this device allows 1 to 1"},
      {[](IbverbsConfig& c) { c.port_num = 2; }, "port_num is 2; this device allows 1 to 1"},
      {[](IbverbsConfig& c) { c.cq_entries = 5'000'000; },
       "cq_entries is 5000000; this device allows 0 to 4194303"},
      {[](IbverbsConfig& c) { c.max_send_wr = 0; }, "max_send_wr is 0; this device allows 1 to 32768"},
      {[](IbverbsConfig& c) { c.max_send_wr = 40'000; },
       "max_send_wr is 40000; this device allows 1 to 32768"},
      {[](IbverbsConfig& c) { c.max_recv_wr = 40'000; },
       "max_recv_wr is 40000; this device allows 1 to 32768"},
      {[](IbverbsConfig& c) { c.max_send_sge = 31; }, "max_send_sge is 31; this device allows 1 to 30"},
      {[](IbverbsConfig& c) { c.max_recv_sge = 0; }, "max_recv_sge is 0; this device allows 1 to 30"},
      {[](IbverbsConfig& c) { c.retry_cnt = 8; }, "retry_cnt is 8; this device allows 0 to 7"},
      {[](IbverbsConfig& c) { c.rnr_retry = 8; }, "rnr_retry is 8; this device allows 0 to 7"},
      {[](IbverbsConfig& c) { c.qp_timeout = 32; }, "qp_timeout is 32; this device allows 0 to 31"},
      {[](IbverbsConfig& c) { c.min_rnr_timer = 32; }, "min_rnr_timer is 32; this device allows 0 to 31"},
      {[](IbverbsConfig& c) { c.max_dest_rd_atomic = std::uint8_t{17}; },
       "max_dest_rd_atomic is 17; this device allows 0 to 16"},
      {[](IbverbsConfig& c) { c.max_rd_atomic = std::uint8_t{17}; },
       "max_rd_atomic is 17; this device allows 0 to 16"},
      {[](IbverbsConfig& c) { c.psn = 0x1000000; }, "psn is 16777216; this device allows 0 to 16777215"},
      {[](IbverbsConfig& c) { c.pkey_index = 1; }, "pkey_index is 1; this device allows 0 to 0"},
      {[](IbverbsConfig& c) { c.gid_index = std::uint8_t{255}; },
       "gid_index is 255; port 1 has a table of 255 entries"},
      {[](IbverbsConfig& c) { c.threads = static_cast<Threads>(2); },
       "threads is 2; it is One (0) or Many (1)"},
  };
  for (const auto& bad : cases) {
    IbverbsConfig config;
    bad.change(config);
    const Result<void> result = validate(config, connectx());
    ASSERT_FALSE(result) << bad.message;
    EXPECT_EQ(result.error().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(result.error().message(), bad.message);
  }
}

TEST(IbverbsConfig, PathMtuIsAtMostThePorts) {
  DeviceLimits limits = connectx();
  limits.port.active_mtu = IBV_MTU_1024;
  IbverbsConfig config;
  config.path_mtu = IBV_MTU_1024;
  EXPECT_TRUE(validate(config, limits));
  config.path_mtu = IBV_MTU_2048;
  EXPECT_NE(validate(config, limits).error().message().find("path_mtu is 4"), std::string::npos);
}

TEST(Mtu, BytesAndBack) {
  EXPECT_EQ(mtu_bytes(IBV_MTU_256), 256);
  EXPECT_EQ(mtu_bytes(IBV_MTU_4096), 4096);
  EXPECT_EQ(mtu_from_bytes(1024), IBV_MTU_1024);
  EXPECT_FALSE(mtu_from_bytes(1500));
}

// --- Error, IbvWc ---

TEST(Error, ComposesItsMessageWhenAsked) {
  const Error error(ErrorCode::queue_full, "{} of {} in use", {3, 4});
  EXPECT_EQ(error.message(), "3 of 4 in use");
  EXPECT_EQ(to_string(error), "queue_full: 3 of 4 in use");
  EXPECT_EQ(error.system_errno(), 0);
  EXPECT_FALSE(error.wc());
  EXPECT_EQ(error.within("port 1").message(), "port 1: 3 of 4 in use");
  EXPECT_EQ(error.within("port 1").code(), ErrorCode::queue_full);
}

TEST(Error, SaysWhatErrnoMeans) {
  const Error error = Error::make(ErrorCode::system, "cannot do it", ENOMEM);
  EXPECT_EQ(error.message(), "cannot do it: Cannot allocate memory (errno 12)");
  EXPECT_EQ(error.system_errno(), ENOMEM);
  EXPECT_EQ(error.within("x").system_errno(), ENOMEM);
}

TEST(Error, OfAFailedOperationNamesItAndSaysWhatToDo) {
  IbvWc wc;
  wc.wr_id = WrId{17};
  wc.status = IBV_WC_REM_ACCESS_ERR;
  wc.opcode = IBV_WC_RDMA_WRITE;
  wc.vendor_err = 0x88;
  const Error error = *wc.error();
  EXPECT_EQ(error.code(), ErrorCode::remote_access);
  EXPECT_EQ(error.vendor_err(), 0x88);
  EXPECT_EQ(error.wc()->wr_id, WrId{17});
  EXPECT_EQ(error.message(),
            "RDMA write 17 failed: remote access error (vendor error 0x88): the peer refused: its region "
            "does not cover "
            "the range, lacks the right, or is not registered any more");
  wc.status = IBV_WC_SUCCESS;
  EXPECT_FALSE(wc.error());
}

TEST(Error, TooLongASendIsALengthError) {
  IbvWc wc;
  wc.status = IBV_WC_REM_INV_REQ_ERR;
  wc.opcode = IBV_WC_SEND;
  EXPECT_EQ(wc.error()->code(), ErrorCode::length);
}

TEST(Error, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::system); ++code) {
    names.insert(name_of(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(ErrorCode::system) + 1);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(Printing, EveryTypeGoesToFmtAndToStreams) {
  const IbvWc wc;
  EXPECT_EQ(fmt::format("{}", wc), to_string(wc));
  EXPECT_EQ(fmt::format("{:>6}", PollTarget::Both), "  Both");
  std::ostringstream stream;
  stream << wc << Gid{} << RdmaBuffer{} << RdmaQpInfo{} << IbverbsConfig{} << PollTarget::Send << WrId{5}
         << RdmaDevice{} << RdmaPort{} << DoorBell{} << ErrorCode::flushed << Format::Cbor;
  EXPECT_NE(stream.str().find("flushed"), std::string::npos);
}

// --- Named ---

enum class Colour { Red, Green };
std::optional<std::string_view> arm_name(Colour colour) {
  if (colour == Colour::Red) return "Red";
  if (colour == Colour::Green) return "Green";
  return {};
}

}  // namespace

template <>
inline constexpr std::string_view kTypeName<Colour> = "test::Colour";
using Either = std::variant<RdmaBuffer, Colour>;
template <>
inline constexpr std::string_view kTypeName<Either> = "test::Either";

namespace {

TEST(Named, HashIsStableAndPortsHaveTheTopBit) {
  EXPECT_EQ(Named<RdmaQueuePair>::type_name(), "qpair::RdmaQueuePair");
  // FNV-1a of published test vectors: "" and "foobar".
  EXPECT_EQ(name_hash(""), 0xcbf29ce484222325);
  EXPECT_EQ(name_hash("foobar"), 0x85944171f73967e8);
  static_assert(Named<RdmaQueuePair>::type_hash() == name_hash("qpair::RdmaQueuePair"));
  static_assert(Named<RdmaQueuePair>::port() == (Named<RdmaQueuePair>::type_hash() | 0x8000000000000000));
}

TEST(Named, HashesAndIdsOfAllTypesDiffer) {
  std::set<std::uint64_t> hashes;
  std::set<TypeId> ids;
  const auto add = [&]<typename T>(std::type_identity<T>) {
    hashes.insert(Named<T>::type_hash());
    ids.insert(Named<T>::type_id());
  };
  const auto add_all = [&]<typename... Ts>(std::type_identity<std::tuple<Ts...>>) {
    (add(std::type_identity<Ts>{}), ...);
    return sizeof...(Ts);
  };
  const std::size_t count =
      add_all(std::type_identity<
              std::tuple<RdmaQueuePair, RdmaQpInfo, RdmaBuffer, MemoryRegion, RdmaDomain, RdmaDevice,
                         RdmaPort, Gid, IbverbsConfig, PollTarget, Signal, Format, LinkLayer, GidType, IbvWc,
                         WrId, DoorBell, Error, ErrorCode, Colour, Either>>{});
  EXPECT_EQ(hashes.size(), count);
  EXPECT_EQ(ids.size(), count);
  EXPECT_EQ(Named<Gid>::type_id(), Named<Gid>::type_id());
}

TEST(Named, ArmIsTheEnumeratorOrTheAlternative) {
  EXPECT_EQ(Named<PollTarget>::arm(PollTarget::Both), "Both");
  EXPECT_FALSE(Named<PollTarget>::arm(static_cast<PollTarget>(9)));
  EXPECT_EQ(Named<Colour>::arm(Colour::Green), "Green");
  EXPECT_EQ(Named<ErrorCode>::arm(ErrorCode::queue_full), "queue_full");
  EXPECT_EQ(Named<Either>::arm(Either(RdmaBuffer{})), "qpair::RdmaBuffer");
  EXPECT_EQ(Named<Either>::arm(Either(Colour::Red)), "test::Colour");
  EXPECT_FALSE(Named<Gid>::arm(Gid{}));
  const PollTarget target = PollTarget::Recv;
  EXPECT_EQ(Named<PollTarget>::arm_unchecked(&target), "Recv");
}

}  // namespace
}  // namespace qpair
