#include "softnic/nic/tracer.hpp"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "softnic/nic/guarded_memory.hpp"
#include "softnic/nic/id_table.hpp"
#include "softnic/nic/wqe_decode.hpp"
#include "softnic/roce/packet.hpp"
#include "softnic/wire/address.hpp"

namespace qpair::softnic::nic {
namespace {

using std::chrono::nanoseconds;

// A program that polls does so within microseconds; one that was told by an event, or is stopped, need not be
// watched so closely.
constexpr std::chrono::microseconds kLookOften{100};
constexpr std::chrono::milliseconds kLookSeldom{10};

// The format counts in microseconds.
double micros(Tracer::TimePoint when) {
  return static_cast<double>(nanoseconds(when.time_since_epoch()).count()) / 1000;
}
double micros(Tracer::Clock::duration time) {
  return static_cast<double>(nanoseconds(time).count()) / 1000;
}

// The same for the packet where it is sent and where it arrives: who sends it to whom, and which one
// (FNV-1a).
std::uint64_t flow_of(const wire::Frame& frame, std::uint32_t destination_qpn, std::uint32_t psn,
                      bool request) {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  const auto add = [&hash](const void* data, std::size_t size) {
    const auto* const bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x0000'0100'0000'01b3;
  };
  add(frame.source.address.data(), frame.source.address.size());
  add(frame.destination.address.data(), frame.destination.address.size());
  const std::uint64_t which =
      (std::uint64_t{destination_qpn} << 32U) | (std::uint64_t{psn} << 1U) | (request ? 1 : 0);
  add(&which, sizeof which);
  return hash;
}

std::string_view packet_name(const roce::Packet& packet) {
  if (packet.info().has(roce::OpcodeInfo::kAeth) && packet.payload().empty()) {
    const roce::Aeth aeth = packet.aeth();
    if (aeth.kind() == roce::AckKind::Rnr) return "RNR NAK";
    if (aeth.kind() == roce::AckKind::Nak) return "NAK";
  }
  return packet.info().name;
}

const char* type_name(ibv_qp_type type) {
  switch (type) {
    case IBV_QPT_RC:
      return "RC";
    case IBV_QPT_UC:
      return "UC";
    case IBV_QPT_UD:
      return "UD";
    case IBV_QPT_XRC_SEND:
      return "XRC send";
    case IBV_QPT_XRC_RECV:
      return "XRC receive";
    default:
      return "";
  }
}

std::string process_name() {
  std::ifstream comm("/proc/self/comm");
  std::string name;
  std::getline(comm, name);
  return observe::plain_text(name);
}

}  // namespace

Tracer::Tracer(std::unique_ptr<observe::TraceFile> file, const wire::Endpoint& local)
    : file_(std::move(file)), local_(local), pid_(::getpid()) {
  file_->line(R"({{"ph":"M","name":"process_name","pid":{},"tid":0,"args":{{"name":"{} {}"}}}})", pid_,
              process_name(), wire::to_string(local));
  file_->flush();
}

void Tracer::queue_pair_made(std::uint32_t qpn, ibv_qp_type type) {
  file_->line(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"QP {:#x} {}"}}}})", pid_,
              qpn, qpn, type_name(type));
}

// ---- The requester's queue ----------------------------------------------------------------------

void Tracer::doorbell(std::uint32_t qpn, std::uint16_t before, std::uint16_t now) {
  file_->line(
      R"({{"ph":"i","s":"t","cat":"wqe","name":"doorbell","pid":{},"tid":{},"ts":{:.3f},"args":{{"wqe":{},"next":{}}}}})",
      pid_, qpn, micros(Clock::now()), before, now);
}

