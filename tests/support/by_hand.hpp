#pragma once
// Verbs objects whose rings, doorbell records and doorbells a test writes by hand, through mlx5dv_init_obj()
// and the formats of qpair/mlx5. libmlx5 makes them, moves their states and polls their completions.

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "qpair/mlx5/doorbell.hpp"
#include "tests/support/wqe.hpp"

namespace qpair::by_hand {

inline constexpr std::chrono::seconds kPatience{30};
inline constexpr int kAllRights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what + " (errno " + std::to_string(errno) + ")");
}

template <typename T>
using Owned = std::unique_ptr<T, int (*)(T*)>;

// The device, opened once in a process, with a protection domain.
struct Device {
  static Device& get() {
    static Device device;
    return device;
  }
  ibv_context* context;
  ibv_pd* pd;
  ibv_gid gid{};

 private:
  Device() {
    ibv_device** const list = ibv_get_device_list(nullptr);
    ibv_device* const first = list != nullptr ? list[0] : nullptr;
    expect(first != nullptr, "no RDMA device");
    context = ibv_open_device(first);
    ibv_free_device_list(list);
    expect(context != nullptr, "ibv_open_device");
    pd = ibv_alloc_pd(context);
    expect(pd != nullptr, "ibv_alloc_pd");
    expect(ibv_query_gid(context, 1, 3, &gid) == 0, "ibv_query_gid");
  }
};

// Page-aligned memory and its registration.
class Registered {
 public:
  explicit Registered(std::size_t size, int access = kAllRights, ibv_pd* pd = Device::get().pd)
      : size_(size),
        bytes_(static_cast<std::byte*>(std::aligned_alloc(4096, (size + 4095) & ~std::size_t{4095}))) {
    expect(bytes_ != nullptr, "aligned_alloc");
    std::memset(bytes_, 0, size);
    mr_ = ibv_reg_mr(pd, bytes_, size, access);
    expect(mr_ != nullptr, "ibv_reg_mr");
  }
  ~Registered() {
    deregister();
    protect(PROT_READ | PROT_WRITE);
    std::free(bytes_);
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  void deregister() {
    if (ibv_mr* const mr = std::exchange(mr_, nullptr)) ibv_dereg_mr(mr);
  }
  // The pages stay registered, and cannot be used.
  void take_away() { protect(PROT_NONE); }
  std::byte* data() const { return bytes_; }
  std::size_t size() const { return size_; }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(bytes_); }
  std::uint32_t lkey() const { return mr_->lkey; }
  std::uint32_t rkey() const { return mr_->rkey; }

 private:
  void protect(int protection) { ::mprotect(bytes_, (size_ + 4095) & ~std::size_t{4095}, protection); }
  std::size_t size_;
  std::byte* bytes_;
  ibv_mr* mr_ = nullptr;
};

struct QpOptions {
  std::uint32_t sends = 16;
  std::uint32_t receives = 16;
  std::uint32_t receive_pieces = 2;
  int cq_entries = 255;
  unsigned access = kAllRights;
  std::uint8_t timeout = 14;
  std::uint8_t retries = 7;
  std::uint8_t rnr_retries = 7;
  std::uint8_t reads = 16;       // max_rd_atomic
  std::uint8_t peer_reads = 16;  // max_dest_rd_atomic
  ibv_mtu mtu = IBV_MTU_1024;
  ibv_srq* srq = nullptr;  // in place of a receive ring
};

class HandQp {
 public:
  explicit HandQp(const QpOptions& options = {}) : options_(options) {
    ibv_context* const context = Device::get().context;
    send_cq_.reset(ibv_create_cq(context, options.cq_entries, nullptr, nullptr, 0));
    receive_cq_.reset(ibv_create_cq(context, options.cq_entries, nullptr, nullptr, 0));
    expect(send_cq_ && receive_cq_, "ibv_create_cq");
    ibv_qp_init_attr initial{};
    initial.send_cq = send_cq_.get();
    initial.recv_cq = receive_cq_.get();
    initial.qp_type = IBV_QPT_RC;
    initial.srq = options.srq;
    initial.cap = {options.sends, options.receives, 1, options.receive_pieces, 0};
    qp_.reset(ibv_create_qp(Device::get().pd, &initial));
    expect(qp_ != nullptr, "ibv_create_qp");
    mlx5dv_obj object{};
    object.qp = {qp_.get(), &rings_};
    expect(mlx5dv_init_obj(&object, MLX5DV_OBJ_QP) == 0, "mlx5dv_init_obj");
  }

