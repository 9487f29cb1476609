#include "src/datapath/mlx5.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "src/datapath/mlx5_wc.hpp"

namespace qpair::detail {

namespace {

using mlx5::CqeOpcode;
using mlx5::Opcode;

std::uint32_t receive_segments(const Mlx5Rings& rings) {
  return rings.receive_stride / mlx5::kSegmentSize;
}

}  // namespace

Mlx5DataPath::Mlx5DataPath(const Mlx5Rings& rings, const WorkLimits& limits, StartIndices start)
    : DataPath(rings.send_cq),
      limits_(limits),
      wqes_{rings.send_ring, std::uint64_t{rings.send_blocks} * mlx5::kBasicBlockSize - 1, rings.qp_num},
      receive_cq_(rings.receive_cq),
      notes_(rings.send_blocks),
      // Every WQE may end in a CQE, signaled or not (a flush), and has at least one block: with no more
      // blocks under way than the completion queue has entries, it cannot overflow. More than half of the
      // hardware's 16-bit circle would make "ahead" and "behind" the same.
      capacity_(std::min(
          {std::uint64_t{rings.send_blocks}, std::uint64_t{rings.send_cq.entries}, kHardwareIndices / 2})),
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
  send_.retired = start.send;
  send_.byte_mask = wqes_.byte_mask;
  send_.max_message = limits.max_message;
  send_.max_inline = std::min<std::uint64_t>(limits.max_inline, kShortInline);
  // At most half a queue of unsignaled work. Both are powers of two.
  send_.silence_mask = std::max<std::uint64_t>(std::bit_floor(capacity_) / 2, 1) - 1;
  send_.qp_num = rings.qp_num;
  send_.record = rings.record + mlx5::kSendRecord;
  send_.reg = rings.reg;
  send_.blue_flame = rings.blue_flame;
  send_.put_word = first_word(Opcode::RdmaWrite, rings.qp_num);
  send_.get_word = first_word(Opcode::RdmaRead, rings.qp_num);
  mlx5::store_record(send_.record, static_cast<std::uint32_t>(start.send) & mlx5::kIndexMask);
  mlx5::store_record(receive_record_, static_cast<std::uint32_t>(start.receive) & mlx5::kIndexMask);
}

void Mlx5DataPath::open_receive() {
  receive_open_ = true;
}

void Mlx5DataPath::open_send() {
  send_.room = capacity_;
  send_.limit = send_.retired + send_.room;
}

void Mlx5DataPath::reset() {
  receive_open_ = false;
  send_cq_.drain();
  receive_cq_.drain();
  // The hardware's indices start again at 0, the counters do not: go up to where the low 16 bits are 0.
  const std::uint64_t index = send_.index();
  send_.position = next_lap_of_hardware(send_.position);
  send_.surplus = send_.retired_surplus = send_.position - index;
  first_note_ = end_note_;
  send_.first_note = send_.long_end = kNowhere;
  send_.room = 0;
  send_.limit = send_.retired = send_.position;
  const std::uint64_t receive_index = receive_position_ - receive_surplus_;
  receive_position_ = next_lap_of_hardware(receive_position_);
  receive_surplus_ = receive_position_ - receive_index;
  receive_completed_ = receive_position_;
  mlx5::store_record(send_.record, 0);
  mlx5::store_record(receive_record_, 0);
}

// --- Posting ---

// How many blocks the operation takes, if it is possible and there is room.
Result<std::uint64_t> Mlx5DataPath::place_for(const Work& work, WorkPlan& planned) const {
  if (send_.room == 0) return tl::unexpected(not_connected());
  const Result<WorkPlan> possible = plan(work, limits_);
  if (!possible) return tl::unexpected(possible.error());
  planned = *possible;
  // An operation too large for any number of blocks is refused before its blocks are counted.
  if (planned.entries > capacity_) return tl::unexpected(never_fits(planned.entries, capacity_));
  const std::uint64_t blocks = blocks_needed(work, planned, limits_);
  if (blocks > capacity_) return tl::unexpected(never_fits(blocks, capacity_));
  if (send_.position + blocks > send_.limit) {
    return tl::unexpected(queue_full(send_.position - send_.retired, capacity_));
  }
  return blocks;
}