void Tracer::fetched(std::uint32_t qpn, std::uint16_t wqe, mlx5::Opcode opcode, std::uint64_t bytes,
                     TimePoint begin) {
  const TimePoint end = Clock::now();
  const char* const name = opcode_name(opcode);
  file_->line(
      R"({{"ph":"X","cat":"wqe","name":"fetch","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"wqe":{},"opcode":"{}","bytes":{}}}}})",
      pid_, qpn, micros(begin), micros(end - begin), wqe, name, bytes);
  if (!open_spans_.insert(key(qpn, wqe)).second) span_ends(qpn, wqe);  // its end was not seen: a reset
  open_spans_.insert(key(qpn, wqe));
  file_->line(
      R"({{"ph":"b","cat":"wqe","name":"{} {} B","id":"{:#x}.{}.{}","pid":{},"tid":{},"ts":{:.3f},"args":{{"wqe":{}}}}})",
      name, bytes, qpn, wqe, pid_, pid_, qpn, micros(begin), wqe);
  file_->line(R"({{"ph":"s","cat":"wqe","name":"wqe","id":"{:#x}.{}.{}","pid":{},"tid":{},"ts":{:.3f}}})",
              qpn, wqe, pid_, pid_, qpn, micros(begin));
}

void Tracer::span_ends(std::uint32_t qpn, std::uint16_t wqe) {
  if (open_spans_.erase(key(qpn, wqe)) == 0) return;
  file_->line(R"({{"ph":"e","cat":"wqe","name":"","id":"{:#x}.{}.{}","pid":{},"tid":{},"ts":{:.3f}}})", qpn,
              wqe, pid_, pid_, qpn, micros(Clock::now()));
}

void Tracer::done_unsignaled(std::uint32_t qpn, std::uint16_t wqe) {
  instant("done, unsignaled", qpn, wqe);
  span_ends(qpn, wqe);
}

void Tracer::receive_taken(std::uint32_t qpn, std::uint16_t wqe) {
  instant("receive taken", qpn, wqe);
}

void Tracer::instant(const char* name, std::uint32_t qpn, std::uint16_t wqe) {
  file_->line(
      R"({{"ph":"i","s":"t","cat":"wqe","name":"{}","pid":{},"tid":{},"ts":{:.3f},"args":{{"wqe":{}}}}})",
      name, pid_, qpn, micros(Clock::now()), wqe);
}

// ---- Packets ------------------------------------------------------------------------------------

void Tracer::speaks(std::uint32_t qpn) {
  speaker_ = qpn;
  wqe_ = -1;
}

void Tracer::transmitting(std::uint16_t wqe) {
  wqe_ = wqe;
}

void Tracer::sent(const wire::Frame& frame, TimePoint begin) {
  packet("sent", "s", speaker_, frame, begin);
}

void Tracer::received(const wire::Frame& frame, TimePoint begin) {
  const auto packet_in = roce::Packet::parse(frame.bytes);
  if (packet_in) packet("received", "f", packet_in->destination_qpn(), frame, begin);
}

void Tracer::packet(const char* direction, const char* flow, std::uint32_t qpn, const wire::Frame& frame,
                    TimePoint begin) {
  const auto what = roce::Packet::parse(frame.bytes);
  if (!what) return;
  const double start = micros(begin);
  const bool request = what->info().has(roce::OpcodeInfo::kRequest);
  const bool of_wqe = *flow == 's' && request && wqe_ >= 0;
  file_->line(
      R"({{"ph":"X","cat":"packet","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"direction":"{}","psn":{},"bytes":{},"destination_qpn":{},"wqe":{}}}}})",
      packet_name(*what), pid_, qpn, start, micros(Clock::now() - begin), direction, what->psn(),
      what->payload().size(), what->destination_qpn(), of_wqe ? wqe_ : -1);
  file_->line(R"({{"ph":"{}",{}"cat":"packet","name":"packet","id":"{:#x}","pid":{},"tid":{},"ts":{:.3f}}})",
              flow, *flow == 'f' ? R"("bp":"e",)" : "",
              flow_of(frame, what->destination_qpn(), what->psn(), request), pid_, qpn, start);
  if (of_wqe) {
    file_->line(R"({{"ph":"t","cat":"wqe","name":"wqe","id":"{:#x}.{}.{}","pid":{},"tid":{},"ts":{:.3f}}})",
                qpn, wqe_, pid_, pid_, qpn, start);
  }
}

void Tracer::timeout(std::uint32_t qpn) {
  file_->line(R"({{"ph":"i","s":"t","cat":"packet","name":"ACK timeout","pid":{},"tid":{},"ts":{:.3f}}})",
              pid_, qpn, micros(Clock::now()));
}

// ---- Completions --------------------------------------------------------------------------------

void Tracer::completed(const mlx5::Cqe64& cqe, const Completion& where) {
  const std::uint32_t qpn = std::uint32_t{cqe.sop_drop_qpn} & kIdMask;
  const std::uint16_t wqe = cqe.wqe_counter;
  const mlx5::CqeOpcode opcode = mlx5::cqe_opcode(cqe.op_own);
  const bool error = opcode == mlx5::CqeOpcode::RequestError || opcode == mlx5::CqeOpcode::ResponderError;
  const bool receive = opcode != mlx5::CqeOpcode::Request && opcode != mlx5::CqeOpcode::RequestError;
  file_->line(
      R"({{"ph":"X","cat":"wqe","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"queue":"{}","wqe":{},"cqn":{},"entry":{}}}}})",
      error ? "error CQE" : "CQE", pid_, qpn, micros(where.begin), micros(Clock::now() - where.begin),
      receive ? "receive" : "send", wqe, where.cqn, where.index);
  if (!receive && open_spans_.contains(key(qpn, wqe))) {
    file_->line(
        R"({{"ph":"f","bp":"e","cat":"wqe","name":"wqe","id":"{:#x}.{}.{}","pid":{},"tid":{},"ts":{:.3f}}})",
        qpn, wqe, pid_, pid_, qpn, micros(where.begin));
    span_ends(qpn, wqe);
  }
  Queue& queue = unpolled_[where.cqn];
  queue.consumer_record = where.consumer_record;
  queue.entries.push_back({qpn, where.index, wqe, receive, Clock::now()});
  last_completion_ = Clock::now();
}

