// Any management datagrams, commands and pauses: a connection manager never crashes, answers a datagram with
// at most two, makes no more identifiers than its programs have room for, tells of each conversation a few
// things and no more, and has nothing left to do when its identifiers are gone.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "softnic/cm/manager.hpp"
#include "softnic/wire/address.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using namespace qpair;
using namespace qpair::softnic;
using namespace qpair::softnic::cm;

using qpair::fuzz::Input;
using qpair::fuzz::require;

constexpr std::size_t kMaxIds = 16;
constexpr int kBacklog = 4;
constexpr std::uint16_t kPort = 7471;

wire::Endpoint host(std::uint8_t number) {
  wire::Endpoint endpoint;
  endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 71, 0, number};
  endpoint.port = wire::kRoceUdpPort;
  return endpoint;
}

// The datagrams that left, the latest of them kept for the peer to answer.
class Outbox final : public nic::MadSender {
 public:
  std::size_t sent = 0;
  std::deque<Mad> latest;
  void send(const wire::Endpoint&, nic::MadView mad) override {
    require(Header::parse(mad).has_value());
    ++sent;
    latest.emplace_back();
    std::ranges::copy(mad, latest.back().begin());
    if (latest.size() > 8) latest.pop_front();
  }
};

struct Program;

// An identifier and who hears of it.
struct Handle final : Consumer {
  explicit Handle(Program& of) : program(of) {}
  void happened(Event event) override;
  bool has_room() override;

  Program& program;
  std::unique_ptr<Id> id;
  int backlog = 0;
  unsigned told = 0;  // since its program last said something
};

struct Program {
  std::vector<std::unique_ptr<Handle>> handles;
  std::vector<std::pair<Handle*, std::unique_ptr<Id>>> requests;  // not looked at yet
};

void Handle::happened(Event event) {
  ++told;
  if (!event.request) return;
  require(event.type == EventType::ConnectRequest && --backlog >= 0);
  program.requests.emplace_back(this, std::move(event.request));
  told = 0;
}

bool Handle::has_room() {
  return backlog > 0;
}

class Script {
 public:
  explicit Script(Input& in)
      : in_(in),
        manager_(outbox_,
                 Port{.address = host(1),
                      .gid = host(1).address,
                      .gid_index = 3,
                      .infiniband = in.byte() % 4 == 0,
                      .node_guid = kOwnGuid,
                      .mtu = 5,
                      .ack_delay = 16},
                 in.byte()) {}

