#pragma once
// The data path of every device that is not an mlx5: libibverbs does the posting and polling. What was
// enqueued waits here, as a chain of work requests, until the doorbell is rung.

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "qpair/detail/data_path.hpp"
#include "src/datapath/work.hpp"

namespace qpair::detail {

class VerbsDataPath final : public DataPath {
 public:
  // `send_capacity`, `receive_capacity`: work requests that may be outstanding. Handles are borrowed.
  VerbsDataPath(ibv_qp* qp, ibv_cq* send_cq, ibv_cq* receive_cq, const WorkLimits& limits,
                std::uint32_t send_capacity, std::uint32_t receive_capacity);

  Result<WrId> enqueue(const Work& work) override;
  Result<WrId> post(const Work& work) override;
  Result<WrId> enqueue_puts(std::span<const Put> puts, Signal signal) override;
  Result<void> ring_doorbell() override;
  Result<DoorBell> doorbell() const override;
  Result<WrId> receive(std::span<const RdmaBuffer> pieces) override;
  int take_send(std::span<IbvWc> wcs) override;
  int take_receive(std::span<IbvWc> wcs) override;
  [[nodiscard]] Counters send_counters() const override;
  [[nodiscard]] Counters receive_counters() const override;
  Result<void> arm(PollTarget side, bool solicited_only) override;
  void event_taken(PollTarget side) override;
  void open_receive() override;
  void open_send() override;
  void reset() override;

 private:
  // One work request, where it waits to be posted and what is to be known when it completes.
  struct Entry {
    ibv_send_wr request{};
    std::uint64_t operation = 0;  // number of the last entry of its operation
    std::uint64_t bytes = 0;      // of the whole operation
    bool part = false;            // of an operation that was split
    bool silent = false;          // signaled only to make room
  };

  Entry& entry(std::uint64_t index) { return entries_[static_cast<std::size_t>(index % entries_.size())]; }
  std::span<ibv_sge> pieces_of(std::uint64_t index);
  std::span<std::byte> inline_of(std::uint64_t index);
  void write(const Work& work, const WorkPlan& planned);
  void write_entry(const Work& work, ibv_wr_opcode opcode, std::uint64_t remote_offset, std::uint64_t bytes,
                   PieceWalker& walker);
  bool finish_send(const ibv_wc& raw, IbvWc& wc);
  void finish_receive(const ibv_wc& raw, IbvWc& wc);

  ibv_qp* const qp_;
  ibv_cq* const send_cq_;
  ibv_cq* const receive_cq_;
  const WorkLimits limits_;
  const std::uint64_t receive_capacity_;

  std::vector<Entry> entries_;
  std::vector<ibv_sge> pieces_;  // max_send_sge for each entry
  std::vector<std::byte>
      inline_;  // max_inline for each entry: inline data is free again when the call returns
  std::vector<ibv_sge> receive_pieces_;
  Counters send_counts_;
  Counters receive_counts_;
  std::uint64_t failed_part_ = ~std::uint64_t{0};
  SilentSignals silent_;
  bool send_open_ = false;
  bool receive_open_ = false;
};

}  // namespace qpair::detail