void Tracer::look_for_polls() {
  for (auto at = unpolled_.begin(); at != unpolled_.end();) {
    Queue& queue = at->second;
    std::uint32_t raw = 0;
    if (!guarded_load32(reinterpret_cast<const void*>(queue.consumer_record), raw)) queue.entries.clear();
    const std::uint32_t consumer = mlx5::byte_swap(raw) & kIdMask;
    while (!queue.entries.empty()) {
      const Unpolled& entry = queue.entries.front();
      const std::uint32_t ahead = (consumer - entry.index) & kIdMask;
      if (ahead == 0 || ahead > kIdMask / 2) break;
      const TimePoint now = Clock::now();
      file_->line(
          R"({{"ph":"i","s":"t","cat":"wqe","name":"poll","pid":{},"tid":{},"ts":{:.3f},"args":{{"queue":"{}","wqe":{},"after":{:.3f}}}}})",
          pid_, entry.qpn, micros(now), entry.receive ? "receive" : "send", entry.wqe,
          micros(now - entry.when));
      queue.entries.pop_front();
    }
    at = queue.entries.empty() ? unpolled_.erase(at) : std::next(at);
  }
}

Tracer::TimePoint Tracer::deadline() const {
  if (unpolled_.empty()) return TimePoint::max();
  const TimePoint now = Clock::now();
  return now - last_completion_ < kLookSeldom ? now + kLookOften : now + kLookSeldom;
}

void Tracer::round_over(bool idle) {
  if (!unpolled_.empty()) look_for_polls();
  if (idle || file_->is_nearly_full()) file_->flush();
}

// ---- The link -----------------------------------------------------------------------------------

std::span<std::byte> TracedLink::reserve(const wire::Endpoint& destination, std::size_t size) {
  began_ = Tracer::Clock::now();
  open_ = {inner_->local(), destination, inner_->reserve(destination, size)};
  return open_.bytes;
}

void TracedLink::commit() {
  tracer_.sent(open_, began_);
  inner_->commit();
}

std::size_t TracedLink::poll(const Receiver& receiver, std::size_t limit, wire::TimePoint now) {
  const auto trace_and_deliver = [&](const wire::Frame& frame) {
    const Tracer::TimePoint began = Tracer::Clock::now();
    receiver(frame);
    tracer_.received(frame, began);
  };
  // By reference: so many captures would not fit in a std::function without memory of its own.
  return inner_->poll(std::cref(trace_and_deliver), limit, now);
}

}  // namespace qpair::softnic::nic
