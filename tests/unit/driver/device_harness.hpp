#pragma once
// An open device and hand-made commands, as a program without libibverbs would send them.

#include <gtest/gtest.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "softnic/driver/file.hpp"

namespace qpair::softnic::driver::test {

inline std::uint64_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// Memory with a hole behind it: one byte too far is EFAULT, and so is up to a mebibyte.
class Pages {
 public:
  explicit Pages(std::size_t count = 1, int protection = PROT_READ | PROT_WRITE)
      : size_(count * 4096),
        start_(mmap(nullptr, size_ + kHole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    mprotect(start_, size_, protection);
  }
  ~Pages() { munmap(start_, size_ + kHole); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  void* data() const { return start_; }
  std::uint64_t address() const { return address_of(start_); }
  std::uint64_t end() const { return address() + size_; }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kHole = 1U << 20;

  std::size_t size_;
  void* start_;
};

// A command of the legacy interface: header, request, the driver's part. `send()` gives write()'s result.
class WriteCommand {
 public:
  explicit WriteCommand(std::uint32_t command) { header().command = command; }

  template <typename T>
  WriteCommand& with(const T& part) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof part);
    std::memcpy(bytes_.data() + at, &part, sizeof part);
    header().in_words = static_cast<std::uint16_t>(bytes_.size() / 4);
    return *this;
  }
  // The request must begin with the response's address; the caller put it there.
  WriteCommand& answered_in(std::size_t size) {
    header().out_words = static_cast<std::uint16_t>(size / 4);
    return *this;
  }

  ib_uverbs_cmd_hdr& header() { return *reinterpret_cast<ib_uverbs_cmd_hdr*>(bytes_.data()); }
  std::vector<std::byte>& bytes() { return bytes_; }
  ssize_t send(File& file) { return file.write(bytes_.data(), bytes_.size()); }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(sizeof(ib_uverbs_cmd_hdr));
};

// A method of the ioctl interface and its attributes.
class Ioctl {
 public:
  Ioctl(std::uint16_t object, std::uint16_t method) {
    words_.resize(sizeof(ib_uverbs_ioctl_hdr) / 8);
    header().object_id = object;
    header().method_id = method;
    header().driver_id = 1;  // RDMA_DRIVER_MLX5
    header().length = sizeof(ib_uverbs_ioctl_hdr);
  }

  Ioctl& attribute(std::uint16_t id, std::uint64_t data, std::uint16_t length, std::uint16_t flags = 1) {
    words_.resize(words_.size() + sizeof(ib_uverbs_attr) / 8);
    header().length = static_cast<std::uint16_t>(header().length + sizeof(ib_uverbs_attr));
    ++header().num_attrs;
    at(count() - 1) = {.attr_id = id, .len = length, .flags = flags, .attr_data = {}, .data = data};
    return *this;
  }
  Ioctl& handle(std::uint16_t id, std::uint64_t handle = 0) { return attribute(id, handle, 0); }
  Ioctl& constant(std::uint16_t id, std::uint64_t value) { return attribute(id, value, 8); }
  template <typename T>
  Ioctl& value(std::uint16_t id, T small) {
    static_assert(sizeof(T) <= 8);
    std::uint64_t data = 0;
    std::memcpy(&data, &small, sizeof small);
    return attribute(id, data, sizeof small);
  }
  template <typename T>
  Ioctl& pointer(std::uint16_t id, T& to) {
    return attribute(id, address_of(&to), sizeof to);
  }

  ib_uverbs_ioctl_hdr& header() { return *reinterpret_cast<ib_uverbs_ioctl_hdr*>(words_.data()); }
  ib_uverbs_attr& at(std::size_t index) {
    return reinterpret_cast<ib_uverbs_attr*>(words_.data() + sizeof(ib_uverbs_ioctl_hdr) / 8)[index];
  }
  std::size_t count() { return header().num_attrs; }
  ib_uverbs_attr& operator[](std::uint16_t id) {
    for (std::size_t i = 0; i < count(); ++i) {
      if (at(i).attr_id == id) return at(i);
    }
    ADD_FAILURE() << "no attribute " << id;
    return at(0);
  }
  int send(File& file) { return file.ioctl(RDMA_VERBS_IOCTL, words_.data()); }

 private:
  std::vector<std::uint64_t> words_;
};

// struct ib_uverbs_get_context_resp and mlx5's part behind it.
struct ContextAnswer {
  std::uint32_t async_fd;
  std::uint32_t num_comp_vectors;
  mlx5_ib_alloc_ucontext_resp driver;
};

struct QueueBuffers {
  Pages ring{1};
  Pages record{1};
};

class Device : public ::testing::Test {
 protected:
  void SetUp() override { open(); }
  void TearDown() override { close_device(); }

