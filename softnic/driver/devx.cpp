// The device's own commands, as programs send them through mlx5dv_devx_*: capabilities, memory keys that a
// send queue lays out, and what libmlx5 changes in a queue pair that it made by verbs. As devx.c in the
// kernel's drivers/infiniband/hw/mlx5: a command that the device refuses is EREMOTEIO, and its answer says
// why.

#include "softnic/driver/devx.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "softnic/driver/prm.hpp"
#include "softnic/driver/refusal.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint64_t kGeneralCapabilities = 0;
constexpr std::uint64_t kLogMaxCopy = 24;  // one work request copies 16 MiB at most
constexpr std::uint64_t kLogMaxMessage = 30;
constexpr std::uint64_t kPortTypeEthernet = 1;
constexpr std::uint64_t kMaxEntries = 0xffff;  // octowords that an update can announce

prm::Opcode opcode_of(const DevxCommand& command) {
  return static_cast<prm::Opcode>(prm::get(command.in, prm::kOpcode));
}

int answer(const DevxCommand& command, prm::Status status, const std::string& why) {
  prm::set(command.out, prm::kStatus, static_cast<std::uint64_t>(status));
  return status == prm::Status::Ok ? 0 : refuse(EREMOTEIO, why);
}

int unknown(const DevxCommand& command) {
  return answer(command, prm::Status::BadOperation,
                fmt::format("mlx5dv_devx: command {:#x} is not supported by the emulated NIC.",
                            static_cast<unsigned>(opcode_of(command))));
}

std::uint64_t log2_of(std::uint64_t limit) {
  return static_cast<std::uint64_t>(std::bit_width(limit) - 1);
}

void general_capabilities(const Context& context, std::span<std::byte> out) {
  namespace cap = prm::hca_cap;
  const ibv_device_attr& limits = context.nic->limits().attributes;
  const auto set = [&](prm::Field field, std::uint64_t value) { prm::set(out, field.in(cap::kAt), value); };
  set(cap::kLogMaxQp, log2_of(static_cast<std::uint64_t>(limits.max_qp)));
  set(cap::kLogMaxCq, log2_of(static_cast<std::uint64_t>(limits.max_cq)));
  set(cap::kLogMaxMkey, log2_of(static_cast<std::uint64_t>(limits.max_mr)));
  set(cap::kLogMaxReadsOut, log2_of(static_cast<std::uint64_t>(limits.max_qp_init_rd_atom)));
  set(cap::kLogMaxReadsIn, log2_of(static_cast<std::uint64_t>(limits.max_qp_rd_atom)));
  set(cap::kPortType, kPortTypeEthernet);
  set(cap::kNumPorts, 1);
  set(cap::kLogMaxMessage, kLogMaxMessage);
  set(cap::kCqeVersion, 1);
  set(cap::kAtomic, 1);
  set(cap::kWindows, 1);
  set(cap::kQpcExtension, 1);
  set(cap::kDmaMmoQp, 1);
  set(cap::kLogDmaMmoMaxSize, kLogMaxCopy);
}

// Capabilities of another kind are all of what the device does not have.
int query_capabilities(const Context& context, const DevxCommand& command) {
  if (prm::get(command.in, prm::kOpMod) >> 1 == kGeneralCapabilities)
    general_capabilities(context, command.out);
  return answer(command, prm::Status::Ok, {});
}

bool has_pd(const Context& context, std::uint32_t pdn) {
  const auto pds = context.handles.handles_of(ObjectType::Pd);
  return std::any_of(pds.begin(), pds.end(), [&](std::uint32_t handle) {
    return static_cast<const PdObject*>(context.handles.find(handle))->pdn == nic::Pdn{pdn};
  });
}

