#pragma once
// What the handles of one RdmaQueuePair share: the objects, and everything that is not posting and polling.

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <optional>

#include "qpair/queue_pair.hpp"
#include "src/datapath/mlx5.hpp"
#include "src/handles.hpp"

namespace qpair::detail {

class QueuePairState : public std::enable_shared_from_this<QueuePairState> {
 public:
  // `domain` may be null: then context and pd outlive the queue pair by the caller's promise.
  static Result<RdmaQueuePair> create(std::shared_ptr<DomainState> domain, ibv_context* context, ibv_pd* pd,
                                      const IbverbsConfig& config, StartIndices start = {});
  ~QueuePairState();
  QueuePairState(const QueuePairState&) = delete;
  QueuePairState& operator=(const QueuePairState&) = delete;

  // Another handle. For deserialisation.
  RdmaQueuePair handle() { return RdmaQueuePair(shared_from_this()); }
  static const QueuePairState& of(const RdmaQueuePair& queue_pair) { return *queue_pair.state_; }

  [[nodiscard]] Result<RdmaQpInfo> info() const;
  [[nodiscard]] Result<ibv_qp_state> state() const;
  Result<void> connect(const RdmaQpInfo& peer);
  Result<void> reset();
  Result<std::size_t> take_events();
  [[nodiscard]] Result<int> completion_fd() const;

  [[nodiscard]] DataPath& path() { return *path_; }
  [[nodiscard]] ibv_context* context() const { return context_; }
  [[nodiscard]] ibv_qp* qp() const { return qp_.get(); }
  [[nodiscard]] ibv_cq* send_cq() const { return send_cq_.get(); }
  [[nodiscard]] ibv_cq* recv_cq() const { return recv_cq_.get(); }
  [[nodiscard]] const mlx5dv_qp* dv_qp() const { return mlx5_ ? &dv_qp_ : nullptr; }
  [[nodiscard]] const mlx5dv_cq* dv_send_cq() const { return mlx5_ ? &dv_send_cq_ : nullptr; }
  [[nodiscard]] const mlx5dv_cq* dv_recv_cq() const { return mlx5_ ? &dv_recv_cq_ : nullptr; }
  [[nodiscard]] const IbverbsConfig& config() const { return config_; }
  [[nodiscard]] bool has_events() const { return channel_ != nullptr; }
  [[nodiscard]] std::uint64_t token() const { return token_; }

  // Whose turn it is to answer first when both sides are polled.
  std::atomic<bool> receive_first = false;

 private:
  QueuePairState(std::shared_ptr<DomainState> domain, ibv_context* context, ibv_pd* pd,
                 const IbverbsConfig& config);
  Result<void> resolve_config();
  Result<void> check_gpu_direct() const;
  Result<void> make_objects();
  Result<void> make_completion_queues();
  Result<void> make_queue_pair();
  Result<void> view_rings(StartIndices start);
  Result<void> check_peer(const RdmaQpInfo& peer) const;
  Result<void> to_init();
  Result<void> to_ready_to_receive(const RdmaQpInfo& peer, ibv_mtu mtu);
  Result<void> to_ready_to_send(const RdmaQpInfo& peer);
  Result<void> modify(ibv_qp_attr& attributes, int mask, const char* step, const std::string& what);

  std::shared_ptr<DomainState> domain_;  // members in the order of making; destroyed the other way round
  ibv_context* context_;
  ibv_pd* pd_;
  IbverbsConfig config_;
  DeviceLimits limits_;
  bool mlx5_ = false;
  ThreadDomainHandle thread_domain_;
  PdHandle parent_domain_;
  ChannelHandle channel_;
  CqHandle send_cq_;
  CqHandle recv_cq_;
  QpHandle qp_;
  ibv_qp_cap granted_{};
  mlx5dv_qp dv_qp_{};
  mlx5dv_cq dv_send_cq_{};
  mlx5dv_cq dv_recv_cq_{};
  std::unique_ptr<DataPath> path_;

  std::uint32_t psn_ = 0;
  std::uint32_t generation_ = 0;
  std::optional<RdmaQpInfo> peer_;
  std::uint64_t token_ = 0;
};

// --- Which queue pairs live in this process (registry.cpp), so that a serialised one can be found again. ---

// Identifies this process: random, and other after a fork.
std::string process_identity();
std::uint64_t register_queue_pair(const std::shared_ptr<QueuePairState>& state);
void unregister_queue_pair(std::uint64_t token);
std::shared_ptr<QueuePairState> find_queue_pair(std::uint64_t token);

std::uint32_t random_psn();

}  // namespace qpair::detail
