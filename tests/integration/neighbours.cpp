// Bad neighbours: programs on the same machine that know all that there is to know (queue pair numbers,
// packet numbers, keys and addresses) and send whole, well-formed packets by sockets of their own. Nothing of
// it gets into a connection that is not theirs, and the connection goes on.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "qpair/qpair.hpp"
#include "softnic/roce/packet.hpp"
#include "tests/support/must.hpp"
#include "tests/support/peer_main.hpp"
#include "tests/support/peer_process.hpp"

namespace {

using qpair::MemoryRegion;
using qpair::RdmaBuffer;
using qpair::RdmaDomain;
using qpair::RdmaQpInfo;
using qpair::RdmaQueuePair;
using qpair::softnic::roce::Aeth;
using qpair::softnic::roce::NakCode;
using qpair::softnic::roce::Opcode;
using qpair::softnic::roce::PacketHeader;
using qpair::softnic::roce::PacketWriter;
using qpair::softnic::roce::Psn;
using qpair::softnic::wire::Endpoint;
using qpair::testing::Failed;
using qpair::testing::must;

using Bytes = std::vector<std::byte>;

constexpr std::size_t kSize = 256 << 10;
constexpr std::size_t kShared = 4096;  // what the two use; the rest is nobody's business

struct End {
  explicit End(int socket_) : socket(socket_) {}

  static qpair::IbverbsConfig config() {
    qpair::IbverbsConfig config;
    config.qp_timeout = 18;  // a peer that is stopped for a moment is not gone
    return config;
  }

  RdmaDomain domain = must(RdmaDomain::create(), "open the device");
  MemoryRegion memory = must(domain.allocate(kSize), "allocate");
  RdmaQueuePair queue_pair = must(RdmaQueuePair::create(domain, config()), "create the queue pair");
  int socket;
  RdmaBuffer remote;
  RdmaQpInfo mine, peer;

  void connect() {
    remote = must(qpair::exchange_value(socket, memory.buffer()), "exchange buffers");
    mine = must(queue_pair.get_qp_info(), "info");
    peer = must(qpair::exchange_qp_info(socket, mine), "exchange");
    must(queue_pair.connect(peer), "connect");
    must(qpair::exchange(socket, "connected"), "meet");
  }
  void complete(const char* what) {
    while (!must(queue_pair.poll_send_completion(), what)) {
    }
  }
  RdmaBuffer shared() const { return must(memory.buffer().slice(0, kShared), "slice"); }
  RdmaBuffer remote_shared() const { return must(remote.slice(0, kShared), "slice"); }
};

// The peer does as it is told, one letter at a time.
void be_the_peer(int socket) {
  End end(socket);
  std::ranges::fill(end.memory.bytes(), std::byte{0x77});
  end.connect();
  char order = 0;
  while (read(socket, &order, 1) == 1) {
    if (order == 'p') {
      must(end.queue_pair.put(end.shared(), end.remote_shared()), "put");
      end.complete("put");
      must(qpair::exchange(socket, "put"), "meet");
    } else {
      must(end.queue_pair.reset(), "reset");
      end.connect();
    }
  }
}

Endpoint endpoint_of(const RdmaQpInfo& info) {
  Endpoint endpoint;
  std::ranges::copy(info.gid.value().raw, endpoint.address.begin());
  endpoint.port = qpair::softnic::wire::kRoceUdpPort;
  return endpoint;
}

sockaddr_in to_sockaddr(const Endpoint& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  std::memcpy(&address.sin_addr, endpoint.address.data() + 12, sizeof address.sin_addr);
  return address;
}

// A socket of the neighbour's, bound to an address of its own. It may write another one on its packets, as
// every program on a machine may for addresses of that machine.
class Neighbour {
 public:
  explicit Neighbour(const Endpoint& own) : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = to_sockaddr(own);
    if (bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) throw Failed("bind");
    const int discover = IP_PMTUDISC_DO;
    setsockopt(fd_, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof discover);
  }
  ~Neighbour() { close(fd_); }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  void send(const Endpoint& claimed, const Endpoint& to, Bytes bytes) const {
    sockaddr_in address = to_sockaddr(to);
    iovec piece{bytes.data(), bytes.size()};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(in_pktinfo))]{};
    msghdr message{};
    message.msg_name = &address;
    message.msg_namelen = sizeof address;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_IP;
    header->cmsg_type = IP_PKTINFO;
    header->cmsg_len = CMSG_LEN(sizeof(in_pktinfo));
    in_pktinfo info{};
    info.ipi_spec_dst = to_sockaddr(claimed).sin_addr;
    std::memcpy(CMSG_DATA(header), &info, sizeof info);
    if (sendmsg(fd_, &message, 0) != static_cast<ssize_t>(bytes.size())) throw Failed("send");
  }

 private:
  int fd_;
};

