#include "softnic/driver/context.hpp"

#include <fmt/format.h>
#include <rdma/mlx5-abi.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>

#include "softnic/driver/refusal.hpp"
#include "softnic/driver/runtime.hpp"
#include "softnic/driver/system.hpp"

namespace qpair::softnic::driver {
namespace {

constexpr std::uint32_t kBlueFlameRegisterSize = 512;  // log_bf_reg_size 9
constexpr std::uint16_t kMaxSendDescriptor = 1008;  // 63 segments of 16 bytes: six bits count them in a WQE
constexpr std::uint16_t kMaxReceiveDescriptor = 512;
constexpr std::uint8_t kCqeVersion = 1;
constexpr std::uint32_t kMaxRegisters = 512;

// struct mlx5_ib_alloc_ucontext_req_v2 up to what the first users of version 2 sent (min_req_v2 in the
// kernel's hw/mlx5/main.c, mlx5_ib_alloc_ucontext()).
constexpr std::size_t kSmallestV2 = offsetof(mlx5_ib_alloc_ucontext_req_v2, max_cqe_version);

mlx5_ib_alloc_ucontext_resp describe(const Context& context) {
  const nic::DeviceLimits& limits = context.nic->limits();
  const auto max_wr = static_cast<std::uint32_t>(limits.attributes.max_qp_wr);
  mlx5_ib_alloc_ucontext_resp answer{};
  answer.qp_tab_size = std::bit_ceil(static_cast<std::uint32_t>(limits.attributes.max_qp));
  answer.bf_reg_size = kBlueFlameRegisterSize;
  answer.tot_bfregs = context.registers.total();
  answer.cache_line_size = 64;
  answer.max_sq_desc_sz = kMaxSendDescriptor;
  answer.max_rq_desc_sz = kMaxReceiveDescriptor;
  answer.max_send_wqebb = max_wr;
  answer.max_recv_wr = max_wr;
  answer.max_srq_recv_wr = static_cast<std::uint32_t>(limits.attributes.max_srq_wr);
  answer.num_ports = 1;
  answer.comp_mask = MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS |
                     MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY |
                     MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_MKEY_UPDATE_TAG;
  answer.dump_fill_mkey = nic::kNullKey;
  answer.cqe_version = context.cqe_version;
  answer.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH;
  answer.eth_min_inline = MLX5_USER_INLINE_MODE_NONE;
  answer.clock_info_versions = 1U << MLX5_IB_CLOCK_INFO_V1;
  answer.log_uar_size = 12;
  answer.num_uars_per_page = 1;
  answer.num_dyn_bfregs = context.dynamic_uars ? 0 : kMaxDynamicRegisters;
  return answer;
}

int answer_ucontext(const Context& context, const UserBuffer& out) {
  mlx5_ib_alloc_ucontext_resp answer = describe(context);
  answer.response_length = static_cast<std::uint32_t>(std::min(out.size, sizeof answer));
  return copy_to_user(out.address, &answer, answer.response_length) ? 0 : -EFAULT;
}

template <typename Table>
std::shared_ptr<UarPage> page_in(Context& context, Table& table, std::uint32_t index, std::uint32_t command) {
  if (index >= table.size()) return nullptr;
  if (!table[index]) table[index] = context.pages->add(context.nic, {.command = command, .index = index});
  return table[index];
}

}  // namespace

std::uint32_t completion_vectors() {
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  return static_cast<std::uint32_t>(std::clamp(processors, 1L, 63L));
}

Context::Context(std::shared_ptr<nic::Nic> nic_, std::unique_ptr<UarPages> pages_)
    : nic(std::move(nic_)), pages(std::move(pages_)) {}

Context::~Context() {
  // Who closes the device does not have to leave its groups first (uverbs_free_qp() in the kernel's
  // uverbs_std_types.c).
  for (const std::uint32_t handle : handles.handles_of(ObjectType::Qp)) {
    static_cast<QpObject*>(handles.find(handle))->attached.clear();
  }
  for (const ObjectType type : kDestructionOrder) {
    for (const std::uint32_t handle : handles.handles_of(type)) destroy(*this, type, handle);
  }
  for (const auto& queue : queues) {
    if (const auto alive = queue.lock()) alive->device_closed();
  }
}

void Context::adopt(const std::shared_ptr<EventQueue>& queue) {
  queues.erase(std::remove_if(queues.begin(), queues.end(), [](const auto& weak) { return weak.expired(); }),
               queues.end());
  queues.push_back(queue);
}

std::shared_ptr<UarPage> Context::static_page(std::uint32_t index) {
  return page_in(*this, static_pages, index, MLX5_IB_MMAP_REGULAR_PAGE);
}

std::shared_ptr<UarPage> Context::dynamic_page(std::uint32_t index) {
  return page_in(*this, dynamic_pages, index, MLX5_IB_MMAP_ALLOC_WC);
}

std::shared_ptr<UarPage> Context::page_by_id(std::uint32_t page_id) {
  if (page_id < static_pages.size()) return static_page(page_id);
  const std::size_t index = page_id - static_pages.size();
  return index < uar_objects.size() && uar_objects[index] != nullptr ? uar_objects[index]->page : nullptr;
}

std::shared_ptr<UarPage> Context::page_at(off_t offset) {
  const MmapOffset where = MmapOffset::from_bytes(offset);
  switch (where.command) {
    case MLX5_IB_MMAP_REGULAR_PAGE:
      return where.index < static_pages.size() ? static_pages[where.index] : nullptr;
    case MLX5_IB_MMAP_ALLOC_WC:
      return where.index < dynamic_pages.size() ? dynamic_pages[where.index] : nullptr;
    case kFirstObjectCommand:
      return where.index < uar_objects.size() && uar_objects[where.index] != nullptr
                 ? uar_objects[where.index]->page
                 : nullptr;
    default:
      return nullptr;
  }
}

int alloc_ucontext(Context& context, const DriverData& driver) {
  if (context.opened) return -EINVAL;
  mlx5_ib_alloc_ucontext_req_v2 request{};
  const bool first_version = driver.in.size == sizeof(mlx5_ib_alloc_ucontext_req);
  if (!first_version && driver.in.size < kSmallestV2) return -EINVAL;
  if (!copy_from_user(&request, driver.in.address, std::min(driver.in.size, sizeof request))) return -EFAULT;
  if ((request.flags & ~std::uint32_t{MLX5_IB_ALLOC_UCTX_DEVX}) != 0) return -EOPNOTSUPP;
  if (request.comp_mask != 0 || request.reserved0 != 0 || request.reserved1 != 0 || request.reserved2 != 0) {
    return -EOPNOTSUPP;
  }
  if (request.total_num_bfregs == 0 || request.total_num_bfregs > kMaxRegisters) {
    return request.total_num_bfregs == 0 ? -EINVAL : -ENOMEM;
  }
  const std::uint32_t total = (request.total_num_bfregs + kRegistersPerPage - 1) & ~(kRegistersPerPage - 1);
  if (request.num_low_latency_bfregs > total - 1) return -EINVAL;

  context.cqe_version = std::min(kCqeVersion, request.max_cqe_version);
  // Without the ioctl interface UAR objects could not be made.
  context.dynamic_uars = (request.lib_caps & MLX5_LIB_CAP_DYN_UAR) != 0 && !current_config().write_abi;
  if (!context.dynamic_uars) {
    context.registers = DoorbellRegisters(total, request.num_low_latency_bfregs);
    context.static_pages.resize(context.registers.pages());
    context.dynamic_pages.resize(kMaxDynamicRegisters / kRegistersPerPage);
  }
  if (const int failure = fill_clock_info(context); failure != 0) return failure;
  if (const int failure = answer_ucontext(context, driver.out); failure != 0) return failure;
  // As libmlx5 asks for always, and a kernel grants to everybody (mlx5_ib_devx_create()).
  context.devx = (request.flags & MLX5_IB_ALLOC_UCTX_DEVX) != 0;
  context.opened = true;
  return 0;
}

int query_ucontext(Context& context, const UserBuffer& out) {
  return answer_ucontext(context, out);
}

int undo(Context& context, ObjectType type, std::uint32_t handle, int failure) {
  if (failure != 0) destroy(context, type, handle);
  return failure;
}

namespace {

int release(Context& context, Object& object, EventRouter::Reported& reported) {
  nic::Nic& nic = *context.nic;
  switch (object.type) {
    case ObjectType::Pd:
      return -nic.destroy_pd(static_cast<PdObject&>(object).pdn).value;
    case ObjectType::Ah:
      --static_cast<AhObject&>(object).pd->users;
      return 0;
    case ObjectType::Mr: {
      auto& mr = static_cast<MrObject&>(object);
      if (const int error = nic.destroy_mr(mr.key).value; error != 0) return -error;
      --mr.pd->users;
      if (mr.dm != nullptr) --mr.dm->users;
      return 0;
    }
    case ObjectType::Dm:
      give_back_pages(context, static_cast<DmObject&>(object));
      return 0;
    case ObjectType::Mw: {
      auto& mw = static_cast<MwObject&>(object);
      if (const int error = nic.destroy_mr(mw.key).value; error != 0) return -error;
      --mw.pd->users;
      return 0;
    }
    case ObjectType::Cq: {
      auto& cq = static_cast<CqObject&>(object);
      if (const int error = nic.destroy_cq(cq.cqn).value; error != 0) return -error;
      reported = context.router.remove(cq.cqn);
      return 0;
    }
    case ObjectType::Xrcd:
      return -nic.close_xrcd(static_cast<XrcdObject&>(object).xrcdn).value;
    case ObjectType::Srq: {
      auto& srq = static_cast<SrqObject&>(object);
      if (const int error = nic.destroy_srq(srq.srqn).value; error != 0) return -error;
      reported = context.router.remove(srq.srqn);
      --srq.pd->users;
      if (srq.xrcd != nullptr) --srq.xrcd->users;
      if (srq.cq != nullptr) --srq.cq->users;
      return 0;
    }
    case ObjectType::Qp: {
      auto& qp = static_cast<QpObject&>(object);
      if (const int error = nic.destroy_qp(qp.qpn, &context.router).value; error != 0) return -error;
      reported = context.router.remove(qp.qpn, qp.user_handle);
      context.registers.give_back(qp.doorbell_register);
      count_users(qp, -1);
      return 0;
    }
    case ObjectType::Devx:
      return -nic.destroy_mr(static_cast<DevxObject&>(object).key).value;
    case ObjectType::Uar:
      context.uar_objects[static_cast<UarObject&>(object).offset.index] = nullptr;
      return 0;
    case ObjectType::CompletionChannel:
    case ObjectType::AsyncEvents:
      break;  // these are descriptors, not handles
  }
  return -EINVAL;
}

const char* name_of(ObjectType type) {
  switch (type) {
    case ObjectType::Pd:
      return "protection domain";
    case ObjectType::Cq:
      return "completion queue";
    case ObjectType::Qp:
      return "queue pair";
    case ObjectType::Xrcd:
      return "XRC domain";
    case ObjectType::Srq:
      return "shared receive queue";
    case ObjectType::Ah:
      return "address handle";
    case ObjectType::Mr:
      return "memory region";
    case ObjectType::Mw:
      return "memory window";
    case ObjectType::Dm:
      return "device memory";
    case ObjectType::Devx:
      return "device object";
    case ObjectType::Uar:
      return "doorbell page";
    case ObjectType::CompletionChannel:
      return "completion channel";
    case ObjectType::AsyncEvents:
      return "event file";
  }
  return "object";
}

}  // namespace

int destroy(Context& context, ObjectType type, std::uint64_t handle, EventRouter::Reported* reported) {
  Object* const object = context.handles.find(handle);
  if (object == nullptr) return -ENOENT;
  if (object->type != type) return -EINVAL;
  if (object->users != 0) {
    return refuse(EBUSY,
                  fmt::format("A {} cannot be destroyed: {} objects that were made with it are still there.",
                              name_of(type), object->users));
  }
  if (type == ObjectType::Qp && !static_cast<QpObject*>(object)->attached.empty()) {
    return refuse(EBUSY, "ibv_destroy_qp: it is attached to a multicast group (ibv_detach_mcast first).");
  }
  EventRouter::Reported counts;
  if (const int failure = release(context, *object, counts); failure != 0) return failure;
  context.handles.erase(handle);
  if (reported != nullptr) *reported = counts;
  return 0;
}

}  // namespace qpair::softnic::driver
