#pragma once
// What a program can make through one open device. Owned by the HandleTable; guarded by the device's lock.
//
// A new kind gets a struct here, a file of commands, entries in write_commands.cpp and ioctl_methods.cpp, and
// a place in kDestructionOrder.

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_cmds.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "softnic/driver/uar_pages.hpp"
#include "softnic/nic/nic.hpp"

namespace qpair::softnic::driver {

enum class ObjectType : std::uint16_t {
  Pd = UVERBS_OBJECT_PD,
  CompletionChannel = UVERBS_OBJECT_COMP_CHANNEL,
  Cq = UVERBS_OBJECT_CQ,
  Qp = UVERBS_OBJECT_QP,
  Srq = UVERBS_OBJECT_SRQ,
  Xrcd = UVERBS_OBJECT_XRCD,
  Ah = UVERBS_OBJECT_AH,
  Mr = UVERBS_OBJECT_MR,
  Mw = UVERBS_OBJECT_MW,
  Dm = UVERBS_OBJECT_DM,
  AsyncEvents = UVERBS_OBJECT_ASYNC_EVENT,
  Devx = MLX5_IB_OBJECT_DEVX_OBJ,
  Uar = MLX5_IB_OBJECT_UAR,
};

struct Object {
  explicit Object(ObjectType type_) : type(type_) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  const ObjectType type;
  unsigned users =
      0;  // objects made from this one: it cannot go before them (ib_destroy_usecnt() in the kernel)
};

struct PdObject : Object {
  static constexpr ObjectType kType = ObjectType::Pd;
  explicit PdObject(nic::Pdn pdn_) : Object(kType), pdn(pdn_) {}

  nic::Pdn pdn;
};

// Bytes of the device, mapped by the program and by the NIC.
struct DmObject : Object {
  static constexpr ObjectType kType = ObjectType::Dm;
  DmObject() : Object(kType) {}
  ~DmObject() override;

  std::uint64_t length = 0;  // as asked for
  std::uint16_t first_page = 0;
  std::uint16_t pages = 0;
  std::byte* view = nullptr;
};

struct MrObject : Object {
  static constexpr ObjectType kType = ObjectType::Mr;
  MrObject() : Object(kType) {}
  ~MrObject() override;

  nic::Mkey key{};
  PdObject* pd = nullptr;
  nic::MrParameters parameters{};
  DmObject* dm = nullptr;   // that its bytes are of
  void* mapping = nullptr;  // ours, of a dma-buf
  std::size_t mapping_size = 0;
};

struct MwObject : Object {
  static constexpr ObjectType kType = ObjectType::Mw;
  MwObject(PdObject& pd_, nic::Mkey key_) : Object(kType), pd(&pd_), key(key_) {}

  PdObject* pd;
  nic::Mkey key;  // that it was made with
};

// Made by a command of the device's own: a memory key that a send queue lays out.
struct DevxObject : Object {
  static constexpr ObjectType kType = ObjectType::Devx;
  explicit DevxObject(nic::Mkey key_) : Object(kType), key(key_) {}

  nic::Mkey key;
};

struct UarObject : Object {
  static constexpr ObjectType kType = ObjectType::Uar;
  UarObject() : Object(kType) {}

  MmapOffset offset{};
  std::shared_ptr<UarPage> page;  // queues that use it keep it
};

struct CqObject : Object {
  static constexpr ObjectType kType = ObjectType::Cq;
  CqObject() : Object(kType) {}

  nic::Cqn cqn{};
  std::uint32_t entries = 0;  // power of two
  std::uint32_t cqe_size = 0;
  std::shared_ptr<UarPage> uar;
};

struct XrcdObject : Object {
  static constexpr ObjectType kType = ObjectType::Xrcd;
  explicit XrcdObject(nic::Xrcdn xrcdn_) : Object(kType), xrcdn(xrcdn_) {}

  nic::Xrcdn xrcdn;
};

struct SrqObject : Object {
  static constexpr ObjectType kType = ObjectType::Srq;
  SrqObject() : Object(kType) {}

  nic::Srqn srqn{};
  PdObject* pd = nullptr;
  XrcdObject* xrcd = nullptr;  // of one for XRC, as the next
  CqObject* cq = nullptr;
  std::uint32_t max_wr = 0;
  std::uint32_t max_sge = 0;
};

// What a queue pair is attached to.
struct McastAttachment {
  std::array<std::uint8_t, 16> gid{};
  std::uint16_t lid = 0;
  friend bool operator==(const McastAttachment&, const McastAttachment&) = default;
};

struct QpObject : Object {
  static constexpr ObjectType kType = ObjectType::Qp;
  QpObject() : Object(kType) {}

  nic::Qpn qpn{};
  ibv_qp_type type{};
  std::uint64_t user_handle = 0;
  // Null for what the type does not have (nic::QpParameters).
  PdObject* pd = nullptr;
  XrcdObject* xrcd = nullptr;
  CqObject* send_cq = nullptr;
  CqObject* recv_cq = nullptr;
  SrqObject* srq = nullptr;
  std::shared_ptr<UarPage> uar;
  int doorbell_register = -1;  // taken from the context's legacy registers
  std::vector<McastAttachment> attached;
};

struct AhObject : Object {
  static constexpr ObjectType kType = ObjectType::Ah;
  explicit AhObject(PdObject& pd_) : Object(kType), pd(&pd_) {}

  PdObject* pd;
};

// Users before what they use.
inline constexpr ObjectType kDestructionOrder[] = {
    ObjectType::Ah,   ObjectType::Qp, ObjectType::Srq, ObjectType::Xrcd, ObjectType::Cq, ObjectType::Mw,
    ObjectType::Devx, ObjectType::Mr, ObjectType::Dm,  ObjectType::Pd,   ObjectType::Uar};

}  // namespace qpair::softnic::driver