  void run() {
    while (!in_.empty()) {
      step();
      // What a peer and time can tell about one conversation ends.
      for (const auto& handle : program_.handles) require(handle->told <= kMostEvents);
    }
    program_.requests.clear();
    program_.handles.clear();
    require(manager_.deadline() == TimePoint::max());
    const std::size_t before = outbox_.sent;
    manager_.expire(now_ + std::chrono::hours(10'000));
    require(outbox_.sent == before);
  }

 private:
  static constexpr std::uint64_t kOwnGuid = 0x1111;
  static constexpr std::uint64_t kPeerGuid = 0x2222;
  static constexpr unsigned kMostEvents = 6;

  void step() {
    switch (in_.byte() % 8) {
      case 0: {
        Mad mad{};
        in_.bytes(mad.data(), mad.size());
        arrive(mad);
        break;
      }
      case 1:
      case 2:
      case 3:
        arrive(plausible());
        break;
      case 4:
        take_request();
        break;
      case 5: {
        const std::uint8_t pause = in_.byte();
        const TimePoint deadline = manager_.deadline();
        now_ = pause < 128 && deadline != TimePoint::max() ? std::max(now_, deadline)
                                                           : now_ + std::chrono::milliseconds(in_.word());
        const std::size_t before = outbox_.sent;
        manager_.expire(now_);
        require(outbox_.sent - before <= ids());
        break;
      }
      default:
        command();
        break;
    }
  }

  std::size_t ids() const { return program_.handles.size() + program_.requests.size(); }

  void arrive(const Mad& mad) {
    const std::uint8_t from = in_.byte();
    const std::size_t before = outbox_.sent;
    const std::size_t had = ids();
    manager_.receive(mad, host(from < 224 ? 2 : from % 4), now_);
    require(outbox_.sent - before <= 2);
    require(ids() - had <= 1);
  }

  // ---- Datagrams of a peer that knows what was said before

  // An identifier of ours: mostly one that exists.
  std::uint32_t our_id() {
    const std::uint8_t which = in_.byte();
    if (which >= 240) return in_.word();
    if (which < 80 && !outbox_.latest.empty())
      return Note::parse(outbox_.latest[which % outbox_.latest.size()]).local_id;
    if (program_.handles.empty()) return 0;
    const Connection* const said = program_.handles[which % program_.handles.size()]->id->conversation();
    return said != nullptr ? said->local_id() : 0;
  }

  template <std::size_t size>
  void add_addresses(PrivateData<size>& data) {
    const std::uint8_t what = in_.byte();
    IpHeader header{.source_port = 1000, .source = host(2).address, .destination = host(1).address};
    if (what >= 200) header.destination[what % 16] = in_.byte();
    header.emit(std::span(data).template first<IpHeader::kSize>());
    if (what >= 240) data[what % size] = in_.byte();
  }

  std::uint64_t service() {
    const std::uint8_t what = in_.byte();
    const auto port = static_cast<std::uint16_t>(kPort + (what < 200 ? 0 : what % 4));
    return service_id(what % 2 != 0 ? PortSpace::Tcp : PortSpace::Udp, port);
  }

  Mad plausible() {
    const std::uint8_t kind = in_.byte();
    const std::uint64_t transaction = in_.byte();
    Mad mad = message(static_cast<Attribute>(0x10 + kind % 9), transaction);
    if (kind >= 200) mad[in_.byte()] = std::byte{in_.byte()};
    return mad;
  }

  Mad message(Attribute attribute, std::uint64_t transaction) {
    const std::uint32_t theirs = in_.byte() % 16;
    switch (attribute) {
      case Attribute::Req: {
        Req req{.local_id = theirs, .service_id = service(), .ca_guid = kPeerGuid};
        req.qpn = in_.byte();
        req.local_response_timeout = in_.byte() % 32;
        req.ack_timeout = in_.byte() % 32;
        req.max_cm_retries = in_.byte() % 16;
        req.local_gid = host(2).address;
        add_addresses(req.private_data);
        return req.emit(transaction);
      }
      case Attribute::Mra:
        return Mra{.local_id = theirs,
                   .remote_id = our_id(),
                   .message = static_cast<Message>(in_.byte() % 3),
                   .service_timeout = static_cast<std::uint8_t>(in_.byte() % 32)}
            .emit(transaction);
      case Attribute::Rej:
        return Rej{.local_id = theirs,
                   .remote_id = our_id(),
                   .message = static_cast<Message>(in_.byte() % 3),
                   .reason = in_.byte()}
            .emit(transaction);
      case Attribute::Rep: {
        Rep rep{.local_id = theirs, .remote_id = our_id(), .ca_guid = kPeerGuid};
        rep.qpn = in_.byte();
        rep.target_ack_delay = in_.byte() % 32;
        return rep.emit(transaction);
      }
      case Attribute::Dreq:
        return Dreq{.local_id = theirs, .remote_id = our_id(), .remote_qpn = in_.byte()}.emit(transaction);
      case Attribute::SidrReq: {
        SidrReq req{.request_id = theirs, .service_id = service()};
        add_addresses(req.private_data);
        return req.emit(transaction);
      }
      case Attribute::SidrRep: {
        SidrRep rep{.request_id = our_id(), .status = static_cast<std::uint8_t>(in_.byte() % 3)};
        return rep.emit(transaction);
      }
      case Attribute::Rtu:
      case Attribute::Drep:
        break;
    }
    return Note{.local_id = theirs, .remote_id = our_id()}.emit(attribute, transaction);
  }

  // ---- Commands of the programs

  Handle& add(std::unique_ptr<Id> id) {
    auto handle = std::make_unique<Handle>(program_);
    handle->id = std::move(id);
    handle->id->set_consumer(handle.get());
    return *program_.handles.emplace_back(std::move(handle));
  }

  void make_id(std::uint8_t what) {
    if (ids() >= kMaxIds) return;
    const bool datagram = what % 2 == 0;
    Handle& handle = add(std::make_unique<Id>(manager_, datagram ? PortSpace::Udp : PortSpace::Tcp,
                                              static_cast<std::uint8_t>(datagram ? IBV_QPT_UD : IBV_QPT_RC)));
    Address own = Address::any(AF_INET);
    if (what % 4 < 2) own = Address::of(host(1), kPort);
    own.port = kPort;
    handle.id->bind(own, nullptr);
    if (what % 8 < 4) {
      handle.backlog = kBacklog;
      handle.id->listen();
      return;
    }
    handle.id->resolve_address(Address::of(host(2), kPort), host(2), what < 240 ? 0 : what);
    handle.id->resolve_route();
    if (what >= 64) connect(handle);
  }

  void connect(Handle& handle) {
    rdma_ucm_conn_param parameters{};
    parameters.qp_num = in_.byte();
    parameters.private_data_len = in_.byte();
    handle.id->connect(parameters, {}, host(2), now_);
  }

  void take_request() {
    if (program_.requests.empty()) return;
    auto [listener, id] = std::move(program_.requests.back());
    program_.requests.pop_back();
    ++listener->backlog;
    if (ids() < kMaxIds) add(std::move(id));
  }

  // An identifier that listens takes the requests that wait with it.
  void destroy(std::size_t at) {
    Handle* const handle = program_.handles[at].get();
    std::erase_if(program_.requests, [&](const auto& request) { return request.first == handle; });
    program_.handles.erase(program_.handles.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void command() {
    const std::uint8_t what = in_.byte();
    if (what < 64 || program_.handles.empty()) return make_id(in_.byte());
    const std::size_t at = in_.byte() % program_.handles.size();
    Handle& handle = *program_.handles[at];
    Id& id = *handle.id;
    handle.told = 0;
    rdma_ucm_conn_param parameters{};
    parameters.qp_num = 5;
    switch (what % 10) {
      case 0:
        return connect(handle);
      case 1:
      case 2:
        parameters.private_data_len = in_.byte();
        id.accept(parameters, {}, now_);
        return;
      case 3:
        id.establish(now_);
        return;
      case 4: {
        const std::array<std::uint8_t, 255> said{};
        id.reject(28, std::span(said).first(in_.byte()), now_);
        return;
      }
      case 5:
        id.disconnect(now_);
        return;
      case 6:
        id.notify(in_.byte() < 200 ? IBV_EVENT_COMM_EST : IBV_EVENT_PATH_MIG, now_);
        return;
      case 7: {
        ib_uverbs_qp_attr attributes{};
        attributes.qp_state = in_.byte() % 8;
        id.init_qp_attr(attributes);
        return;
      }
      case 8: {
        Event event;
        id.set_ack_timeout(in_.byte() % 32);
        id.join(Address::of(host(in_.byte()), 0), event);
        return;
      }
      default:
        return destroy(at);
    }
  }

  Input& in_;
  TimePoint now_ = TimePoint{} + std::chrono::hours(1);
  Outbox outbox_;
  Manager manager_;
  Program program_;  // goes before the manager
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, std::min<std::size_t>(size, 4096));
  Script(in).run();
  return 0;
}
