#pragma once
// Messages of communication management: management datagrams of class 0x07 (IBTA vol. 1 12.6 and 12.11; field
// places as in the kernel's include/rdma/ibta_vol1_c12.h). parse() reads any 256 bytes; emit() writes all of
// them. Identifiers and keys are in host order.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "softnic/nic/management.hpp"

namespace qpair::softnic::cm {

using nic::Mad;
using nic::MadView;
using Gid = std::array<std::uint8_t, 16>;

enum class Attribute : std::uint16_t {
  Req = 0x10,
  Mra = 0x11,
  Rej = 0x12,
  Rep = 0x13,
  Rtu = 0x14,
  Dreq = 0x15,
  Drep = 0x16,
  SidrReq = 0x17,
  SidrRep = 0x18,
};

struct Header {
  Attribute attribute{};
  std::uint64_t transaction = 0;
  std::uint32_t modifier = 0;  // REQ, REP and SIDR_REP: options of the extended connection establishment
  // Nothing: no datagram of communication management that is to be looked at.
  static std::optional<Header> parse(MadView mad);
};

// What a message leaves for its consumer.
template <std::size_t size>
using PrivateData = std::array<std::uint8_t, size>;
inline constexpr std::size_t kReqPrivateData = 92;
inline constexpr std::size_t kRejPrivateData = 148;
inline constexpr std::size_t kRepPrivateData = 196;
inline constexpr std::size_t kSidrReqPrivateData = 216;
inline constexpr std::size_t kSidrRepPrivateData = 136;

// Vendor-specific options of a connection: `vendor` an OUI, `options` what it likes (kernel: struct
// rdma_ucm_ece).
struct Ece {
  std::uint32_t vendor = 0;
  std::uint32_t options = 0;
};

// 12.6.5, with the primary path only.
struct Req {
  std::uint32_t local_id = 0;
  Ece ece{};
  std::uint64_t service_id = 0;
  std::uint64_t ca_guid = 0;
  std::uint32_t qpn = 0;
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t remote_response_timeout = 0;
  std::uint8_t service_type = 0;  // 0 reliable, 1 unreliable connection, 3 see extended_type
  bool flow_control = false;
  std::uint32_t starting_psn = 0;  // that the receiver of this message begins to send with
  std::uint8_t local_response_timeout = 0;
  std::uint8_t retry_count = 0;
  std::uint16_t partition_key = 0xffff;
  std::uint8_t mtu = 0;  // enum ibv_mtu
  std::uint8_t rnr_retry_count = 0;
  std::uint8_t max_cm_retries = 0;
  bool srq = false;
  std::uint8_t extended_type = 0;
  std::uint16_t local_lid = 0xffff;
  std::uint16_t remote_lid = 0xffff;
  Gid local_gid{};
  Gid remote_gid{};
  std::uint32_t flow_label = 0;
  std::uint8_t rate = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;
  std::uint8_t sl = 0;
  bool subnet_local = false;
  std::uint8_t ack_timeout = 0;
  PrivateData<kReqPrivateData> private_data{};

  static Req parse(MadView mad);
  Mad emit(std::uint64_t transaction) const;
};

// 12.6.6. The message that is acknowledged or rejected.
enum class Message : std::uint8_t { Req = 0, Rep = 1, Other = 2 };

struct Mra {
  std::uint32_t local_id = 0;
  std::uint32_t remote_id = 0;
  Message message{};
  std::uint8_t service_timeout = 0;

  static Mra parse(MadView mad);
  Mad emit(std::uint64_t transaction) const;
};

// 12.6.7.2, table 109: those that are sent here.
enum class Reason : std::uint16_t {
  Timeout = 4,
  InvalidServiceId = 8,
  StaleConnection = 10,
  ConsumerDefined = 28,
};

struct Rej {
  std::uint32_t local_id = 0;
  std::uint32_t remote_id = 0;
  Message message{};
  std::uint16_t reason = 0;
  std::uint8_t info_length = 0;  // of `info`; with Reason::Timeout the sender's CA GUID
  std::array<std::uint8_t, 72> info{};
  PrivateData<kRejPrivateData> private_data{};

  static Rej parse(MadView mad);
  Mad emit(std::uint64_t transaction) const;
};

// 12.6.8.
struct Rep {
  std::uint32_t local_id = 0;
  std::uint32_t remote_id = 0;
  Ece ece{};
  std::uint32_t qpn = 0;
  std::uint32_t starting_psn = 0;
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t target_ack_delay = 0;
  std::uint8_t failover = 0;  // 1: alternate paths are not supported
  bool flow_control = false;
  std::uint8_t rnr_retry_count = 0;
  bool srq = false;
  std::uint64_t ca_guid = 0;
  PrivateData<kRepPrivateData> private_data{};

  static Rep parse(MadView mad);
  Mad emit(std::uint64_t transaction) const;
};

// RTU and DREP (12.6.9, 12.6.11): nothing but who and to whom. `attribute` says which.
struct Note {
  std::uint32_t local_id = 0;
  std::uint32_t remote_id = 0;

  static Note parse(MadView mad);
  Mad emit(Attribute attribute, std::uint64_t transaction) const;
};

// 12.6.10.
struct Dreq {
  std::uint32_t local_id = 0;
  std::uint32_t remote_id = 0;
  std::uint32_t remote_qpn = 0;

  static Dreq parse(MadView mad);
  Mad emit(std::uint64_t transaction) const;
};

// 12.11.1.
struct SidrReq {
  std::uint32_t request_id = 0;
  std::uint16_t partition_key = 0xffff;
  std::uint64_t service_id = 0;
  PrivateData<kSidrReqPrivateData> private_data{};

  static SidrReq parse(MadView mad);
  Mad emit(std::uint64_t transaction) const;
};

// 12.11.2.1, table 121.
enum class SidrStatus : std::uint8_t { Valid = 0, InvalidServiceId = 1, Rejected = 2 };

struct SidrRep {
  std::uint32_t request_id = 0;
  std::uint8_t status = 0;
  Ece ece{};
  std::uint32_t qpn = 0;
  std::uint64_t service_id = 0;
  std::uint32_t qkey = 0;
  PrivateData<kSidrRepPrivateData> private_data{};

  static SidrRep parse(MadView mad);
  Mad emit(std::uint64_t transaction) const;
};

}  // namespace qpair::softnic::cm
