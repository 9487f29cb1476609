#pragma once
// What a program can make through one open device. Owned by the HandleTable; guarded by the device's lock.
//
// Places for later: SRQ (UVERBS_OBJECT_SRQ), XRCD, MW, WQ and RWQ_IND_TBL, DM, COUNTERS, FLOW each get a
// struct here, a file of commands, entries in write_commands.cpp and ioctl_methods.cpp, and a place in
// kDestructionOrder.

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_cmds.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "softnic/driver/uar_pages.hpp"
#include "softnic/nic/nic.hpp"

namespace qpair::softnic::driver {

enum class ObjectType : std::uint16_t {
  Pd = UVERBS_OBJECT_PD,
  CompletionChannel = UVERBS_OBJECT_COMP_CHANNEL,
  Cq = UVERBS_OBJECT_CQ,
  Qp = UVERBS_OBJECT_QP,
  Ah = UVERBS_OBJECT_AH,
  Mr = UVERBS_OBJECT_MR,
  AsyncEvents = UVERBS_OBJECT_ASYNC_EVENT,
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

struct MrObject : Object {
  static constexpr ObjectType kType = ObjectType::Mr;
  MrObject() : Object(kType) {}
  ~MrObject() override;

  nic::Mkey key{};
  PdObject* pd = nullptr;
  nic::MrParameters parameters{};
  void* mapping = nullptr;  // ours, of a dma-buf
  std::size_t mapping_size = 0;
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

struct QpObject : Object {
  static constexpr ObjectType kType = ObjectType::Qp;
  QpObject() : Object(kType) {}

  nic::Qpn qpn{};
  PdObject* pd = nullptr;
  CqObject* send_cq = nullptr;
  CqObject* recv_cq = nullptr;
  std::shared_ptr<UarPage> uar;
  int doorbell_register = -1;  // taken from the context's legacy registers
};

struct AhObject : Object {
  static constexpr ObjectType kType = ObjectType::Ah;
  explicit AhObject(PdObject& pd_) : Object(kType), pd(&pd_) {}

  PdObject* pd;
};

// Users before what they use.
inline constexpr ObjectType kDestructionOrder[] = {ObjectType::Ah, ObjectType::Qp, ObjectType::Cq,
                                                   ObjectType::Mr, ObjectType::Pd, ObjectType::Uar};

}  // namespace qpair::softnic::driver