  std::uint32_t number() const { return qp_->qp_num; }
  ibv_qp* verbs() const { return qp_.get(); }
  std::uint32_t send_blocks() const { return rings_.sq.wqe_cnt; }
  std::uint32_t receive_entries() const { return rings_.rq.wqe_cnt; }
  std::uint16_t send_index() const { return send_index_; }
  ibv_cq* send_cq() const { return send_cq_.get(); }
  ibv_cq* receive_cq() const { return receive_cq_.get(); }
  // Takes every doorbell that was rung before, too.
  void destroy() { qp_.reset(); }

  void modify(ibv_qp_attr attributes, int mask) const {
    expect(ibv_modify_qp(qp_.get(), &attributes, mask) == 0, "ibv_modify_qp");
  }
  void to_init() const {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = options_.access;
    modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }
  void to_ready_to_receive(std::uint32_t peer) const {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = options_.mtu;
    attributes.dest_qp_num = peer;
    attributes.rq_psn = 5;
    attributes.max_dest_rd_atomic = options_.peer_reads;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.dgid = Device::get().gid;
    attributes.ah_attr.grh.sgid_index = 3;
    attributes.ah_attr.grh.hop_limit = 64;
    modify(attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }
  void to_ready_to_send() const {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = 5;
    attributes.timeout = options_.timeout;
    attributes.retry_cnt = options_.retries;
    attributes.rnr_retry = options_.rnr_retries;
    attributes.max_rd_atomic = options_.reads;
    modify(attributes, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_MAX_QP_RD_ATOMIC);
  }
  void to_error() const {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    modify(attributes, IBV_QP_STATE);
  }
  void connect(std::uint32_t peer) const {
    to_init();
    to_ready_to_receive(peer);
    to_ready_to_send();
  }

  // Into the send ring; the NIC does not know of it yet.
  std::uint16_t write(const Wqe& wqe) {
    const std::uint16_t index = send_index_;
    write_at(index, wqe);
    send_index_ = static_cast<std::uint16_t>(index + (wqe.size() + 63) / 64);
    return index;
  }
  void write_at(std::uint16_t index, const Wqe& wqe) {
    const auto bytes = wqe.bytes(index, number());
    auto* const ring = static_cast<std::byte*>(rings_.sq.buf);
    const std::size_t size = std::size_t{rings_.sq.wqe_cnt} * mlx5::kBasicBlockSize;
    const std::size_t start = std::size_t{index} * mlx5::kBasicBlockSize;
    for (std::size_t i = 0; i < bytes.size(); ++i) ring[(start + i) % size] = bytes[i];
    // As the WQE has it, but always of this queue pair: a test that lies in the WQE means the WQE.
    const mlx5::be32 second = mlx5::qpn_ds(number(), 0);
    std::memcpy(&doorbell_, bytes.data(), sizeof second);
    std::memcpy(reinterpret_cast<std::byte*>(&doorbell_) + sizeof second, &second, sizeof second);
  }
  void* doorbell_register() const { return rings_.bf.reg; }
  void store_send_record(std::uint16_t value) const { store_record(mlx5::kSendRecord, value); }
  void store_receive_record(std::uint16_t value) const { store_record(mlx5::kReceiveRecord, value); }
  void ring() {
    store_send_record(send_index_);
    ring_without_record();
  }
  void ring_without_record() { ring_with(doorbell_); }
  // For any queue pair, which need not exist.
  void ring_for(std::uint32_t number) {
    const mlx5::be32 words[] = {0U, mlx5::qpn_ds(number, 2)};
    std::uint64_t value = 0;
    std::memcpy(&value, words, sizeof value);
    ring_with(value);
  }
  void ring_with(std::uint64_t value) {
    mlx5::store_register(static_cast<std::byte*>(rings_.bf.reg) + half_, value);
    half_ ^= rings_.bf.size;
  }
  std::uint16_t post(const Wqe& wqe) {
    const std::uint16_t index = write(wqe);
    ring();
    return index;
  }

  struct Piece {
    std::uint64_t address;
    std::uint32_t length;
    std::uint32_t lkey;
  };
  void write_receive(std::uint16_t index, const std::vector<Piece>& pieces) const {
    auto* const entry = static_cast<std::byte*>(rings_.rq.buf) +
                        std::size_t{index & (rings_.rq.wqe_cnt - 1)} * rings_.rq.stride;
    std::size_t at = 0;
    const auto append = [&](const mlx5::DataSegment& segment) {
      std::memcpy(entry + at, &segment, sizeof segment);
      at += sizeof segment;
    };
    for (const Piece& piece : pieces) append({piece.length, piece.lkey, piece.address});
    if (at < rings_.rq.stride) append({0, mlx5::kInvalidLkey, 0});
  }
  void receive(const std::vector<Piece>& pieces) {
    write_receive(receive_index_++, pieces);
    store_receive_record(receive_index_);
  }

 private:
  void store_record(std::size_t entry, std::uint16_t value) const {
    mlx5::to_device_barrier();
    mlx5::store_record(reinterpret_cast<mlx5::be32*>(rings_.dbrec) + entry, value);
  }

  QpOptions options_;
  Owned<ibv_cq> send_cq_{nullptr, ibv_destroy_cq};
  Owned<ibv_cq> receive_cq_{nullptr, ibv_destroy_cq};
  Owned<ibv_qp> qp_{nullptr, ibv_destroy_qp};
  mlx5dv_qp rings_{};
  std::uint16_t send_index_ = 0;
  std::uint16_t receive_index_ = 0;
  std::uint64_t doorbell_ = 0;
  std::size_t half_ = 0;
};

// Two of them, connected to each other, with memory that both may use.
struct HandPair {
  explicit HandPair(const QpOptions& of_a = {}, const QpOptions& of_b = {}) : a(of_a), b(of_b) {
    a.connect(b.number());
    b.connect(a.number());
  }
  Wqe write(std::uint32_t length = 8, std::uint8_t flags = mlx5::kCqUpdate) const {
    return Wqe(mlx5::Opcode::RdmaWrite, flags)
        .remote(remote.address(), remote.rkey())
        .data(local.address(), length, local.lkey());
  }
  Wqe send(std::uint32_t length = 8) const {
    return Wqe(mlx5::Opcode::Send).data(local.address(), length, local.lkey());
  }
  Registered local{1 << 16};
  Registered remote{1 << 16};
  HandQp a;
  HandQp b;
};

// The next completion; throws when none comes.
inline ibv_wc next(ibv_cq* cq) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  ibv_wc wc{};
  int count = 0;
  while ((count = ibv_poll_cq(cq, 1, &wc)) == 0) {
    expect(std::chrono::steady_clock::now() < deadline, "no completion came");
  }
  expect(count == 1, "ibv_poll_cq");
  return wc;
}

// The next asynchronous event, acknowledged.
inline ibv_async_event next_event() {
  ibv_context* const context = Device::get().context;
  pollfd readable{context->async_fd, POLLIN, 0};
  const int patience = static_cast<int>(std::chrono::milliseconds(kPatience).count());
  expect(::poll(&readable, 1, patience) == 1, "no asynchronous event came");
  ibv_async_event event{};
  expect(ibv_get_async_event(context, &event) == 0, "ibv_get_async_event");
  ibv_ack_async_event(&event);
  return event;
}

}  // namespace qpair::by_hand