// Packets of every kind for the victim's queue pair, with everything right but what a test makes wrong.
class Forger {
 public:
  Forger(const End& victim, const Endpoint& source)
      : source_(source),
        to_(endpoint_of(victim.mine)),
        qpn_(victim.mine.qp_num),
        target_(victim.memory.buffer()) {}

  std::vector<Bytes> requests(Psn psn) const {
    std::vector<Bytes> all;
    for (const Opcode opcode :
         {Opcode::WriteOnly, Opcode::WriteFirst, Opcode::WriteOnlyImm, Opcode::SendOnly,
          Opcode::SendOnlyInvalidate, Opcode::ReadRequest, Opcode::FetchAdd, Opcode::CompareSwap}) {
      const bool data =
          opcode != Opcode::ReadRequest && opcode != Opcode::FetchAdd && opcode != Opcode::CompareSwap;
      all.push_back(packet(opcode, psn, data ? 1024 : 0));
    }
    return all;
  }
  std::vector<Bytes> answers(Psn psn) const {
    std::vector<Bytes> all;
    for (const std::uint8_t syndrome :
         {Aeth::kAck, Aeth::rnr(0), Aeth::nak(NakCode::SequenceError), Aeth::nak(NakCode::InvalidRequest),
          Aeth::nak(NakCode::RemoteAccess), Aeth::nak(NakCode::RemoteOperation)}) {
      all.push_back(packet(Opcode::Acknowledge, psn, 0, syndrome));
    }
    for (const Opcode opcode : {Opcode::ReadResponseOnly, Opcode::ReadResponseFirst,
                                Opcode::ReadResponseMiddle, Opcode::ReadResponseLast}) {
      all.push_back(packet(opcode, psn, kShared));
    }
    all.push_back(packet(Opcode::AtomicAcknowledge, psn, 0));
    all.push_back(packet(Opcode::Reason, psn, 64));
    return all;
  }
  // No packet at all, or one that no queue pair takes.
  std::vector<Bytes> nonsense(Psn psn) const {
    std::vector<Bytes> all;
    const Bytes good = packet(Opcode::WriteOnly, psn, 1024);
    for (const std::size_t size : {0U, 1U, 11U, 12U, 15U, 16U, 27U, 31U, 1027U}) {
      all.emplace_back(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    }
    all.push_back(packet(Opcode::WriteOnly, psn + 1000, 20'000));  // in its turn it would end the connection
    // Of every opcode, and the CRC is not made right again.
    for (unsigned opcode = 0; opcode < 256; ++opcode) {
      Bytes damaged = good;
      damaged[0] = static_cast<std::byte>(opcode);
      damaged[40] ^= std::byte{1};
      all.push_back(std::move(damaged));
    }
    return all;
  }
  Bytes packet(Opcode opcode, Psn psn, std::size_t payload, std::uint8_t syndrome = Aeth::kAck) const {
    Bytes bytes(PacketWriter::size(opcode, payload));
    PacketHeader header;
    header.opcode = opcode;
    header.ack_request = true;
    header.destination_qpn = qpn_;
    header.psn = psn;
    PacketWriter writer(bytes, header, payload);
    writer.set_reth({target_.addr + kSize / 2, target_.rkey,
                     static_cast<std::uint32_t>(std::max<std::size_t>(payload, 8))});
    writer.set_atomic({target_.addr + kSize / 2, target_.rkey, 1, 0});
    writer.set_aeth({syndrome, 1});
    writer.set_atomic_original(0x6666);
    writer.set_invalidated_key(target_.rkey);
    std::ranges::fill(writer.payload(), std::byte{0x66});
    qpair::softnic::roce::set_icrc({source_, to_, bytes});
    return bytes;
  }

 private:
  Endpoint source_;
  Endpoint to_;
  std::uint32_t qpn_;
  RdmaBuffer target_;
};

Endpoint loopback(std::uint8_t b, std::uint8_t c, std::uint8_t d, std::uint16_t port = 4791) {
  Endpoint endpoint;
  endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, b, c, d};
  endpoint.port = port;
  return endpoint;
}

class Neighbours : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ranges::fill(victim_.memory.bytes(), std::byte{0x11});
    victim_.connect();
  }

