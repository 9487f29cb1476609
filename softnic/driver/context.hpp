#pragma once
// What the kernel keeps for one open device (ib_uverbs_file and ib_ucontext), and the commands on it, free of
// how they came in: write_commands.cpp and ioctl_methods.cpp are the two front ends. All of it under the
// device's lock.
//
// Commands answer 0 or a negative errno, or an Outcome that is a value or a negative errno.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <tl/expected.hpp>
#include <vector>

#include "softnic/driver/doorbell_registers.hpp"
#include "softnic/driver/event_router.hpp"
#include "softnic/driver/handles.hpp"
#include "softnic/driver/uar_pages.hpp"
#include "softnic/driver/user_memory.hpp"
#include "softnic/nic/nic.hpp"

namespace qpair::softnic::driver {

template <typename T>
using Outcome = tl::expected<T, int>;

inline constexpr std::uint32_t kDoorbellRecordSize = 8;
inline constexpr std::uint32_t kDefaultUserIndex = 0xffffff;  // "none": MLX5_IB_DEFAULT_UIDX

// The mlx5 part of a command and of its answer.
struct DriverData {
  UserBuffer in;
  UserBuffer out;
};

// As much device memory as a ConnectX has (max_dm_size).
inline constexpr std::size_t kDevicePages = 32;
inline constexpr std::uint64_t kDeviceMemory = kDevicePages * 4096;

struct Context {
  Context(std::shared_ptr<nic::Nic> nic_, std::unique_ptr<UarPages> pages_);
  ~Context();  // everything goes, users first
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Pages that all queues of the context may share, by number (not UAR objects). Made when first used.
  std::shared_ptr<UarPage> static_page(std::uint32_t index);
  std::shared_ptr<UarPage> dynamic_page(std::uint32_t index);
  // A page by the number that the program was told (MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID). Null: no such page.
  std::shared_ptr<UarPage> page_by_id(std::uint32_t page_id);
  // What is mapped at this offset; null when it is not a doorbell page.
  std::shared_ptr<UarPage> page_at(off_t offset);

  // Remembers a queue, so that its readers learn when the device is closed.
  void adopt(const std::shared_ptr<EventQueue>& queue);

  std::shared_ptr<nic::Nic> nic;
  std::unique_ptr<UarPages> pages;
  EventRouter router;
  HandleTable handles;
  std::shared_ptr<EventQueue> default_async;  // for queues whose command names none
  std::vector<std::weak_ptr<EventQueue>> queues;

