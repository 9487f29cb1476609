#include "src/datapath/mlx5.hpp"

#include <algorithm>
#include <cstring>

namespace qpair::detail {

namespace {

using mlx5::be32;
using mlx5::CqeOpcode;
using mlx5::Opcode;

constexpr std::uint64_t kHardwareIndices = 65536;
constexpr WrId kNoOperation{~std::uint64_t{0}};

// Writes the segments of a WQE one after the other, going on at the ring's start when it comes to its end.
class SegmentWriter {
 public:
  SegmentWriter(std::byte* at, std::byte* begin, std::byte* end) : at_(at), begin_(begin), end_(end) {}

  template <typename Segment>
  void add(const Segment& segment) {
    static_assert(sizeof(Segment) == mlx5::kSegmentSize);
    std::memcpy(at_, &segment, sizeof segment);
    at_ += sizeof segment;
    if (at_ == end_) at_ = begin_;
    ++segments_;
  }

  void add_inline(std::span<const std::byte> data) {
    const mlx5::InlineSegment header{be32(static_cast<std::uint32_t>(data.size()) | mlx5::kInlineFlag)};
    std::memcpy(at_, &header, sizeof header);
    std::byte* to = at_ + sizeof header;  // a segment never straddles the end, so neither does its header
    const auto room = static_cast<std::size_t>(end_ - to);
    const std::size_t first = std::min(room, data.size());
    std::memcpy(to, data.data(), first);
    std::memcpy(begin_, data.data() + first, data.size() - first);
    segments_ += static_cast<std::uint32_t>((data.size() + sizeof header + mlx5::kSegmentSize - 1) /
                                            mlx5::kSegmentSize);
  }

  [[nodiscard]] std::uint32_t segments() const { return segments_; }

