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
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "softnic/config.hpp"
#include "softnic/nic/device.hpp"

namespace qpair::softnic::nic {

struct Errno {
  int value;
};
template <typename T>
using Expected = tl::expected<T, Errno>;

enum class Pdn : std::uint32_t {};
enum class Cqn : std::uint32_t {};
enum class Qpn : std::uint32_t {};
enum class Mkey : std::uint32_t {};
enum class UarId : std::uint32_t {};

// Where the NIC reports to. Called on the engine thread or inside a control call, with the NIC's lock held:
// the sink queues and returns, and never calls the Nic.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void completion(Cqn cq) = 0;                      // an armed CQ has a completion to report
  virtual void cq_event(Cqn cq, ibv_event_type event) = 0;  // IBV_EVENT_CQ_ERR
  virtual void qp_event(Qpn qp, ibv_event_type event) = 0;
};

struct CqParameters {
  std::uint64_t buffer;           // program's address of the ring
  std::uint64_t doorbell_record;  // program's address: [0] consumer index, [1] arm
  std::uint32_t entries;          // power of two
  std::uint32_t cqe_size;         // 64 or 128
  UarId uar;
  EventSink* sink;  // outlives the CQ
};

struct MrParameters {
  Pdn pd;
  std::uint64_t address;  // program's address of the bytes (or of the NIC's mapping of a dma-buf)
  std::uint64_t length;
  std::uint64_t iova;  // address that work requests use
  int access;          // enum ibv_access_flags
};

struct QpParameters {
  ibv_qp_type type;
  Pdn pd;
  Cqn send_cq;
  Cqn recv_cq;
  std::uint64_t
      buffer;  // program's address of the receive ring; the send ring follows it unless sq_buffer is set
  std::uint64_t sq_buffer;        // program's address of the send ring
  std::uint64_t doorbell_record;  // program's address: [0] receive, [1] send
  std::uint32_t sq_basic_blocks;  // power of two, or 0
  std::uint32_t rq_wqe_count;     // power of two, or 0
  std::uint32_t rq_wqe_shift;     // log2 of the bytes of a receive WQE
  std::uint32_t user_index;       // goes into the CQEs (CQE version 1)
  bool signal_all;
  bool scatter_to_cqe_recv;  // short received data lies in the CQE
  bool scatter_to_cqe_send;  // …and short read responses
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

  Expected<Pdn> create_pd();
  Errno destroy_pd(Pdn pd);  // value 0: done. EBUSY while something uses it

  Expected<Mkey> create_mr(const MrParameters& parameters);              // the key serves as lkey and rkey
  Errno change_mr(Mkey key, const MrParameters& parameters, int flags);  // flags: IBV_REREG_MR_CHANGE_*
  Errno destroy_mr(Mkey key);

  Expected<Cqn> create_cq(const CqParameters& parameters);
  Errno resize_cq(Cqn cq, std::uint64_t buffer, std::uint32_t entries, std::uint32_t cqe_size);
  Errno moderate_cq(Cqn cq, std::uint16_t count, std::uint16_t period_us);
  Errno destroy_cq(Cqn cq);

  Expected<Qpn> create_qp(const QpParameters& parameters);
  Errno modify_qp(Qpn qp, const ibv_qp_attr& attributes,
                  int mask);  // EINVAL for what IBTA 10.3 and the limits forbid
  Errno query_qp(Qpn qp, ibv_qp_attr& attributes, ibv_qp_init_attr& initial);
  Errno destroy_qp(Qpn qp);

  // After fork() in the child: the engine does not exist here; nothing is sent and no lock is taken.
  void abandon();

 private:
  class Impl;
  explicit Nic(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace qpair::softnic::nic
