#include "src/datapath/mlx5_many.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <thread>
#include <utility>

#include "src/datapath/mlx5_wc.hpp"

namespace qpair::detail {

using mlx5::Opcode;

namespace {

constexpr std::size_t kLongestWqe = std::size_t{mlx5::blocks_of(mlx5::kMaxSegments)} * mlx5::kBasicBlockSize;

bool is_plain_put(const Work& work, std::uint64_t max_message) {
  return work.opcode == Opcode::RdmaWrite && work.signal == Signal::Yes && work.local.size() == 1 &&
         work.local[0].size - 1 < max_message && work.local[0].size <= work.remote->size;
}

void wait_for_turn(std::atomic<bool>& turn) {
  while (turn.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
}

}  // namespace

Mlx5ManyDataPath::Mlx5ManyDataPath(const Mlx5Rings& rings, const WorkLimits& limits, StartIndices start)
    : limits_(limits),
      wqes_{rings.send_ring, std::uint64_t{rings.send_blocks} * mlx5::kBasicBlockSize - 1, rings.qp_num},
      // As in Mlx5DataPath.
      capacity_(std::min(
          {std::uint64_t{rings.send_blocks}, std::uint64_t{rings.send_cq.entries}, kHardwareIndices / 2})),
      silence_mask_(std::max<std::uint64_t>(std::bit_floor(capacity_) / 2, 1) - 1),
      put_word_(first_word(Opcode::RdmaWrite, rings.qp_num)),
      sends_(rings.send_blocks, start.send),
      notes_(rings.send_blocks),
      send_completions_(rings.send_cq),
      retired_(start.send),
      receive_stride_(rings.receive_stride),
      receive_slots_(rings.receive_stride / mlx5::kSegmentSize),
      receive_ring_(rings.receive_ring),
      receive_mask_(rings.receive_count - 1),
      receive_capacity_(std::min(rings.receive_count, rings.receive_cq.entries)),
      receive_record_(rings.record + mlx5::kReceiveRecord),
      receives_(rings.receive_count, start.receive),
      receive_completions_(rings.receive_cq),
      received_(start.receive) {
  bell_.ring = rings.send_ring;
  bell_.byte_mask = wqes_.byte_mask;
  bell_.record = rings.record + mlx5::kSendRecord;
  bell_.reg = rings.reg;
  bell_.blue_flame = rings.blue_flame;
  mlx5::store_record(bell_.record, static_cast<std::uint32_t>(start.send) & mlx5::kIndexMask);
  mlx5::store_record(receive_record_, static_cast<std::uint32_t>(start.receive) & mlx5::kIndexMask);
}

void Mlx5ManyDataPath::open_receive() {
  receive_open_ = true;
  receives_.allow(received_ + receive_capacity_);
}

void Mlx5ManyDataPath::open_send() {
  send_open_ = true;
  sends_.allow(retired_ + capacity_);
}

void Mlx5ManyDataPath::reset() {
  send_open_ = receive_open_ = false;
  send_completions_.drain();
  receive_completions_.drain();
  // The hardware's indices start again at 0; the counters go up to where their low 16 bits are 0.
  retired_ = next_lap_of_hardware(sends_.reserved());
  sends_.restart(retired_);
  received_ = next_lap_of_hardware(receives_.reserved());
  receives_.restart(received_);
  mlx5::store_record(bell_.record, 0);
  mlx5::store_record(receive_record_, 0);
}

// --- Posting ---

Result<std::uint64_t> Mlx5ManyDataPath::reserve(std::uint64_t blocks) {
  if (blocks > capacity_) return tl::unexpected(never_fits(blocks, capacity_));
  if (const std::optional<std::uint64_t> at = sends_.reserve(blocks)) return *at;
  const std::uint64_t retired = retired_.load(std::memory_order_relaxed);
  return tl::unexpected(queue_full(sends_.reserved() - retired, capacity_));
}

Result<Mlx5ManyDataPath::Place> Mlx5ManyDataPath::write(const Work& work) {
  if (!send_open_.load(std::memory_order_relaxed)) return tl::unexpected(not_connected());
  if (is_plain_put(work, limits_.max_message)) [[likely]] {
    const Result<std::uint64_t> at = reserve(1);
    if (!at) return tl::unexpected(at.error());
    SendRing::write_transfer(wqes_.block(*at), SendRing::with_index(put_word_, *at),
                             SendRing::flags_of(Signal::Yes), work.local[0], *work.remote);
    return Place{*at, 1, 1};
  }
  const Result<WorkPlan> planned = plan(work, limits_);
  if (!planned) return tl::unexpected(planned.error());
  if (planned->entries > capacity_) return tl::unexpected(never_fits(planned->entries, capacity_));
  const std::uint64_t blocks = blocks_needed(work, *planned, limits_);
  const Result<std::uint64_t> at = reserve(blocks);
  if (!at) return tl::unexpected(at.error());
  return write_at(*at, work, *planned, blocks);
}

Mlx5ManyDataPath::Place Mlx5ManyDataPath::write_at(std::uint64_t at, const Work& work,
                                                   const WorkPlan& planned, std::uint64_t blocks) {
  const bool silent = work.signal == Signal::No && (at & silence_mask_) + blocks > silence_mask_;
  const std::uint8_t flags = work.signal == Signal::Yes || silent ? mlx5::kCqUpdate : std::uint8_t{0};
  Place place{at, blocks, 0};
  std::uint64_t operation = 0;
  write_work(wqes_, at, work, planned, limits_.max_message, flags, [&](const Entry& entry) {
    // All entries of a split operation take as many blocks as it needs for one piece; the last may take more
    // or fewer, and gives the operation its number.
    if (entry.is_last) {
      place.last = entry.blocks;
      operation = entry.begin;
    }
    if (entry.blocks != 1 || planned.entries > 1 || silent) {
      note_at(entry.begin) = {entry.begin, 0, planned.bytes, entry.blocks, planned.entries > 1, silent};
    }
  });
  if (planned.entries > 1 || blocks != 1 || silent) {
    for (std::uint64_t begin = at; begin < at + blocks; begin += note_at(begin).blocks) {
      note_at(begin).operation = operation;
    }
  }
  return place;
}

Result<WrId> Mlx5ManyDataPath::enqueue(const Work& work) {
  const Result<Place> place = write(work);
  if (!place) return tl::unexpected(place.error());
  if (sends_.written(place->at, place->blocks, place->last)) ring();
  return place->id();
}

Result<WrId> Mlx5ManyDataPath::post(const Work& work) {
  const Result<Place> place = write(work);
  if (!place) return tl::unexpected(place.error());
  if (sends_.wanted(place->at, place->blocks, place->last)) ring();
  return place->id();
}

Result<WrId> Mlx5ManyDataPath::enqueue_puts(std::span<const Put> puts, Signal signal) {
  if (!send_open_.load(std::memory_order_relaxed)) return tl::unexpected(not_connected());
  const bool plain = std::all_of(puts.begin(), puts.end(), [&](const Put& put) {
    return put.l.size - 1 < limits_.max_message && put.l.size <= put.r.size;
  });
  const Result<Place> place = plain ? write_puts(puts, signal) : write_one_by_one(puts, signal);
  if (!place) return tl::unexpected(place.error());
  if (sends_.written(place->at, place->blocks, place->last)) ring();
  return place->id();
}

Result<Mlx5ManyDataPath::Place> Mlx5ManyDataPath::write_puts(std::span<const Put> puts, Signal signal) {
  const Result<std::uint64_t> at = reserve(puts.size());
  if (!at) return tl::unexpected(at.error());
  const std::uint64_t flags = SendRing::flags_of(signal);
  const std::uint64_t blocks = (wqes_.byte_mask + 1) >> mlx5::kBasicBlockShift;
  const std::size_t first = std::min(puts.size(), blocks - (*at & (blocks - 1)));
  PutRun run{wqes_.block(*at), *at, put_word_, flags, limits_.max_message};
  put_writer_(run, puts.first(first));
  if (first != puts.size()) {
    run.at = wqes_.ring;
    run.position += first;
    put_writer_(run, puts.subspan(first));
  }
  if (signal == Signal::No) make_room_at(*at, puts.size());
  return Place{*at, puts.size(), 1};
}

// Signals those of unsignaled one-block entries that end where a completion has to make room.
void Mlx5ManyDataPath::make_room_at(std::uint64_t begin, std::uint64_t blocks) {
  for (std::uint64_t at = begin | silence_mask_; at < begin + blocks; at += silence_mask_ + 1) {
    reinterpret_cast<mlx5::ControlSegment*>(wqes_.block(at))->fm_ce_se = mlx5::kCqUpdate;
    note_at(at) = {at, at, 0, 1, false, true};
  }
}

Result<Mlx5ManyDataPath::Place> Mlx5ManyDataPath::write_one_by_one(std::span<const Put> puts, Signal signal) {
  const Result<std::uint64_t> blocks = entries_of(puts, signal, limits_, capacity_);  // each takes one
  if (!blocks) return tl::unexpected(blocks.error());
  const Result<std::uint64_t> at = reserve(*blocks);
  if (!at) return tl::unexpected(at.error());
  Place last{*at, 0, 0};
  for (const Put& put : puts) {
    const Work work = put_work(put, signal);
    const WorkPlan planned = *plan(work, limits_);
    last = write_at(last.at + last.blocks, work, planned, planned.entries);
  }
  return Place{*at, *blocks, last.last};
}

void Mlx5ManyDataPath::ring() {
  sends_.ring([this](std::uint64_t from, std::uint64_t begin, std::uint64_t end) {
    // The NIC may run the WQE when it sees the record, and another thread may have its place before the
    // register is stored.
    alignas(mlx5::kBasicBlockSize) std::array<std::byte, kLongestWqe> wqe;
    for (std::uint64_t at = begin; at != end; ++at) {
      std::memcpy(wqe.data() + (at - begin) * mlx5::kBasicBlockSize, wqes_.block(at), mlx5::kBasicBlockSize);
    }
    bell_.ring_doorbell(from, begin, end, wqe.data());
  });
}

Result<void> Mlx5ManyDataPath::ring_doorbell() {
  if (sends_.want_all()) ring();
  return {};
}

Result<DoorBell> Mlx5ManyDataPath::doorbell() const {
  return tl::unexpected(
      Error(ErrorCode::unsupported, "a queue pair for many threads rings for itself: ring_doorbell()"));
}

Result<WrId> Mlx5ManyDataPath::receive(std::span<const RdmaBuffer> pieces) {
  if (!receive_open_.load(std::memory_order_relaxed)) return tl::unexpected(cannot_receive_yet());
  if (const std::optional<Error> error = check_receive(pieces, limits_)) return tl::unexpected(*error);
  const std::optional<std::uint64_t> at = receives_.reserve(1);
  if (!at) return tl::unexpected(receive_queue_full(receive_capacity_));
  write_receive(receive_ring_ + static_cast<std::size_t>(*at & receive_mask_) * receive_stride_,
                receive_slots_, pieces);
  if (receives_.wanted(*at, 1, 1)) {
    receives_.ring([this](std::uint64_t, std::uint64_t, std::uint64_t end) {
      mlx5::to_device_barrier();
      mlx5::store_record(receive_record_, static_cast<std::uint32_t>(end) & mlx5::kIndexMask);
    });
  }
  return WrId{*at};
}

// --- Completions ---

// False: consumed, but nothing to report. `retired` moves behind what it is about.
bool Mlx5ManyDataPath::finish_send(const mlx5::Cqe64& cqe, std::uint64_t& retired, IbvWc& wc) {
  wc = IbvWc{};
  wc.qp_num = wqes_.qp_num;
  wc.wr_id = kNoOperation;
  wc.status = IBV_WC_GENERAL_ERR;
  if (!is_of_send_queue(cqe)) return true;
  const std::uint64_t begin = retired + ((cqe.wqe_counter - retired) & mlx5::kIndexMask);
  if (begin >= sends_.rung()) return true;  // names no WQE under way
  const Note& found = note_at(begin);
  const Note note = found.position == begin ? found : Note{begin, begin};
  retired = begin + note.blocks;
  describe_send(cqe, note.part ? note.bytes : 0, wc);
  wc.wr_id = WrId{note.operation};
  if (mlx5::cqe_opcode(cqe.op_own) != mlx5::CqeOpcode::RequestError) return !note.silent;
  // A split operation fails once, with its first failure.
  if (!note.part) return true;
  return std::exchange(failed_part_, note.operation) != note.operation;
}

int Mlx5ManyDataPath::take_send(std::span<IbvWc> wcs) {
  const Turn turn(send_turn_);
  if (!turn.is_mine()) return 0;
  const std::uint64_t before = retired_.load(std::memory_order_relaxed);
  std::uint64_t retired = before;
  std::size_t taken = 0;
  while (taken != wcs.size() && send_completions_.is_written()) {
    mlx5::from_device_barrier();
    if (finish_send(*send_completions_.at(), retired, wcs[taken])) ++taken;
    send_completions_.done();
  }
  if (retired == before) return static_cast<int>(taken);
  // Room is given back when the CQEs are: with more work under way than there are free CQEs, the NIC would
  // write over one that is being read.
  retired_.store(retired, std::memory_order_release);
  if (send_open_.load(std::memory_order_relaxed)) sends_.allow(retired + capacity_);
  return static_cast<int>(taken);
}

void Mlx5ManyDataPath::finish_receive(const mlx5::Cqe64& cqe, std::uint64_t& received, IbvWc& wc) {
  wc = IbvWc{};
  wc.qp_num = wqes_.qp_num;
  describe_receive(cqe, wc);
  if (is_of_send_queue(cqe) || received == receives_.rung()) {
    wc.status = IBV_WC_GENERAL_ERR;  // nothing was posted that this could be
    return;
  }
  wc.wr_id = WrId{received++};
}

int Mlx5ManyDataPath::take_receive(std::span<IbvWc> wcs) {
  const Turn turn(receive_turn_);
  if (!turn.is_mine()) return 0;
  const std::uint64_t before = received_.load(std::memory_order_relaxed);
  std::uint64_t received = before;
  std::size_t taken = 0;
  while (taken != wcs.size() && receive_completions_.is_written()) {
    mlx5::from_device_barrier();
    finish_receive(*receive_completions_.at(), received, wcs[taken++]);
    receive_completions_.done();
  }
  if (received == before) return static_cast<int>(taken);
  received_.store(received, std::memory_order_release);
  if (receive_open_.load(std::memory_order_relaxed)) receives_.allow(received + receive_capacity_);
  return static_cast<int>(taken);
}

// What comes later in the life of an entry is read first, so that cq <= db <= wqe.
Counters Mlx5ManyDataPath::send_counters() const {
  Counters counters;
  counters.cq = retired_.load(std::memory_order_acquire);
  counters.db = sends_.rung();
  counters.wqe = sends_.reserved();
  return counters;
}

Counters Mlx5ManyDataPath::receive_counters() const {
  Counters counters;
  counters.cq = received_.load(std::memory_order_acquire);
  counters.db = receives_.rung();
  counters.wqe = receives_.reserved();
  return counters;
}

// Not of the data path: these wait for a thread that polls.
Result<void> Mlx5ManyDataPath::arm(PollTarget side, bool solicited_only) {
  if (side != PollTarget::Recv) {
    wait_for_turn(send_turn_);
    send_completions_.arm(solicited_only);
    send_turn_.store(false, std::memory_order_release);
  }
  if (side != PollTarget::Send) {
    wait_for_turn(receive_turn_);
    receive_completions_.arm(solicited_only);
    receive_turn_.store(false, std::memory_order_release);
  }
  return {};
}

void Mlx5ManyDataPath::event_taken(PollTarget side) {
  std::atomic<bool>& turn = side == PollTarget::Recv ? receive_turn_ : send_turn_;
  wait_for_turn(turn);
  (side == PollTarget::Recv ? receive_completions_ : send_completions_).event_taken();
  turn.store(false, std::memory_order_release);
}

}  // namespace qpair::detail
