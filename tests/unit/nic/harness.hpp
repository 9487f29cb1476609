#pragma once
// A program without libibverbs: it lays out rings, doorbell records and doorbell pages itself, writes WQEs by
// hand and polls CQEs as libmlx5 does. The NIC below it is the real one, with its engine, looped back to
// itself.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "qpair/mlx5/cqe.hpp"
#include "qpair/mlx5/doorbell.hpp"
#include "qpair/mlx5/wqe.hpp"
#include "softnic/nic/nic.hpp"
#include "tests/support/wqe.hpp"

namespace qpair::softnic::nic::testing_support {

// How long anything may take before a test gives up. Not part of what is tested.
inline constexpr std::chrono::seconds kPatience{20};

template <typename Condition>
bool eventually(Condition&& condition) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

// Page-aligned memory that can lose its pages.
class Memory {
 public:
  explicit Memory(std::size_t size)
      : size_((size + 4095) & ~std::size_t{4095}),
        base_(static_cast<std::byte*>(
            mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Memory() { munmap(base_, size_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return base_; }
  std::size_t size() const { return size_; }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(base_); }
  void take_away() const { mprotect(base_, size_, PROT_NONE); }
  template <typename T>
  T* as(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  void fill(std::string_view text, std::size_t offset = 0) const {
    std::memcpy(base_ + offset, text.data(), text.size());
  }
  std::string_view text(std::size_t size, std::size_t offset = 0) const {
    return {reinterpret_cast<const char*>(base_ + offset), size};
  }

 private:
  std::size_t size_;
  std::byte* base_;
};

class Sink final : public EventSink {
 public:
  void completion(Cqn cq) override { add(completions_, cq); }
  void cq_event(Cqn cq, ibv_event_type event) override { add(cq_events_, std::pair{cq, event}); }
  void qp_event(Qpn qp, ibv_event_type event) override { add(qp_events_, std::pair{qp, event}); }
  void srq_event(Srqn srq, ibv_event_type event) override { add(srq_events_, std::pair{srq, event}); }

  std::size_t completions() const {
    const std::lock_guard lock(mutex_);
    return completions_.size();
  }
  bool has(Qpn qp, ibv_event_type event) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::find(qp_events_, std::pair{qp, event}) != qp_events_.end();
  }
  bool has(Cqn cq, ibv_event_type event) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::find(cq_events_, std::pair{cq, event}) != cq_events_.end();
  }
  std::size_t count(Srqn srq, ibv_event_type event) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::ranges::count(srq_events_, std::pair{srq, event}));
  }

 private:
  template <typename List, typename Event>
  void add(List& list, const Event& event) {
    const std::lock_guard lock(mutex_);
    list.push_back(event);
  }
  mutable std::mutex mutex_;
  std::vector<Cqn> completions_;
  std::vector<std::pair<Cqn, ibv_event_type>> cq_events_;
  std::vector<std::pair<Qpn, ibv_event_type>> qp_events_;
  std::vector<std::pair<Srqn, ibv_event_type>> srq_events_;
};

// A doorbell page as the driver makes it: a memfd that the NIC and the program map separately.
class DoorbellPage {
 public:
  // The program's mapping, at an address of its choice or at any.
  explicit DoorbellPage(Nic& nic, std::byte* at = nullptr) : nic_(nic) {
    const int file = memfd_create("uar", MFD_CLOEXEC);
    EXPECT_EQ(0, ftruncate(file, 4096));
    nics_ = map(file, nullptr);
    programs_ = map(file, at);
    close(file);
    id_ = nic.add_uar(nics_).value();
    nic.uar_mapped(id_, programs_);
  }
  ~DoorbellPage() {
    nic_.remove_uar(id_);
    munmap(programs_, 4096);
    munmap(nics_, 4096);
  }
  DoorbellPage(const DoorbellPage&) = delete;
  DoorbellPage& operator=(const DoorbellPage&) = delete;

