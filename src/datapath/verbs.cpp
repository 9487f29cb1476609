#include "src/datapath/verbs.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace qpair::detail {

namespace {

using mlx5::Opcode;

ibv_wr_opcode request_opcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::RdmaWriteImm:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Opcode::RdmaRead:
      return IBV_WR_RDMA_READ;
    case Opcode::Send:
      return IBV_WR_SEND;
    case Opcode::SendImm:
      return IBV_WR_SEND_WITH_IMM;
    case Opcode::AtomicCompareSwap:
      return IBV_WR_ATOMIC_CMP_AND_SWP;
    case Opcode::AtomicFetchAdd:
      return IBV_WR_ATOMIC_FETCH_AND_ADD;
    default:
      return IBV_WR_RDMA_WRITE;
  }
}

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return IBV_WC_SEND;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_RDMA_WRITE;
  }
}

// errno of a post or poll as an error whose making does not allocate.
Error refused(const char* text, int reason) {
  const auto code = reason == ENOMEM ? ErrorCode::out_of_resources : ErrorCode::system;
  return {code, text, {static_cast<std::uint64_t>(reason)}};
}

}  // namespace

VerbsDataPath::VerbsDataPath(ibv_qp* qp, ibv_cq* send_cq, ibv_cq* receive_cq, const WorkLimits& limits,
                             std::uint32_t send_capacity, std::uint32_t receive_capacity)
    : qp_(qp),
      send_cq_(send_cq),
      receive_cq_(receive_cq),
      limits_(limits),
      receive_capacity_(receive_capacity),
      entries_(send_capacity),
      pieces_(std::size_t{send_capacity} * limits.max_send_sge),
      inline_(std::size_t{send_capacity} * limits.max_inline),
      receive_pieces_(limits.max_recv_sge),
      silent_(send_capacity) {}

void VerbsDataPath::open_receive() {
  receive_open_ = true;
}

void VerbsDataPath::open_send() {
  send_open_ = true;
}

void VerbsDataPath::reset() {
  send_open_ = receive_open_ = false;
  ibv_wc raw{};
  while (ibv_poll_cq(send_cq_, 1, &raw) > 0) {
  }
  while (ibv_poll_cq(receive_cq_, 1, &raw) > 0) {
  }
  send_counts_.db = send_counts_.cq = send_counts_.wqe;
  receive_counts_.db = receive_counts_.cq = receive_counts_.wqe;
}

std::span<ibv_sge> VerbsDataPath::pieces_of(std::uint64_t index) {
  return {pieces_.data() + static_cast<std::size_t>(index % entries_.size()) * limits_.max_send_sge,
          limits_.max_send_sge};
}

std::span<std::byte> VerbsDataPath::inline_of(std::uint64_t index) {
  return {inline_.data() + static_cast<std::size_t>(index % entries_.size()) * limits_.max_inline,
          limits_.max_inline};
}

// --- Posting ---

Result<WrId> VerbsDataPath::enqueue(const Work& work) {
  if (!send_open_) return tl::unexpected(not_connected());
  const Result<WorkPlan> planned = plan(work, limits_);
  if (!planned) return tl::unexpected(planned.error());
  if (planned->entries > entries_.size())
    return tl::unexpected(never_fits(planned->entries, entries_.size()));
  const std::uint64_t outstanding = send_counts_.wqe - send_counts_.cq;
  if (outstanding + planned->entries > entries_.size()) {
    return tl::unexpected(queue_full(outstanding, entries_.size()));
  }
  write(work, *planned);
  return WrId{send_counts_.wqe - 1};
}

Result<WrId> VerbsDataPath::enqueue_puts(std::span<const Put> puts, Signal signal) {
  if (!send_open_) return tl::unexpected(not_connected());
  const Result<std::uint64_t> entries = entries_of(puts, signal, limits_, entries_.size());
  if (!entries) return tl::unexpected(entries.error());
  const std::uint64_t outstanding = send_counts_.wqe - send_counts_.cq;
  if (outstanding + *entries > entries_.size()) {
    return tl::unexpected(queue_full(outstanding, entries_.size()));
  }
  for (const Put& put : puts) static_cast<void>(enqueue(put_work(put, signal)));
  return WrId{send_counts_.wqe - 1};
}

