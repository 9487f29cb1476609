#pragma once
// What the kernel keeps for one open device (ib_uverbs_file and ib_ucontext), and the commands on it, free of
// how they came in: write_commands.cpp and ioctl_methods.cpp are the two front ends. All of it under the
// device's lock.
//
// Commands answer 0 or a negative errno, or an Outcome that is a value or a negative errno.

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

// The mlx5 part of a command and of its answer.
struct DriverData {
  UserBuffer in;
  UserBuffer out;
};

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
  bool dynamic_uars = false;  // the library asks for UAR objects; it has no registers of its own
  std::uint8_t cqe_version = 0;
  DoorbellRegisters registers;
  std::vector<std::shared_ptr<UarPage>> static_pages;
  std::vector<std::shared_ptr<UarPage>> dynamic_pages;
  std::vector<UarObject*> uar_objects;  // by index; null where free
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

// qp.cpp
struct QpRequest {
  std::uint64_t user_handle = 0;
  std::uint32_t type = 0;  // enum ib_uverbs_qp_type
  std::uint32_t create_flags = 0;
  bool signal_all = false;
  ibv_qp_cap capabilities{};
  PdObject* pd = nullptr;
  CqObject* send_cq = nullptr;
  CqObject* recv_cq = nullptr;
  std::shared_ptr<EventQueue> async;
};
struct QpCreated {
  std::uint32_t handle;
  std::uint32_t qpn;
  ibv_qp_cap capabilities;
};
Outcome<QpCreated> create_qp(Context& context, const QpRequest& request, const DriverData& driver);

// device_queries.cpp
ib_uverbs_query_device_resp query_device(const nic::Nic& nic);
ib_uverbs_ex_query_device_resp query_device_ex(const nic::Nic& nic);
int query_device_driver(const DriverData& driver);
int query_port(const nic::Nic& nic, std::uint64_t port, ib_uverbs_query_port_resp& answer,
               std::uint16_t& flags2);

}  // namespace qpair::softnic::driver