  void open() {
    fd_ = open_device(file_);
    ASSERT_GE(fd_, 0) << strerror(-fd_);
    FileTable::instance().install(fd_, file_);
  }
  void close_device() {
    if (fd_ < 0) return;
    FileTable::instance().remove(fd_);
    file_.reset();
    ::close(fd_);
    fd_ = -1;
    for (const int fd : event_fds_) {
      FileTable::instance().remove(fd);
      ::close(fd);
    }
    event_fds_.clear();
  }
  File& file() { return *file_; }

  // The context that libmlx5 44 asks for: UAR objects, CQE version 1.
  void get_context() {
    mlx5_ib_alloc_ucontext_req_v2 request{};
    request.total_num_bfregs = 16;
    request.num_low_latency_bfregs = 4;
    request.max_cqe_version = 1;
    request.lib_caps = MLX5_LIB_CAP_4K_UAR | MLX5_LIB_CAP_DYN_UAR;
    Ioctl call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
    call.pointer(UVERBS_ATTR_UHW_IN, request).pointer(UVERBS_ATTR_UHW_OUT, context_);
    ASSERT_EQ(call.send(file()), 0);
  }

  // The context of an older library, or of one on a kernel without ioctl: registers of its own, events by
  // write().
  void get_legacy_context() {
    ContextAnswer answer{};
    mlx5_ib_alloc_ucontext_req_v2 request{};
    request.total_num_bfregs = 16;
    request.num_low_latency_bfregs = 4;
    request.max_cqe_version = 1;
    request.lib_caps = MLX5_LIB_CAP_4K_UAR;
    const ib_uverbs_get_context command{.response = address_of(&answer)};
    WriteCommand call(IB_USER_VERBS_CMD_GET_CONTEXT);
    call.with(command).with(request).answered_in(sizeof answer);
    ASSERT_GT(call.send(file()), 0);
    async_fd_ = static_cast<int>(answer.async_fd);
    event_fds_.push_back(async_fd_);
    context_ = answer.driver;
  }

  std::uint32_t create_pd() {
    struct {
      std::uint32_t handle;
      std::uint32_t pdn;
    } answer{};
    const ib_uverbs_alloc_pd command{.response = address_of(&answer)};
    EXPECT_GT(WriteCommand(IB_USER_VERBS_CMD_ALLOC_PD).with(command).answered_in(sizeof answer).send(file()),
              0);
    return answer.handle;
  }

  // write()'s result; `answer` is filled.
  ssize_t reg_mr(std::uint32_t pd, std::uint64_t start, std::uint64_t length, std::uint32_t access,
                 ib_uverbs_reg_mr_resp& answer) {
    const ib_uverbs_reg_mr command{.response = address_of(&answer),
                                   .start = start,
                                   .length = length,
                                   .hca_va = start,
                                   .pd_handle = pd,
                                   .access_flags = access};
    return WriteCommand(IB_USER_VERBS_CMD_REG_MR).with(command).answered_in(sizeof answer).send(file());
  }

  struct Uar {
    std::uint32_t handle = 0;
    std::uint64_t offset = 0;
    std::uint32_t length = 0;
    std::uint32_t page_id = 0;
  };
  Uar create_uar();

  int create_cq(std::uint32_t& handle, std::uint32_t entries = 15, int channel = -1,
                std::uint64_t user_handle = 0xc0);
  int destroy_cq(std::uint32_t handle, ib_uverbs_destroy_cq_resp& answer) {
    Ioctl call(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY);
    call.handle(UVERBS_ATTR_DESTROY_CQ_HANDLE, handle).pointer(UVERBS_ATTR_DESTROY_CQ_RESP, answer);
    return call.send(file());
  }
  int create_qp(std::uint32_t pd, std::uint32_t cq, std::uint32_t& handle,
                mlx5_ib_create_qp driver = default_qp(), std::uint64_t type = IB_UVERBS_QPT_RC);
  int destroy_qp(std::uint32_t handle, ib_uverbs_destroy_qp_resp& answer) {
    Ioctl call(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY);
    call.handle(UVERBS_ATTR_DESTROY_QP_HANDLE, handle).pointer(UVERBS_ATTR_DESTROY_QP_RESP, answer);
    return call.send(file());
  }
  // 16 send blocks, 16 receive WQEs of one segment; addresses 0 are filled in by create_qp().
  static mlx5_ib_create_qp default_qp() {
    mlx5_ib_create_qp qp{};
    qp.sq_wqe_count = 16;
    qp.rq_wqe_count = 16;
    qp.rq_wqe_shift = 4;
    qp.uidx = 1;
    return qp;
  }
  int create_channel() {
    ib_uverbs_create_comp_channel_resp answer{};
    const ib_uverbs_create_comp_channel command{.response = address_of(&answer)};
    const auto sent = WriteCommand(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL)
                          .with(command)
                          .answered_in(sizeof answer)
                          .send(file());
    if (sent < 0) return static_cast<int>(sent);
    event_fds_.push_back(static_cast<int>(answer.fd));
    return static_cast<int>(answer.fd);
  }