Result<WrId> Mlx5DataPath::enqueue(const Work& work) {
  WorkPlan planned;
  const Result<std::uint64_t> blocks = place_for(work, planned);
  if (!blocks) return tl::unexpected(blocks.error());
  write(work, planned, *blocks);
  return WrId{send_.index() - 1};
}

Result<WrId> Mlx5DataPath::post(const Work& work) {
  Result<WrId> id = enqueue(work);
  if (id) send_.ring_doorbell();
  return id;
}

Result<WrId> Mlx5DataPath::enqueue_puts(std::span<const Put> puts, Signal signal) {
  const std::uint64_t at = send_.position;
  const bool speaks = signal == Signal::Yes || (at & send_.silence_mask) + puts.size() <= send_.silence_mask;
  if (at + puts.size() <= send_.limit && speaks && write_puts(puts, signal)) [[likely]] {
    send_.position = at + puts.size();
    return WrId{send_.index() - 1};
  }
  return enqueue_one_by_one(puts, signal);
}

// In one or two runs: the ring may end in between.
bool Mlx5DataPath::write_puts(std::span<const Put> puts, Signal signal) const {
  const std::uint64_t flags = SendRing::flags_of(signal);
  const std::uint64_t blocks = (send_.byte_mask + 1) >> mlx5::kBasicBlockShift;
  const std::size_t first = std::min(puts.size(), blocks - (send_.position & (blocks - 1)));
  PutRun run{send_.block(send_.position), send_.position, send_.put_word, flags, send_.max_message};
  if (!put_writer_(run, puts.first(first))) return false;
  if (first == puts.size()) return true;
  run.at = send_.ring;
  run.position += first;
  return put_writer_(run, puts.subspan(first));
}

Result<WrId> Mlx5DataPath::enqueue_one_by_one(std::span<const Put> puts, Signal signal) {
  std::uint64_t blocks = 0;
  for (const Put& put : puts) {
    WorkPlan planned;
    const Result<std::uint64_t> needed = place_for(put_work(put, signal), planned);
    if (!needed) return tl::unexpected(needed.error());
    blocks += *needed;
    if (blocks > capacity_) return tl::unexpected(never_fits(blocks, capacity_));
  }
  if (send_.position + blocks > send_.limit) {
    return tl::unexpected(queue_full(send_.position - send_.retired, capacity_));
  }
  for (const Put& put : puts) static_cast<void>(enqueue_put(put.l, put.r, signal));
  return WrId{send_.index() - 1};
}

void Mlx5DataPath::write(const Work& work, const WorkPlan& planned, std::uint64_t blocks) {
  Note note;
  note.operation = send_.index() + planned.entries - 1;
  note.bytes = planned.bytes;
  note.part = planned.entries > 1;
  std::uint8_t flags = mlx5::kCqUpdate;
  if (work.signal == Signal::No) {
    note.silent = (send_.position & send_.silence_mask) + blocks > send_.silence_mask;
    if (!note.silent) flags = 0;
  }
  write_work(wqes_, send_.position, work, planned, limits_.max_message, flags,
             [&](const Entry& entry) { advance(entry, note); });
}

// Moves on behind a WQE, and makes a note of it unless it is plain.
void Mlx5DataPath::advance(const Entry& entry, Note note) {
  if (entry.blocks != 1) {
    send_.long_begin = entry.begin;
    send_.long_end = entry.begin + entry.blocks;
    send_.surplus += entry.blocks - 1;
  }
  if (entry.blocks != 1 || note.part || note.silent) {
    note.position = entry.begin;
    note.surplus = send_.surplus;
    if (first_note_ == end_note_) send_.first_note = note.position;
    note_at(end_note_++) = note;
  }
  send_.position = entry.begin + entry.blocks;
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
  write_receive(receive_ring_ + static_cast<std::size_t>(receive_position_ & receive_mask_) * receive_stride_,
                receive_slots_, pieces);
  ++receive_position_;
  mlx5::to_device_barrier();
  mlx5::store_record(receive_record_, static_cast<std::uint32_t>(receive_position_) & mlx5::kIndexMask);
  return WrId{receive_position_ - receive_surplus_ - 1};
}