  bool opened = false;        // GET_CONTEXT was done
  bool devx = false;          // the device's own commands may be used
  bool dynamic_uars = false;  // the library asks for UAR objects; it has no registers of its own
  std::uint8_t cqe_version = 0;
  DoorbellRegisters registers;
  std::vector<std::shared_ptr<UarPage>> static_pages;
  std::vector<std::shared_ptr<UarPage>> dynamic_pages;
  std::vector<UarObject*> uar_objects;                 // by index; null where free
  std::array<DmObject*, kDevicePages> device_pages{};  // whose each page of device memory is; null where free
};

std::uint32_t completion_vectors();

// context.cpp
int alloc_ucontext(Context& context, const DriverData& driver);
int query_ucontext(Context& context, const UserBuffer& out);
int destroy(Context& context, ObjectType type, std::uint64_t handle,
            EventRouter::Reported* reported = nullptr);

// The command that was refused after its object was made: takes the object back and passes the errno on.
int undo(Context& context, ObjectType type, std::uint32_t handle, int failure);

// uar.cpp
struct UarCreated {
  std::uint32_t handle;
  std::uint64_t mmap_offset;
  std::uint32_t mmap_length;
  std::uint32_t page_id;
};
int fill_clock_info(const Context& context);
Outcome<UarCreated> create_uar(Context& context, std::uint64_t type);
int before_mmap(Context& context, std::size_t length, int protection, int flags, off_t offset);

// pd.cpp
Outcome<std::uint32_t> create_pd(Context& context, const DriverData& driver);
struct AhRequest {
  std::uint32_t pd_handle;
  ibv_ah_attr attributes;
};
Outcome<std::uint32_t> create_ah(Context& context, const AhRequest& request, const DriverData& driver);
int check_address(Context& context, const ibv_ah_attr& attributes);

// mr.cpp
struct MrRequest {
  PdObject* pd;
  std::uint64_t start;
  std::uint64_t length;
  std::uint64_t iova;
  std::uint32_t access;
};
struct MrCreated {
  std::uint32_t handle;
  std::uint32_t key;
};
Outcome<MrCreated> create_mr(Context& context, const MrRequest& request);
// `request.start` is the offset into the dma-buf.
Outcome<MrCreated> create_dmabuf_mr(Context& context, const MrRequest& request, int fd);
int change_mr(Context& context, MrObject& mr, std::uint32_t flags, const MrRequest& request);
Outcome<MrCreated> insert_mr(Context& context, PdObject& pd, std::unique_ptr<MrObject> mr);
struct AdviseRequest {
  PdObject* pd;
  std::uint64_t advice;  // enum ib_uverbs_advise_mr_advice
  bool flush;            // come back when it is done
  std::span<const ib_uverbs_sge> pieces;
};
int advise_mr(Context& context, const AdviseRequest& request);

// dm.cpp
struct DmCreated {
  std::uint32_t handle;
  std::uint16_t page_index;
};
Outcome<DmCreated> create_dm(Context& context, std::uint64_t length, std::uint32_t log_alignment);
void give_back_pages(Context& context, const DmObject& dm);
int before_mmap_dm(const Context& context, MmapOffset where, std::size_t length, int flags);
// `request.start` is the offset into the device memory.
Outcome<MrCreated> create_dm_mr(Context& context, const MrRequest& request, DmObject& dm);

// mw.cpp
struct MwCreated {
  std::uint32_t handle;
  std::uint32_t rkey;
};
Outcome<MwCreated> create_mw(Context& context, PdObject& pd, std::uint8_t type, const DriverData& driver);

// cq.cpp
struct CqRequest {
  std::uint64_t user_handle = 0;
  std::uint32_t entries = 0;
  std::uint32_t vector = 0;
  std::uint32_t flags = 0;
  std::shared_ptr<EventQueue> channel;
  std::shared_ptr<EventQueue> async;
};
struct CqCreated {
  std::uint32_t handle;
  std::uint32_t entries;
};
Outcome<CqCreated> create_cq(Context& context, const CqRequest& request, const DriverData& driver);
Outcome<std::uint32_t> resize_cq(Context& context, CqObject& cq, std::uint32_t entries,
                                 const DriverData& driver);

// xrc.cpp
// `fd` -1: a domain without a file.
Outcome<std::uint32_t> open_xrcd(Context& context, int fd, std::uint32_t flags);

// srq.cpp
struct SrqRequest {
  std::uint64_t user_handle = 0;
  std::uint64_t type = 0;  // enum ib_uverbs_srq_type
  std::uint32_t max_wr = 0;
  std::uint32_t max_sge = 0;
  PdObject* pd = nullptr;
  XrcdObject* xrcd = nullptr;
  CqObject* cq = nullptr;
  std::shared_ptr<EventQueue> async;
};
struct SrqCreated {
  std::uint32_t handle;
  std::uint32_t srqn;
  std::uint32_t max_wr;
  std::uint32_t max_sge;
};
Outcome<SrqCreated> create_srq(Context& context, const SrqRequest& request, const DriverData& driver);
int modify_srq(Context& context, const SrqObject& srq, std::uint32_t mask, std::uint32_t limit);

// qp.cpp
struct QpRequest {
  std::uint64_t user_handle = 0;
  std::uint32_t type = 0;  // enum ib_uverbs_qp_type
  std::uint32_t create_flags = 0;
  bool signal_all = false;
  ibv_qp_cap capabilities{};
  PdObject* pd = nullptr;
  XrcdObject* xrcd = nullptr;
  CqObject* send_cq = nullptr;
  CqObject* recv_cq = nullptr;
  SrqObject* srq = nullptr;
  std::shared_ptr<EventQueue> async;
};
struct QpCreated {
  std::uint32_t handle;
  std::uint32_t qpn;
  ibv_qp_cap capabilities;
};
Outcome<QpCreated> create_qp(Context& context, const QpRequest& request, const DriverData& driver);
// Another handle on an XRC target.
struct QpOpenRequest {
  std::uint64_t user_handle = 0;
  XrcdObject* xrcd = nullptr;
  std::uint32_t qpn = 0;
  std::uint32_t type = 0;
};
Outcome<QpCreated> open_qp(Context& context, const QpOpenRequest& request);
// What the queue pair was made from has one user more (1) or less (-1).
void count_users(const QpObject& qp, int difference);

// multicast.cpp
int attach_multicast(Context& context, QpObject& qp, const McastAttachment& to);
int detach_multicast(Context& context, QpObject& qp, const McastAttachment& from);

// device_queries.cpp
ib_uverbs_query_device_resp query_device(const nic::Nic& nic);
ib_uverbs_ex_query_device_resp query_device_ex(const nic::Nic& nic);
int query_device_driver(const DriverData& driver);
int query_port(const nic::Nic& nic, std::uint64_t port, ib_uverbs_query_port_resp& answer,
               std::uint16_t& flags2);

}  // namespace qpair::softnic::driver