void VerbsDataPath::write(const Work& work, const WorkPlan& planned) {
  const std::uint64_t begin = send_counts_.wqe;
  const std::uint64_t last = begin + planned.entries - 1;
  const ibv_wr_opcode opcode = request_opcode(work.opcode);
  const ibv_wr_opcode leading = opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WR_RDMA_WRITE : opcode;
  PieceWalker walker(work.local);
  std::uint64_t done = 0;
  for (std::uint64_t index = begin; index <= last; ++index) {
    const std::uint64_t bytes = std::min<std::uint64_t>(planned.bytes - done, limits_.max_message);
    write_entry(work, index == last ? opcode : leading, done, bytes, walker);
    Entry& written = entry(index);
    written.operation = last;
    written.bytes = planned.bytes;
    written.part = planned.entries > 1;
    written.silent = false;
    done += bytes;
    ++send_counts_.wqe;
  }
  Entry& final_entry = entry(last);
  if (work.signal == Signal::Yes) {
    final_entry.request.send_flags |= IBV_SEND_SIGNALED;
  } else if (silent_.must_signal(begin, last + 1)) {
    final_entry.request.send_flags |= IBV_SEND_SIGNALED;
    final_entry.silent = true;
  }
}

void VerbsDataPath::write_entry(const Work& work, ibv_wr_opcode opcode, std::uint64_t remote_offset,
                                std::uint64_t bytes, PieceWalker& walker) {
  const std::uint64_t index = send_counts_.wqe;
  const std::span<ibv_sge> pieces = pieces_of(index);
  ibv_send_wr& request = entry(index).request;
  request = ibv_send_wr{};
  request.wr_id = index;
  request.opcode = opcode;
  request.sg_list = pieces.data();
  if (is_atomic(work.opcode)) {
    pieces[0] = {work.local[0].addr, 8, work.local[0].lkey};
    request.num_sge = 1;
    request.wr.atomic.remote_addr = work.remote->addr;
    request.wr.atomic.rkey = work.remote->rkey;
    const bool swap = opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    request.wr.atomic.compare_add = swap ? work.compare : work.swap_add;
    request.wr.atomic.swap = swap ? work.swap_add : 0;
    return;
  }
  if (work.remote != nullptr) {
    request.wr.rdma.remote_addr = work.remote->addr + remote_offset;
    request.wr.rdma.rkey = work.remote->rkey;
  }
  if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND_WITH_IMM)
    request.imm_data = htonl(work.imm);
  if (work.is_inline) {
    const std::span<std::byte> copy = inline_of(index);
    std::copy(work.inline_data.begin(), work.inline_data.end(), copy.begin());
    pieces[0] = {reinterpret_cast<std::uint64_t>(copy.data()), static_cast<std::uint32_t>(bytes), 0};
    request.num_sge = bytes == 0 ? 0 : 1;
    request.send_flags = IBV_SEND_INLINE;
    return;
  }
  std::size_t used = 0;
  walker.take(bytes, [&](std::uint32_t lkey, std::uint64_t address, std::uint32_t length) {
    pieces[used++] = {address, length, lkey};
  });
  request.num_sge = static_cast<int>(used);
}

Result<void> VerbsDataPath::ring_doorbell() {
  if (send_counts_.db == send_counts_.wqe) return {};
  for (std::uint64_t index = send_counts_.db; index + 1 < send_counts_.wqe; ++index) {
    entry(index).request.next = &entry(index + 1).request;
  }
  entry(send_counts_.wqe - 1).request.next = nullptr;
  ibv_send_wr* bad = nullptr;
  const int failure = ibv_post_send(qp_, &entry(send_counts_.db).request, &bad);
  if (failure == 0) {
    send_counts_.db = send_counts_.wqe;
    return {};
  }
  if (bad != nullptr) send_counts_.db = bad->wr_id;  // everything before it was taken
  return tl::unexpected(
      refused("the device refused the work request (errno {})", failure < 0 ? -failure : failure));
}

Result<WrId> VerbsDataPath::post(const Work& work) {
  const std::uint64_t before = send_counts_.wqe;
  Result<WrId> id = enqueue(work);
  if (!id) return id;
  const Result<void> rung = ring_doorbell();
  if (rung) return id;
  // Refused: unless the device has taken some of it already, this operation was never there.
  if (send_counts_.db <= before) send_counts_.wqe = before;
  return tl::unexpected(rung.error());
}

Result<DoorBell> VerbsDataPath::doorbell() const {
  return tl::unexpected(
      Error(ErrorCode::unsupported,
            "this device is not an mlx5: it has no doorbell to hand out; use ring_doorbell()"));
}

Result<WrId> VerbsDataPath::receive(std::span<const RdmaBuffer> pieces) {
  if (!receive_open_) return tl::unexpected(cannot_receive_yet());
  if (const std::optional<Error> error = check_receive(pieces, limits_)) return tl::unexpected(*error);
  if (receive_counts_.wqe - receive_counts_.cq >= receive_capacity_) {
    return tl::unexpected(receive_queue_full(receive_capacity_));
  }
  int used = 0;
  for (const RdmaBuffer& piece : pieces) {
    if (piece.size == 0) continue;
    receive_pieces_[static_cast<std::size_t>(used++)] = {piece.addr, static_cast<std::uint32_t>(piece.size),
                                                         piece.lkey};
  }
  ibv_recv_wr request{};
  request.wr_id = receive_counts_.wqe;
  request.sg_list = receive_pieces_.data();
  request.num_sge = used;
  ibv_recv_wr* bad = nullptr;
  if (const int failure = ibv_post_recv(qp_, &request, &bad); failure != 0) {
    return tl::unexpected(
        refused("the device refused the receive (errno {})", failure < 0 ? -failure : failure));
  }
  receive_counts_.db = ++receive_counts_.wqe;
  return WrId{request.wr_id};
}

