#pragma once
// The silicon, as the driver sees it: objects are made, changed and destroyed here, and an engine thread does
// what the doorbells say. One Nic in a process. Every call is thread-safe (one lock, which the engine gives
// way on) and returns an Errno in place of throwing; the reason of a refusal has then been said through
// explain.

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "softnic/config.hpp"
#include "softnic/nic/device.hpp"
#include "softnic/nic/management.hpp"
#include "softnic/observe/counters.hpp"

namespace qpair::softnic::nic {

struct Errno {
  int value;
};
template <typename T>
using Expected = tl::expected<T, Errno>;

enum class Pdn : std::uint32_t {};
enum class Cqn : std::uint32_t {};
enum class Qpn : std::uint32_t {};
enum class Srqn : std::uint32_t {};
enum class Xrcdn : std::uint32_t {};
enum class Mkey : std::uint32_t {};
enum class UarId : std::uint32_t {};

// The key of ibv_alloc_null_mr(): it is of every protection domain, and good for local access.
inline constexpr std::uint32_t kNullKey = 0xf00;

// Where the NIC reports to. Called on the engine thread or inside a control call, with the NIC's lock held:
// the sink queues and returns, and never calls the Nic.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void completion(Cqn cq) = 0;                      // an armed CQ has a completion to report
  virtual void cq_event(Cqn cq, ibv_event_type event) = 0;  // IBV_EVENT_CQ_ERR
  virtual void qp_event(Qpn qp, ibv_event_type event) = 0;
  virtual void srq_event(Srqn srq, ibv_event_type event) = 0;
};

struct CqParameters {
  std::uint64_t buffer;           // program's address of the ring
  std::uint64_t doorbell_record;  // program's address: [0] consumer index, [1] arm
  std::uint32_t entries;          // power of two
  std::uint32_t cqe_size;         // 64 or 128
  UarId uar;
  EventSink* sink;              // outlives the CQ
  bool ignore_overrun = false;  // the program sees to it that there is room
};

struct MrParameters {
  Pdn pd;
  std::uint64_t address;  // program's address of the bytes (or of the NIC's mapping of a dma-buf)
  std::uint64_t length;
  std::uint64_t iova;                   // address that work requests use
  int access;                           // enum ibv_access_flags
  const char* registered_by = nullptr;  // explain::caller(), for sentences
};

// Which file it is, whatever its name: st_dev and st_ino.
struct FileIdentity {
  std::uint64_t device;
  std::uint64_t inode;
  bool operator==(const FileIdentity&) const = default;
};

// What makes a shared receive queue one for XRC: messages name it, and complete on its own completion queue.
struct XrcParameters {
  Xrcdn domain;
  Cqn cq;
  std::optional<std::uint32_t>
      user_index;  // goes into the CQEs; without one the queue's number (CQE version 0)
};

struct SrqParameters {
  Pdn pd;
  std::uint64_t buffer;           // program's address of the ring
  std::uint64_t doorbell_record;  // program's address: how many WQEs were posted
  std::uint32_t wqe_count;        // power of two
  std::uint32_t wqe_shift;        // log2 of the bytes of a WQE
  std::optional<XrcParameters> xrc;
  EventSink* sink;  // outlives the SRQ
};

struct MwParameters {
  Pdn pd;
  ibv_mw_type type;
};

// A key of pieces that a send queue lays out (mlx5dv_create_mkey).
struct MkeyParameters {
  Pdn pd;
  std::uint32_t max_entries;
  int access;  // until a work request says otherwise
  bool peer_may_invalidate;
};

// The two kinds of a dynamically connected service; verbs has one type for whatever a driver adds.
inline constexpr auto kDcInitiator = static_cast<ibv_qp_type>(IBV_QPT_DRIVER - 1);
inline constexpr auto kDcTarget = static_cast<ibv_qp_type>(IBV_QPT_DRIVER - 2);

// XRC: a send queue pair (the initiator) has no receive side and so no recv_cq; a receive queue pair (the
// target) has neither queues nor protection domain, and belongs to an XRC domain.
struct QpParameters {
  ibv_qp_type type;
  Pdn pd;
  Cqn send_cq;
  Cqn recv_cq;
  std::uint64_t
      buffer;  // program's address of the receive ring; the send ring follows it unless sq_buffer is set
  std::uint64_t sq_buffer;                     // program's address of the send ring
  std::uint64_t doorbell_record;               // program's address: [0] receive, [1] send
  std::uint32_t sq_basic_blocks;               // power of two, or 0
  std::uint32_t rq_wqe_count;                  // power of two, or 0
  std::uint32_t rq_wqe_shift;                  // log2 of the bytes of a receive WQE
  std::uint32_t user_index;                    // goes into the CQEs (CQE version 1)
  std::optional<std::uint32_t> receive_index;  // …of receives, when it is another (CQE version 0)
  std::optional<Srqn> srq;                     // receives come from it, and there is no receive ring
  Xrcdn xrc_domain;                            // of an XRC target
  std::uint64_t dc_access_key;                 // of a DC target, which has a shared receive queue and no ring
  bool signal_all;
  bool block_multicast_loopback;  // it is not given what it sent to a group itself
  bool scatter_to_cqe_recv;       // short received data lies in the CQE
  bool scatter_to_cqe_send;       // …and short read responses
  bool wq_signature;
  ibv_qp_cap capabilities;  // as granted
  UarId uar;
  EventSink* sink;  // outlives the QP
};