  void order(char letter) { ASSERT_EQ(write(peer_.socket(), &letter, 1), 1); }

  // Until the NIC has seen what was sent to it by the network. The peer's packets need not come that way, and
  // would overtake it: then a number that was too high may be the right one.
  void let_packets_arrive() const {
    while (bytes_in_its_socket() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    constexpr const char* kReceived = "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets";
    const auto received = [] {
      std::string text;
      std::getline(std::ifstream(kReceived) >> std::ws, text);
      return text;
    };
    std::string before = received();
    ASSERT_NE(before, "");
    for (int quiet = 0; quiet < 3;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::string now = received();
      quiet = now == before ? quiet + 1 : 0;
      before = std::move(now);
    }
  }

  // What nobody has read yet, proc_net_udp(5).
  std::uint64_t bytes_in_its_socket() const {
    const Endpoint it = endpoint_of(victim_.mine);
    std::uint32_t address = 0;
    std::memcpy(&address, it.address.data() + 12, sizeof address);
    std::array<char, 16> wanted{};
    std::snprintf(wanted.data(), wanted.size(), "%08X:%04X", address, static_cast<unsigned>(it.port));
    std::ifstream sockets("/proc/net/udp");
    for (std::string line; std::getline(sockets, line);) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues;
      words >> slot >> local >> remote >> state >> queues;
      if (local == wanted.data()) return std::stoull(queues.substr(queues.find(':') + 1), nullptr, 16);
    }
    ADD_FAILURE() << "no socket " << wanted.data();
    return 0;
  }

  // Both ways, and nothing but what they agreed upon has changed.
  void expect_the_connection_works() {
    let_packets_arrive();
    order('p');
    must(qpair::exchange(peer_.socket(), "put"), "meet");
    const auto bytes = victim_.memory.bytes();
    EXPECT_TRUE(std::ranges::all_of(bytes.first(kShared), [](std::byte b) { return b == std::byte{0x77}; }));
    EXPECT_TRUE(std::ranges::all_of(bytes.subspan(kShared), [](std::byte b) { return b == std::byte{0x11}; }))
        << "something got in";
    must(victim_.queue_pair.put(victim_.shared(), victim_.remote_shared()), "put");
    victim_.complete("put");
    must(victim_.queue_pair.get(victim_.shared(), victim_.remote_shared()), "get");
    victim_.complete("get");
    EXPECT_EQ(must(victim_.queue_pair.state(), "state"), IBV_QPS_RTS);
  }

  // The victim's next expected packet number, and the one it sends next, as the peer knows them.
  Psn expected() const { return Psn(query().rq_psn); }
  Psn next() const { return Psn(query().sq_psn); }
  ibv_qp_attr query() const {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    EXPECT_EQ(ibv_query_qp(victim_.queue_pair.qp(), &attributes, IBV_QP_RQ_PSN | IBV_QP_SQ_PSN, &initial), 0);
    return attributes;
  }

  void send_all(const Neighbour& from, const Endpoint& claimed, const std::vector<Bytes>& packets) const {
    for (const Bytes& packet : packets) from.send(claimed, endpoint_of(victim_.mine), packet);
  }

  qpair::testing::PeerProcess peer_{"peer"};
  End victim_{peer_.socket()};
};