 private:
  std::byte* at_;
  std::byte* begin_;
  std::byte* end_;
  std::uint32_t segments_ = 0;
};

std::uint32_t fixed_segments(Opcode opcode) {
  if (is_send(opcode)) return 1;     // control
  return is_atomic(opcode) ? 3 : 2;  // control, remote address, and the operands
}

// rdma-core providers/mlx5/cq.c, handle_good_req(): the opcode of the request stands in the CQE.
ibv_wc_opcode opcode_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::RdmaWrite:
    case Opcode::RdmaWriteImm:
      return IBV_WC_RDMA_WRITE;
    case Opcode::RdmaRead:
      return IBV_WC_RDMA_READ;
    case Opcode::AtomicCompareSwap:
      return IBV_WC_COMP_SWAP;
    case Opcode::AtomicFetchAdd:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

std::uint32_t receive_segments(const Mlx5Rings& rings) {
  return rings.receive_stride / mlx5::kSegmentSize;
}

}  // namespace

ibv_wc_status status_of(mlx5::Syndrome syndrome) {
  switch (syndrome) {
    case mlx5::Syndrome::LocalLength:
      return IBV_WC_LOC_LEN_ERR;
    case mlx5::Syndrome::LocalQpOperation:
      return IBV_WC_LOC_QP_OP_ERR;
    case mlx5::Syndrome::LocalProtection:
      return IBV_WC_LOC_PROT_ERR;
    case mlx5::Syndrome::WorkRequestFlushed:
      return IBV_WC_WR_FLUSH_ERR;
    case mlx5::Syndrome::MemoryWindowBind:
      return IBV_WC_MW_BIND_ERR;
    case mlx5::Syndrome::BadResponse:
      return IBV_WC_BAD_RESP_ERR;
    case mlx5::Syndrome::LocalAccess:
      return IBV_WC_LOC_ACCESS_ERR;
    case mlx5::Syndrome::RemoteInvalidRequest:
      return IBV_WC_REM_INV_REQ_ERR;
    case mlx5::Syndrome::RemoteAccess:
      return IBV_WC_REM_ACCESS_ERR;
    case mlx5::Syndrome::RemoteOperation:
      return IBV_WC_REM_OP_ERR;
    case mlx5::Syndrome::TransportRetryExceeded:
      return IBV_WC_RETRY_EXC_ERR;
    case mlx5::Syndrome::RnrRetryExceeded:
      return IBV_WC_RNR_RETRY_EXC_ERR;
    case mlx5::Syndrome::RemoteAborted:
      return IBV_WC_REM_ABORT_ERR;
  }
  return IBV_WC_GENERAL_ERR;
}

Mlx5DataPath::Mlx5DataPath(const Mlx5Rings& rings, const WorkLimits& limits, StartIndices start)
    : qp_num_(rings.qp_num),
      limits_(limits),
      send_cq_(rings.send_cq),
      receive_cq_(rings.receive_cq),
      notes_(rings.send_blocks),
      // Every WQE may end in a CQE, signaled or not (a flush), and has at least one block: with no more
      // blocks under way than the completion queue has entries, it cannot overflow. More than half of the
      // hardware's 16-bit circle would make "ahead" and "behind" the same.
      capacity_(std::min(
          {std::uint64_t{rings.send_blocks}, std::uint64_t{rings.send_cq.entries}, kHardwareIndices / 2})),
      retired_(start.send),
      silent_(capacity_),
      receive_ring_(rings.receive_ring),
      receive_mask_(rings.receive_count - 1),
      receive_stride_(rings.receive_stride),
      receive_slots_(receive_segments(rings)),
      receive_capacity_(std::min(rings.receive_count, rings.receive_cq.entries)),
      receive_record_(rings.record + mlx5::kReceiveRecord),
      receive_position_(start.receive),
      receive_completed_(start.receive) {
  send_.ring = rings.send_ring;
  send_.position = start.send;
  send_.byte_mask = std::uint64_t{rings.send_blocks} * mlx5::kBasicBlockSize - 1;
  send_.max_message = limits.max_message;
  send_.record = rings.record + mlx5::kSendRecord;
  send_.reg = rings.reg;
  send_.blue_flame = rings.blue_flame;
  const auto word = [&](Opcode opcode) {
    const mlx5::ControlSegment control{
        mlx5::opmod_idx_opcode(0, opcode), mlx5::qpn_ds(rings.qp_num, 3), 0, {}, 0, 0};
    std::uint64_t first = 0;
    std::memcpy(&first, &control, sizeof first);
    return first;
  };
  send_.put_word = word(Opcode::RdmaWrite);
  send_.get_word = word(Opcode::RdmaRead);
  send_.long_end = ~std::uint64_t{0};
  mlx5::store_record(send_.record, static_cast<std::uint32_t>(start.send) & mlx5::kIndexMask);
  mlx5::store_record(receive_record_, static_cast<std::uint32_t>(start.receive) & mlx5::kIndexMask);
}

void Mlx5DataPath::open_receive() {
  receive_open_ = true;
}

void Mlx5DataPath::open_send() {
  send_open_ = true;
  send_.limit = retired_ + capacity_;
}

void Mlx5DataPath::reset() {
  send_open_ = receive_open_ = false;
  send_.limit = 0;
  send_cq_.drain();
  receive_cq_.drain();
  // The hardware's indices start again at 0, the counters do not: go up to where the low 16 bits are 0.
  const std::uint64_t index = send_.index();
  const auto round_up = [](std::uint64_t value) {
    return (value + kHardwareIndices - 1) / kHardwareIndices * kHardwareIndices;
  };
  send_.position = round_up(send_.position);
  send_.surplus = retired_surplus_ = send_.position - index;
  first_note_ = end_note_;
  send_.long_end = ~std::uint64_t{0};
  retired_ = send_.position;
  const std::uint64_t receive_index = receive_position_ - receive_surplus_;
  receive_position_ = round_up(receive_position_);
  receive_surplus_ = receive_position_ - receive_index;
  receive_completed_ = receive_position_;
  mlx5::store_record(send_.record, 0);
  mlx5::store_record(receive_record_, 0);
}

// --- Posting ---

std::uint64_t Mlx5DataPath::blocks_needed(const Work& work, const WorkPlan& planned) const {
  const std::uint32_t fixed = fixed_segments(work.opcode);
  if (work.is_inline) {
    const std::uint64_t data =
        planned.bytes == 0 ? 0 : (planned.bytes + sizeof(mlx5::InlineSegment) + 15) / 16;
    return mlx5::blocks_of(fixed + static_cast<std::uint32_t>(data));
  }
  if (is_atomic(work.opcode)) return mlx5::blocks_of(fixed + 1);
  if (work.local.size() == 1) return planned.entries * mlx5::blocks_of(fixed + 1);
  PieceWalker walker(work.local);
  std::uint64_t blocks = 0;
  for (std::uint64_t done = 0, entry = 0; entry != planned.entries; ++entry) {
    const std::uint64_t bytes = std::min<std::uint64_t>(planned.bytes - done, limits_.max_message);
    blocks += mlx5::blocks_of(fixed + walker.take(bytes, [](auto...) {}));
    done += bytes;
  }
  return blocks;
}

Result<WrId> Mlx5DataPath::enqueue(const Work& work) {
  if (!send_open_) return tl::unexpected(not_connected());
  const Result<WorkPlan> planned = plan(work, limits_);
  if (!planned) return tl::unexpected(planned.error());
  // An operation too large for any number of blocks is refused before its blocks are counted.
  if (planned->entries > capacity_) return tl::unexpected(never_fits(planned->entries, capacity_));
  const std::uint64_t blocks = blocks_needed(work, *planned);
  if (blocks > capacity_) return tl::unexpected(never_fits(blocks, capacity_));
  if (send_.position + blocks > send_.limit) {
    return tl::unexpected(queue_full(send_.position - retired_, capacity_));
  }
  write(work, *planned, blocks);
  return WrId{send_.index() - 1};
}

Result<WrId> Mlx5DataPath::post(const Work& work) {
  Result<WrId> id = enqueue(work);
  if (id) send_.ring_doorbell();
  return id;
}

void Mlx5DataPath::write(const Work& work, const WorkPlan& planned, std::uint64_t blocks) {
  Note note;
  note.operation = send_.index() + planned.entries - 1;
  note.bytes = planned.bytes;
  note.part = planned.entries > 1;
  std::uint8_t flags = mlx5::kCqUpdate;
  if (work.signal == Signal::No) {
    note.silent = silent_.must_signal(send_.position, send_.position + blocks);
    if (!note.silent) flags = 0;
  }

  // Of a split operation only the last WQE is signaled, and only it takes the peer's receive.
  const Opcode leading = work.opcode == Opcode::RdmaWriteImm ? Opcode::RdmaWrite : work.opcode;
  PieceWalker walker(work.local);
  std::uint64_t done = 0;
  for (std::uint64_t entry = 1; entry < planned.entries; ++entry) {
    advance(write_entry(work, leading, done, limits_.max_message, walker, 0), note);
    done += limits_.max_message;
  }
  advance(write_entry(work, work.opcode, done, planned.bytes - done, walker, flags), note);
}

// One WQE at the current position; returns the basic blocks that it takes.
std::uint32_t Mlx5DataPath::write_entry(const Work& work, Opcode opcode, std::uint64_t remote_offset,
                                        std::uint64_t bytes, PieceWalker& walker, std::uint8_t flags) {
  std::byte* const control_at = send_.block(send_.position);
  SegmentWriter writer(control_at, send_.ring, send_.ring + send_.byte_mask + 1);
  mlx5::ControlSegment control{};
  writer.add(control);  // its place; filled in when the number of segments is known
  if (work.remote != nullptr) {
    writer.add(mlx5::RemoteAddressSegment{work.remote->addr + remote_offset, work.remote->rkey, 0});
  }
  if (is_atomic(opcode)) {
    writer.add(mlx5::AtomicSegment{work.swap_add, work.compare});
    writer.add(mlx5::DataSegment{8, work.local[0].lkey, work.local[0].addr});
  } else if (work.is_inline) {
    if (bytes != 0) writer.add_inline(work.inline_data);
  } else {
    walker.take(bytes, [&](std::uint32_t lkey, std::uint64_t address, std::uint32_t length) {
      writer.add(mlx5::DataSegment{length, lkey, address});
    });
  }
  control.opmod_idx_opcode = mlx5::opmod_idx_opcode(static_cast<std::uint16_t>(send_.position), opcode);
  control.qpn_ds = mlx5::qpn_ds(qp_num_, writer.segments());
  control.fm_ce_se = flags;
  control.imm = has_imm(opcode) ? work.imm : 0;
  std::memcpy(control_at, &control, sizeof control);
  return mlx5::blocks_of(writer.segments());
}

// Moves on behind a WQE, and makes a note of it unless it is plain.
void Mlx5DataPath::advance(std::uint32_t blocks, Note note) {
  if (blocks != 1) {
    send_.long_begin = send_.position;
    send_.long_end = send_.position + blocks;
    send_.surplus += blocks - 1;
  }
  if (blocks != 1 || note.part || note.silent) {
    note.position = send_.position;
    note.surplus = send_.surplus;
    note_at(end_note_++) = note;
  }
  send_.position += blocks;
}

Result<void> Mlx5DataPath::ring_doorbell() {
  send_.ring_doorbell();
  return {};
}

Result<DoorBell> Mlx5DataPath::doorbell() const {
  if (send_.rung() == send_.position) return DoorBell{};
  return DoorBell{send_.block(send_.last_begin()), send_.reg, sizeof(std::uint64_t), send_.record};
}

Result<WrId> Mlx5DataPath::receive(std::span<const RdmaBuffer> pieces) {
  if (!receive_open_) return tl::unexpected(cannot_receive_yet());
  if (const std::optional<Error> error = check_receive(pieces, limits_)) return tl::unexpected(*error);
  if (receive_position_ - receive_completed_ >= receive_capacity_) {
    return tl::unexpected(receive_queue_full(receive_capacity_));
  }
  auto* segment = reinterpret_cast<mlx5::DataSegment*>(
      receive_ring_ + static_cast<std::size_t>(receive_position_ & receive_mask_) * receive_stride_);
  std::uint32_t used = 0;
  for (const RdmaBuffer& piece : pieces) {
    if (piece.size == 0) continue;
    segment[used++] = mlx5::DataSegment{static_cast<std::uint32_t>(piece.size), piece.lkey, piece.addr};
  }
  if (used < receive_slots_) segment[used] = mlx5::DataSegment{0, mlx5::kInvalidLkey, 0};
  ++receive_position_;
  mlx5::to_device_barrier();
  mlx5::store_record(receive_record_, static_cast<std::uint32_t>(receive_position_) & mlx5::kIndexMask);
  return WrId{receive_position_ - receive_surplus_ - 1};
}

// --- Completions ---

// Everything up to and with the WQE at `begin` is done. Returns what is known of that WQE.
Mlx5DataPath::Note Mlx5DataPath::retire(std::uint64_t begin) {
  for (; first_note_ != end_note_ && note_at(first_note_).position < begin; ++first_note_) {
    retired_surplus_ = note_at(first_note_).surplus;
  }
  Note note;
  note.operation = begin - retired_surplus_;
  std::uint64_t blocks = 1;
  if (first_note_ != end_note_ && note_at(first_note_).position == begin) {
    note = note_at(first_note_++);
    blocks += note.surplus - retired_surplus_;
    retired_surplus_ = note.surplus;
  }
  retired_ = begin + blocks;
  if (send_open_) send_.limit = retired_ + capacity_;
  return note;
}

// False: consumed, but nothing to report.
bool Mlx5DataPath::finish_send(const mlx5::Cqe64& cqe, CqeOpcode opcode, IbvWc& wc) {
  wc = IbvWc{};
  wc.qp_num = qp_num_;
  wc.wr_id = kNoOperation;
  wc.status = IBV_WC_GENERAL_ERR;
  if (opcode != CqeOpcode::Request && opcode != CqeOpcode::RequestError) return true;  // not of a send queue

  // The CQE names the WQE's first block in 16 bits. Unless it is one of those between the last completion and
  // the doorbell, it is not about this queue's work.
  const std::uint64_t begin = retired_ + ((cqe.wqe_counter - retired_) & mlx5::kIndexMask);
  if (begin >= send_.rung()) return true;
  const Note note = retire(begin);
  wc.wr_id = WrId{note.operation};
  const auto request = static_cast<Opcode>(std::uint32_t{cqe.sop_drop_qpn} >> 24);
  wc.opcode = opcode_of(request);

  if (opcode == CqeOpcode::RequestError) {
    // A split operation fails once, with its first failure.
    if (note.part) {
      if (failed_part_ == note.operation) return false;
      failed_part_ = note.operation;
    }
    const auto& error = reinterpret_cast<const mlx5::ErrorCqe&>(cqe);
    wc.status = status_of(error.syndrome);
    wc.vendor_err = error.vendor_err;
    return true;
  }
  if (note.silent) return false;
  // Scatter to CQE is off: data that lies in the CQE would be lost without a word.
  if ((cqe.op_own & (mlx5::kInlineScatter32 | mlx5::kInlineScatter64)) != 0) return true;
  wc.status = IBV_WC_SUCCESS;
  if (has_imm(request)) wc.wc_flags = IBV_WC_WITH_IMM;
  if (request == Opcode::RdmaRead) wc.byte_len = note.part ? note.bytes : std::uint64_t{cqe.byte_cnt};
  if (is_atomic(request)) wc.byte_len = 8;
  return true;
}

int Mlx5DataPath::poll_send(IbvWc& wc) {
  while (const mlx5::Cqe64* cqe = send_cq_.next()) {
    const bool report = finish_send(*cqe, mlx5::cqe_opcode(cqe->op_own), wc);
    send_cq_.done();
    if (report) return 1;
  }
  return 0;
}

void Mlx5DataPath::finish_receive(const mlx5::Cqe64& cqe, CqeOpcode opcode, IbvWc& wc) {
  wc = IbvWc{};
  wc.qp_num = qp_num_;
  wc.wr_id = kNoOperation;
  wc.opcode = IBV_WC_RECV;
  wc.status = IBV_WC_GENERAL_ERR;
  if (opcode == CqeOpcode::Request || opcode == CqeOpcode::RequestError) return;
  if (receive_completed_ == receive_position_) return;  // nothing was posted that this could be
  // A receive queue completes in order, every entry (IBTA vol. 1, 10.8.5), so the next one it is.
  wc.wr_id = WrId{receive_completed_ - receive_surplus_};
  ++receive_completed_;
  if (opcode == CqeOpcode::ResponderError) {
    const auto& error = reinterpret_cast<const mlx5::ErrorCqe&>(cqe);
    wc.status = status_of(error.syndrome);
    wc.vendor_err = error.vendor_err;
    return;
  }
  if ((cqe.op_own & (mlx5::kInlineScatter32 | mlx5::kInlineScatter64)) != 0) return;
  switch (opcode) {
    case CqeOpcode::ResponderWriteImm:
      wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
      wc.wc_flags = IBV_WC_WITH_IMM;
      break;
    case CqeOpcode::ResponderSendImm:
      wc.wc_flags = IBV_WC_WITH_IMM;
      break;
    case CqeOpcode::ResponderSendInvalidate:
      wc.wc_flags = IBV_WC_WITH_INV;
      break;
    case CqeOpcode::ResponderSend:
      break;
    default:
      return;  // an opcode that no receive queue has
  }
  wc.status = IBV_WC_SUCCESS;
  wc.byte_len = cqe.byte_cnt;
  if (wc.wc_flags != 0) wc.imm_data = cqe.imm_inval_pkey;
  const std::uint32_t flags_rqpn = cqe.flags_rqpn;
  wc.src_qp = flags_rqpn & 0xffffff;
  wc.sl = (flags_rqpn >> 24) & 0xf;
  if (((flags_rqpn >> 28) & 3) != 0) wc.wc_flags |= IBV_WC_GRH;
  wc.slid = cqe.slid;
  wc.dlid_path_bits = cqe.ml_path & 0x7f;
}

int Mlx5DataPath::poll_receive(IbvWc& wc) {
  const mlx5::Cqe64* cqe = receive_cq_.next();
  if (cqe == nullptr) return 0;
  finish_receive(*cqe, mlx5::cqe_opcode(cqe->op_own), wc);
  receive_cq_.done();
  return 1;
}

Counters Mlx5DataPath::send_counters() const {
  const std::uint64_t rung = send_.rung();
  std::uint64_t surplus = send_.surplus;
  // The surplus where the doorbell record points is that of the last note before.
  if (rung != send_.position) {
    surplus = retired_surplus_;
    for (std::uint64_t i = first_note_; i != end_note_ && note_at(i).position < rung; ++i)
      surplus = note_at(i).surplus;
  }
  return {send_.index(), rung - surplus, retired_ - retired_surplus_};
}

Counters Mlx5DataPath::receive_counters() const {
  const std::uint64_t index = receive_position_ - receive_surplus_;
  return {index, index, receive_completed_ - receive_surplus_};
}

Result<void> Mlx5DataPath::arm(PollTarget side, bool solicited_only) {
  if (side != PollTarget::Recv) send_cq_.arm(solicited_only);
  if (side != PollTarget::Send) receive_cq_.arm(solicited_only);
  return {};
}

void Mlx5DataPath::event_taken(PollTarget side) {
  (side == PollTarget::Recv ? receive_cq_ : send_cq_).event_taken();
}

}  // namespace qpair::detail
