// A side in this process, on the first RDMA device there is.

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "tests/kernel/side.hpp"

namespace qpair::kernel_test {
namespace {

constexpr std::uint32_t kDepth = 256;
constexpr std::chrono::seconds kPatience{30};
constexpr std::uint8_t kPort = 1;

[[noreturn]] void fail(const char* what, int error) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(error)));
}

ibv_mtu mtu_of(std::uint32_t bytes) {
  switch (bytes) {
    case 256:
      return IBV_MTU_256;
    case 512:
      return IBV_MTU_512;
    case 1024:
      return IBV_MTU_1024;
    case 2048:
      return IBV_MTU_2048;
    default:
      return IBV_MTU_4096;
  }
}

class LocalSide final : public Side {
 public:
  LocalSide() {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    if (count > 0) context_ = ibv_open_device(devices[0]);
    ibv_free_device_list(devices);
    if (context_ == nullptr) throw std::runtime_error("there is no RDMA device that can be opened");
    pd_ = ibv_alloc_pd(context_);
    if (pd_ == nullptr) fail("ibv_alloc_pd", errno);
  }
  ~LocalSide() override {
    destroy();
    ibv_dealloc_pd(pd_);
    ibv_close_device(context_);
  }

  QpInfo create(const QpOptions& options) override {
    destroy();
    options_ = options;
    memory_ = static_cast<std::byte*>(std::aligned_alloc(4096, kMemorySize));
    std::memset(memory_, 0, kMemorySize);
    region_ = ibv_reg_mr(pd_, memory_, kMemorySize, options.memory_rights);
    if (region_ == nullptr) fail("ibv_reg_mr", errno);
    for (ibv_cq*& cq : cqs_) {
      cq = ibv_create_cq(context_, kDepth, nullptr, nullptr, 0);
      if (cq == nullptr) fail("ibv_create_cq", errno);
    }
    ibv_qp_init_attr initial{};
    initial.send_cq = cqs_[0];
    initial.recv_cq = cqs_[1];
    initial.qp_type = IBV_QPT_RC;
    initial.cap.max_send_wr = initial.cap.max_recv_wr = kDepth;
    initial.cap.max_send_sge = initial.cap.max_recv_sge = 1;
    qp_ = ibv_create_qp(pd_, &initial);
    if (qp_ == nullptr) fail("ibv_create_qp", errno);
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = kPort;
    attributes.qp_access_flags = static_cast<unsigned>(options.qp_rights);
    modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "RESET → INIT");
    QpInfo info;
    info.qpn = qp_->qp_num;
    // Close to the end of the circle, which is crossed on the way.
    psn_ = info.psn = (0xffffffU - qp_->qp_num % 16) & 0xffffff;
    if (ibv_query_gid(context_, kPort, options.gid_index, &info.gid) != 0) fail("ibv_query_gid", errno);
    info.address = reinterpret_cast<std::uint64_t>(memory_);
    info.rkey = region_->rkey;
    return info;
  }

  void connect(const QpInfo& peer) override {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = mtu_of(options_.mtu);
    attributes.dest_qp_num = peer.qpn;
    attributes.rq_psn = peer.psn;
    attributes.max_dest_rd_atomic = options_.max_reads;
    attributes.min_rnr_timer = options_.min_rnr_timer;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = kPort;
    attributes.ah_attr.grh.dgid = peer.gid;
    attributes.ah_attr.grh.sgid_index = options_.gid_index;
    attributes.ah_attr.grh.hop_limit = 64;
    modify(attributes,
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
           "INIT → RTR");
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = psn_;
    attributes.timeout = options_.timeout;
    attributes.retry_cnt = options_.retry_cnt;
    attributes.rnr_retry = options_.rnr_retry;
    attributes.max_rd_atomic = options_.max_reads;
    modify(attributes,
           IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
               IBV_QP_MAX_QP_RD_ATOMIC,
           "RTR → RTS");
  }

  void destroy() override {
    drain_events();
    if (qp_ != nullptr) ibv_destroy_qp(qp_);
    qp_ = nullptr;
    for (ibv_cq*& cq : cqs_) {
      if (cq != nullptr) ibv_destroy_cq(cq);
      cq = nullptr;
    }
    if (region_ != nullptr) ibv_dereg_mr(region_);
    region_ = nullptr;
    std::free(memory_);
    memory_ = nullptr;
  }

  void write(std::uint32_t offset, const std::vector<std::byte>& bytes) override {
    check_range(offset, bytes.size());
    std::memcpy(memory_ + offset, bytes.data(), bytes.size());
  }
  std::vector<std::byte> read(std::uint32_t offset, std::uint32_t size) override {
    check_range(offset, size);
    return {memory_ + offset, memory_ + offset + size};
  }

  void send(const std::vector<Work>& list) override {
    std::vector<ibv_send_wr> requests(list.size());
    std::vector<ibv_sge> pieces(list.size());
    for (std::size_t i = 0; i != list.size(); ++i) {
      const Work& work = list[i];
      ibv_send_wr& request = requests[i];
      pieces[i] = {reinterpret_cast<std::uint64_t>(memory_) + work.offset, work.length, region_->lkey};
      request.wr_id = work.id;
      request.next = i + 1 != list.size() ? &requests[i + 1] : nullptr;
      request.sg_list = &pieces[i];
      request.num_sge = work.length != 0 ? 1 : 0;
      request.opcode = static_cast<ibv_wr_opcode>(work.opcode);
      request.send_flags = work.flags;
      request.imm_data = htobe32(work.immediate);
      if (work.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || work.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        request.wr.atomic = {work.remote_address, work.compare_add, work.swap, work.rkey};
      } else {
        request.wr.rdma = {work.remote_address, work.rkey};
      }
    }
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(qp_, requests.data(), &bad); error != 0) fail("ibv_post_send", error);
  }

  void receive(const Work& work) override {
    ibv_sge piece{reinterpret_cast<std::uint64_t>(memory_) + work.offset, work.length, region_->lkey};
    ibv_recv_wr request{};
    request.wr_id = work.id;
    request.sg_list = &piece;
    request.num_sge = work.length != 0 ? 1 : 0;
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(qp_, &request, &bad); error != 0) fail("ibv_post_recv", error);
  }

  Completion wait(Queue queue) override {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    ibv_wc wc{};
    for (;;) {
      const int count = ibv_poll_cq(cqs_[static_cast<std::size_t>(queue)], 1, &wc);
      if (count < 0) throw std::runtime_error("ibv_poll_cq failed");
      if (count == 1) break;
      if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("no completion came");
      // The guest's rxe works in this processor's soft interrupts, and the emulated NIC in a thread.
      ::poll(nullptr, 0, 1);
    }
    return {wc.wr_id,
            static_cast<std::uint32_t>(wc.status),
            static_cast<std::uint32_t>(wc.opcode),
            wc.byte_len,
            be32toh(wc.imm_data),
            wc.wc_flags,
            wc.vendor_err};
  }

  ibv_qp_state state() override {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    if (const int error = ibv_query_qp(qp_, &attributes, IBV_QP_STATE, &initial); error != 0) {
      fail("ibv_query_qp", error);
    }
    return attributes.qp_state;
  }

  ibv_event_type event() override {
    pollfd waiting{context_->async_fd, POLLIN, 0};
    ibv_async_event event{};
    if (::poll(&waiting, 1, 1000 * static_cast<int>(kPatience.count())) != 1 ||
        ibv_get_async_event(context_, &event) != 0) {
      throw std::runtime_error("no asynchronous event came");
    }
    ibv_ack_async_event(&event);
    return event.event_type;
  }

  std::uint64_t counter(const std::string& name) override {
    const std::string path = fmt::format("/sys/class/infiniband/{}/ports/{}/hw_counters/{}",
                                         ibv_get_device_name(context_->device), kPort, name);
    std::uint64_t value = 0;
    if (!(std::ifstream(path) >> value)) throw std::runtime_error("cannot read " + path);
    return value;
  }

 private:
  void modify(ibv_qp_attr& attributes, int mask, const char* step) {
    if (const int error = ibv_modify_qp(qp_, &attributes, mask); error != 0) fail(step, error);
  }

  static void check_range(std::size_t offset, std::size_t size) {
    if (offset > kMemorySize || size > kMemorySize - offset)
      throw std::runtime_error("outside of the memory");
  }

  // A queue pair with an event that nobody took cannot be destroyed.
  void drain_events() {
    pollfd waiting{context_->async_fd, POLLIN, 0};
    ibv_async_event event{};
    while (::poll(&waiting, 1, 0) == 1 && ibv_get_async_event(context_, &event) == 0)
      ibv_ack_async_event(&event);
  }

  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cqs_[2] = {};
  ibv_qp* qp_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::byte* memory_ = nullptr;
  std::uint32_t psn_ = 0;
  QpOptions options_;
};

}  // namespace

std::unique_ptr<Side> make_local_side() {
  return std::make_unique<LocalSide>();
}

}  // namespace qpair::kernel_test
