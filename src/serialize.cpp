#include "qpair/serialize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "qpair/named.hpp"
#include "src/queue_pair_state.hpp"
#include "src/strict_json.hpp"

namespace qpair {

namespace {

using detail::FieldReader;
using Document = nlohmann::ordered_json;  // fields stay in the order of the C++ type
using nlohmann::json;

constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kMax24Bits = 0xffffff;

std::string encode(const Document& document, Format format) {
  if (format == Format::Json) return document.dump(-1, ' ', false, Document::error_handler_t::replace);
  std::string bytes;
  Document::to_cbor(document, bytes);
  return bytes;
}

template <typename T>
std::string_view short_name() {
  return Named<T>::type_name().substr(std::string_view("qpair::").size());
}

template <typename T>
Document header() {
  return Document{{"type", std::string(short_name<T>())}, {"version", kVersion}};
}

template <typename T>
Document nullable(const std::optional<T>& value) {
  return value ? Document(*value) : Document(nullptr);
}

void check_header(FieldReader& reader, const std::string& name) {
  if (const std::string type = reader.text("type"); !reader.failed() && type != name) {
    reader.fail("type", fmt::format("is '{}', but '{}' was expected", type, name));
  }
  const std::uint64_t version = reader.number("version", ~std::uint64_t{0});
  if (!reader.failed() && version != kVersion) {
    reader.fail("version", fmt::format("is {}, but this library speaks {}", version, kVersion));
  }
}

// Reads the header, then the fields with `read`, then looks for what is too much.
template <typename T, typename Read>
Result<T> decode(std::string_view bytes, Read read) {
  const Result<json> document = detail::parse_object(bytes);
  if (!document) return tl::unexpected(document.error());
  const std::string name(short_name<T>());
  FieldReader reader(*document, name);
  check_header(reader, name);
  T value = read(reader);
  if (const Result<void> finished = reader.finish(); !finished) return tl::unexpected(finished.error());
  return value;
}

// --- Pieces that several types have ---

Gid read_gid(FieldReader& reader, const char* name) {
  const std::string text = reader.text(name);
  if (reader.failed()) return {};
  const Result<Gid> gid = Gid::parse(text);
  if (gid) return *gid;
  reader.fail(name, "is not a GID");
  return {};
}

ibv_mtu read_mtu(FieldReader& reader, const char* name) {
  const std::uint64_t bytes = reader.number(name, mtu_bytes(IBV_MTU_4096));
  if (reader.failed()) return IBV_MTU_1024;
  if (const std::optional<ibv_mtu> mtu = mtu_from_bytes(bytes)) return *mtu;
  reader.fail(name, fmt::format("is {}; 256, 512, 1024, 2048 and 4096 are allowed", bytes));
  return IBV_MTU_1024;
}

// One of an enumeration, by name.
template <typename Enum, typename Name>
Enum read_enum(FieldReader& reader, const char* field, std::initializer_list<Enum> all, Name name) {
  const std::string text = reader.text(field);
  if (!reader.failed()) {
    for (const Enum candidate : all) {
      if (name(candidate) == text) return candidate;
    }
    reader.fail(field, fmt::format("is '{}', which is none of its values", text));
  }
  return *all.begin();
}

constexpr std::initializer_list<ibv_port_state> kPortStates = {
    IBV_PORT_NOP, IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_ARMED, IBV_PORT_ACTIVE, IBV_PORT_ACTIVE_DEFER};

Document write_gid_entry(const GidEntry& entry) {
  return Document{{"index", entry.index},
                  {"gid", to_string(entry.gid)},
                  {"type", to_string(entry.type)},
                  {"net_device", entry.net_device}};
}

GidEntry read_gid_entry(FieldReader& reader) {
  GidEntry entry;
  entry.index = reader.integer<std::uint32_t>("index");
  entry.gid = read_gid(reader, "gid");
  entry.type = read_enum(reader, "type", {GidType::InfiniBand, GidType::RoceV1, GidType::RoceV2},
                         [](GidType type) { return to_string(type); });
  entry.net_device = reader.text("net_device");
  return entry;
}

// A list of objects. An error in one of them is an error of the field.
template <typename T, typename Read>
std::vector<T> read_list(FieldReader& reader, const char* name, Read read) {
  std::vector<T> list;
  const json* array = reader.value(name);
  if (array == nullptr) return list;
  if (!array->is_array()) {
    reader.fail(name, "is not a list");
    return list;
  }
  for (const json& element : *array) {
    FieldReader inner(element, name);
    list.push_back(read(inner));
    if (const Result<void> finished = inner.finish(); !finished) {
      reader.fail(name, fmt::format("[{}]: {}", list.size() - 1, finished.error().message()));
      break;
    }
  }
  return list;
}

void write_port(Document& document, const RdmaPort& port) {
  document["port_num"] = port.port_num;
  document["state"] = std::string(port_state_name(port.state));
  document["physical_state"] = port.physical_state;
  document["base_lid"] = port.base_lid;
  document["lmc"] = port.lmc;
  document["sm_lid"] = port.sm_lid;
  document["capability_mask"] = port.capability_mask;
  document["link_layer"] = to_string(port.link_layer);
  document["gid"] = to_string(port.gid);
  document["gid_tbl_len"] = port.gid_tbl_len;
  document["gids"] = Document::array();
  for (const GidEntry& entry : port.gids) document["gids"].push_back(write_gid_entry(entry));
  document["max_mtu"] = mtu_bytes(port.max_mtu);
  document["active_mtu"] = mtu_bytes(port.active_mtu);
  document["max_msg_sz"] = port.max_msg_sz;
}

RdmaPort read_port(FieldReader& reader) {
  RdmaPort port;
  port.port_num = reader.integer<std::uint8_t>("port_num");
  port.state = read_enum(reader, "state", kPortStates, port_state_name);
  port.physical_state = reader.integer<std::uint8_t>("physical_state");
  port.base_lid = reader.integer<std::uint16_t>("base_lid");
  port.lmc = reader.integer<std::uint8_t>("lmc");
  port.sm_lid = reader.integer<std::uint16_t>("sm_lid");
  port.capability_mask = reader.integer<std::uint32_t>("capability_mask");
  port.link_layer =
      read_enum(reader, "link_layer", {LinkLayer::Unspecified, LinkLayer::InfiniBand, LinkLayer::Ethernet},
                [](LinkLayer layer) { return to_string(layer); });
  port.gid = read_gid(reader, "gid");
  port.gid_tbl_len = reader.integer<std::uint32_t>("gid_tbl_len");
  port.gids = read_list<GidEntry>(reader, "gids", read_gid_entry);
  port.max_mtu = read_mtu(reader, "max_mtu");
  port.active_mtu = read_mtu(reader, "active_mtu");
  port.max_msg_sz = reader.integer<std::uint32_t>("max_msg_sz");
  return port;
}

}  // namespace

// --- RdmaQpInfo ---

std::string serialize(const RdmaQpInfo& value, Format format) {
  Document document = header<RdmaQpInfo>();
  document["qp_num"] = value.qp_num;
  document["lid"] = value.lid;
  document["gid"] = value.gid ? Document(to_string(*value.gid)) : Document(nullptr);
  document["psn"] = value.psn;
  document["path_mtu"] = mtu_bytes(value.path_mtu);
  document["max_dest_rd_atomic"] = value.max_dest_rd_atomic;
  document["generation"] = value.generation;
  return encode(document, format);
}

template <>
Result<RdmaQpInfo> deserialize<RdmaQpInfo>(std::string_view bytes) {
  return decode<RdmaQpInfo>(bytes, [](FieldReader& reader) {
    RdmaQpInfo info;
    info.qp_num = reader.integer<std::uint32_t>("qp_num", kMax24Bits);
    info.lid = reader.integer<std::uint16_t>("lid");
    if (!reader.is_null("gid")) info.gid = read_gid(reader, "gid");
    info.psn = reader.integer<std::uint32_t>("psn", kMax24Bits);
    info.path_mtu = read_mtu(reader, "path_mtu");
    info.max_dest_rd_atomic = reader.integer<std::uint8_t>("max_dest_rd_atomic");
    info.generation = reader.integer<std::uint32_t>("generation");
    return info;
  });
}

// --- RdmaBuffer ---

std::string serialize(const RdmaBuffer& value, Format format) {
  Document document = header<RdmaBuffer>();
  document["mr_id"] = value.mr_id;
  document["lkey"] = value.lkey;
  document["rkey"] = value.rkey;
  document["addr"] = value.addr;
  document["size"] = value.size;
  return encode(document, format);
}

template <>
Result<RdmaBuffer> deserialize<RdmaBuffer>(std::string_view bytes) {
  return decode<RdmaBuffer>(bytes, [](FieldReader& reader) {
    RdmaBuffer buffer;
    buffer.mr_id = reader.integer<std::uint64_t>("mr_id");
    buffer.lkey = reader.integer<std::uint32_t>("lkey");
    buffer.rkey = reader.integer<std::uint32_t>("rkey");
    buffer.addr = reader.integer<std::uint64_t>("addr");
    buffer.size = reader.integer<std::uint64_t>("size");
    if (buffer.size != 0 && buffer.addr + (buffer.size - 1) < buffer.addr)
      reader.fail("size", "reaches beyond 64 bits");
    return buffer;
  });
}

// --- IbverbsConfig ---

std::string serialize(const IbverbsConfig& value, Format format) {
  Document document = header<IbverbsConfig>();
  document["device"] = value.device;
  document["cq_entries"] = value.cq_entries;
  document["port_num"] = value.port_num;
  document["gid_index"] = nullable(value.gid_index);
  document["max_send_wr"] = value.max_send_wr;
  document["max_recv_wr"] = value.max_recv_wr;
  document["max_send_sge"] = value.max_send_sge;
  document["max_recv_sge"] = value.max_recv_sge;
  document["max_inline_data"] = value.max_inline_data;
  document["path_mtu"] = value.path_mtu ? Document(mtu_bytes(*value.path_mtu)) : Document(nullptr);
  document["retry_cnt"] = value.retry_cnt;
  document["rnr_retry"] = value.rnr_retry;
  document["qp_timeout"] = value.qp_timeout;
  document["min_rnr_timer"] = value.min_rnr_timer;
  document["max_dest_rd_atomic"] = nullable(value.max_dest_rd_atomic);
  document["max_rd_atomic"] = nullable(value.max_rd_atomic);
  document["pkey_index"] = value.pkey_index;
  document["psn"] = nullable(value.psn);
  document["use_gpu_direct"] = value.use_gpu_direct;
  document["threads"] = to_string(value.threads);
  document["completion_events"] = value.completion_events;
  return encode(document, format);
}

template <>
Result<IbverbsConfig> deserialize<IbverbsConfig>(std::string_view bytes) {
  return decode<IbverbsConfig>(bytes, [](FieldReader& reader) {
    IbverbsConfig config;
    config.device = reader.text("device");
    config.cq_entries = reader.integer<std::uint32_t>("cq_entries");
    config.port_num = reader.integer<std::uint8_t>("port_num");
    config.gid_index = reader.optional_integer<std::uint8_t>("gid_index");
    config.max_send_wr = reader.integer<std::uint32_t>("max_send_wr");
    config.max_recv_wr = reader.integer<std::uint32_t>("max_recv_wr");
    config.max_send_sge = reader.integer<std::uint32_t>("max_send_sge");
    config.max_recv_sge = reader.integer<std::uint32_t>("max_recv_sge");
    config.max_inline_data = reader.integer<std::uint32_t>("max_inline_data");
    if (!reader.is_null("path_mtu")) config.path_mtu = read_mtu(reader, "path_mtu");
    config.retry_cnt = reader.integer<std::uint8_t>("retry_cnt");
    config.rnr_retry = reader.integer<std::uint8_t>("rnr_retry");
    config.qp_timeout = reader.integer<std::uint8_t>("qp_timeout");
    config.min_rnr_timer = reader.integer<std::uint8_t>("min_rnr_timer");
    config.max_dest_rd_atomic = reader.optional_integer<std::uint8_t>("max_dest_rd_atomic");
    config.max_rd_atomic = reader.optional_integer<std::uint8_t>("max_rd_atomic");
    config.pkey_index = reader.integer<std::uint16_t>("pkey_index");
    config.psn = reader.optional_integer<std::uint32_t>("psn", kMax24Bits);
    config.use_gpu_direct = reader.boolean("use_gpu_direct");
    const std::string threads = reader.text("threads");
    if (threads != "One" && threads != "Many") reader.fail("threads", "is neither One nor Many");
    config.threads = threads == "Many" ? Threads::Many : Threads::One;
    config.completion_events = reader.boolean("completion_events");
    return config;
  });
}

// --- Gid ---

std::string serialize(const Gid& value, Format format) {
  Document document = header<Gid>();
  document["gid"] = to_string(value);
  return encode(document, format);
}

template <>
Result<Gid> deserialize<Gid>(std::string_view bytes) {
  return decode<Gid>(bytes, [](FieldReader& reader) { return read_gid(reader, "gid"); });
}

// --- PollTarget ---

std::string serialize(const PollTarget& value, Format format) {
  Document document = header<PollTarget>();
  document["target"] = to_string(value);
  return encode(document, format);
}

template <>
Result<PollTarget> deserialize<PollTarget>(std::string_view bytes) {
  return decode<PollTarget>(bytes, [](FieldReader& reader) {
    return read_enum(reader, "target", {PollTarget::Send, PollTarget::Recv, PollTarget::Both},
                     [](PollTarget target) { return to_string(target); });
  });
}

// --- IbvWc ---

std::string serialize(const IbvWc& value, Format format) {
  Document document = header<IbvWc>();
  document["wr_id"] = static_cast<std::uint64_t>(value.wr_id);
  document["status"] = static_cast<std::uint32_t>(value.status);
  document["opcode"] = static_cast<std::uint32_t>(value.opcode);
  document["byte_len"] = value.byte_len;
  document["vendor_err"] = value.vendor_err;
  document["imm_data"] = value.imm_data;
  document["qp_num"] = value.qp_num;
  document["src_qp"] = value.src_qp;
  document["wc_flags"] = value.wc_flags;
  document["pkey_index"] = value.pkey_index;
  document["slid"] = value.slid;
  document["sl"] = value.sl;
  document["dlid_path_bits"] = value.dlid_path_bits;
  return encode(document, format);
}

template <>
Result<IbvWc> deserialize<IbvWc>(std::string_view bytes) {
  return decode<IbvWc>(bytes, [](FieldReader& reader) {
    IbvWc wc;
    wc.wr_id = WrId{reader.integer<std::uint64_t>("wr_id")};
    wc.status = static_cast<ibv_wc_status>(reader.number("status", IBV_WC_GENERAL_ERR));
    constexpr std::array kOpcodes = {
        IBV_WC_SEND,      IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ,         IBV_WC_COMP_SWAP,
        IBV_WC_FETCH_ADD, IBV_WC_RECV,       IBV_WC_RECV_RDMA_WITH_IMM};
    wc.opcode = static_cast<ibv_wc_opcode>(reader.number("opcode", IBV_WC_RECV_RDMA_WITH_IMM));
    if (std::find(kOpcodes.begin(), kOpcodes.end(), wc.opcode) == kOpcodes.end()) {
      reader.fail("opcode", "is none that a queue pair reports");
    }
    wc.byte_len = reader.integer<std::uint64_t>("byte_len");
    wc.vendor_err = reader.integer<std::uint32_t>("vendor_err");
    wc.imm_data = reader.integer<std::uint32_t>("imm_data");
    wc.qp_num = reader.integer<std::uint32_t>("qp_num", kMax24Bits);
    wc.src_qp = reader.integer<std::uint32_t>("src_qp", kMax24Bits);
    wc.wc_flags = reader.integer<std::uint32_t>("wc_flags");
    wc.pkey_index = reader.integer<std::uint16_t>("pkey_index");
    wc.slid = reader.integer<std::uint16_t>("slid");
    wc.sl = reader.integer<std::uint8_t>("sl");
    wc.dlid_path_bits = reader.integer<std::uint8_t>("dlid_path_bits");
    return wc;
  });
}

// --- RdmaPort, RdmaDevice ---

std::string serialize(const RdmaPort& value, Format format) {
  Document document = header<RdmaPort>();
  write_port(document, value);
  return encode(document, format);
}

template <>
Result<RdmaPort> deserialize<RdmaPort>(std::string_view bytes) {
  return decode<RdmaPort>(bytes, read_port);
}

std::string serialize(const RdmaDevice& value, Format format) {
  Document document = header<RdmaDevice>();
  document["name"] = value.name;
  document["vendor_id"] = value.vendor_id;
  document["vendor_part_id"] = value.vendor_part_id;
  document["hw_ver"] = value.hw_ver;
  document["fw_ver"] = value.fw_ver;
  document["node_guid"] = value.node_guid;
  document["ports"] = Document::array();
  for (const RdmaPort& port : value.ports)
    write_port(document["ports"].emplace_back(Document::object()), port);
  document["max_qp"] = value.max_qp;
  document["max_cq"] = value.max_cq;
  document["max_mr"] = value.max_mr;
  document["max_pd"] = value.max_pd;
  document["max_qp_wr"] = value.max_qp_wr;
  document["max_sge"] = value.max_sge;
  document["max_cqe"] = value.max_cqe;
  document["max_rd_atomic"] = value.max_rd_atomic;
  document["mlx5"] = value.mlx5;
  return encode(document, format);
}

template <>
Result<RdmaDevice> deserialize<RdmaDevice>(std::string_view bytes) {
  return decode<RdmaDevice>(bytes, [](FieldReader& reader) {
    RdmaDevice device;
    device.name = reader.text("name");
    device.vendor_id = reader.integer<std::uint32_t>("vendor_id");
    device.vendor_part_id = reader.integer<std::uint32_t>("vendor_part_id");
    device.hw_ver = reader.integer<std::uint32_t>("hw_ver");
    device.fw_ver = reader.text("fw_ver");
    device.node_guid = reader.integer<std::uint64_t>("node_guid");
    device.ports = read_list<RdmaPort>(reader, "ports", read_port);
    device.max_qp = reader.integer<std::int32_t>("max_qp");
    device.max_cq = reader.integer<std::int32_t>("max_cq");
    device.max_mr = reader.integer<std::int32_t>("max_mr");
    device.max_pd = reader.integer<std::int32_t>("max_pd");
    device.max_qp_wr = reader.integer<std::int32_t>("max_qp_wr");
    device.max_sge = reader.integer<std::int32_t>("max_sge");
    device.max_cqe = reader.integer<std::int32_t>("max_cqe");
    device.max_rd_atomic = reader.integer<std::int32_t>("max_rd_atomic");
    device.mlx5 = reader.boolean("mlx5");
    return device;
  });
}

// --- RdmaQueuePair: a token, good in this process only ---

std::string serialize(const RdmaQueuePair& value, Format format) {
  Document document = header<RdmaQueuePair>();
  document["process"] = detail::process_identity();
  document["token"] = detail::QueuePairState::of(value).token();
  return encode(document, format);
}

template <>
Result<RdmaQueuePair> deserialize<RdmaQueuePair>(std::string_view bytes) {
  const Result<json> document = detail::parse_object(bytes);
  if (!document) return tl::unexpected(document.error());
  FieldReader reader(*document, "RdmaQueuePair");
  check_header(reader, "RdmaQueuePair");
  const std::string process = reader.text("process");
  const std::uint64_t token = reader.number("token", ~std::uint64_t{0});
  if (const Result<void> finished = reader.finish(); !finished) return tl::unexpected(finished.error());
  if (process != detail::process_identity()) {
    return tl::unexpected(
        Error(ErrorCode::foreign_process,
              "the queue pair lives in another process; connect one of your own with its get_qp_info()"));
  }
  const std::shared_ptr<detail::QueuePairState> state = detail::find_queue_pair(token);
  if (!state) {
    return tl::unexpected(
        Error(ErrorCode::foreign_process, "the queue pair is gone: its last handle was destroyed"));
  }
  return state->handle();
}

std::string to_string(Format format) {
  return format == Format::Json ? "Json" : "Cbor";
}

}  // namespace qpair