Outcome<std::uint32_t> create_mkey(Context& context, const DevxCommand& command) {
  namespace mkc = prm::mkey_context;
  const auto get = [&](prm::Field field) {
    return prm::get(command.in, field.in(prm::create_mkey::kContextAt));
  };
  if (get(mkc::kAccessMode) != mkc::kListMode || get(mkc::kAccessModeHigh) != 0 ||
      get(mkc::kUmrEnabled) == 0 || get(mkc::kSignature) != 0 || get(mkc::kEncryption) != 0 ||
      get(mkc::kVariant) != 0) {
    return tl::unexpected(
        answer(command, prm::Status::BadParameter,
               "CREATE_MKEY: the emulated NIC makes memory keys that a send queue lays out as "
               "a list (mlx5dv_create_mkey), without signatures and encryption."));
  }
  const auto pdn = static_cast<std::uint32_t>(get(mkc::kPd));
  if (!has_pd(context, pdn)) {
    return tl::unexpected(
        answer(command, prm::Status::BadResource,
               fmt::format("CREATE_MKEY: protection domain {} is not of this context.", pdn)));
  }
  const std::uint64_t entries = get(mkc::kTranslationOctowords);
  if (entries > kMaxEntries) {
    return tl::unexpected(
        answer(command, prm::Status::Limit,
               fmt::format("CREATE_MKEY: {} entries; {} are possible.", entries, kMaxEntries)));
  }
  int access = 0;
  if (get(mkc::kLocalWrite) != 0) access |= IBV_ACCESS_LOCAL_WRITE;
  if (get(mkc::kRemoteRead) != 0) access |= IBV_ACCESS_REMOTE_READ;
  if (get(mkc::kRemoteWrite) != 0) access |= IBV_ACCESS_REMOTE_WRITE;
  if (get(mkc::kAtomic) != 0) access |= IBV_ACCESS_REMOTE_ATOMIC;
  const auto key = context.nic->create_mkey({.pd = nic::Pdn{pdn},
                                             .max_entries = static_cast<std::uint32_t>(entries),
                                             .access = access,
                                             .peer_may_invalidate = get(mkc::kPeerMayInvalidate) != 0});
  if (!key) return tl::unexpected(-key.error().value);
  const std::int64_t handle = context.handles.insert(std::make_unique<DevxObject>(*key));
  if (handle < 0) {
    context.nic->destroy_mr(*key);
    return tl::unexpected(static_cast<int>(handle));
  }
  prm::set(command.out, prm::create_mkey::kMkeyIndex, static_cast<std::uint32_t>(*key) >> 8);
  answer(command, prm::Status::Ok, {});
  return static_cast<std::uint32_t>(handle);
}

}  // namespace

int devx_general(const Context& context, const DevxCommand& command) {
  if (!context.devx) return -EINVAL;
  switch (opcode_of(command)) {
    case prm::Opcode::QueryHcaCap:
      return query_capabilities(context, command);
    case prm::Opcode::Nop:
      return answer(command, prm::Status::Ok, {});
    default:
      return unknown(command);
  }
}

Outcome<std::uint32_t> devx_create(Context& context, const DevxCommand& command) {
  if (!context.devx) return tl::unexpected(-EINVAL);
  if (opcode_of(command) == prm::Opcode::CreateMkey) return create_mkey(context, command);
  return tl::unexpected(unknown(command));
}

// Queue pairs copy memory whether they are told to (MMO) or not, so there is nothing to remember.
int devx_modify(const Context& context, const Object& object, const DevxCommand& command) {
  if (!context.devx) return -EINVAL;
  if (opcode_of(command) != prm::Opcode::Init2InitQp) return unknown(command);
  if (object.type != ObjectType::Qp) return -EINVAL;
  const auto& qp = static_cast<const QpObject&>(object);
  if (prm::get(command.in, prm::modify_qp::kQpn) != static_cast<std::uint32_t>(qp.qpn)) return -EINVAL;
  if (prm::get(command.in, prm::modify_qp::kHasExtension) != 0 &&
      prm::get(command.in, prm::modify_qp::kExtensionMask) == prm::modify_qp::kMaskMmo) {
    return answer(command, prm::Status::Ok, {});
  }
  return answer(
      command, prm::Status::BadParameter,
      "INIT2INIT_QP: the emulated NIC changes nothing but whether a queue pair copies memory (MMO).");
}

}  // namespace qpair::softnic::driver