  UarId id() const { return id_; }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(programs_); }
  void store(std::size_t offset, std::uint64_t value) const {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(programs_ + offset), value, __ATOMIC_RELEASE);
  }

 private:
  static std::byte* map(int file, std::byte* at) {
    return static_cast<std::byte*>(
        mmap(at, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | (at != nullptr ? MAP_FIXED : 0), file, 0));
  }
  Nic& nic_;
  std::byte* nics_ = nullptr;
  std::byte* programs_ = nullptr;
  UarId id_{};
};

// One NIC and what a context of its has.
class Machine {
 public:
  Machine()
      : nic(Nic::create({}).value()),
        page(std::make_unique<DoorbellPage>(*nic)),
        pd(nic->create_pd().value()) {}

  Mkey register_memory(const Memory& memory, int access = kAllAccess) {
    return nic->create_mr({pd, memory.address(), memory.size(), memory.address(), access}).value();
  }
  static constexpr int kAllAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

  std::unique_ptr<Nic> nic;
  Sink sink;
  std::unique_ptr<DoorbellPage> page;
  Pdn pd;
};

class Completions {
 public:
  Completions(Machine& machine, std::uint32_t entries, std::uint32_t cqe_size = 64,
              bool ignore_overrun = false)
      : machine_(machine), ring_(std::make_unique<Memory>(std::size_t{entries} * cqe_size)), record_(4096) {
    set_up(*ring_, entries, cqe_size);
    number_ = machine.nic
                  ->create_cq({ring_->address(), record_.address(), entries, cqe_size, machine.page->id(),
                               &machine.sink, ignore_overrun})
                  .value();
    std::memset(record_.data(), 0, 4);
  }
  ~Completions() { EXPECT_EQ(0, machine_.nic->destroy_cq(number_).value); }
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  Cqn number() const { return number_; }
  const Memory& ring() const { return *ring_; }
  const Memory& record() const { return record_; }
  std::uint32_t index() const { return index_; }

  // As libmlx5's get_sw_cqe(): the entry at the consumer index, if the NIC has handed it over.
  const mlx5::Cqe64* peek() const { return peek(index_); }
  const mlx5::Cqe64* peek(std::uint32_t index) const {
    const auto* const cqe =
        ring_->as<mlx5::Cqe64>(std::size_t{index & (entries_ - 1)} * cqe_size_ + cqe_size_ - 64);
    const std::uint8_t op_own = __atomic_load_n(&cqe->op_own, __ATOMIC_ACQUIRE);
    const bool ours = mlx5::cqe_opcode(op_own) != mlx5::CqeOpcode::Invalid &&
                      (op_own & mlx5::kCqeOwnerMask) == ((index & entries_) != 0 ? 1 : 0);
    return ours ? cqe : nullptr;
  }
  void store_consumer_index(std::uint32_t index) {
    __atomic_store_n(&record_.as<mlx5::be32>()->raw, mlx5::be32{index}.raw, __ATOMIC_RELEASE);
  }
  void consume() {
    ++index_;
    *record_.as<mlx5::be32>() = index_ & 0xff'ffff;
  }
  // The next completion; fails the test when none comes.
  mlx5::Cqe64 next() {
    const mlx5::Cqe64* cqe = nullptr;
    if (!eventually([&] { return (cqe = peek()) != nullptr; })) {
      ADD_FAILURE() << "no completion came";
      return {};
    }
    const mlx5::Cqe64 copy = *cqe;
    consume();
    return copy;
  }
  mlx5::ErrorCqe next_error() {
    const mlx5::Cqe64 cqe = next();
    mlx5::ErrorCqe error;
    std::memcpy(&error, &cqe, sizeof error);
    return error;
  }