// --- Completions ---

namespace {

IbvWc converted(const ibv_wc& raw) {
  IbvWc wc;
  wc.wr_id = WrId{raw.wr_id};
  wc.status = raw.status;
  wc.vendor_err = raw.vendor_err;
  wc.qp_num = raw.qp_num;
  if (raw.status != IBV_WC_SUCCESS) return wc;  // the rest is not valid then
  wc.opcode = raw.opcode;
  wc.byte_len = raw.byte_len;
  wc.wc_flags = raw.wc_flags;
  if ((raw.wc_flags & IBV_WC_WITH_IMM) != 0) wc.imm_data = ntohl(raw.imm_data);
  wc.src_qp = raw.src_qp;
  wc.pkey_index = raw.pkey_index;
  wc.slid = raw.slid;
  wc.sl = raw.sl;
  wc.dlid_path_bits = raw.dlid_path_bits;
  return wc;
}

}  // namespace

// False: nothing to report.
bool VerbsDataPath::finish_send(const ibv_wc& raw, IbvWc& wc) {
  wc = converted(raw);
  // Completions of a queue come in order; one that does not is not about work of this queue.
  if (raw.wr_id < send_counts_.cq || raw.wr_id >= send_counts_.db) {
    wc.status = IBV_WC_GENERAL_ERR;
    return true;
  }
  const Entry& done = entry(raw.wr_id);
  send_counts_.cq = raw.wr_id + 1;
  wc.wr_id = WrId{done.operation};
  wc.opcode = completion_opcode(done.request.opcode);
  if (!wc.is_valid()) {
    if (done.part) {
      if (failed_part_ == done.operation) return false;
      failed_part_ = done.operation;
    }
    return true;
  }
  if (done.silent) return false;
  // The immediate value is the receiver's: drivers set the flag here too, without the value.
  wc.wc_flags = wc.imm_data = 0;
  const bool brings_data =
      wc.opcode == IBV_WC_RDMA_READ || wc.opcode == IBV_WC_COMP_SWAP || wc.opcode == IBV_WC_FETCH_ADD;
  wc.byte_len = brings_data ? done.bytes : 0;
  return true;
}

int VerbsDataPath::take_send(std::span<IbvWc> wcs) {
  std::size_t taken = 0;
  while (taken != wcs.size()) {
    ibv_wc raw{};
    const int count = ibv_poll_cq(send_cq_, 1, &raw);
    if (count == 0) break;
    if (count < 0 && taken == 0) return -EIO;
    if (count < 0) break;  // what was taken is not to be lost; the next call tells
    if (finish_send(raw, wcs[taken])) ++taken;
  }
  return static_cast<int>(taken);
}

void VerbsDataPath::finish_receive(const ibv_wc& raw, IbvWc& wc) {
  wc = converted(raw);
  if (!wc.is_valid()) wc.opcode = IBV_WC_RECV;
  if (receive_counts_.cq < receive_counts_.wqe) ++receive_counts_.cq;
}

int VerbsDataPath::take_receive(std::span<IbvWc> wcs) {
  std::size_t taken = 0;
  while (taken != wcs.size()) {
    ibv_wc raw{};
    const int count = ibv_poll_cq(receive_cq_, 1, &raw);
    if (count == 0) break;
    if (count < 0 && taken == 0) return -EIO;
    if (count < 0) break;
    finish_receive(raw, wcs[taken++]);
  }
  return static_cast<int>(taken);
}

Counters VerbsDataPath::send_counters() const {
  return send_counts_;
}

Counters VerbsDataPath::receive_counters() const {
  return receive_counts_;
}

Result<void> VerbsDataPath::arm(PollTarget side, bool solicited_only) {
  for (const auto& [which, cq] :
       {std::pair{PollTarget::Send, send_cq_}, std::pair{PollTarget::Recv, receive_cq_}}) {
    if (side != PollTarget::Both && side != which) continue;
    if (const int failure = ibv_req_notify_cq(cq, solicited_only ? 1 : 0); failure != 0) {
      return tl::unexpected(refused("the device refused to arm the completion queue (errno {})", failure));
    }
  }
  return {};
}

void VerbsDataPath::event_taken(PollTarget) {}

}  // namespace qpair::detail