  int fd_ = -1;
  int async_fd_ = -1;
  std::shared_ptr<File> file_;
  mlx5_ib_alloc_ucontext_resp context_{};
  QueueBuffers buffers_;
  std::vector<int> event_fds_;
  std::uint32_t qpn_ = 0;  // of the queue pair made last
  Uar uar_;                // made by the first create_cq() of a context without registers
};

inline Device::Uar Device::create_uar() {
  Uar uar;
  Ioctl call(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC);
  call.handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE)
      .constant(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, 0)
      .pointer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, uar.offset)
      .pointer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, uar.length)
      .pointer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, uar.page_id);
  EXPECT_EQ(call.send(file()), 0);
  uar.handle = static_cast<std::uint32_t>(call[MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE].data);
  return uar;
}

inline int Device::create_cq(std::uint32_t& handle, std::uint32_t entries, int channel,
                             std::uint64_t user_handle) {
  mlx5_ib_create_cq request{};
  request.buf_addr = buffers_.ring.address();
  request.db_addr = buffers_.record.address();
  request.cqe_size = 64;
  if (context_.tot_bfregs == 0) {
    if (uar_.length == 0) uar_ = create_uar();
    request.flags = MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX;
    request.uar_page_index = static_cast<std::uint16_t>(uar_.page_id);
  }
  mlx5_ib_create_cq_resp answer{};
  std::uint32_t granted = 0;
  Ioctl call(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE);
  call.handle(UVERBS_ATTR_CREATE_CQ_HANDLE)
      .value(UVERBS_ATTR_CREATE_CQ_CQE, entries)
      .value(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, user_handle)
      .value(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, std::uint32_t{0})
      .pointer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, granted)
      .pointer(UVERBS_ATTR_UHW_IN, request)
      .attribute(UVERBS_ATTR_UHW_OUT, address_of(&answer), sizeof answer);
  if (channel >= 0) call.handle(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, static_cast<std::uint64_t>(channel));
  const int result = call.send(file());
  handle = static_cast<std::uint32_t>(call[UVERBS_ATTR_CREATE_CQ_HANDLE].data);
  return result;
}

inline int Device::create_qp(std::uint32_t pd, std::uint32_t cq, std::uint32_t& handle,
                             mlx5_ib_create_qp driver, std::uint64_t type) {
  if (driver.buf_addr == 0) driver.buf_addr = buffers_.ring.address();
  if (driver.db_addr == 0) driver.db_addr = buffers_.record.address() + 64;
  if (context_.tot_bfregs == 0) {
    driver.flags |= MLX5_QP_FLAG_UAR_PAGE_INDEX;
    driver.bfreg_index = uar_.page_id;
  }
  ib_uverbs_qp_cap cap{
      .max_send_wr = 4, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  ib_uverbs_qp_cap granted{};
  mlx5_ib_create_qp_resp answer{};
  Ioctl call(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE);
  call.handle(UVERBS_ATTR_CREATE_QP_HANDLE)
      .handle(UVERBS_ATTR_CREATE_QP_PD_HANDLE, pd)
      .handle(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, cq)
      .handle(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, cq)
      .value(UVERBS_ATTR_CREATE_QP_USER_HANDLE, std::uint64_t{0x99})
      .pointer(UVERBS_ATTR_CREATE_QP_CAP, cap)
      .constant(UVERBS_ATTR_CREATE_QP_TYPE, type)
      .pointer(UVERBS_ATTR_CREATE_QP_RESP_CAP, granted)
      .pointer(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, qpn_)
      .pointer(UVERBS_ATTR_UHW_IN, driver)
      .pointer(UVERBS_ATTR_UHW_OUT, answer);
  const int result = call.send(file());
  handle = static_cast<std::uint32_t>(call[UVERBS_ATTR_CREATE_QP_HANDLE].data);
  return result;
}

}  // namespace qpair::softnic::driver::test