  // As mlx5_arm_cq().
  void arm(bool solicited_only = false) {
    const std::uint32_t value = ((events_ & 3) << 28) |
                                (solicited_only ? mlx5::kArmSolicited : mlx5::kArmNext) |
                                (index_ & 0xff'ffff);
    __atomic_store_n(&record_.as<mlx5::be32>(4)->raw, mlx5::be32{value}.raw, __ATOMIC_RELEASE);
    machine_.page->store(mlx5::kCqDoorbellOffset,
                         mlx5::be64{(std::uint64_t{value} << 32) | static_cast<std::uint32_t>(number_)}.raw);
  }
  void took_event() { ++events_; }

  // As mlx5_resize_cq() and mlx5_cq_resize_copy_cqes().
  Errno resize(std::uint32_t entries, std::uint32_t cqe_size = 64) {
    auto ring = std::make_unique<Memory>(std::size_t{entries} * cqe_size);
    set_up_ring(*ring, entries, cqe_size);
    const Errno error = machine_.nic->resize_cq(number_, ring->address(), entries, cqe_size);
    if (error.value != 0) return error;
    for (std::uint32_t i = index_;; ++i) {
      const auto* const from =
          ring_->as<mlx5::Cqe64>(std::size_t{i & (entries_ - 1)} * cqe_size_ + cqe_size_ - 64);
      if (mlx5::cqe_opcode(from->op_own) == mlx5::CqeOpcode::Resize) break;
      auto* const to = ring->as<mlx5::Cqe64>(std::size_t{(i + 1) & (entries - 1)} * cqe_size + cqe_size - 64);
      *to = *from;
      to->op_own = static_cast<std::uint8_t>((from->op_own & ~1U) | (((i + 1) & entries) != 0 ? 1U : 0U));
    }
    ++index_;
    ring_ = std::move(ring);
    entries_ = entries;
    cqe_size_ = cqe_size;
    return error;
  }

 private:
  static void set_up_ring(const Memory& ring, std::uint32_t entries, std::uint32_t cqe_size) {
    for (std::uint32_t i = 0; i < entries; ++i) {
      ring.as<mlx5::Cqe64>(std::size_t{i} * cqe_size + cqe_size - 64)->op_own = 0xf0;  // mlx5_alloc_cq_buf()
    }
  }
  void set_up(const Memory& ring, std::uint32_t entries, std::uint32_t cqe_size) {
    set_up_ring(ring, entries, cqe_size);
    entries_ = entries;
    cqe_size_ = cqe_size;
  }

  Machine& machine_;
  std::unique_ptr<Memory> ring_;
  Memory record_;
  Cqn number_{};
  std::uint32_t entries_ = 0;
  std::uint32_t cqe_size_ = 64;
  std::uint32_t index_ = 0;
  std::uint32_t events_ = 0;
};

using by_hand::Wqe;

struct QpOptions {
  ibv_qp_type type = IBV_QPT_RC;
  std::uint32_t qkey = 0x1111'1111;  // datagrams
  bool block_multicast_loopback = false;
  std::uint32_t send_blocks = 64;
  std::uint32_t receives = 64;
  std::uint32_t receive_shift = 6;  // four segments
  bool signal_all = false;
  bool scatter_to_cqe = false;
  int access = Machine::kAllAccess;
  std::uint8_t timeout = 14;
  std::uint8_t retry = 7;
  std::uint8_t rnr_retry = 7;
  std::optional<Srqn> srq = std::nullopt;  // in place of the receive ring
  Xrcdn xrc_domain{};                      // of an XRC target, which has no rings
};

class Pair {
 public:
  Pair(Machine& machine, Completions& send_cq, Completions& receive_cq, const QpOptions& options = {})
      : machine_(machine),
        options_(options),
        send_ring_(std::size_t{options.send_blocks} * 64),
        receive_ring_(std::size_t{options.receives} << options.receive_shift),
        record_(4096) {
    QpParameters is{};
    is.type = options.type;
    is.pd = machine.pd;
    is.send_cq = send_cq.number();
    is.recv_cq = receive_cq.number();
    is.buffer = receive_ring_.address();
    is.sq_buffer = send_ring_.address();
    is.doorbell_record = record_.address();
    is.sq_basic_blocks = options.send_blocks;
    is.srq = options.srq;
    is.rq_wqe_count = options.srq || is_xrc() ? 0 : options.receives;
    is.xrc_domain = options.xrc_domain;
    if (is_target()) is.sq_basic_blocks = 0;
    is.rq_wqe_shift = options.receive_shift;
    is.user_index = kUserIndex;
    is.signal_all = options.signal_all;
    is.block_multicast_loopback = options.block_multicast_loopback;
    is.scatter_to_cqe_recv = is.scatter_to_cqe_send = options.scatter_to_cqe;
    is.uar = machine.page->id();
    is.sink = &machine.sink;
    number_ = machine.nic->create_qp(is).value();
  }
  ~Pair() { destroy(); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  static constexpr std::uint32_t kUserIndex = 0x1234;
  Qpn number() const { return number_; }
  std::uint32_t qpn() const { return static_cast<std::uint32_t>(number_); }
  bool is_rc() const { return options_.type == IBV_QPT_RC; }
  bool is_initiator() const { return options_.type == IBV_QPT_XRC_SEND; }
  bool is_target() const { return options_.type == IBV_QPT_XRC_RECV; }
  bool is_xrc() const { return is_initiator() || is_target(); }
  bool is_ud() const { return options_.type == IBV_QPT_UD; }
  const Memory& send_ring() const { return send_ring_; }
  const Memory& receive_ring() const { return receive_ring_; }
  const Memory& record() const { return record_; }
  void destroy() {
    if (!std::exchange(alive_, false)) return;
    EXPECT_EQ(0, machine_.nic->destroy_qp(number_).value);
  }

  Errno modify(ibv_qp_attr attributes, int mask) {
    return machine_.nic->modify_qp(number_, attributes, mask);
  }
  Errno to_state(ibv_qp_state state) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    if (state == IBV_QPS_RESET) restart();
    return modify(attributes, IBV_QP_STATE);
  }
  Errno to_init() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = static_cast<unsigned>(options_.access);
    attributes.qkey = options_.qkey;
    return modify(attributes, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX |
                                  (is_ud() ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
  }
  Errno to_rtr(std::uint32_t peer, std::uint8_t gid_index = 3) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = peer;
    attributes.rq_psn = 0xff'fff0;  // wraps soon
    attributes.max_dest_rd_atomic = 16;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.sgid_index = gid_index;
    attributes.ah_attr.grh.dgid = machine_.nic->gids().at(gid_index).gid;
    if (is_ud()) return modify(attributes, IBV_QP_STATE);
    return modify(attributes,
                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      (is_rc() || is_target() ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
  }
  Errno to_rts() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = 0xff'fff0;
    attributes.timeout = options_.timeout;
    attributes.retry_cnt = options_.retry;
    attributes.rnr_retry = options_.rnr_retry;
    attributes.max_rd_atomic = 16;
    if (is_target()) return modify(attributes, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT);
    if (!is_rc() && !is_initiator()) return modify(attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
    return modify(attributes, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                  IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  void connect(std::uint32_t peer, std::uint8_t gid_index = 3) {
    ASSERT_EQ(0, to_init().value);
    ASSERT_EQ(0, to_rtr(peer, gid_index).value);
    ASSERT_EQ(0, to_rts().value);
  }
  ibv_qp_state state() {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    EXPECT_EQ(0, machine_.nic->query_qp(number_, attributes, initial).value);
    return attributes.qp_state;
  }

  // Writes a WQE; returns its index. Not visible to the NIC before ring().
  std::uint16_t write(const Wqe& wqe) {
    const std::uint16_t index = send_index_;
    const auto bytes = wqe.bytes(index, qpn());
    const std::size_t ring_bytes = std::size_t{options_.send_blocks} * 64;
    const std::size_t start = (index & (options_.send_blocks - 1)) * std::size_t{64};
    for (std::size_t i = 0; i < bytes.size(); ++i) send_ring_.data()[(start + i) % ring_bytes] = bytes[i];
    std::memcpy(&doorbell_, bytes.data(), sizeof doorbell_);
    send_index_ = static_cast<std::uint16_t>(index + (bytes.size() + 63) / 64);
    return index;
  }
  void store_send_record(std::uint32_t value) {
    __atomic_store_n(&record_.as<mlx5::be32>(4)->raw, mlx5::be32{value & 0xffff}.raw, __ATOMIC_RELEASE);
  }
  void store_receive_record(std::uint32_t value) {
    __atomic_store_n(&record_.as<mlx5::be32>()->raw, mlx5::be32{value & 0xffff}.raw, __ATOMIC_RELEASE);
  }
  void ring() {
    store_send_record(send_index_);
    ring_without_record();
  }
  void ring_without_record() {
    machine_.page->store(mlx5::kBlueFlameOffset + half_, doorbell_);
    half_ ^= 0x100;
  }
  // With a first word of the test's own.
  void ring_with(std::uint32_t opmod_idx_opcode) {
    const mlx5::be32 words[] = {opmod_idx_opcode, mlx5::qpn_ds(qpn(), 0)};
    std::memcpy(&doorbell_, words, sizeof doorbell_);
    ring_without_record();
  }
  std::uint16_t post(const Wqe& wqe) {
    const std::uint16_t index = write(wqe);
    ring();
    return index;
  }
  struct Piece {
    std::uint64_t address;
    std::uint32_t length;
    Mkey lkey;
  };
  std::uint16_t receive(const std::vector<Piece>& pieces) {
    const std::uint16_t index = receive_index_++;
    auto* const slot = receive_ring_.as<mlx5::DataSegment>(std::size_t{index & (options_.receives - 1)}
                                                           << options_.receive_shift);
    std::size_t i = 0;
    for (const Piece& piece : pieces) {
      slot[i++] = {piece.length, static_cast<std::uint32_t>(piece.lkey), piece.address};
    }
    if (i < (std::size_t{1} << options_.receive_shift) / 16) slot[i] = {0, mlx5::kInvalidLkey, 0};
    __atomic_store_n(&record_.as<mlx5::be32>()->raw, mlx5::be32{receive_index_}.raw, __ATOMIC_RELEASE);
    return index;
  }
  std::uint16_t send_index() const { return send_index_; }

 private:
  void restart() {
    send_index_ = receive_index_ = 0;
    std::memset(record_.data(), 0, 8);
  }

  Machine& machine_;
  QpOptions options_;
  Memory send_ring_;
  Memory receive_ring_;
  Memory record_;
  Qpn number_{};
  bool alive_ = true;
  std::uint16_t send_index_ = 0;
  std::uint16_t receive_index_ = 0;
  std::uint64_t doorbell_ = 0;
  std::size_t half_ = 0;
};

// Two queue pairs of one machine, connected to each other, with a completion queue for each.
class Connected {
 public:
  explicit Connected(Machine& machine, const QpOptions& options = {}, std::uint32_t cqe_size = 64,
                     std::uint32_t entries = 256)
      : a_cq(machine, entries, cqe_size),
        b_cq(machine, entries, cqe_size),
        a(machine, a_cq, a_cq, options),
        b(machine, b_cq, b_cq, options) {
    a.connect(b.qpn());
    b.connect(a.qpn());
  }
  Completions a_cq, b_cq;
  Pair a, b;
};

inline std::uint32_t key(Mkey mkey) {
  return static_cast<std::uint32_t>(mkey);
}

}  // namespace qpair::softnic::nic::testing_support
