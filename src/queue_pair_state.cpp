#include "src/queue_pair_state.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "src/datapath/mlx5_many.hpp"
#include "src/datapath/verbs.hpp"
#include "src/domain_state.hpp"

namespace qpair::detail {

namespace {

constexpr std::uint64_t kMlx5Operations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                          IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                          IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

// Control and remote address segments leave this much of a WQE of 63 segments, less the inline segment's
// header.
constexpr std::uint32_t kMlx5MaxInline =
    (mlx5::kMaxSegments - 2) * mlx5::kSegmentSize - sizeof(mlx5::InlineSegment);

// libmlx5 counts one 16-byte segment more for an RDMA WQE than there is (rdma-core providers/mlx5/verbs.c,
// _sq_overhead), so asking it for 16 bytes less of inline data gives a ring for WQEs of the size that qpair
// writes.
std::uint32_t mlx5_inline_request(const IbverbsConfig& config) {
  return config.max_inline_data > mlx5::kSegmentSize ? config.max_inline_data - mlx5::kSegmentSize : 0;
}

// The basic blocks that libmlx5 will give the send ring (mlx5_calc_sq_size).
std::uint64_t mlx5_send_blocks(const IbverbsConfig& config) {
  const auto align = [](std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; };
  constexpr std::uint64_t kOverhead = 48;
  std::uint64_t wqe = kOverhead + std::uint64_t{config.max_send_sge} * mlx5::kSegmentSize;
  if (const std::uint32_t bytes = mlx5_inline_request(config); bytes != 0) {
    wqe = std::max(wqe, kOverhead + align(bytes + sizeof(mlx5::InlineSegment), mlx5::kSegmentSize));
  }
  wqe = align(wqe, mlx5::kBasicBlockSize);
  return std::bit_ceil(config.max_send_wr * wqe) / mlx5::kBasicBlockSize;
}

Error creation_error(const char* what, const IbverbsConfig& config, int reason) {
  const auto code = reason == ENOMEM || reason == ENOSPC || reason == EMFILE ? ErrorCode::out_of_resources
                    : reason == EOPNOTSUPP || reason == ENOSYS               ? ErrorCode::unsupported
                    : reason == EINVAL                                       ? ErrorCode::invalid_argument
                                                                             : ErrorCode::system;
  return Error::make(code, fmt::format("cannot create the {} ({})", what, config), reason);
}

}  // namespace

QueuePairState::QueuePairState(std::shared_ptr<DomainState> domain, ibv_context* context, ibv_pd* pd,
                               const IbverbsConfig& config)
    : domain_(std::move(domain)), context_(context), pd_(pd), config_(config) {}

QueuePairState::~QueuePairState() {
  if (token_ != 0) unregister_queue_pair(token_);
}

Result<RdmaQueuePair> QueuePairState::create(std::shared_ptr<DomainState> domain, ibv_context* context,
                                             ibv_pd* pd, const IbverbsConfig& config, StartIndices start) {
  if (context == nullptr || pd == nullptr) {
    return tl::unexpected(
        Error::make(ErrorCode::invalid_argument, "a queue pair needs a context and a protection domain"));
  }
  const std::shared_ptr<QueuePairState> state(new QueuePairState(std::move(domain), context, pd, config));
  const Result<void> made = state->resolve_config()
                                .and_then([&] { return state->check_gpu_direct(); })
                                .and_then([&] { return state->make_objects(); })
                                .and_then([&] { return state->view_rings(start); });
  if (!made) return tl::unexpected(made.error());
  state->token_ = register_queue_pair(state);
  return state->handle();
}

// Checks the configuration and fills in what is to be chosen.
Result<void> QueuePairState::resolve_config() {
  const std::string name = ibv_get_device_name(context_->device);
  if (!config_.device.empty() && config_.device != name) {
    return tl::unexpected(Error::make(
        ErrorCode::invalid_argument,
        fmt::format("the configuration is for device {}, but the context is of {}", config_.device, name)));
  }
  config_.device = name;
  mlx5_ = mlx5dv_is_supported(context_->device);

  if (const int failure = ibv_query_device(context_, &limits_.device); failure != 0) {
    return tl::unexpected(
        Error::make(ErrorCode::system, fmt::format("cannot query device {}", name), failure));
  }
  // Port 0 and ports beyond the last fail in validate(), with the limit.
  if (config_.port_num >= 1 && config_.port_num <= limits_.device.phys_port_cnt) {
    if (const int failure = ibv_query_port(context_, config_.port_num, &limits_.port); failure != 0) {
      return tl::unexpected(Error::make(
          ErrorCode::system, fmt::format("cannot query port {} of {}", config_.port_num, name), failure));
    }
  }
  if (Result<void> valid = validate(config_, limits_); !valid) return valid;
  if (mlx5_ && config_.max_inline_data > kMlx5MaxInline) {
    return tl::unexpected(Error::make(ErrorCode::invalid_argument,
                                      fmt::format("max_inline_data is {}; an mlx5 device allows 0 to {}",
                                                  config_.max_inline_data, kMlx5MaxInline)));
  }

  if (!mlx5_ && config_.threads == Threads::Many) {
    return tl::unexpected(Error::make(
        ErrorCode::unsupported,
        fmt::format(
            "threads is Many, which mlx5 devices can do, and {} is none: use a queue pair for each thread",
            name)));
  }

  // libmlx5 would only say EINVAL.
  if (const std::uint64_t blocks = mlx5_send_blocks(config_);
      mlx5_ && blocks > static_cast<std::uint64_t>(limits_.device.max_qp_wr)) {
    return tl::unexpected(Error::make(
        ErrorCode::invalid_argument, fmt::format("max_send_wr is {}; with max_send_sge {} and "
                                                 "max_inline_data {} it needs {} basic blocks, and this "
                                                 "device allows {}",
                                                 config_.max_send_wr, config_.max_send_sge,
                                                 config_.max_inline_data, blocks, limits_.device.max_qp_wr)));
  }

  const auto depth = [](const std::optional<std::uint8_t>& asked, int limit) {
    constexpr int kUsual = 16;
    return asked ? *asked : static_cast<std::uint8_t>(std::clamp(limit, 0, kUsual));
  };
  config_.max_rd_atomic = depth(config_.max_rd_atomic, limits_.device.max_qp_init_rd_atom);
  config_.max_dest_rd_atomic = depth(config_.max_dest_rd_atomic, limits_.device.max_qp_rd_atom);
  if (!config_.path_mtu) config_.path_mtu = limits_.port.active_mtu;
  if (!config_.psn) config_.psn = random_psn();
  psn_ = *config_.psn;

  if (limits_.port.link_layer != IBV_LINK_LAYER_ETHERNET)
    return {};  // InfiniBand: LIDs unless asked for a GID
  Result<std::vector<GidEntry>> gids = query_gids(context_, config_.port_num);
  if (!gids) return tl::unexpected(gids.error());
  if (config_.gid_index) {
    const bool used = std::any_of(gids->begin(), gids->end(),
                                  [&](const GidEntry& entry) { return entry.index == *config_.gid_index; });
    if (used) return {};
    return tl::unexpected(Error::make(ErrorCode::invalid_argument,
                                      fmt::format("gid_index is {}, but that entry of port {} of {} is empty",
                                                  *config_.gid_index, config_.port_num, name)));
  }
  // An index that does not fit the address vector's 8 bits is of no use.
  std::erase_if(*gids, [](const GidEntry& entry) { return entry.index > 0xff; });
  const std::optional<GidEntry> chosen = choose_gid(*gids);
  if (!chosen) {
    return tl::unexpected(Error::make(
        ErrorCode::unsupported,
        fmt::format("port {} of {} has no GID yet: give its network interface an address and set it up",
                    config_.port_num, name)));
  }
  config_.gid_index = static_cast<std::uint8_t>(chosen->index);
  return {};
}

// Registering GPU memory needs dma-buf support in the kernel, or the nvidia_peermem module.
Result<void> QueuePairState::check_gpu_direct() const {
  if (!config_.use_gpu_direct) return {};
  constexpr std::size_t kPage = 4096;
  // A descriptor that is none: EBADF says that the kernel got so far as to look for it.
  ibv_mr* const impossible = ibv_reg_dmabuf_mr(pd_, 0, kPage, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  const int reason = errno;
  if (impossible != nullptr) {
    static_cast<void>(ibv_dereg_mr(impossible));
    return {};
  }
  if (reason == EBADF || access("/sys/module/nvidia_peermem", F_OK) == 0) return {};
  return tl::unexpected(
      Error::make(ErrorCode::unsupported,
                  "use_gpu_direct: the kernel can register no dma-buf on this device, and the module "
                  "nvidia_peermem is not loaded",
                  reason));
}

Result<void> QueuePairState::make_objects() {
  if (config_.completion_events) {
    channel_.reset(ibv_create_comp_channel(context_));
    if (!channel_) return tl::unexpected(creation_error("completion channel", config_, errno));
    const int flags = fcntl(channel_->fd, F_GETFL);
    if (flags < 0 || fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
      return tl::unexpected(creation_error("completion channel", config_, errno));
    }
  }
  return make_completion_queues().and_then([&] { return make_queue_pair(); });
}

Result<void> QueuePairState::make_completion_queues() {
  const auto make = [&](std::uint64_t automatic) {
    std::uint64_t entries = config_.cq_entries != 0 ? config_.cq_entries : automatic;
    // libmlx5 makes room for one more than asked for, then goes up to a power of two.
    if (mlx5_ && config_.cq_entries == 0) entries = std::max<std::uint64_t>(entries - 1, 1);
    entries = std::min(entries, static_cast<std::uint64_t>(limits_.device.max_cqe));
    return CqHandle(ibv_create_cq(context_, static_cast<int>(entries), nullptr, channel_.get(), 0));
  };
  send_cq_ = make(mlx5_ ? mlx5_send_blocks(config_) : config_.max_send_wr);
  if (!send_cq_) return tl::unexpected(creation_error("send completion queue", config_, errno));
  recv_cq_ = make(mlx5_ ? std::bit_ceil(std::uint64_t{config_.max_recv_wr}) : config_.max_recv_wr);
  if (!recv_cq_) return tl::unexpected(creation_error("receive completion queue", config_, errno));
  return {};
}

Result<void> QueuePairState::make_queue_pair() {
  ibv_qp_init_attr_ex attributes{};
  attributes.send_cq = send_cq_.get();
  attributes.recv_cq = recv_cq_.get();
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = config_.max_send_wr;
  attributes.cap.max_recv_wr = config_.max_recv_wr;
  attributes.cap.max_send_sge = config_.max_send_sge;
  attributes.cap.max_recv_sge = config_.max_recv_sge;
  attributes.cap.max_inline_data = mlx5_ ? mlx5_inline_request(config_) : config_.max_inline_data;
  attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
  attributes.pd = pd_;
  if (!mlx5_) {
    qp_.reset(ibv_create_qp_ex(context_, &attributes));
    if (!qp_) return tl::unexpected(creation_error("queue pair", config_, errno));
    granted_ = attributes.cap;
    return {};
  }

  // A thread domain brings a doorbell register that no other queue pair writes to.
  ibv_td_init_attr td_attributes{};
  thread_domain_.reset(ibv_alloc_td(context_, &td_attributes));
  if (thread_domain_) {
    ibv_parent_domain_init_attr parent{};
    parent.pd = pd_;
    parent.td = thread_domain_.get();
    parent_domain_.reset(ibv_alloc_parent_domain(context_, &parent));
    if (!parent_domain_) thread_domain_.reset();
  }
  attributes.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attributes.send_ops_flags = kMlx5Operations;
  mlx5dv_qp_init_attr direct{};
  direct.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
  direct.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
  if (parent_domain_) {
    ibv_qp_init_attr_ex dedicated = attributes;
    dedicated.pd = parent_domain_.get();
    qp_.reset(mlx5dv_create_qp(context_, &dedicated, &direct));
    granted_ = dedicated.cap;
    if (!qp_) {
      parent_domain_.reset();
      thread_domain_.reset();
    }
  }
  if (!qp_) {
    qp_.reset(mlx5dv_create_qp(context_, &attributes, &direct));
    granted_ = attributes.cap;
  }
  if (!qp_) return tl::unexpected(creation_error("queue pair", config_, errno));
  return {};
}

Result<void> QueuePairState::view_rings(StartIndices start) {
  WorkLimits limits;
  // A data segment counts its bytes in 31 bits, where 0 means 2^31 (mlx5), and verbs in 32.
  limits.max_message = std::min(limits_.port.max_msg_sz, 0x7fffffffU);
  if (limits.max_message == 0) limits.max_message = 0x7fffffffU;  // a device that does not say
  limits.max_send_sge = config_.max_send_sge;
  limits.max_recv_sge = config_.max_recv_sge;
  limits.max_inline = config_.max_inline_data;
  if (!mlx5_) {
    const auto capacity = [](std::uint32_t granted, int completions) {
      return std::min(granted, static_cast<std::uint32_t>(std::max(completions, 1)));
    };
    path_ = std::make_unique<VerbsDataPath>(qp_.get(), send_cq_.get(), recv_cq_.get(), limits,
                                            capacity(granted_.max_send_wr, send_cq_->cqe),
                                            capacity(granted_.max_recv_wr, recv_cq_->cqe));
    return {};
  }

  mlx5dv_obj objects{};
  objects.qp.in = qp_.get();
  objects.qp.out = &dv_qp_;
  if (const int failure = mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP); failure != 0) {
    return tl::unexpected(creation_error("view of the queue pair", config_, failure));
  }
  for (const auto& [in, out] :
       {std::pair{send_cq_.get(), &dv_send_cq_}, std::pair{recv_cq_.get(), &dv_recv_cq_}}) {
    objects.cq.in = in;
    objects.cq.out = out;
    if (const int failure = mlx5dv_init_obj(&objects, MLX5DV_OBJ_CQ); failure != 0) {
      return tl::unexpected(creation_error("view of a completion queue", config_, failure));
    }
  }
  const auto cq_ring = [](const mlx5dv_cq& cq) {
    return Mlx5CqRing{
        static_cast<std::byte*>(cq.buf),    cq.cqe_cnt, cq.cqe_size, reinterpret_cast<mlx5::be32*>(cq.dbrec),
        static_cast<std::byte*>(cq.cq_uar), cq.cqn};
  };
  Mlx5Rings rings;
  rings.qp_num = qp_->qp_num;
  rings.send_ring = static_cast<std::byte*>(dv_qp_.sq.buf);
  rings.send_blocks = dv_qp_.sq.wqe_cnt;
  rings.receive_ring = static_cast<std::byte*>(dv_qp_.rq.buf);
  rings.receive_count = dv_qp_.rq.wqe_cnt;
  rings.receive_stride = dv_qp_.rq.stride;
  rings.record = reinterpret_cast<mlx5::be32*>(dv_qp_.dbrec);
  rings.reg = static_cast<std::byte*>(dv_qp_.bf.reg);
  // Without a register of our own another queue pair may write to this one at the same time: 8-byte stores
  // only.
  rings.blue_flame = parent_domain_ ? dv_qp_.bf.size : 0;
  rings.send_cq = cq_ring(dv_send_cq_);
  rings.receive_cq = cq_ring(dv_recv_cq_);
  if (config_.threads == Threads::Many) {
    path_ = std::make_unique<Mlx5ManyDataPath>(rings, limits, start);
  } else {
    path_ = std::make_unique<Mlx5DataPath>(rings, limits, start);
  }
  return {};
}

Result<int> QueuePairState::completion_fd() const {
  if (!channel_) {
    return tl::unexpected(
        Error(ErrorCode::unsupported, "this queue pair was made without IbverbsConfig::completion_events"));
  }
  return channel_->fd;
}

Result<std::size_t> QueuePairState::take_events() {
  if (!channel_) return tl::unexpected(completion_fd().error());
  std::size_t count = 0;
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  while (ibv_get_cq_event(channel_.get(), &cq, &cq_context) == 0) {
    ibv_ack_cq_events(cq, 1);
    path_->event_taken(cq == send_cq_.get() ? PollTarget::Send : PollTarget::Recv);
    ++count;
  }
  if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    return tl::unexpected(Error::make(ErrorCode::system, "cannot read the completion channel", errno));
  }
  return count;
}

}  // namespace qpair::detail