class Nic {
 public:
  // Claims an address, so that the GID table is known; starts no thread yet. The error is a sentence.
  static tl::expected<std::unique_ptr<Nic>, std::string> create(const NicConfig& config);
  // Stops the engine; what still exists is dropped.
  ~Nic();
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  const DeviceIdentity& identity() const;
  const DeviceLimits& limits() const;
  const std::vector<GidEntry>& gids() const;
  ibv_port_attr port() const;

  // `page`: the NIC's own view of a 4 KiB doorbell page. The first one starts the engine.
  Expected<UarId> add_uar(std::byte* page);
  // The program mapped that page at `address`: a store there has to wake the engine.
  void uar_mapped(UarId uar, void* address);
  void remove_uar(UarId uar);
  // Whether the program has mapped a doorbell page in [address, address + length).
  bool has_doorbells_in(std::uint64_t address, std::uint64_t length);

  Expected<Pdn> create_pd();
  Errno destroy_pd(Pdn pd);  // value 0: done. EBUSY while something uses it

  Expected<Mkey> create_mr(const MrParameters& parameters);  // the key serves as lkey and rkey
  Expected<MrParameters> query_mr(Mkey key);
  Errno change_mr(Mkey key, const MrParameters& parameters, int flags);  // flags: IBV_REREG_MR_CHANGE_*
  Expected<Mkey> create_mw(const MwParameters& parameters);
  Expected<Mkey> create_mkey(const MkeyParameters& parameters);
  // A region, a window or such a key, by the number that it was made with. EBUSY: windows are bound to it.
  Errno destroy_mr(Mkey key);

  Expected<Cqn> create_cq(const CqParameters& parameters);
  Errno resize_cq(Cqn cq, std::uint64_t buffer, std::uint32_t entries, std::uint32_t cqe_size);
  Errno moderate_cq(Cqn cq, std::uint16_t count, std::uint16_t period_us);
  Errno destroy_cq(Cqn cq);

  // `flags`: O_CREAT, O_EXCL as for a file's domain (ibv_open_xrcd(3)).
  Expected<Xrcdn> open_xrcd(const std::optional<FileIdentity>& file, int flags);
  Errno close_xrcd(Xrcdn domain);

  Expected<Srqn> create_srq(const SrqParameters& parameters);
  Errno arm_srq(Srqn srq, std::uint32_t limit);     // IBV_EVENT_SRQ_LIMIT_REACHED below it, once
  Errno query_srq(Srqn srq, std::uint32_t& limit);  // 0: not armed
  Errno destroy_srq(Srqn srq);

  Expected<Qpn> create_qp(const QpParameters& parameters);
  Errno modify_qp(Qpn qp, const ibv_qp_attr& attributes,
                  int mask);  // EINVAL for what IBTA 10.3 and the limits forbid
  Errno query_qp(Qpn qp, ibv_qp_attr& attributes, ibv_qp_init_attr& initial);
  // Another handle on an XRC target of that domain: `sink` hears its events too.
  Errno share_qp(Qpn qp, Xrcdn domain, EventSink* sink);
  // With the sink that it was made or shared with; the last one that lets go ends it.
  Errno destroy_qp(Qpn qp, EventSink* sink = nullptr);

  // Datagrams: what is sent to the group is received too. Attached twice is attached once.
  Errno attach_multicast(Qpn qp, const ibv_gid& group);
  Errno detach_multicast(Qpn qp, const ibv_gid& group);

  // What the device has counted since it was made.
  observe::Counters counters();
  // The latest failed work requests and why; see nic/failures.hpp for the format.
  std::string failures();
  // The agent behind queue pair 1, made when first wanted, for as long as the call lasts: nothing else of the
  // NIC happens meanwhile, and the call must not use the Nic. What it sent is on its way when this returns.
  using MakeAgent = std::function<std::unique_ptr<ManagementAgent>(MadSender& sender)>;
  using UseAgent = std::function<void(ManagementAgent& agent, wire::TimePoint now)>;
  // `stores`: the program's bytes that the call stores to. EFAULT, and there is no call, if they are none.
  struct Bytes {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
  };
  Errno with_agent(const MakeAgent& make, const UseAgent& use, Bytes stores);

  // The program ends. The queue pairs that it has left, its peers miss at once (nic/chip.hpp).
  void end();

  // In the thread that forks, before and after it.
  void before_fork();
  void after_fork_in_parent();
  // The engine does not exist here; nothing is sent.
  void after_fork_in_child();

 private:
  class Impl;
  explicit Nic(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace qpair::softnic::nic