// --- Completions ---

// Everything up to and with the WQE at `begin` is done. Returns what is known of that WQE.
Mlx5DataPath::Note Mlx5DataPath::retire(std::uint64_t begin) {
  for (; first_note_ != end_note_ && note_at(first_note_).position < begin; ++first_note_) {
    send_.retired_surplus = note_at(first_note_).surplus;
  }
  Note note;
  note.operation = begin - send_.retired_surplus;
  std::uint64_t blocks = 1;
  if (first_note_ != end_note_ && note_at(first_note_).position == begin) {
    note = note_at(first_note_++);
    blocks += note.surplus - send_.retired_surplus;
    send_.retired_surplus = note.surplus;
  }
  send_.first_note = first_note_ == end_note_ ? kNowhere : note_at(first_note_).position;
  send_.retired = begin + blocks;
  send_.limit = send_.retired + send_.room;
  return note;
}

// False: consumed, but nothing to report.
bool Mlx5DataPath::finish_send(const mlx5::Cqe64& cqe, std::uint64_t rung, IbvWc& wc) {
  wc = IbvWc{};
  wc.qp_num = send_.qp_num;
  wc.wr_id = kNoOperation;
  wc.status = IBV_WC_GENERAL_ERR;
  if (!is_of_send_queue(cqe)) return true;
  // As in SendRing::finish_plain(): one that names no WQE under way is not about this queue's work.
  const std::uint64_t begin = send_.retired + ((cqe.wqe_counter - send_.retired) & mlx5::kIndexMask);
  if (begin >= rung) return true;
  const Note note = retire(begin);
  describe_send(cqe, note.part ? note.bytes : 0, wc);
  wc.wr_id = WrId{note.operation};
  if (mlx5::cqe_opcode(cqe.op_own) != CqeOpcode::RequestError) return !note.silent;
  // A split operation fails once, with its first failure.
  if (!note.part) return true;
  return std::exchange(failed_part_, note.operation) != note.operation;
}

int Mlx5DataPath::take_send(std::span<IbvWc> wcs) {
  std::size_t taken = 0;
  while (taken != wcs.size()) {
    if (const std::size_t puts = take_puts(wcs.subspan(taken)); puts != 0) {
      taken += puts;
      continue;
    }
    if (!send_cq_.is_written()) break;
    mlx5::from_device_barrier();
    if (finish_send(*send_cq_.at(), send_.rung(), wcs[taken])) ++taken;
    send_cq_.done();
  }
  return static_cast<int>(taken);
}

void Mlx5DataPath::finish_receive(const mlx5::Cqe64& cqe, IbvWc& wc) {
  wc = IbvWc{};
  wc.qp_num = send_.qp_num;
  describe_receive(cqe, wc);
  if (is_of_send_queue(cqe) || receive_completed_ == receive_position_) {
    // Nothing was posted that this could be.
    wc.status = IBV_WC_GENERAL_ERR;
    return;
  }
  // A receive queue completes in order, every entry (IBTA vol. 1, 10.8.5), so the next one it is.
  wc.wr_id = WrId{receive_completed_ - receive_surplus_};
  ++receive_completed_;
}

int Mlx5DataPath::take_receive(std::span<IbvWc> wcs) {
  std::size_t taken = 0;
  while (taken != wcs.size() && receive_cq_.is_written()) {
    mlx5::from_device_barrier();
    finish_receive(*receive_cq_.at(), wcs[taken++]);
    receive_cq_.done();
  }
  return static_cast<int>(taken);
}

Counters Mlx5DataPath::send_counters() const {
  const std::uint64_t rung = send_.rung();
  std::uint64_t surplus = send_.surplus;
  // The surplus where the doorbell record points is that of the last note before.
  if (rung != send_.position) {
    surplus = send_.retired_surplus;
    for (std::uint64_t i = first_note_; i != end_note_ && note_at(i).position < rung; ++i)
      surplus = note_at(i).surplus;
  }
  return {send_.index(), rung - surplus, send_.retired - send_.retired_surplus};
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