TEST_F(Neighbours, WhoIsNotThePeerIsNotHeardWhateverItKnows) {
  try {
    const Endpoint beside_the_peer = [&] {
      Endpoint endpoint = endpoint_of(victim_.peer);
      endpoint.port = 0;
      return endpoint;
    }();
    for (const Endpoint& own : {loopback(9, 9, 9), loopback(0, 0, 1, 0), beside_the_peer}) {
      const Neighbour neighbour(own);
      Endpoint signed_as = own;
      signed_as.port = 4791;  // what the invariant CRC is computed with
      const Forger forger(victim_, signed_as);
      send_all(neighbour, own, forger.requests(expected()));
      send_all(neighbour, own, forger.answers(next()));
    }
    expect_the_connection_works();
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

TEST_F(Neighbours, AnswersToWhatIsOutstandingAreThePeersAlone) {
  try {
    ASSERT_EQ(kill(peer_.pid(), SIGSTOP), 0);  // so that the neighbour is first
    ASSERT_EQ(waitpid(peer_.pid(), nullptr, WUNTRACED), peer_.pid());
    const Psn psn = next();
    must(victim_.queue_pair.get(victim_.shared(), victim_.remote_shared()), "get");
    const Neighbour neighbour(loopback(9, 9, 9));
    const Forger forger(victim_, loopback(9, 9, 9));
    for (int i = 0; i < 20; ++i) send_all(neighbour, loopback(9, 9, 9), forger.answers(psn));
    EXPECT_FALSE(must(victim_.queue_pair.poll_send_completion(), "poll"));
    ASSERT_EQ(kill(peer_.pid(), SIGCONT), 0);
    victim_.complete("get");
    EXPECT_TRUE(std::ranges::all_of(victim_.memory.bytes().first(kShared),
                                    [](std::byte b) { return b == std::byte{0x77}; }));
    expect_the_connection_works();
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

// The source address can be forged on one machine; then the packet number has to be guessed.
TEST_F(Neighbours, ForgedAddressesWithGuessedNumbersGetNothingIn) {
  try {
    const Endpoint claimed = endpoint_of(victim_.peer);
    const Neighbour neighbour(loopback(9, 9, 9));
    const Forger forger(victim_, claimed);
    for (const std::int32_t off : {-1, -2, -100, -100'000, 1, 2, 100, 4'000'000, 8'000'000}) {
      send_all(neighbour, claimed, forger.requests(expected() + static_cast<std::uint32_t>(off)));
      send_all(neighbour, claimed, forger.answers(next() + static_cast<std::uint32_t>(off)));
    }
    send_all(neighbour, claimed, forger.nonsense(expected()));
    expect_the_connection_works();
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

TEST_F(Neighbours, PacketsOfAnEarlierLifeAreStale) {
  try {
    expect_the_connection_works();
    const Endpoint claimed = endpoint_of(victim_.peer);
    const Forger before(victim_, claimed);
    const Psn expected_before = expected();
    const Psn next_before = next();
    order('r');
    must(victim_.queue_pair.reset(), "reset");
    victim_.connect();
    std::ranges::fill(victim_.memory.bytes(), std::byte{0x11});
    const Neighbour network(loopback(9, 9, 9));
    for (std::uint32_t i = 0; i < 64; ++i) {
      send_all(network, claimed, before.requests(expected_before + i));
      send_all(network, claimed, before.answers(next_before + i));
    }
    expect_the_connection_works();
  } catch (const Failed& failure) {
    FAIL() << failure.what();
  }
}

TEST_F(Neighbours, AnotherUserFindsNothingOpen) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const Endpoint here = endpoint_of(victim_.mine);
  const pid_t victim = getpid();
  const uid_t user = geteuid();
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(1);
    try {
      const Neighbour hijacker(here);
      _exit(2);  // it got the address
    } catch (const Failed&) {
    }
    std::error_code error;
    for (const char* base : {"/dev/shm", "/tmp"}) {
      std::filesystem::directory_iterator(std::string(base) + "/qpair-" + std::to_string(user), error);
      if (!error) _exit(3);
    }
    std::filesystem::directory_iterator("/proc/" + std::to_string(victim) + "/fd", error);
    _exit(error ? 0 : 4);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  expect_the_connection_works();
}

}  // namespace

int main(int count, char** arguments) {
  return qpair::testing::run_tests_or_peer(count, arguments,
                                           [](const std::string&, int socket) { be_the_peer(socket); });
}
